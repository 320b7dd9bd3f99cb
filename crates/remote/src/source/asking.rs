//! Requests and their answers, and what becomes of errors of the connection.
use dmover_local::root_side::RootNames;
use dmover_model::{
    ConnectionReport, EntryError, EntryKind, ErrorClass, Fatal, Metadata, Operation, PathBytes,
    Side, TreePath,
};
use dmover_net::connection::{Broken, Channel};
use dmover_net::frame::PAYLOAD_MAX;
use dmover_observe::lock;
use dmover_schedule::sync::{Mutex, OnceLock};
use dmover_wire::agent::{Answer, Begin, Begun, BegunShared, Request, UNKNOWN_REQUEST};
use dmover_wire::encode;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use super::Line;
use super::hosts::{Choice, Chosen, Hosts, Owed};
use crate::joined::{receive, receive_bytes, receive_bytes_within, receive_within};

/// So often each host is asked for one thing.
const ROUNDS: usize = 2;

/// What a request is about, for errors: an operation, a directory, and a name in it.
pub(super) type About<'a> = (Operation, &'a TreePath, &'a [u8]);

/// Says that a request is complete. Its place for another channel is free as soon as the answer has come.
fn complete(channel: Channel) -> Result<Channel, Broken> {
    channel.finish()?;
    Ok(channel)
}

/// Opens the tree of an agent.
pub(super) fn begin(line: &dyn Line, request: &Request) -> Result<Begun, Fatal> {
    let begun = line.request(&encode(request)).and_then(|channel| {
        channel.finish()?;
        receive(&channel)
    });
    begun.map_err(|why| line.fatal(&why))
}

/// Opens the tree of one of several agents.
pub(super) fn begin_shared(
    line: &dyn Line,
    request: &Begin,
    limit: Duration,
) -> Result<BegunShared, Fatal> {
    let begun = line.request(&encode(&Request::BeginShared(request.clone()))).and_then(|channel| {
        channel.finish()?;
        receive_within(&channel, limit).unwrap_or(Err(Broken::Silent(limit)))
    });
    begun.map_err(|why| match why {
        Broken::Cancelled(words) if words == UNKNOWN_REQUEST => {
            Fatal::refused(words, "use one version of dmover on all hosts")
        }
        why => line.fatal(&why),
    })
}

/// A request that was sent.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) channel: Channel,
    /// The host that answers, if there are several.
    owed: Option<Owed>,
}

impl Asked {
    /// So many bytes of the answer have come.
    pub(super) fn delivered(&self, bytes: u64) {
        if let Some(owed) = &self.owed {
            owed.delivered(bytes);
        }
    }
}

/// About how many bytes of files the host reads for the answer.
fn bytes_of(request: &Request) -> u64 {
    match request {
        Request::Content { file, range } => {
            range.end.min(file.version.size).saturating_sub(range.start)
        }
        Request::Digests { range, .. } => range.len(),
        _ => 0,
    }
}

/// How long one of several hosts is waited for before another one is asked.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// The same, as often as this, if other answers come from it.
const WAITS_MAX: u32 = 3;

/// The connections to the agents of a tree.
#[derive(Debug)]
pub(super) struct Asking {
    hosts: Arc<Hosts>,
    display: PathBytes,
    names: OnceLock<RootNames>,
    /// The first error after which nothing can be read any more.
    broken: Mutex<Option<Broken>>,
    /// How many requests have failed because one of several hosts was lost or silent, and how many of them because it was silent.
    failed: AtomicU64,
    silent: AtomicU64,
}

impl Asking {
    pub(super) fn new(hosts: Arc<Hosts>, display: PathBytes) -> Self {
        let (names, broken, failed, silent) = Default::default();
        Self { hosts, display, names, broken, failed, silent }
    }

    pub(super) fn reports(&self) -> Vec<(PathBytes, ConnectionReport)> {
        self.hosts.reports(&self.display)
    }

    pub(super) fn are_several(&self) -> bool {
        self.hosts.are_several()
    }

    /// How many hosts there are.
    pub(super) fn hosts(&self) -> usize {
        self.hosts.count()
    }

    pub(super) fn display(&self) -> &PathBytes {
        &self.display
    }

    /// What is at the root, which decides how its entries are called.
    pub(super) fn root_is(&self, metadata: &Metadata) {
        let is_directory = metadata.kind == EntryKind::Directory;
        self.names.get_or_init(|| RootNames {
            display: self.display.clone(),
            host: 0,
            is_directory,
        });
    }

