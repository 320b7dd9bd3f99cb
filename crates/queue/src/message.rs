//! What goes over the wire. Everything carries the protocol's number or belongs to a run whose offer does.
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use dmover_engine::{Answer, Fact, JobOffer, Question, Told};
use dmover_model::{Outcome, Task};
use dmover_observe::{CLASSES, LogLine, MountView, NicView};
use dmover_plan::leases::MoverId;
use dmover_plan::stragglers::Done;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::identity::{Identity, Trust, is_signed_by};

/// Number of the protocol between coordinator and movers. Others are refused.
pub const PROTOCOL: u32 = 7;

/// What to do about programs that do not understand each other.
pub(crate) const ONE_VERSION: &str = "use one version of dmover for all";

/// Above so many bytes a message is compressed.
const PLAIN_MAX: usize = 1024;
/// Never more than this is made of a message, whoever sent it.
const UNPACKED_MAX: usize = 256 << 20;

/// A job as it stands in the bucket of jobs. The fields beside `offer` can be read whatever the protocol is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OfferRecord {
    pub protocol: u32,
    /// The coordinator's program.
    pub version: String,
    pub job: String,
    pub run: u64,
    pub host: String,
    pub pid: u32,
    /// How long a lease holds without a word.
    pub lease_ms: u64,
    /// Movers are to send what their logs say.
    #[serde(default)]
    pub wants_log: bool,
    /// Movers have to have all of these labels.
    #[serde(default)]
    pub only: Vec<(String, String)>,
    /// The [`JobOffer`], as text: what is signed is what was written.
    pub offer: serde_json::Value,
    /// The public key of the user whose job it is.
    #[serde(default)]
    pub signer: String,
    /// The signature of all the rest by that key, in base64.
    #[serde(default)]
    pub signature: String,
}

/// What signatures of offers are for.
const OFFER: &str = "offer";

impl OfferRecord {
    /// Whether a mover with these labels may work for it.
    pub fn is_for(&self, labels: &[(String, String)]) -> bool {
        self.only.iter().all(|wanted| labels.contains(wanted))
    }

    pub fn offer(&self) -> Result<JobOffer, serde_json::Error> {
        serde_json::from_str(self.offer.as_str().unwrap_or_default())
    }

    /// All that is signed, as bytes: the fields as they were read, however they are written.
    fn signed(&self) -> Vec<u8> {
        let offer = self.offer.as_str().unwrap_or_default();
        let of_run = (&self.job, self.run, &self.host, self.pid, self.lease_ms);
        let rest = (self.wants_log, &self.only, offer, &self.signer);
        // As in `encode`: it cannot fail.
        postcard::to_stdvec(&(self.protocol, &self.version, of_run, rest)).unwrap_or_default()
    }

    /// What tells this offer from all others.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.signed()).as_bytes()
    }

    pub fn sign(&mut self, identity: &Identity) {
        identity.public().clone_into(&mut self.signer);
        self.signature = BASE64_STANDARD.encode(identity.sign(OFFER, &self.signed()));
    }

    /// Answers the offer if somebody has signed it who is believed, and if it claims nothing that this signature does not cover.
    pub fn verify(&self, trust: &Trust) -> Result<JobOffer, String> {
        if self.signature.is_empty() {
            return Err("its offer is not signed".into());
        }
        let signature = BASE64_STANDARD.decode(&self.signature).unwrap_or_default();
        if !is_signed_by(&self.signer, OFFER, &self.signed(), &signature) {
            return Err(
                "its offer was changed by somebody, or is forged: the signature is wrong".into()
            );
        }
        let users = trust.users_of(&self.signer);
        if users.is_empty() {
            return Err(format!(
                "its offer is signed by the key {}, which is not trusted",
                self.signer
            ));
        }
        let offer = self.offer().map_err(|error| format!("its offer is not readable: {error}"))?;
        if offer.key != self.job || offer.run != self.run {
            return Err("its offer is that of another job".into());
        }
        if !users.contains(&offer.uid) {
            let (claimed, user) = (offer.uid, users[0]);
            return Err(format!(
                "its offer claims to be user {claimed}'s, and is signed by the key of user {user}"
            ));
        }
        Ok(offer)
    }
}

