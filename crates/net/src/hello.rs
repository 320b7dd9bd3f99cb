//! How the two sides greet each other, before the first frame.
//!
//! The layout is the same in every protocol: eight bytes that no text begins with, the newest and the oldest protocol
//! (two bytes each, the least significant first), the length of the fields (four bytes), and the fields: number (two
//! bytes), length (four bytes), value. Fields of unknown numbers are skipped.
use dmover_model::PathBytes;
use dmover_wire::streams::{StreamAnswer, StreamOffer};
use dmover_wire::{decode_within, encode};
use std::io::{self, Read, Write};
use std::time::Duration;

use crate::connection::{CHANNELS_MAX, SILENCE, Terms, WINDOW, WINDOW_MAX, WINDOW_MIN};

const MAGIC: [u8; 8] = *b"\x89dmover\n";
const FIXED_BYTES: usize = MAGIC.len() + 8;
/// The longest greeting. A path has at most 4,096 bytes, everything else is short.
const FIELDS_MAX: usize = 64 << 10;
/// How much of other text is kept for a message.
const TEXT_MAX: usize = 4 << 10;
const SILENCE_MS: std::ops::RangeInclusive<u32> = 50..=86_400_000;

/// The protocols that a program speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocols {
    /// The newest one.
    pub newest: u16,
    /// The oldest one.
    pub oldest: u16,
}

/// What this program speaks.
pub const PROTOCOLS: Protocols = Protocols { newest: 1, oldest: 1 };

impl Protocols {
    /// The protocol that two sides speak: the lower of their newest ones; `None`: that is too old for one of them.
    pub fn common(self, other: Self) -> Option<u16> {
        let lower = self.newest.min(other.newest);
        (lower >= self.oldest && lower >= other.oldest).then_some(lower)
    }
}

/// What one side announces about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The protocols that it speaks.
    pub protocols: Protocols,
    /// The version of the program.
    pub version: String,
    /// The name of its host.
    pub host: String,
    /// The user that it runs as, by name or number.
    pub user: String,
    /// The root that the agent should serve.
    pub root: PathBytes,
    /// The path of the program.
    pub program: PathBytes,
    /// How many bytes of a channel it takes ahead.
    pub window: u32,
    /// The largest window of the other side that it uses.
    pub window_max: u32,
    /// The connection ends after this long without a message, in milliseconds. The asking side chooses it for both.
    pub silence_ms: u32,
    /// How many open channels it accepts.
    pub channels_max: u32,
    /// The side that greets first answers requests, and the agent asks: it runs a job whose source is at the other side. An
    /// agent that does so repeats it.
    pub serves: bool,
    /// The agent refuses.
    pub refusal: Option<Refusal>,
    /// The side that greets first wants data streams.
    pub offer: Option<StreamOffer>,
    /// What the agent says to that.
    pub answer: Option<StreamAnswer>,
}

/// Why an agent does not serve: one line, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub message: String,
    /// What the user can do.
    pub hint: String,
}

/// Why there is no greeting.
#[derive(Debug)]
pub enum NoHello {
    /// The stream ended before it.
    Nothing,
    /// Something else came: its beginning.
    Text(Vec<u8>),
    /// The stream ended inside it, or its fields are damaged.
    Damaged,
    /// The stream cannot be read.
    Io(io::Error),
}

impl Hello {
    /// The greeting of this program, with the usual limits.
    pub fn of_this_program(version: &str) -> Self {
        Self {
            protocols: PROTOCOLS,
            version: version.to_owned(),
            host: dmover_host::name(),
            user: dmover_host::user::effective_uid().to_string(),
            root: PathBytes::default(),
            program: PathBytes::default(),
            window: WINDOW,
            window_max: WINDOW_MAX,
            silence_ms: SILENCE.as_millis() as u32,
            channels_max: CHANNELS_MAX,
            serves: false,
            refusal: None,
            offer: None,
            answer: None,
        }
    }

    /// The limits for this side, after the greeting of the other one.
    pub fn terms_with(&self, peer: &Self) -> Terms {
        Terms {
            own_window: self.window,
            own_window_max: WINDOW_MAX.min(peer.window_max).max(self.window),
            peer_window: peer.window,
            peer_window_max: self.window_max.max(peer.window),
            channels_max: self.channels_max.min(peer.channels_max),
            silence: Duration::from_millis(self.silence_ms.min(peer.silence_ms).into()),
        }
    }

