//! Moves random bytes, to see how fast that is.
use dmover_local::scratch::ScratchFile;
use dmover_model::PathBytes;
use dmover_net::connection::{Broken, Channel};
use dmover_net::frame::PAYLOAD_MAX;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use dmover_wire::agent::{Measure, Measured};
use dmover_wire::encode;
use std::sync::Arc;
use std::time::Duration;

use crate::bench::{MESSAGE, noise};

/// The files of measurements that have written something.
#[derive(Debug, Default)]
pub(super) struct Written(Mutex<Vec<Arc<ScratchFile>>>);

impl Written {
    /// Does what a measurement asks for, in the directory at a path.
    pub fn serve(&self, what: Measure, path: &PathBytes, channel: &Channel) -> Result<(), Broken> {
        match what {
            Measure::Send(ms) => send(ms, channel),
            Measure::Receive => receive(channel, |_| Ok(())),
            Measure::Write => self.write(path, channel),
            Measure::Read(ms) => self.read(ms, channel),
        }
    }

    fn write(&self, path: &PathBytes, channel: &Channel) -> Result<(), Broken> {
        let mut scratch = ScratchFile::create(&path.to_path()).map_err(failed)?;
        let mut bytes = 0;
        while let Some(message) = channel.receive()? {
            scratch.append(&message).map_err(failed)?;
            bytes += message.len() as u64;
        }
        scratch.flush().map_err(failed)?;
        lock(&self.0).push(Arc::new(scratch));
        channel.send(&encode(&Measured { bytes }))
    }

    fn read(&self, ms: u32, channel: &Channel) -> Result<(), Broken> {
        let Some(scratch) = lock(&self.0).pop() else {
            return Err(Broken::Cancelled("nothing was written".into()));
        };
        let (end, mut at) = (end_of(ms), 0);
        let mut buffer = vec![0; PAYLOAD_MAX];
        while Instant::now() < end {
            let read = scratch.read(&mut buffer, at).map_err(failed)?;
            if read == 0 {
                return Ok(());
            }
            channel.send(&buffer[..read])?;
            at += read as u64;
        }
        Ok(())
    }
}

#[allow(clippy::needless_pass_by_value, reason = "as map_err hands it on")]
fn failed(error: std::io::Error) -> Broken {
    Broken::Cancelled(format!("the file of the measurement: {error}"))
}

fn end_of(ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(ms.into())
}

fn send(ms: u32, channel: &Channel) -> Result<(), Broken> {
    let (end, noise) = (end_of(ms), noise());
    let mut parts = noise.chunks(MESSAGE).cycle();
    while Instant::now() < end {
        channel.send(parts.next().unwrap_or_default())?;
    }
    Ok(())
}

fn receive(
    channel: &Channel,
    mut each: impl FnMut(&[u8]) -> Result<(), Broken>,
) -> Result<(), Broken> {
    let mut bytes = 0;
    while let Some(message) = channel.receive()? {
        each(&message)?;
        bytes += message.len() as u64;
    }
    channel.send(&encode(&Measured { bytes }))
}