/// A process with movers, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverInfo {
    /// Its number, for as long as it lives.
    pub id: MoverId,
    /// The protocol that it speaks.
    pub protocol: u32,
    /// Its program.
    pub version: String,
    /// Where it runs.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Processors that it may use.
    pub cores: u32,
    /// Memory that it may use for buffers, in bytes.
    pub memory_bytes: u64,
    /// What was said of it: `site=…`, `rack=…`.
    pub labels: Vec<(String, String)>,
    /// What is mounted on its host.
    pub mounts: Vec<MountView>,
}

/// Anything that a person can be told of.
pub trait Describe {
    /// In words.
    fn describe(&self) -> String;
}

impl Describe for MoverInfo {
    fn describe(&self) -> String {
        format!("{} (process {})", self.host, self.pid)
    }
}

/// A task on its way.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TaskMessage {
    pub number: u32,
    pub task: Task,
}

/// What a mover says of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OutcomeMessage {
    pub mover: MoverId,
    pub number: u32,
    /// Counts what is said of this lease, from 1.
    pub sequence: u32,
    pub told: Told,
    pub outcome: Outcome,
    /// The task has ended.
    pub ended: bool,
    /// It is a piece of something, and more pieces follow.
    pub more: bool,
    /// Errors of which some may be this host's: if somebody else can try the task, they are not to be believed.
    pub hosts: bool,
}

/// What the log of a mover says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LogMessage {
    pub host: String,
    pub pid: u32,
    pub lines: Vec<LogLine>,
}

/// What a mover wants of the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// It wants to work for the job.
    Hello {
        info: MoverInfo,
        /// What time it is there, in milliseconds since 1970.
        clock_ms: i64,
        /// Counts how often it has said so.
        turn: u32,
        /// The public half of its fresh key.
        key: [u8; 32],
        /// The digest of the offer that it has seen.
        offer: [u8; 32],
    },
    /// Now it does.
    Join(MoverId),
    /// It cannot, and why.
    Unable {
        info: MoverInfo,
        why: String,
        /// It could before, and had tasks.
        has_worked: bool,
    },
    /// It was handed tasks: their numbers, and digests of what they say. `facts`: how many it knows.
    Claim { mover: MoverId, tasks: Vec<(u32, [u8; 32])>, facts: u32 },
    /// It is there and has these in hand; nothing has moved in them for so many milliseconds.
    Renew { mover: MoverId, held: Vec<(u32, u64)>, load: Load, clock_ms: i64 },
    /// Threads there wait for work of these classes. Nothing is answered.
    Waiting(MoverId, [bool; CLASSES]),
    /// It has to know something.
    Ask { mover: MoverId, question: Question },
    /// It leaves; what it still has is not going to be done.
    Bye(MoverId),
}

impl Call {
    /// Who says it, of those that need keys to say it.
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

/// How a mover does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Tasks of each class that it can have in hand.
    pub places: u32,
    /// What keeps it from being faster.
    pub limit: Option<dmover_model::Limit>,
    /// Why the broker does not take what it has to say.
    pub trouble: Option<String>,
    /// What its movers have done since they came.
    pub done: Done,
    /// Bytes of content that it has moved, and entries that it has ended.
    pub bytes: u64,
    /// See `bytes`.
    pub entries: u64,
    /// What the network interfaces of its host have carried.
    pub nics: Vec<NicView>,
}

/// What the coordinator answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It has proved who it is. `key`: the public half of the coordinator's fresh key.
    Welcome {
        key: [u8; 32],
    },
    Refused {
        why: String,
        /// What to do.
        hint: String,
    },
    /// The tasks are the mover's.
    Granted {
        /// But for these.
        gone: Vec<u32>,
        /// And these, at which others are to try themselves first.
        others: Vec<u32>,
        /// The mover has to know these first.
        facts: Vec<Fact>,
        /// So many more it may take before it has threads for them.
        spare: u32,
        /// These are not what the coordinator has published under their numbers.
        forged: Vec<u32>,
    },
    /// They may be, but not now.
    Later,
    /// The coordinator does not know the mover: it has to say hello again, and has lost whatever it had.
    Stranger,
    /// These are not the mover's any more.
    Renewed {
        lost: Vec<u32>,
        control: Control,
        /// The mover is much slower than the others.
        is_slow: bool,
        /// Everything fails there: it gets nothing for now.
        is_left_out: bool,
    },
    Answer(Answer),
    Noted,
    /// The coordinator is there: its host and process.
    Pong(String, u32),
}

