//! A relay between a client and a server that cuts connections in the middle of what is said.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use anyhow::Result;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Relays connections until its process ends.
#[derive(Debug)]
pub struct Cutter {
    port: u16,
    cuts: Arc<AtomicU64>,
}

/// What both directions of a connection share.
#[derive(Debug)]
struct Line {
    ends: [TcpStream; 2],
    /// Bytes until it is cut.
    left: AtomicI64,
    cuts: Arc<AtomicU64>,
}

impl Cutter {
    /// Relays to `port` of this host. The first `most` connections are cut, each after a random number of bytes in `bytes`, whichever
    /// way they go.
    ///
    /// # Errors
    /// No port to listen at.
    pub fn start(port: u16, seed: u64, most: usize, bytes: std::ops::Range<i64>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let own = listener.local_addr()?.port();
        let cuts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&cuts);
        std::thread::spawn(move || {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let lengths = (0..most).map(|_| rng.random_range(bytes.clone()));
            let mut lengths = lengths.collect::<Vec<_>>().into_iter();
            for client in listener.incoming().map_while(Result::ok) {
                let left = AtomicI64::new(lengths.next().unwrap_or(i64::MAX));
                // A server that is down is a connection that ends at once.
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let line = Line { ends: [client, server], left, cuts: Arc::clone(&counted) };
                let line = Arc::new(line);
                for from in [0, 1] {
                    let line = Arc::clone(&line);
                    std::thread::spawn(move || line.relay(from));
                }
            }
        });
        Ok(Self { port: own, cuts })
    }

    /// Where to connect.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// How many connections were cut.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }
}

impl Line {
    fn relay(&self, from: usize) {
        let (mut reader, mut writer) = (&self.ends[from], &self.ends[1 - from]);
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = reader.read(&mut buffer) {
            let before = self.left.fetch_sub(read as i64, Ordering::SeqCst);
            let goes = before.clamp(0, read as i64) as usize;
            if writer.write_all(&buffer[..goes]).is_err() {
                break;
            }
            if goes < read {
                if before > 0 {
                    self.cuts.fetch_add(1, Ordering::SeqCst);
                }
                break;
            }
        }
        for end in &self.ends {
            end.shutdown(Shutdown::Both).ok();
        }
    }
}