    /// An entry as a user would type it.
    fn shown(&self, directory: &TreePath, name: &[u8]) -> PathBytes {
        let names = self.names.get();
        names.map_or_else(|| self.display.clone(), |names| names.path(directory, name))
    }

    /// An error that the agent did not report.
    pub(super) fn plain(
        &self,
        (operation, directory, name): About<'_>,
        class: ErrorClass,
        words: impl Into<String>,
    ) -> EntryError {
        let path = self.shown(directory, name);
        EntryError::plain(Side::Source, operation, class, path, words)
    }

    /// The error of an entry that could not be asked about.
    pub(super) fn failed(&self, about: About<'_>, asked: &Asked, why: Broken) -> EntryError {
        match (why, &asked.owed) {
            (Broken::Cancelled(words), _) if words == UNKNOWN_REQUEST => {
                self.plain(about, ErrorClass::Unsupported, words)
            }
            // Only this request has failed.
            (Broken::Cancelled(words), _) => self.plain(about, ErrorClass::Other, words),
            (why, None) => self.broken(about, why),
            (why, Some(owed)) => {
                owed.lose(&why);
                self.failed_there(about, &why)
            }
        }
    }

    /// The error of an entry about which one of several hosts was asked that is lost or silent.
    fn failed_there(&self, about: About<'_>, why: &Broken) -> EntryError {
        self.silent.fetch_add(u64::from(matches!(why, Broken::Silent(_))), SeqCst);
        self.failed.fetch_add(1, SeqCst);
        self.plain(about, ErrorClass::Cancelled, why.to_string())
    }

    /// The error of an entry that nobody can be asked about any more. Nothing is wrong with the entry.
    fn broken(&self, about: About<'_>, why: Broken) -> EntryError {
        let first = lock(&self.broken).get_or_insert(why).clone();
        self.plain(about, ErrorClass::Cancelled, self.hosts.fatal(&first).to_string())
    }

    /// Why nothing can be read any more.
    pub(super) fn lost(&self) -> Option<Fatal> {
        let known = lock(&self.broken).clone();
        let why = known.or_else(|| {
            let why = self.hosts.is_over()?;
            // A host that comes back now would come too late: entries were given up.
            Some(lock(&self.broken).get_or_insert(why).clone())
        });
        why.map(|why| self.hosts.fatal(&why))
    }