/// What the coordinator wants of all movers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Control {
    /// Nobody takes anything for now.
    pub held: bool,
    /// What is in hand is to be ended.
    pub stopping: bool,
    /// It is to be dropped.
    pub dropping: bool,
    /// Somebody waits for work of a class, and there is none.
    pub hungry: [bool; CLASSES],
    /// How many processes with movers share what the job may use.
    pub movers: u32,
    /// How many jobs share their limits; 0 and 1: this one has its own.
    pub jobs: u32,
    /// The run has ended.
    pub closed: bool,
}

impl Control {
    /// Among how many the limits of the job are shared.
    pub fn shares(&self) -> u32 {
        self.movers.max(1).saturating_mul(self.jobs.max(1))
    }
}

/// A job says that it is there and takes part in a pool of limits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PoolMessage {
    pub job: String,
    pub run: u64,
    /// It has just come: the others are to say so as well.
    pub is_new: bool,
    /// It goes.
    pub is_last: bool,
}

/// Puts something into a message.
pub(crate) fn encode<T: Serialize>(what: &T) -> Bytes {
    // Serialising to memory fails only for sequences whose length is not known beforehand, and there are none.
    let plain = postcard::to_stdvec(what).unwrap_or_else(|error| {
        tracing::error!(%error, "a message cannot be written; please report this");
        Vec::new()
    });
    let packed = (plain.len() > PLAIN_MAX).then(|| zstd::bulk::compress(&plain, 1));
    match packed {
        Some(Ok(packed)) => [&[1], &packed[..]].concat().into(),
        _ => [&[0], &plain[..]].concat().into(),
    }
}

/// Takes something out of a message.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let plain = match bytes.split_first() {
        Some((0, plain)) => return from_plain(plain),
        Some((1, packed)) => zstd::bulk::decompress(packed, unpacked_size(packed)?),
        _ => return Err("it begins with no known byte".into()),
    };
    from_plain(&plain.map_err(|error| error.to_string())?)
}

fn unpacked_size(packed: &[u8]) -> Result<usize, String> {
    let size = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten();
    let size = size.ok_or("it does not say how large it is")? as usize;
    (size <= UNPACKED_MAX).then_some(size).ok_or_else(|| format!("it would be {size} bytes"))
}

fn from_plain<'a, T: Deserialize<'a>>(plain: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(plain).map_err(|error| error.to_string())
}

/// Puts messages into one.
pub(crate) fn bundle<'a>(messages: impl Iterator<Item = &'a Bytes>) -> Bytes {
    let all: Vec<_> = messages.map(|message| serde_bytes::Bytes::new(message)).collect();
    // As in `encode`: it cannot fail.
    postcard::to_stdvec(&all).unwrap_or_default().into()
}

/// Takes messages out of one.
pub(crate) fn unbundle(bytes: &[u8]) -> Result<Vec<&[u8]>, String> {
    from_plain(bytes)
}

/// Cuts what a mover says into messages of at most so many bytes each.
pub(crate) fn cut(said: OutcomeMessage, most: usize) -> Vec<(OutcomeMessage, Bytes)> {
    let whole = encode(&said);
    let things = said.told.len() + said.outcome.len();
    if whole.len() <= most || things <= 1 {
        return vec![(said, whole)];
    }
    let OutcomeMessage { mover, number, sequence, told, outcome, ended, hosts, .. } = said;
    let each = things.div_ceil(2 * whole.len().div_ceil(most)).max(1);
    // What was told comes before what follows from it, and what ends the task comes last.
    let told = told.split(each).into_iter().map(|told| (told, Outcome::default()));
    let outcomes = outcome.split(each).into_iter().map(|outcome| (Told::default(), outcome));
    let pieces: Vec<_> = told.chain(outcomes).collect();
    let last = pieces.len() - 1;
    let message = |(index, (told, outcome)): (usize, (Told, Outcome))| {
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
        let _ = (LossKind::ALL, Name::new(*b"n"));
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
            told: Told::default(),
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
