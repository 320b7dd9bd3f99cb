//! What all connections with TLS have in common: its version, its ciphers, and how a side shows who it is.
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// The name in the certificates. Nobody compares it: certificates are compared as a whole.
pub(crate) const NAME: &str = "dmover";

/// The name for which a side connects.
pub(crate) fn name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("it is a name of DNS")
}

/// Decides which certificates are accepted, from whoever has their key.
pub(crate) trait Judge: Debug + Send + Sync + 'static {
    /// # Errors
    /// It is not accepted.
    fn judge(&self, shown: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error>;
}

/// For the side that connects.
///
/// # Errors
/// The certificate cannot be used.
pub(crate) fn client(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    judge: impl Judge,
) -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?;
    let mut config = config
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { judge, provider }))
        .with_client_auth_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    // Each connection proves anew who it is.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// For the side that listens.
///
/// # Errors
/// The certificate cannot be used.
pub(crate) fn server(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    judge: impl Judge,
) -> io::Result<Arc<ServerConfig>> {
    let provider = Arc::new(provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?;
    let mut config = config
        .with_client_cert_verifier(Arc::new(Verifier { judge, provider }))
        .with_single_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// AES with keys of 128 bits first where the processor has instructions for it: it has fewer rounds than with 256.
pub(crate) fn provider() -> CryptoProvider {
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

#[derive(Debug)]
struct Verifier<J> {
    judge: J,
    provider: Arc<CryptoProvider>,
}

impl<J> Verifier<J> {
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

impl<J: Judge> ServerCertVerifier for Verifier<J> {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge.judge(shown, now).map(|()| ServerCertVerified::assertion())
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

impl<J: Judge> ClientCertVerifier for Verifier<J> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.judge.judge(shown, now).map(|()| ClientCertVerified::assertion())
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