    /// Asks again if a host was lost that was asked, as long as there is another one, or may be one again. A request that ends the agent of each
    /// host is not asked for ever.
    pub(super) fn despite_losses<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, EntryError>,
    ) -> Result<T, EntryError> {
        let mut rounds = ROUNDS * self.hosts.count();
        loop {
            let (failed, silent) = (self.failed.load(SeqCst), self.silent.load(SeqCst));
            let mut error = match ask() {
                Err(error)
                    if error.class == ErrorClass::Cancelled
                        && self.failed.load(SeqCst) > failed
                        && self.lost().is_none() =>
                {
                    error
                }
                done => return done,
            };
            // Storage that hangs at all hosts is waited for, as with one host.
            if self.silent.load(SeqCst) > silent {
                continue;
            }
            rounds -= 1;
            if rounds == 0 {
                // Others can be asked about other entries, so this one has failed.
                error.class = ErrorClass::Io;
                return Err(error);
            }
        }
    }

    /// Asks any host, and the first one if that one answers with an error: it may lack a mount, or a right.
    pub(super) fn of_any<T>(
        &self,
        mut ask: impl FnMut(Choice) -> Result<T, EntryError>,
    ) -> Result<T, EntryError> {
        if !self.are_several() {
            return ask(Choice::First);
        }
        let answer = self.despite_losses(|| ask(Choice::Any));
        match answer {
            Err(error) if error.class != ErrorClass::Cancelled && error.side == Side::Source => {
                self.despite_losses(|| ask(Choice::First))
            }
            answer => answer,
        }
    }

    /// Sends a request that is complete with its first message.
    pub(super) fn send(
        &self,
        request: &Request,
        choice: Choice,
        about: About<'_>,
    ) -> Result<Asked, EntryError> {
        tracing::trace!(?request, "asks");
        let message = encode(request);
        if message.len() > PAYLOAD_MAX {
            let words = "the path is too long for a message to another host";
            return Err(self.plain(about, ErrorClass::NameTooLong, words));
        }
        // By itself, so that the lock is free again below.
        let known = lock(&self.broken).clone();
        if let Some(why) = known {
            return Err(self.broken(about, why));
        }
        let chosen =
            self.hosts.choose(choice, bytes_of(request)).map_err(|why| self.broken(about, why))?;
        match chosen.line.request(&message).and_then(complete) {
            Ok(channel) => Ok(Asked { channel, owed: self.owed(&chosen, request) }),
            Err(Broken::Cancelled(words)) => Err(self.plain(about, ErrorClass::Other, words)),
            Err(why) if self.are_several() => {
                self.hosts.lose(&chosen, &why);
                Err(self.failed_there(about, &why))
            }
            Err(why) => Err(self.broken(about, why)),
        }
    }

    /// The same for a request that can do without; `None`: it was not sent, or the connection is over.
    pub(super) fn send_ahead(&self, request: &Request) -> Option<Asked> {
        tracing::trace!(?request, "asks ahead");
        let message = encode(request);
        if message.len() > PAYLOAD_MAX || lock(&self.broken).is_some() {
            return None;
        }
        // Lists and heads decide what is copied.
        let chosen = self.hosts.first_now()?;
        let channel = chosen.line.request_ahead(&message).ok().flatten()?;
        let channel = complete(channel).ok()?;
        Some(Asked { channel, owed: self.owed(&chosen, request) })
    }

    fn owed(&self, chosen: &Chosen, request: &Request) -> Option<Owed> {
        self.are_several().then(|| Owed::of(&self.hosts, chosen, bytes_of(request)))
    }

    /// Waits for the next part of an answer of one of several hosts. `next`: waits so long at most.
    ///
    /// # Errors
    /// It does not come, and another host can be asked.
    fn next<T>(
        &self,
        owed: &Owed,
        about: About<'_>,
        next: impl Fn(Duration) -> Option<Result<T, Broken>>,
    ) -> Result<Result<T, Broken>, EntryError> {
        owed.is_awaited(true);
        let (mut waits, mut received) = (0, owed.received());
        let came = loop {
            if let Some(came) = next(ANSWER_WITHIN) {
                break came;
            }
            // A slow line may be busy with other answers.
            let before = std::mem::replace(&mut received, owed.received());
            waits += 1;
            if (received == before || waits >= WAITS_MAX) && owed.doubt() {
                owed.is_awaited(false);
                return Err(self.failed_there(about, &Broken::Silent(ANSWER_WITHIN)));
            }
        };
        owed.is_awaited(false);
        owed.heard();
        Ok(came)
    }

    /// The only answer to a request, or the next one.
    pub(super) fn receive<T: DeserializeOwned>(
        &self,
        asked: &Asked,
        about: About<'_>,
    ) -> Result<T, EntryError> {
        let came = match &asked.owed {
            Some(owed) => self.next(owed, about, |limit| receive_within(&asked.channel, limit))?,
            None => receive(&asked.channel),
        };
        came.map_err(|why| self.failed(about, asked, why))
    }

    /// The bytes of the only answer to a request, or of the next one.
    pub(super) fn receive_bytes(
        &self,
        asked: &Asked,
        about: About<'_>,
    ) -> Result<Vec<u8>, EntryError> {
        self.try_receive_bytes(asked, about)?.map_err(|why| self.failed(about, asked, why))
    }

    /// The same for a request that the other side may not know.
    pub(super) fn try_receive_bytes(
        &self,
        asked: &Asked,
        about: About<'_>,
    ) -> Result<Result<Vec<u8>, Broken>, EntryError> {
        match &asked.owed {
            Some(owed) => {
                self.next(owed, about, |limit| receive_bytes_within(&asked.channel, limit))
            }
            None => Ok(receive_bytes(&asked.channel)),
        }
    }

    /// The next answer, if it begins to come within this time; `None`: it does not.
    pub(super) fn receive_within<T: DeserializeOwned>(
        &self,
        asked: &Asked,
        about: About<'_>,
        limit: Duration,
    ) -> Option<Result<T, EntryError>> {
        let received = receive_within(&asked.channel, limit)?;
        Some(received.map_err(|why| self.failed(about, asked, why)))
    }

    /// Asks the first host, and waits for its only answer.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        request: &Request,
        about: About<'_>,
    ) -> Result<T, EntryError> {
        self.despite_losses(|| {
            let asked = self.send(request, Choice::First, about)?;
            self.receive::<Answer<T>>(&asked, about)?
        })
    }

    /// The error of an answer that cannot be right.
    pub(super) fn violation(
        &self,
        about: About<'_>,
        asked: &Asked,
        what: &'static str,
    ) -> EntryError {
        self.failed(about, asked, Broken::Violation(what))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Threads that keep connections hold the hosts as well.
        if self.are_several() {
            self.hosts.close();
        }
    }
}
