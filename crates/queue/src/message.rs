//! The messages between processes. Each one has the protocol number, or belongs to a run whose offer has it.
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use dmover_engine::{JobOffer, MoverReport};
use dmover_model::{Answer, CoordinatorRequest, Notice, Outcome, Task};
use dmover_observe::{CLASSES, LogLine, MountView, NicView};
use dmover_plan::leases::MoverId;
use dmover_plan::stragglers::Done;
use lz4_flex::block;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::identity::{Identity, Trust, is_signed_by};

/// The protocol number between coordinator and movers. Other numbers are refused.
pub const PROTOCOL: u32 = 8;

/// The advice for programs with different protocols.
pub(crate) const ONE_VERSION: &str = "use the same version of dmover on all hosts";

/// A longer message is compressed.
const PLAIN_MAX: usize = 1024;
/// The largest decompressed message, whoever sent it.
const UNPACKED_MAX: usize = 256 << 20;

/// A job in the bucket of jobs. All protocols can read the fields beside `offer`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OfferRecord {
    pub protocol: u32,
    /// The version of the coordinator's program.
    pub version: String,
    pub job: String,
    pub run: u64,
    pub host: String,
    pub pid: u32,
    /// How long a lease is valid without renewal.
    pub lease_ms: u64,
    /// Whether movers should send their log lines.
    #[serde(default)]
    pub wants_log: bool,
    /// Labels that movers must have.
    #[serde(default)]
    pub only: Vec<(String, String)>,
    /// The [`JobOffer`] as text, so that the signature covers the exact bytes.
    pub offer: serde_json::Value,
    /// The public key of the user who owns the job.
    #[serde(default)]
    pub signer: String,
    /// The signature of all other fields with that key, in base64.
    #[serde(default)]
    pub signature: String,
}

/// The context of signatures of offers.
const OFFER: &str = "offer";

impl OfferRecord {
    /// Whether a mover with these labels may work for the job.
    pub fn is_for(&self, labels: &[(String, String)]) -> bool {
        self.only.iter().all(|wanted| labels.contains(wanted))
    }

    pub fn offer(&self) -> Result<JobOffer, serde_json::Error> {
        serde_json::from_str(self.offer.as_str().unwrap_or_default())
    }

    /// The signed bytes: the fields as they were read, independent of their formatting.
    fn signed(&self) -> Vec<u8> {
        let offer = self.offer.as_str().unwrap_or_default();
        let of_run = (&self.job, self.run, &self.host, self.pid, self.lease_ms);
        let rest = (self.wants_log, &self.only, offer, &self.signer);
        // As in `encode`: it cannot fail.
        postcard::to_stdvec(&(self.protocol, &self.version, of_run, rest)).unwrap_or_default()
    }

    /// The digest that identifies this offer.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.signed()).as_bytes()
    }

    pub fn sign(&mut self, identity: &Identity) {
        identity.public().clone_into(&mut self.signer);
        self.signature = BASE64_STANDARD.encode(identity.sign(OFFER, &self.signed()));
    }

    /// The offer, if a trusted user has signed it and all its fields are covered by the signature.
    pub fn verify(&self, trust: &Trust) -> Result<JobOffer, String> {
        if self.signature.is_empty() {
            return Err("the offer of the job is not signed".into());
        }
        let signature = BASE64_STANDARD.decode(&self.signature).unwrap_or_default();
        if !is_signed_by(&self.signer, OFFER, &self.signed(), &signature) {
            return Err("the offer of the job is altered or forged: its signature is wrong".into());
        }
        let users = trust.users_of(&self.signer);
        if users.is_empty() {
            return Err(format!(
                "the offer of the job is signed by the key {}, which is not trusted",
                self.signer
            ));
        }
        let offer = self
            .offer()
            .map_err(|error| format!("the offer of the job is not readable: {error}"))?;
        if offer.key != self.job || offer.run != self.run {
            return Err("the offer belongs to another job".into());
        }
        if !users.contains(&offer.uid) {
            let (claimed, user) = (offer.uid, users[0]);
            return Err(format!(
                "the offer of the job claims user {claimed}, but is signed by the key of user \
                {user}"
            ));
        }
        Ok(offer)
    }
}

