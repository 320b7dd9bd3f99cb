//! Detects whether another server answers at the address of a broker that cannot be reached.
use dmover_schedule::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use dmover_engine::queue::Lease;

/// How often to check while there is no connection.
const EVERY_MS: u64 = 10_000;
/// The same message is repeated after this long.
const SAY_AGAIN_MS: u64 = 60_000;
/// A NATS server sends its greeting within this time.
const WITHIN: Duration = Duration::from_secs(2);

/// Checks the servers of an address while they cannot be reached.
pub(crate) struct Watch {
    /// `host:port` of each.
    servers: Vec<String>,
    /// When they were last checked.
    looked_ms: AtomicU64,
    /// The last message: the server, the text and the time.
    said: Mutex<Option<(String, &'static str, u64)>>,
}

/// Lets one event through per minute.
#[derive(Debug, Default)]
pub(crate) struct Seldom(AtomicU64);

impl Seldom {
    /// Whether no event was let through for a minute.
    pub fn is_due(&self) -> bool {
        let now = Lease::now_ms().max(1);
        let before = self.0.load(Ordering::Relaxed);
        let is_due = before == 0 || now >= before + SAY_AGAIN_MS;
        if is_due {
            self.0.store(now, Ordering::Relaxed);
        }
        is_due
    }
}

impl Watch {
    /// `url`: servers, separated by commas.
    pub fn new(url: &str) -> Self {
        let server = |server: &str| {
            let rest = server.trim().split_once("://").map_or(server, |(_, rest)| rest);
            rest.rsplit_once('@').map_or(rest, |(_, host)| host).to_owned()
        };
        let servers = url.split(',').map(server).collect();
        Self { servers, looked_ms: AtomicU64::new(0), said: Mutex::default() }
    }

    /// Called when a connection has failed. Logs which server does not answer as the broker would.
    pub async fn look(&self) {
        let now = Lease::now_ms().max(1);
        let before = self.looked_ms.load(Ordering::Relaxed);
        if before != 0 && now < before + EVERY_MS {
            return;
        }
        self.looked_ms.store(now, Ordering::Relaxed);
        for server in &self.servers {
            let Some(greeting) = greeting(server).await else { continue };
            let Some(words) = judge(&greeting) else { continue };
            if self.is_news(server, words, now) {
                tracing::warn!(server, "{words}");
            }
        }
    }

    /// Whether this message about a server was not logged recently.
    fn is_news(&self, server: &str, words: &'static str, now: u64) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let known = said.as_ref().is_some_and(|(whom, before, then)| {
            whom == server && *before == words && now < then + SAY_AGAIN_MS
        });
        if !known {
            *said = Some((server.to_owned(), words, now));
        }
        !known
    }
}

/// The greeting of a server before encryption; empty: it sends nothing. `None`: no server listens there.
async fn greeting(server: &str) -> Option<String> {
    let connected = tokio::time::timeout(WITHIN, TcpStream::connect(server)).await;
    let mut stream = connected.ok()?.ok()?;
    let mut said = vec![0; 4096];
    let read = tokio::time::timeout(WITHIN, stream.read(&mut said)).await;
    said.truncate(read.map_or(0, |length| length.unwrap_or(0)));
    Some(String::from_utf8_lossy(&said).into_owned())
}

/// Why a server is not the broker, which encrypts its connections. `None`: it may be the broker.
fn judge(greeting: &str) -> Option<&'static str> {
    let offers = ["\"tls_required\":true", "\"tls_available\":true"];
    if !greeting.starts_with("INFO") {
        return Some(
            "a program listens at the address of the broker but does not answer as a NATS server \
            with TLS: the broker hangs, or another program listens there",
        );
    }
    let is_open = !offers.iter().any(|offer| greeting.contains(offer));
    is_open.then_some(
        "refused a server without encryption at the address of the broker: another program may \
        listen there",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_taken_from_an_address_and_judged_by_their_greeting() {
        let watch = Watch::new("tls://a:1,tls://me:secret@[::1]:2");
        assert_eq!(watch.servers, ["a:1", "[::1]:2"]);
        let words = |greeting: &str| judge(greeting).unwrap_or_default();
        assert!(words("INFO {\"server_id\":\"x\"}\r\n").contains("without encryption"));
        assert_eq!(judge("INFO {\"tls_required\":true}\r\n"), None);
        for other in ["HTTP/1.1 400 Bad Request", ""] {
            assert!(words(other).contains("does not answer as a NATS server with TLS"), "{other}");
        }
        // Once a minute, unless there is something new.
        let (first, second) = (words("INFO"), words(""));
        for (said, now_ms, is_news) in
            [(first, 1, true), (first, 9, false), (second, 9, true), (second, 60_009, true)]
        {
            assert_eq!(watch.is_news("a:1", said, now_ms), is_news, "{said} at {now_ms}");
        }
    }
}
