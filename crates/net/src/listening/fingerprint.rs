//! What certificates are known by.
use rustls::pki_types::CertificateDer;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// The SHA-256 of a certificate (DER), written as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Fingerprint([u8; 32]);

const ALGORITHM: &str = "sha256";

impl Fingerprint {
    /// Its first 16 hexadecimal digits, for names of directories.
    pub fn short(&self) -> String {
        self.0[..8].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
    }

    /// That of a certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    /// Also accepts what openssl-x509(1) prints (`sha256 Fingerprint=AB:CD:…`), and the digits alone.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no fingerprint: sha256: and 64 hexadecimal digits");
        let lower = text.trim().to_ascii_lowercase();
        let rest = lower.strip_prefix(ALGORITHM).unwrap_or(&lower);
        let digits = rest.strip_prefix(" fingerprint=").unwrap_or(rest);
        let digits: Vec<u32> = digits
            .chars()
            .filter(|digit| *digit != ':')
            .map(|digit| digit.to_digit(16))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8))
            .collect();
        if digits.len() != 64 {
            return Err(wrong());
        }
        bytes.try_into().map(Self).map_err(|_| wrong())
    }
}