/// A mover process as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverInfo {
    /// Its id, for its lifetime.
    pub id: MoverId,
    /// Its protocol number.
    pub protocol: u32,
    /// The version of its program.
    pub version: String,
    /// Its host.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// Processors that it may use.
    pub cores: u32,
    /// Memory that it may use for buffers, in bytes.
    pub memory_bytes: u64,
    /// Its labels, such as `site=…` and `rack=…`.
    pub labels: Vec<(String, String)>,
    /// The file systems that are mounted on its host.
    pub mounts: Vec<MountView>,
}

/// Anything that has a name in messages to users.
pub trait Describe {
    /// The name.
    fn describe(&self) -> String;
}

impl Describe for MoverInfo {
    fn describe(&self) -> String {
        format!("{} (process {})", self.host, self.pid)
    }
}

/// A task in a message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TaskMessage {
    pub number: u32,
    pub task: Task,
}

/// A report of a mover about a task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OutcomeMessage {
    pub mover: MoverId,
    pub number: u32,
    /// The number of the report within this lease, from 1.
    pub sequence: u32,
    pub told: MoverReport,
    pub outcome: Outcome,
    /// The task has ended.
    pub ended: bool,
    /// More pieces of this report follow.
    pub more: bool,
    /// Some errors may be caused by this host: they do not count if another mover can try the task.
    pub hosts: bool,
}

/// Log lines of a mover.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LogMessage {
    pub host: String,
    pub pid: u32,
    pub lines: Vec<LogLine>,
}

/// A call of a mover to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// The mover wants to join the job.
    Hello {
        info: MoverInfo,
        /// The time on its host, in milliseconds since 1970.
        clock_ms: i64,
        /// The number of the handshake.
        turn: u32,
        /// The public half of its ephemeral key.
        key: [u8; 32],
        /// The digest of the offer that it has read.
        offer: [u8; 32],
    },
    /// The mover has joined.
    Join(MoverId),
    /// The mover cannot work for the job, for this reason.
    Unable {
        info: MoverInfo,
        why: String,
        /// It worked for the job before, and had tasks.
        has_worked: bool,
    },
    /// The mover claims tasks: their numbers, and digests of their messages. `facts`: how many facts it knows.
    Claim { mover: MoverId, tasks: Vec<(u32, [u8; 32])>, facts: u32 },
    /// The mover renews its leases; each has the number of milliseconds without progress.
    Renew { mover: MoverId, held: Vec<(u32, u64)>, load: Load, clock_ms: i64 },
    /// Threads wait for work of these classes. There is no answer.
    Waiting(MoverId, [bool; CLASSES]),
    /// The mover asks a question.
    Ask { mover: MoverId, question: CoordinatorRequest },
    /// The mover leaves; its remaining tasks will not be done by it.
    Bye(MoverId),
}

impl Call {
    /// The mover that sent the call, for calls that need keys.
    pub fn mover(&self) -> Option<MoverId> {
        match self {
            Self::Hello { .. } | Self::Unable { .. } => None,
            Self::Join(mover) | Self::Waiting(mover, _) | Self::Bye(mover) => Some(*mover),
            Self::Claim { mover, .. } | Self::Renew { mover, .. } | Self::Ask { mover, .. } => {
                Some(*mover)
            }
        }
    }
}

/// The state of a mover.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Tasks of each class that it can have in progress.
    pub places: u32,
    /// What limits its speed.
    pub limit: Option<dmover_model::Limit>,
    /// Why the broker does not accept its messages.
    pub trouble: Option<String>,
    /// The work that it has done since it joined.
    pub done: Done,
    /// Bytes of content that it has copied or read.
    pub bytes: u64,
    /// Entries that it has completed.
    pub entries: u64,
    /// Traffic of the network interfaces of its host.
    pub nics: Vec<NicView>,
}

/// The answer of the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The mover has joined. `key`: the public half of the coordinator's ephemeral key.
    Welcome {
        key: [u8; 32],
    },
    Refused {
        why: String,
        /// What the user can do.
        hint: String,
    },
    /// The claimed tasks are granted.
    Granted {
        /// Except these.
        gone: Vec<u32>,
        /// And except these, which other movers should try first.
        others: Vec<u32>,
        /// Facts that the mover must learn first.
        facts: Vec<Notice>,
        /// How many further tasks it may prefetch.
        spare: u32,
        /// Tasks that the coordinator did not publish under their numbers.
        forged: Vec<u32>,
    },
    /// The claim is not granted now; try again later.
    Later,
    /// The coordinator does not know the mover: it must join again, and has lost its leases.
    Stranger,
    /// The leases are renewed, except these.
    Renewed {
        lost: Vec<u32>,
        control: Control,
        /// The mover is much slower than the others.
        is_slow: bool,
        /// Every task fails there: it gets no tasks for now.
        is_left_out: bool,
    },
    Answer(Answer),
    Noted,
    /// The coordinator is alive: its host and process id.
    Pong(String, u32),
}

