//! Finds out whether another server answers at the address of a broker that cannot be reached.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use dmover_engine::queue::Lease;

/// It is looked so often, as long as there is no connection.
const EVERY_MS: u64 = 10_000;
/// A server that listens speaks within this.
const WITHIN: Duration = Duration::from_secs(2);

/// Looks at the servers of an address while they cannot be reached.
pub(crate) struct Watch {
    /// `host:port` of each.
    servers: Vec<String>,
    /// When it was last looked.
    looked_ms: AtomicU64,
}

impl Watch {
    /// `url`: servers, separated by commas.
    pub fn new(url: &str) -> Self {
        let server = |server: &str| {
            let rest = server.trim().split_once("://").map_or(server, |(_, rest)| rest);
            rest.rsplit_once('@').map_or(rest, |(_, host)| host).to_owned()
        };
        Self { servers: url.split(',').map(server).collect(), looked_ms: AtomicU64::new(0) }
    }

    /// A connection has failed. Logs who answers in clear text where the broker would not.
    pub async fn look(&self) {
        let now = Lease::now_ms().max(1);
        let before = self.looked_ms.load(Ordering::Relaxed);
        if before != 0 && now < before + EVERY_MS {
            return;
        }
        self.looked_ms.store(now, Ordering::Relaxed);
        for server in &self.servers {
            let answer = tokio::time::timeout(WITHIN, greeting(server)).await;
            if answer.is_ok_and(|greeting| greeting.is_some_and(|said| is_in_clear_text(&said))) {
                tracing::warn!(
                    server,
                    "refused a server that answers without encryption at the address of the broker: is somebody else listening there?"
                );
            }
        }
    }
}

/// What a server says first, before anything is encrypted.
async fn greeting(server: &str) -> Option<String> {
    let mut stream = TcpStream::connect(server).await.ok()?;
    let mut said = vec![0; 4096];
    let length = stream.read(&mut said).await.ok()?;
    said.truncate(length);
    String::from_utf8(said).ok()
}

fn is_in_clear_text(greeting: &str) -> bool {
    let offers = ["\"tls_required\":true", "\"tls_available\":true"];
    greeting.starts_with("INFO") && !offers.iter().any(|offer| greeting.contains(offer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_taken_from_an_address_and_judged_by_their_greeting() {
        let watch = Watch::new("tls://a:1,tls://me:secret@[::1]:2");
        assert_eq!(watch.servers, ["a:1", "[::1]:2"]);
        assert!(is_in_clear_text("INFO {\"server_id\":\"x\"}\r\n"));
        assert!(!is_in_clear_text("INFO {\"tls_required\":true}\r\n"));
        assert!(!is_in_clear_text("HTTP/1.1 400 Bad Request"));
    }
}
