//! Certificates of brokers: created where there are none, and trusted because the join file contains them.
use dmover_model::Fatal;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Creates a self-signed certificate for hosts with these names or addresses; returns it and its key (PEM).
///
/// # Errors
/// A name that a certificate cannot contain.
pub(crate) fn make(hosts: Vec<String>) -> Result<(String, String), Fatal> {
    let made = rcgen::generate_simple_self_signed(hosts).map_err(|error| {
        let message = format!("cannot create a certificate: {error}");
        Fatal::refused(message, "--listen and --advertise must be host names or addresses")
    })?;
    Ok((made.cert.pem(), made.signing_key.serialize_pem()))
}

/// A configuration that trusts these certificates (PEM), and those that they have signed.
///
/// # Errors
/// It contains no certificate.
pub(crate) fn trusting(certificates: &str) -> Result<ClientConfig, Fatal> {
    let bad = |error: &dyn std::fmt::Display| {
        let message = format!("cannot use the certificates of the broker: {error}");
        Fatal::refused(message, "use the join file that 'dmover broker' wrote")
    };
    let known: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(certificates.as_bytes()).collect();
    let known = known.map_err(|error| bad(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in &known {
        roots.add(certificate.clone()).map_err(|error| bad(&error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let signed = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    let signed = signed.build().map_err(|error| bad(&error))?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&error))?;
    let verifier = Arc::new(Verifier { known, signed });
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Accepts a server that presents one of the known certificates, whatever its name, because it proves that it has the
/// key. Otherwise one of them must have signed the presented certificate, for its name. The standard check does not
/// accept a certificate as its own issuer.
#[derive(Debug)]
struct Verifier {
    known: Vec<CertificateDer<'static>>,
    signed: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.known.iter().any(|known| known == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        let signed = self.signed.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        signed.inspect_err(|error| {
            let server = server_name.to_str();
            tracing::warn!(
                %server, %error,
                "refused a server whose certificate is not that of the broker: another program \
                may listen at its address"
            );
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_the_known_certificates_will_do_and_no_other() {
        let (one, key) = make(vec!["a".into(), "10.0.0.1".into()]).unwrap();
        let (other, _) = make(vec!["a".into()]).unwrap();
        assert!(key.contains("PRIVATE KEY"));
        let pem = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
        let verifier = |text: &str| {
            let roots = Arc::new(RootCertStore { roots: vec![webpki_root(&pem(text))] });
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let signed = WebPkiServerVerifier::builder_with_provider(roots, provider);
            Verifier { known: vec![pem(text)], signed: signed.build().unwrap() }
        };
        let verifier = verifier(&one);
        let verify = |shown: &str| {
            let name = ServerName::try_from("elsewhere").unwrap();
            verifier.verify_server_cert(&pem(shown), &[], &name, &[], UnixTime::now())
        };
        assert!(verify(&one).is_ok());
        assert!(verify(&other).is_err());
        assert!(trusting("").is_err() && trusting("-----BEGIN CERTIFICATE-----").is_err());
        assert!(trusting(&(one + &other)).is_ok());
    }

    fn webpki_root(certificate: &CertificateDer<'_>) -> rustls::pki_types::TrustAnchor<'static> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone().into_owned()).unwrap();
        roots.roots.remove(0)
    }
}