/// The state that the coordinator broadcasts to all movers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Control {
    /// The job is paused: take no tasks.
    pub held: bool,
    /// The job is stopping: end tasks in progress early.
    pub stopping: bool,
    /// Drop tasks in progress.
    pub dropping: bool,
    /// For each class, whether movers wait for work and no tasks are left.
    pub hungry: [bool; CLASSES],
    /// The number of mover processes that share the limits of the job.
    pub movers: u32,
    /// The number of jobs that share the limits; 0 and 1: this job alone.
    pub jobs: u32,
    /// The run has ended.
    pub closed: bool,
}

impl Control {
    /// The number of movers that share the limits of the job.
    pub fn shares(&self) -> u32 {
        self.movers.max(1).saturating_mul(self.jobs.max(1))
    }
}

/// The announcement of a job in a pool of shared limits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolMessage {
    pub job: String,
    pub run: u64,
    /// The job is new: the others must announce themselves as well.
    pub is_new: bool,
    /// The job leaves.
    pub is_last: bool,
}

/// Encodes a message.
pub(crate) fn encode<T: Serialize>(what: &T) -> Bytes {
    // Serialising to memory fails only for sequences of unknown length, and there are none.
    let plain = postcard::to_stdvec(what).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot encode a message; please report this");
        Vec::new()
    });
    if plain.len() <= PLAIN_MAX {
        return [&[0], &plain[..]].concat().into();
    }
    [&[1], &block::compress_prepend_size(&plain)[..]].concat().into()
}

/// Decodes a message.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let plain = match bytes.split_first() {
        Some((0, plain)) => return from_plain(plain),
        Some((1, packed)) => unpack(packed)?,
        _ => return Err("its first byte is unknown".into()),
    };
    from_plain(&plain)
}

/// Decompresses an LZ4 block behind its size.
fn unpack(packed: &[u8]) -> Result<Vec<u8>, String> {
    let (size, block) = block::uncompressed_size(packed).map_err(|error| error.to_string())?;
    if size > UNPACKED_MAX {
        return Err(format!("its size of {size} bytes is too large"));
    }
    let plain = block::decompress(block, size).map_err(|error| error.to_string())?;
    // The block may end before its announced size.
    (plain.len() == size).then_some(plain).ok_or_else(|| "it is incomplete".into())
}

fn from_plain<'a, T: Deserialize<'a>>(plain: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(plain).map_err(|error| error.to_string())
}

/// Joins messages into one.
pub(crate) fn bundle<'a>(messages: impl Iterator<Item = &'a Bytes>) -> Bytes {
    let all: Vec<_> = messages.map(|message| serde_bytes::Bytes::new(message)).collect();
    // As in `encode`: it cannot fail.
    postcard::to_stdvec(&all).unwrap_or_default().into()
}

/// Splits a joined message.
pub(crate) fn unbundle(bytes: &[u8]) -> Result<Vec<&[u8]>, String> {
    from_plain(bytes)
}

