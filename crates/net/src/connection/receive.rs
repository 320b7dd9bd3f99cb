//! The thread that reads what the other side sends, and gives it to the channels.
use dmover_observe::lock;
use std::io::{BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::channel::cost;
use super::{Accept, Broken, Channel, LAST_WORDS_WITHIN, Shared, State};
use crate::frame::{FrameError, Header, Kind};

/// Long messages are read past the buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// Reads until the connection is over.
pub(super) fn run(shared: &Arc<Shared>, input: Box<dyn Read + Send>, accept: Option<Accept>) {
    let input = Heard { input, shared: Arc::clone(shared) };
    let input = BufReader::with_capacity(BUFFER_BYTES, input);
    let mut receiver = Receiver { shared, input, accept };
    let (why, patience) = match receiver.read_all() {
        Ok(why) => (why, LAST_WORDS_WITHIN),
        Err(FrameError::Io(error)) => (Broken::by(&error), LAST_WORDS_WITHIN),
        Err(FrameError::Truncated) => (Broken::Ended, LAST_WORDS_WITHIN),
        Err(FrameError::Malformed(what)) => (Broken::Violation(what), Duration::ZERO),
    };
    shared.end(why, patience);
}

/// Notes when something was heard, also inside a long message.
struct Heard {
    input: Box<dyn Read + Send>,
    shared: Arc<Shared>,
}

impl Read for Heard {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.shared.heard_ms.store(self.shared.now_ms(), Relaxed);
        Ok(read)
    }
}

struct Receiver<'a> {
    shared: &'a Arc<Shared>,
    input: BufReader<Heard>,
    accept: Option<Accept>,
}

impl Receiver<'_> {
    fn read_all(&mut self) -> Result<Broken, FrameError> {
        while let Some(header) = Header::read(&mut self.input)? {
            match header.kind {
                Kind::Heartbeat => {}
                Kind::Goodbye => return Ok(Broken::Closed),
                Kind::Request => self.request(header)?,
                Kind::Message => self.message(header)?,
                Kind::End => {
                    if let Some(state) = self.channel(header)? {
                        let over = state.peer_ended(None);
                        let Some(is_over) = over else {
                            return Err(FrameError::Malformed("a channel ends twice"));
                        };
                        self.release(header, is_over);
                    }
                }
                Kind::Cancel => {
                    let reason = header.read_payload(&mut self.input)?;
                    let reason = String::from_utf8_lossy(&reason).into_owned();
                    if let Some(state) = self.channel(header)? {
                        let is_over = state.peer_ended(Some(reason));
                        self.release(header, is_over == Some(true));
                    }
                }
                Kind::Credit => {
                    let bytes = header.read_payload(&mut self.input)?;
                    let more = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                    let window = self.shared.terms.peer_window_max;
                    // The channel may be over here, while the other side takes its last messages.
                    if let Some(state) = self.channel(header)?
                        && !state.add_credit(more, window)
                    {
                        return Err(FrameError::Malformed("a window grows"));
                    }
                }
            }
        }
        Ok(Broken::Ended)
    }

    fn request(&mut self, header: Header) -> Result<(), FrameError> {
        let Some(accept) = &mut self.accept else {
            return Err(FrameError::Malformed("a request comes from the side that answers"));
        };
        let state = Arc::new(State::new(&self.shared.terms, &self.shared.grown));
        {
            let mut channels = lock(&self.shared.channels);
            if header.channel <= channels.last {
                return Err(FrameError::Malformed("a number of a channel comes again"));
            }
            if channels.open.len() >= self.shared.terms.channels_max as usize {
                return Err(FrameError::Malformed("too many channels are open"));
            }
            channels.last = header.channel;
            channels.open.insert(header.channel, Arc::clone(&state));
        }
        if !state.admits(header.length) {
            return Err(FrameError::Malformed("a message is larger than its window"));
        }
        let message = header.read_payload(&mut self.input)?;
        state.taken(message.len());
        let channel = Channel::new(header.channel, Arc::clone(self.shared), state);
        accept(channel, message);
        Ok(())
    }

    fn message(&mut self, header: Header) -> Result<(), FrameError> {
        let Some(state) = self.channel(header)? else {
            return Err(FrameError::Malformed("a message comes after the end of its channel"));
        };
        if !state.admits(header.length) {
            return Err(FrameError::Malformed("a message is larger than its window"));
        }
        debug_assert!(cost(header.length) <= u64::from(self.shared.terms.own_window_max));
        state.deliver(header.read_payload(&mut self.input)?);
        self.shared.received.fetch_add(header.length as u64, Relaxed);
        Ok(())
    }

    /// The channel of a frame; `None`: it is over.
    fn channel(&self, header: Header) -> Result<Option<Arc<State>>, FrameError> {
        let channels = lock(&self.shared.channels);
        if header.channel > channels.last {
            return Err(FrameError::Malformed("a message comes before its channel"));
        }
        Ok(channels.open.get(&header.channel).cloned())
    }

    fn release(&self, header: Header, is_over: bool) {
        if is_over {
            self.shared.close_channel(header.channel);
        }
    }
}
