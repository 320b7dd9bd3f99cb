//! The key and the certificate of an agent, or of who connects to agents.
use dmover_model::Fatal;
use dmover_schedule::time::since_1970;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::io;
use std::time::Duration;

use super::{Fingerprint, is_valid, why_invalid};
use crate::tls::NAME;

/// How long before now a certificate becomes valid: clocks of other hosts may be behind.
const BEFORE: Duration = Duration::from_hours(24);

/// The key and the certificate of one side.
#[derive(Debug)]
pub struct Identity {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// The text of a new one, in PEM: a key and a certificate that is valid for so long.
    ///
    /// # Errors
    /// The kernel has no random numbers, or the time is out of range.
    pub fn make(valid_for: Duration) -> io::Result<String> {
        let mut wanted =
            rcgen::CertificateParams::new([NAME.to_owned()]).map_err(io::Error::other)?;
        let now = std::time::UNIX_EPOCH + since_1970();
        let end = now.checked_add(valid_for).ok_or(io::ErrorKind::InvalidInput)?;
        wanted.not_before = (now - BEFORE).into();
        wanted.not_after = end.into();
        let key = rcgen::KeyPair::generate().map_err(io::Error::other)?;
        let made = wanted.self_signed(&key).map_err(io::Error::other)?;
        Ok(key.serialize_pem() + &made.pem())
    }

    /// Reads what [`Self::make`] has made. `what`: the file, for messages.
    ///
    /// # Errors
    /// A refusal: it has no key or no certificate.
    pub fn parse(text: &str, what: &str) -> Result<Self, Fatal> {
        let refused = |why: String| {
            Fatal::refused(
                format!("{what} {why}"),
                "make one by 'dmover agent --make-identity', which does not replace a file",
            )
        };
        let certificate = CertificateDer::from_pem_slice(text.as_bytes())
            .map_err(|error| refused(format!("has no certificate: {error}")))?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| refused(format!("has no key: {error}")))?;
        Ok(Self { certificate, key })
    }

    /// What the other side knows it by.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// Why it cannot be used now; `None`: it can.
    pub fn why_invalid(&self) -> Option<String> {
        is_valid(&self.certificate, UnixTime::now()).err().map(|error| why_invalid(&error))
    }
}
