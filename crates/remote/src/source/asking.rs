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
use dmover_wire::agent::{Answer, Begun, Request};
use dmover_wire::encode;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

use super::Line;
use crate::joined::{receive, receive_within};

/// What a request is about, for errors: an operation, a directory, and a name in it.
pub(super) type About<'a> = (Operation, &'a TreePath, &'a [u8]);

/// Says that a request is complete. Its place for another channel is free as soon as the answer has come.
fn complete(channel: Channel) -> Result<Channel, Broken> {
    channel.finish()?;
    Ok(channel)
}

/// The connection to the agent of a tree.
#[derive(Debug)]
pub(super) struct Asking {
    line: Arc<dyn Line>,
    display: PathBytes,
    names: OnceLock<RootNames>,
    /// The first error after which nothing can be read any more.
    broken: Mutex<Option<Broken>>,
}

impl Asking {
    pub(super) fn new(line: Arc<dyn Line>, display: PathBytes) -> Self {
        let (names, broken) = Default::default();
        Self { line, display, names, broken }
    }

    pub(super) fn report(&self) -> Option<ConnectionReport> {
        self.line.report()
    }

    pub(super) fn display(&self) -> &PathBytes {
        &self.display
    }

    /// Opens the tree.
    pub(super) fn begin(&self, request: &Request) -> Result<Begun, Fatal> {
        let begun = self.line.request(&encode(request)).and_then(|channel| {
            channel.finish()?;
            receive(&channel)
        });
        begun.map_err(|why| self.line.fatal(&why))
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
    pub(super) fn failed(&self, about: About<'_>, why: Broken) -> EntryError {
        let why = match why {
            // Only this request has failed.
            Broken::Cancelled(words) => return self.plain(about, ErrorClass::Other, words),
            why => why,
        };
        let first = lock(&self.broken).get_or_insert(why).clone();
        // Nothing is wrong with the entry.
        self.plain(about, ErrorClass::Cancelled, self.line.fatal(&first).to_string())
    }

    /// Why nothing can be read any more.
    pub(super) fn lost(&self) -> Option<Fatal> {
        let known = lock(&self.broken).clone();
        known.or_else(|| self.line.is_over()).map(|why| self.line.fatal(&why))
    }

    /// Sends a request that is complete with its first message.
    pub(super) fn send(&self, request: &Request, about: About<'_>) -> Result<Channel, EntryError> {
        tracing::trace!(?request, "asks");
        let message = encode(request);
        if message.len() > PAYLOAD_MAX {
            let words = "the path is too long for a message to another host";
            return Err(self.plain(about, ErrorClass::NameTooLong, words));
        }
        // By itself, so that the lock is free again below.
        let known = lock(&self.broken).clone();
        if let Some(why) = known {
            return Err(self.failed(about, why));
        }
        let sent = self.line.request(&message).and_then(complete);
        sent.map_err(|why| self.failed(about, why))
    }

    /// The same for a request that can do without; `None`: it was not sent, or the connection is over.
    pub(super) fn send_ahead(&self, request: &Request) -> Option<Channel> {
        tracing::trace!(?request, "asks ahead");
        let message = encode(request);
        if message.len() > PAYLOAD_MAX || lock(&self.broken).is_some() {
            return None;
        }
        let channel = self.line.request_ahead(&message).ok().flatten()?;
        complete(channel).ok()
    }

    /// The only answer on a channel, or the next one.
    pub(super) fn receive<T: DeserializeOwned>(
        &self,
        channel: &Channel,
        about: About<'_>,
    ) -> Result<T, EntryError> {
        receive(channel).map_err(|why| self.failed(about, why))
    }

    /// The next answer, if it begins to come within this time; `None`: it does not.
    pub(super) fn receive_within<T: DeserializeOwned>(
        &self,
        channel: &Channel,
        about: About<'_>,
        limit: Duration,
    ) -> Option<Result<T, EntryError>> {
        let received = receive_within(channel, limit)?;
        Some(received.map_err(|why| self.failed(about, why)))
    }

    /// Sends a request, and waits for its only answer.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        request: &Request,
        about: About<'_>,
    ) -> Result<T, EntryError> {
        let channel = self.send(request, about)?;
        self.receive::<Answer<T>>(&channel, about)?
    }

    /// The error of an answer that cannot be right.
    pub(super) fn violation(&self, about: About<'_>, what: &'static str) -> EntryError {
        self.failed(about, Broken::Violation(what))
    }
}
