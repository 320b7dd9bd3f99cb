//! As much of HTTP as it takes to ask a server on the same machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

const PATIENCE: Duration = Duration::from_secs(5);
const MOST_BYTES: u64 = 16 << 20;

/// Gets a path; answers the status and the body, whatever the status.
pub(super) fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // HTTP/1.0: the answer ends with the connection and is never in chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without an end of head")?;
    let mut words = head.split_ascii_whitespace();
    let version = words.next().unwrap_or_default();
    ensure!(version.starts_with("HTTP/1."), "an answer that is not HTTP: {version:?}");
    let status = words.next().unwrap_or_default();
    Ok((status.parse().with_context(|| format!("status {status:?}"))?, body.to_owned()))
}

/// Whether a path answers 200; a server that does not listen yet does not.
pub(super) fn answers(address: SocketAddr, path: &str) -> bool {
    get(address, path).is_ok_and(|(status, _)| status == 200)
}

/// A value for the query part of an address.
pub(super) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let escape = |byte: u8| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn everything_but_plain_letters_is_escaped() {
        assert_eq!(escaped("up{job=\"a b\"}-1_ä"), "up%7Bjob%3D%22a%20b%22%7D-1_%C3%A4");
    }
}