    /// Sends the greeting.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn write(&self, output: &mut (impl Write + ?Sized)) -> io::Result<()> {
        output.write_all(&self.encode())?;
        output.flush()
    }

    fn encode(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        let mut field = |number: u16, value: &[u8]| {
            // Only texts of this host could be so long, and nobody would read them.
            let value = &value[..value.len().min(FIELDS_MAX / 8)];
            fields.extend(number.to_le_bytes());
            fields.extend((value.len() as u32).to_le_bytes());
            fields.extend(value);
        };
        field(1, self.version.as_bytes());
        field(2, self.host.as_bytes());
        field(3, self.user.as_bytes());
        field(4, &self.root.0);
        field(5, &self.window.to_le_bytes());
        field(6, &self.silence_ms.to_le_bytes());
        field(7, &self.channels_max.to_le_bytes());
        field(8, &self.program.0);
        if let Some(refusal) = &self.refusal {
            field(9, refusal.message.as_bytes());
            field(10, refusal.hint.as_bytes());
        }
        if self.serves {
            field(11, &[1]);
        }
        field(14, &self.window_max.to_le_bytes());
        if let Some(offer) = &self.offer {
            field(12, &encode(offer));
        }
        if let Some(answer) = &self.answer {
            field(13, &encode(answer));
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.protocols.newest.to_le_bytes());
        bytes.extend(self.protocols.oldest.to_le_bytes());
        bytes.extend((fields.len() as u32).to_le_bytes());
        bytes.extend(fields);
        bytes
    }

    /// Reads the greeting of the other side, and nothing after it.
    ///
    /// # Errors
    /// Something else came.
    pub fn read(input: &mut (impl Read + ?Sized)) -> Result<Self, NoHello> {
        let mut fixed = [0; FIXED_BYTES];
        let mut filled = 0;
        while filled < FIXED_BYTES {
            let read = match input.read(&mut fixed[filled..]) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(NoHello::Io(error)),
            };
            filled += read;
            let begin = &fixed[..filled.min(MAGIC.len())];
            if !MAGIC.starts_with(begin) {
                return Err(NoHello::Text(rest_of_text(input, fixed[..filled].to_vec())));
            }
            if read == 0 {
                return Err(if filled == 0 { NoHello::Nothing } else { NoHello::Damaged });
            }
        }
        let [.., n0, n1, o0, o1, l0, l1, l2, l3] = fixed;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > FIELDS_MAX {
            return Err(NoHello::Damaged);
        }
        let mut fields = vec![0; length];
        input.read_exact(&mut fields).map_err(|_| NoHello::Damaged)?;
        let newest = u16::from_le_bytes([n0, n1]);
        let protocols = Protocols { newest, oldest: u16::from_le_bytes([o0, o1]) };
        Self::decode(protocols, &fields).ok_or(NoHello::Damaged)
    }

    /// `None`: the fields are damaged, or out of bounds.
    fn decode(protocols: Protocols, mut fields: &[u8]) -> Option<Self> {
        let mut hello = Self {
            protocols,
            version: String::new(),
            host: String::new(),
            user: String::new(),
            root: PathBytes::default(),
            program: PathBytes::default(),
            window: WINDOW,
            // An earlier version gives a connection up whose windows grow.
            window_max: 0,
            silence_ms: SILENCE.as_millis() as u32,
            channels_max: CHANNELS_MAX,
            serves: false,
            refusal: None,
            offer: None,
            answer: None,
        };
        let mut refusal = [const { None }; 2];
        while !fields.is_empty() {
            let (number, rest) = fields.split_first_chunk()?;
            let (length, rest) = rest.split_first_chunk()?;
            let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            fields = rest;
            let text = || String::from_utf8_lossy(value).into_owned();
            let count = || Some(u32::from_le_bytes(value.try_into().ok()?));
            match u16::from_le_bytes(*number) {
                1 => hello.version = text(),
                2 => hello.host = text(),
                3 => hello.user = text(),
                4 => hello.root = PathBytes(value.to_vec()),
                5 => hello.window = count()?,
                6 => hello.silence_ms = count()?,
                7 => hello.channels_max = count()?,
                8 => hello.program = PathBytes(value.to_vec()),
                9 => refusal[0] = Some(text()),
                10 => refusal[1] = Some(text()),
                11 => hello.serves = value == [1],
                // Another version may mean more by it than this one knows: then there are no streams.
                12 => hello.offer = decode_within(value, FIELDS_MAX).ok(),
                13 => hello.answer = decode_within(value, FIELDS_MAX).ok(),
                14 => hello.window_max = count()?,
                _ => {}
            }
        }
        let [message, hint] = refusal;
        hello.refusal = message.map(|message| Refusal { message, hint: hint.unwrap_or_default() });
        let is_sane = hello.window >= WINDOW_MIN
            && SILENCE_MS.contains(&hello.silence_ms)
            && (1..=65_536).contains(&hello.channels_max)
            && !hello.root.0.contains(&0);
        is_sane.then_some(hello)
    }
}