/// Cuts a report into messages of at most `most` bytes.
pub(crate) fn cut(said: OutcomeMessage, most: usize) -> Vec<(OutcomeMessage, Bytes)> {
    let whole = encode(&said);
    let things = said.told.len() + said.outcome.len();
    if whole.len() <= most || things <= 1 {
        return vec![(said, whole)];
    }
    let OutcomeMessage { mover, number, sequence, told, outcome, ended, hosts, .. } = said;
    let each = things.div_ceil(2 * whole.len().div_ceil(most)).max(1);
    // Reports come before what depends on them, and the end of the task comes last.
    let told = told.split(each).into_iter().map(|told| (told, Outcome::default()));
    let outcomes = outcome.split(each).into_iter().map(|outcome| (MoverReport::default(), outcome));
    let pieces: Vec<_> = told.chain(outcomes).collect();
    let last = pieces.len() - 1;
    let message = |(index, (told, outcome)): (usize, (MoverReport, Outcome))| {
        let (sequence, more) = (sequence + index as u32, index < last);
        OutcomeMessage { mover, number, sequence, told, outcome, ended, more, hosts }
    };
    let messages = pieces.into_iter().enumerate().map(message);
    messages.map(|message| (encode(&message), message)).map(|(b, m)| (m, b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{LossKind, Name, NewTask, Parent, TaskKind, TreePath};

    fn outcome(tasks: usize) -> Outcome {
        let kind = |n: usize| {
            let path = TreePath::root().join(format!("{n:0200}").as_bytes());
            TaskKind::Catalog(vec![path])
        };
        let tasks = (0..tasks).map(|n| NewTask { parent: Parent::Inherited, kind: kind(n) });
        Outcome { tasks: tasks.collect(), ..Outcome::default() }
    }

    #[test]
    fn a_message_comes_back_as_it_was_sent() {
        for tasks in [0, 3, 3000] {
            let sent = outcome(tasks);
            let bytes = encode(&sent);
            assert_eq!(decode::<Outcome>(&bytes), Ok(sent));
            assert!(tasks < 3000 || bytes.len() < 100_000, "it is compressed");
        }
        assert!(decode::<Outcome>(b"").is_err() && decode::<Outcome>(b"\x01xx").is_err());
        // A message whose announced size is far beyond what is ever sent, or not that of its block.
        for size in [u32::MAX, 7] {
            let lies = [&b"\x01"[..], &size.to_le_bytes(), &[0x10, b'x']].concat();
            assert!(decode::<Outcome>(&lies).is_err());
        }
        let _ = (LossKind::ALL, Name::new(*b"n"));
    }

    /// Reads a line of the table again: a type, the bytes of a value, and the value.
    fn check<T: Serialize + DeserializeOwned + std::fmt::Debug>(hex: &str, shown: &str) {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let value: T = from_plain(&bytes).unwrap_or_else(|error| panic!("{shown}: {error}"));
        assert_eq!(format!("{value:?}"), shown);
        assert_eq!(postcard::to_stdvec(&value).unwrap(), bytes, "{shown}");
    }

    #[test]
    fn messages_keep_their_bytes() {
        // Each variant as protocol 8 has it. A line that has to change needs another protocol number.
        let lines = include_str!("message_bytes.txt").lines();
        assert_eq!(lines.clone().count(), 80);
        for line in lines {
            let mut words = line.splitn(3, ' ');
            let [name, hex, shown] = [(); 3].map(|()| words.next().unwrap());
            match name {
                "CoordinatorRequest" => check::<CoordinatorRequest>(hex, shown),
                "Answer" => check::<Answer>(hex, shown),
                "Notice" => check::<Notice>(hex, shown),
                "MoverReport" => check::<MoverReport>(hex, shown),
                _ => panic!("{name} is no message"),
            }
        }
    }

    #[test]
    fn messages_come_out_of_a_bundle_in_their_order() {
        let all = [encode(&outcome(0)), encode(&outcome(300)), Bytes::new()];
        let bundled = bundle(all.iter());
        assert_eq!(unbundle(&bundled).unwrap(), all);
        assert!(unbundle(&bundled[..bundled.len() - 1]).is_err() && unbundle(b"").is_err());
    }

    #[test]
    fn what_is_too_large_is_cut_and_the_last_piece_alone_ends_the_task() {
        let sent = outcome(5000);
        let whole = OutcomeMessage {
            mover: 7,
            number: 9,
            sequence: 4,
            told: MoverReport::default(),
            outcome: sent.clone(),
            ended: true,
            more: false,
            hosts: false,
        };
        let pieces = cut(whole, 4096);
        assert!(pieces.len() > 1);
        let mut together = Outcome::default();
        for (index, (piece, bytes)) in pieces.iter().enumerate() {
            assert!(bytes.len() <= 4096, "{} bytes", bytes.len());
            assert_eq!(piece.sequence, 4 + index as u32);
            assert_eq!(piece.more, index + 1 < pieces.len());
            together.tasks.extend(piece.outcome.tasks.iter().cloned());
        }
        assert_eq!(together, sent);
    }
}
