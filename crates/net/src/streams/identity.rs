//! Who is at the other end of a data stream: certificates that are made for one connection, and exchanged through ssh.
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::{CertificateError, ClientConfig, Error, ServerConfig};
use std::io;
use std::sync::Arc;

use crate::tls::{self, Judge, NAME};

/// The key and the certificate of one side.
pub(super) struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Makes a key that only this process has.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn make() -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
        let made = made.map_err(io::Error::other)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self { certificate: made.cert.der().clone(), key: key.into() })
    }

    /// What the other side has to know.
    pub fn certificate(&self) -> Vec<u8> {
        self.certificate.to_vec()
    }

    /// For the side that connects. `peer`: the certificate of the other side.
    ///
    /// # Errors
    /// The certificate cannot be used.
    pub fn client(self, peer: Vec<u8>) -> io::Result<Arc<ClientConfig>> {
        tls::client(self.certificate, self.key, Known(peer.into()))
    }

    /// For the side that listens.
    ///
    /// # Errors
    /// The certificate cannot be used.
    pub fn server(self, peer: Vec<u8>) -> io::Result<Arc<ServerConfig>> {
        tls::server(self.certificate, self.key, Known(peer.into()))
    }
}

/// Accepts one certificate, whatever its name and its dates: it was made for this connection, so clocks do not matter.
#[derive(Debug)]
struct Known(CertificateDer<'static>);

impl Judge for Known {
    fn judge(&self, shown: &CertificateDer<'_>, _: UnixTime) -> Result<(), Error> {
        if *shown == self.0 {
            return Ok(());
        }
        tracing::warn!("refused a data stream: its certificate is not that of this connection");
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }
}
