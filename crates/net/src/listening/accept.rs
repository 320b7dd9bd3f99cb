//! The side of the agent.
use rustls::{Error, ServerConnection};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};

use super::{Fingerprint, HANDSHAKE_WITHIN, Identity, Pinned, WORDS, why_invalid};
use crate::streams::encrypted;
use crate::streams::handshake::{Opening, invalid};
use crate::tls;

/// A connection of a client whose certificate is accepted.
pub struct Accepted {
    /// Whose it is.
    pub client: Fingerprint,
    /// What comes.
    pub input: Box<dyn Read + Send>,
    /// What is sent, when it is flushed.
    pub output: Box<dyn Write + Send>,
}

/// Why a connection was refused.
#[derive(Debug)]
pub struct NotAccepted {
    /// What the other side has shown; `None`: nothing.
    pub shown: Option<Fingerprint>,
    /// The reason.
    pub why: String,
}

/// Accepts a connection of one of these clients. It takes at most ten seconds.
///
/// # Errors
/// It is somebody else's, or no such connection.
pub fn accept(
    socket: TcpStream,
    own: Identity,
    clients: Vec<Fingerprint>,
) -> Result<Accepted, NotAccepted> {
    let shown: Arc<OnceLock<Fingerprint>> = Arc::default();
    let judge = Pinned { accepted: Some(clients), shown: Arc::clone(&shown) };
    let opened = open(socket, own, judge);
    let client = shown.get().copied();
    match (opened, client) {
        (Ok((input, output)), Some(client)) => Ok(Accepted { client, input, output }),
        (Ok(_), None) => {
            Err(NotAccepted { shown: None, why: "it has shown no certificate".into() })
        }
        (Err(error), shown) => Err(NotAccepted { shown, why: reason(&error) }),
    }
}

type Halves = (Box<dyn Read + Send>, Box<dyn Write + Send>);

fn open(socket: TcpStream, own: Identity, judge: Pinned) -> io::Result<Halves> {
    socket.set_nodelay(true)?;
    let config = tls::server(own.certificate, own.key, judge)?;
    let tls = ServerConnection::new(config).map_err(invalid)?;
    let mut opening = Opening::new(socket, tls.into(), HANDSHAKE_WITHIN);
    opening.prove(WORDS, false)?;
    let (socket, tls) = opening.opened()?;
    let (input, output) = encrypted::halves(socket, tls)?;
    Ok((Box::new(input), Box::new(output)))
}

fn reason(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(
            rustls::CertificateError::ApplicationVerificationFailure,
        )) => "its certificate is not known here".into(),
        Some(why @ Error::InvalidCertificate(_)) => {
            format!("its certificate cannot be used: {}", why_invalid(why))
        }
        Some(why) => why.to_string(),
        None => error.to_string(),
    }
}
