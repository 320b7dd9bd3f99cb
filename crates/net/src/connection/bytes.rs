//! A channel as a stream of bytes in each direction, so that another connection can go through this one.
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::{Broken, Channel};
use crate::frame::PAYLOAD_MAX;

/// What the other side of a channel sends.
pub struct ReadBytes {
    channel: Arc<Channel>,
    message: Vec<u8>,
    taken: usize,
}

/// What the other side of a channel receives. Dropping it ends what is sent.
pub struct WriteBytes {
    channel: Arc<Channel>,
}

/// Both directions of a channel. [`Channel::cancel`] ends them.
pub fn of(channel: &Arc<Channel>) -> (ReadBytes, WriteBytes) {
    let input = ReadBytes { channel: Arc::clone(channel), message: Vec::new(), taken: 0 };
    (input, WriteBytes { channel: Arc::clone(channel) })
}

fn failed(why: Broken) -> io::Error {
    match why {
        Broken::Ended | Broken::Closed => io::ErrorKind::BrokenPipe.into(),
        why => io::Error::other(why),
    }
}

impl Read for ReadBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.message.len() {
            let Some(next) = self.channel.receive().map_err(failed)? else { return Ok(0) };
            (self.message, self.taken) = (next, 0);
        }
        let rest = &self.message[self.taken..];
        let now = rest.len().min(buffer.len());
        buffer[..now].copy_from_slice(&rest[..now]);
        self.taken += now;
        Ok(now)
    }
}

impl Write for WriteBytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let now = &bytes[..bytes.len().min(PAYLOAD_MAX)];
        self.channel.send(now).map_err(failed)?;
        Ok(now.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for WriteBytes {
    fn drop(&mut self) {
        // The other side has gone, or this one has cancelled it.
        let _ = self.channel.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Terms;
    use super::super::tests::pair;
    use super::*;
    use dmover_schedule::thread;

    #[test]
    fn bytes_go_through_in_both_directions_and_end() {
        let (near, _far) = pair(Terms::default(), |channel, _| {
            let (mut input, mut output) = of(&Arc::new(channel));
            io::copy(&mut input, &mut output).unwrap();
        });
        let asked = Arc::new(near.request(b"connect").unwrap());
        let (mut input, mut output) = of(&asked);
        let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
        let content = sent.clone();
        let writer = thread::spawn(move || output.write_all(&content).unwrap());
        let mut got = Vec::new();
        input.read_to_end(&mut got).unwrap();
        writer.join().unwrap();
        assert!(got == sent);
    }

    #[test]
    fn whoever_waits_goes_on_when_the_channel_is_cancelled() {
        let (near, _far) = pair(Terms::default(), |channel, _| drop(channel.receive()));
        let asked = Arc::new(near.request(b"connect").unwrap());
        let (mut input, mut output) = of(&asked);
        let reader = thread::spawn(move || input.read(&mut [0; 10]).unwrap_err().kind());
        asked.cancel("enough");
        assert_eq!(reader.join().unwrap(), io::ErrorKind::BrokenPipe);
        assert_eq!(output.write(b"more").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