/// What else is there of a text that is no greeting: up to the end of a line that says something, because a shell may then
/// wait for ever. A greeting after it is no part of it.
fn rest_of_text(input: &mut (impl Read + ?Sized), mut text: Vec<u8>) -> Vec<u8> {
    let greeting = |text: &[u8]| text.windows(MAGIC.len()).position(|part| part == MAGIC);
    while text.len() < TEXT_MAX
        && !text.trim_ascii_start().contains(&b'\n')
        && greeting(&text).is_none()
    {
        let mut more = [0; 512];
        match input.read(&mut more) {
            Ok(0) | Err(_) => break,
            Ok(read) => text.extend(&more[..read]),
        }
    }
    text.truncate(greeting(&text).unwrap_or(text.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        let mut hello = Hello::of_this_program("1.2.3");
        hello.root = PathBytes(b"a b\n\xff".to_vec());
        hello.program = PathBytes(b"/usr/bin/dmover".to_vec());
        hello.refusal = Some(Refusal { message: "no".into(), hint: "do".into() });
        hello
    }

    #[test]
    fn a_greeting_is_read_back_and_nothing_after_it() {
        for hello in [hello(), Hello { refusal: None, ..hello() }] {
            let mut bytes = hello.encode();
            bytes.extend(b"frames");
            let mut input = &bytes[..];
            assert_eq!(Hello::read(&mut input).unwrap(), hello);
            assert_eq!(input, b"frames");
        }
    }

    #[test]
    fn a_greeting_that_is_cut_anywhere_is_none() {
        let bytes = hello().encode();
        assert!(matches!(Hello::read(&mut &b""[..]), Err(NoHello::Nothing)));
        for length in 1..bytes.len() {
            let read = Hello::read(&mut &bytes[..length]);
            assert!(matches!(read, Err(NoHello::Damaged)), "{length}: {read:?}");
        }
    }

    #[test]
    fn text_is_told_from_a_greeting() {
        for text in ["Welcome!\n", "x", "\u{89}dmover", "\n", "This account is not available.\n"] {
            match Hello::read(&mut text.as_bytes()) {
                Err(NoHello::Text(found)) => assert!(text.as_bytes().starts_with(&found), "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    /// Gives one byte at a time, as a slow shell does.
    struct Slow<'a>(&'a [u8]);
    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(1);
            self.0.read(&mut buffer[..length])
        }
    }

    #[test]
    fn the_first_line_is_waited_for_and_no_second_one() {
        let greeting = hello().encode();
        for (before, after, wanted) in [
            (&b"\n\nWelcome!\n"[..], &b"More\n"[..], &b"\n\nWelcome!\n"[..]),
            (b"Welcome! ", &greeting, b"Welcome! "),
            (b"\n", &greeting, b"\n"),
            (b"no newline", b"", b"no newline"),
        ] {
            let bytes = [before, after].concat();
            match Hello::read(&mut Slow(&bytes)) {
                Err(NoHello::Text(found)) => assert_eq!(found, wanted),
                other => panic!("{before:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_later_program_may_say_more() {
        let mut bytes = hello().encode();
        let more = [99u8, 0, 3, 0, 0, 0, b'n', b'e', b'w'];
        bytes.extend(more);
        let length = (bytes.len() - FIXED_BYTES) as u32;
        bytes[12..16].copy_from_slice(&length.to_le_bytes());
        bytes[8] = 7;
        let read = Hello::read(&mut &bytes[..]).unwrap();
        assert_eq!(read.protocols, Protocols { newest: 7, oldest: 1 });
        assert_eq!(read.version, "1.2.3");
    }

    #[test]
    fn two_sides_speak_the_lower_number_if_both_can() {
        let speaks = |newest, oldest| Protocols { newest, oldest };
        for (one, other, wanted) in [
            (speaks(1, 1), speaks(1, 1), Some(1)),
            (speaks(2, 1), speaks(1, 1), Some(1)),
            (speaks(3, 2), speaks(1, 1), None),
            (speaks(3, 2), speaks(4, 3), Some(3)),
            (speaks(3, 1), speaks(5, 4), None),
        ] {
            assert_eq!(one.common(other), wanted);
            assert_eq!(other.common(one), wanted);
        }
    }

    #[test]
    fn limits_that_would_stop_everything_are_refused() {
        for change in [
            (|hello: &mut Hello| hello.window = WINDOW_MIN - 1) as fn(&mut Hello),
            |hello| hello.silence_ms = 0,
            |hello| hello.channels_max = 0,
            |hello| hello.root = PathBytes(b"a\0b".to_vec()),
        ] {
            let mut bad = hello();
            change(&mut bad);
            assert!(matches!(Hello::read(&mut &bad.encode()[..]), Err(NoHello::Damaged)));
        }
    }

    #[test]
    fn few_bytes_do_not_become_a_long_list() {
        let answers = |count| {
            let addresses = vec![String::new(); count];
            let answer = StreamAnswer::Listens { certificate: Vec::new(), port: 1, addresses };
            let bytes = Hello { answer: Some(answer), ..hello() }.encode();
            Hello::read(&mut &bytes[..]).unwrap().answer
        };
        assert!(answers(4).is_some());
        assert!(answers(2000).is_some(), "it is compressed");
        assert!(answers(FIELDS_MAX).is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_greeting_or_a_sane_one(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), greets in any::<bool>()) {
            let bytes = if greets { [&hello().encode()[..16], &bytes].concat() } else { bytes };
            if let Ok(hello) = Hello::read(&mut &bytes[..]) {
                prop_assert!(hello.window >= WINDOW_MIN && hello.channels_max > 0);
            }
        }
    }
}
