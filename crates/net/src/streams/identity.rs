//! Who is at the other end of a data stream: certificates that are made for one connection, and exchanged through ssh.
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    ServerConfig, SignatureScheme,
};
use std::io;
use std::sync::Arc;

/// The name in the certificates. Nobody compares it: certificates are compared as a whole.
const NAME: &str = "dmover";

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
        let provider = Arc::new(provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?;
        let mut config = config
            .dangerous()
            .with_custom_certificate_verifier(Known::only(peer, provider))
            .with_client_auth_cert(vec![self.certificate], self.key)
            .map_err(io::Error::other)?;
        // Each stream proves anew who it is.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// For the side that listens.
    ///
    /// # Errors
    /// The certificate cannot be used.
    pub fn server(self, peer: Vec<u8>) -> io::Result<Arc<ServerConfig>> {
        let provider = Arc::new(provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?;
        let mut config = config
            .with_client_cert_verifier(Known::only(peer, provider))
            .with_single_cert(vec![self.certificate], self.key)
            .map_err(io::Error::other)?;
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// The name for which a side connects.
pub(super) fn name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("it is a name of DNS")
}

/// AES with keys of 128 bits first where the processor has instructions for it: it has fewer rounds than with 256.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    let first = if has_aes() {
        CipherSuite::TLS13_AES_128_GCM_SHA256
    } else {
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
    };
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != first);
    provider
}

fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("aes")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        cfg!(target_feature = "aes")
    }
}

/// Accepts one certificate, whatever its name and its dates, from whoever has its key: it was made for this connection, so
/// clocks do not matter.
#[derive(Debug)]
struct Known {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Known {
    fn only(certificate: Vec<u8>, provider: Arc<CryptoProvider>) -> Arc<Self> {
        Arc::new(Self { certificate: certificate.into(), provider })
    }

    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        if *shown == self.certificate {
            return Ok(());
        }
        tracing::warn!("refused a data stream: its certificate is not that of this connection");
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// TLS 1.2 is not spoken.
fn too_old() -> Error {
    Error::General("TLS 1.2 is not accepted".into())
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Known {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(too_old())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
