//! Agents that listen for themselves, without ssh: how both sides of a connection prove who they are.
//!
//! Each side has an identity that lasts: a key and a certificate in one file. Each side knows the other one by the
//! [`Fingerprint`] of its certificate, as ssh does by keys: the agent by its configuration, and who connects by a list of
//! known agents. TLS 1.3 carries the greetings, and everything else that ssh would.
mod accept;
mod connect;
mod fingerprint;
mod identity;
mod known;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use accept::{Accepted, NotAccepted, accept};
pub use connect::{Credentials, KnownAs, seen_at};
pub use fingerprint::Fingerprint;
pub use identity::Identity;
pub use known::KnownAgents;

pub(crate) use connect::connect;

use crate::tls::{self, Judge};

/// How long the handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// What each side sends first: what the connection is for, and the version of that.
const WORDS: [u8; 8] = *b"agent\x01\0\0";

/// Accepts certificates by their fingerprints, within the time that they name.
#[derive(Debug)]
struct Pinned {
    /// `None`: whatever is shown.
    accepted: Option<Vec<Fingerprint>>,
    /// What the other side has shown.
    shown: Arc<OnceLock<Fingerprint>>,
}

impl Judge for Pinned {
    fn judge(&self, shown: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
        let fingerprint = Fingerprint::of(shown);
        let _ = self.shown.set(fingerprint);
        if self.accepted.as_ref().is_some_and(|accepted| !accepted.contains(&fingerprint)) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        is_valid(shown, now)
    }
}

/// Whether a certificate signs itself, and is valid at this time.
fn is_valid(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let mut itself = RootCertStore::empty();
    itself.add(certificate.clone().into_owned())?;
    let algorithms = tls::provider().signature_verification_algorithms.all;
    rustls::client::verify_server_cert_signed_by_trust_anchor(
        &parsed,
        &itself,
        &[],
        now,
        algorithms,
    )
}

/// Why a certificate is not valid, for people.
fn why_invalid(error: &Error) -> String {
    let day = |time: &UnixTime| {
        let seconds = i64::try_from(time.as_secs()).ok();
        let time = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        time.map_or_else(|| "an unknown time".into(), |time| time.to_string())
    };
    match error {
        Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }) => {
            format!("it has expired at {}, and the clock here shows {}", day(not_after), day(time))
        }
        Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before }) => {
            format!("it is valid from {}, and the clock here shows {}", day(not_before), day(time))
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
