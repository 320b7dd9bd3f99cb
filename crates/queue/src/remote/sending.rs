//! Sends reports about tasks to the coordinator.
use bytes::Bytes;
use dmover_engine::queue::{Lease, Queue};
use dmover_engine::take_reports;
use dmover_model::{Outcome, TaskKind};
use dmover_schedule::sync::Mutex;
use dmover_wire::{MoverReport, OutcomeMessage};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

use super::{AGAIN, FED, RemoteQueue, lock};
use crate::seal::Kind;

/// The most reports that wait to be sent.
const OUTBOX: usize = 64;
/// The size limit of a bundle, unless it is one larger piece: the coordinator has many messages in memory.
const BUNDLE_MAX: usize = 256 << 10;
/// Room for the headers that the broker adds to a message.
const HEADERS: usize = 1024;

/// A report about a task on its way.
pub(super) struct Saying {
    lease: Lease,
    /// Its pieces, if it is too large for one message.
    pieces: Vec<Bytes>,
    ended: bool,
}

/// Reports that wait to be sent.
pub(super) struct Outbox {
    /// For threads that report.
    sender: mpsc::Sender<Saying>,
    /// For [`send_all`], until it starts.
    receiver: Mutex<Option<mpsc::Receiver<Saying>>>,
}

impl Outbox {
    /// Without reports.
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel(OUTBOX);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }

    /// The reports, for [`send_all`]. `None`: it has them already.
    pub fn take_receiver(&self) -> Option<mpsc::Receiver<Saying>> {
        lock(&self.receiver).take()
    }

    /// Adds a report; waits while there are too many.
    fn put(&self, saying: Saying) {
        // This fails only when the run is over, and then the report is not needed.
        let _ = self.sender.blocking_send(saying);
    }
}

/// One message of a report.
struct Piece {
    lease: Lease,
    bytes: Bytes,
    /// It is the last message about the task.
    is_last: bool,
}

impl Saying {
    fn into_pieces(self) -> impl Iterator<Item = Piece> {
        let Self { lease, pieces, ended } = self;
        let left = pieces.len();
        pieces.into_iter().enumerate().map(move |(index, bytes)| {
            let is_last = ended && index + 1 == left;
            Piece { lease: lease.clone(), bytes, is_last }
        })
    }
}

/// Sends reports in order. Reports that arrive while the broker accepts earlier ones are bundled.
pub(super) async fn send_all(queue: Arc<RemoteQueue>, mut outbox: mpsc::Receiver<Saying>) {
    let mut said = Vec::new();
    // The other end is the queue's own, which is there as long as this runs.
    while !queue.is_closed() {
        let received = outbox.recv_many(&mut said, OUTBOX);
        match tokio::time::timeout(AGAIN, received).await {
            Err(_) => continue,
            Ok(0) => return,
            Ok(_) => {}
        }
        send_pieces(&queue, said.drain(..).flat_map(Saying::into_pieces).collect()).await;
    }
}

/// Sends pieces, several at a time, until the broker has them or their tasks are lost.
async fn send_pieces(queue: &RemoteQueue, mut pieces: VecDeque<Piece>) {
    loop {
        let closed = queue.is_closed();
        pieces.retain(|piece| {
            let holds = !closed && piece.lease.holds();
            if !holds {
                // Nothing that is said after this may be believed.
                piece.lease.lose();
                queue.has_said(piece);
            }
            holds
        });
        // What a server takes may be less than when they were made.
        let count = fitting(pieces.iter().map(|piece| piece.bytes.len()), queue.piece_max());
        if count == 0 {
            return;
        }
        for piece in pieces.iter().take(count) {
            piece.lease.said();
        }
        let body = dmover_wire::bundle(pieces.iter().take(count).map(|piece| &piece.bytes));
        let body = queue.channel.seal(Kind::Outcome, &body);
        if let Err(error) =
            queue.channel.link.publish(queue.channel.names.outcome_subject(), body).await
        {
            tracing::warn!(%error, "cannot send outcomes");
            lock(&queue.load).trouble = Some(error.to_string());
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        lock(&queue.load).trouble = None;
        pieces.drain(..count).for_each(|piece| queue.has_said(&piece));
    }
}

/// How many of these pieces fit into one message, at least one.
fn fitting(sizes: impl Iterator<Item = usize>, most: usize) -> usize {
    let most = most.min(BUNDLE_MAX);
    let mut together = 0;
    let fits = |size: &usize| {
        together += size;
        together <= most || together == *size
    };
    sizes.take_while(fits).count()
}

impl RemoteQueue {
    /// The size limit of one message, whatever its content.
    fn piece_max(&self) -> usize {
        self.channel.link.client.max_payload().saturating_sub(HEADERS).max(HEADERS)
    }

    /// Records that a piece was sent, or never will be.
    fn has_said(&self, piece: &Piece) {
        if piece.is_last {
            self.state().held.remove(&piece.lease.number);
        }
    }

    /// Reports about a task. Its errors come last: if any may be caused by this host, the coordinator decides whether
    /// they count. Other errors would occur again if the task is repeated.
    pub(super) fn say(&self, lease: &Lease, outcome: Outcome, ended: bool) {
        let mut told = take_reports();
        let errors = {
            let mut state = self.state();
            let Some(held) = state.held.get_mut(&lease.number) else { return };
            held.errors.append(told.take_errors());
            if ended { std::mem::take(&mut held.errors) } else { MoverReport::default() }
        };
        // The failure of a part shows whether it may be the host's.
        let part = outcome.chunk_failure.as_ref().is_some_and(|error| error.may_be_the_hosts());
        if part && !errors.has_failed_flush() {
            self.send(lease, (told, false), Outcome::default(), false);
            return self.send(lease, (errors, true), outcome, ended);
        }
        // These cannot be done again.
        let once = matches!(lease.task.kind, TaskKind::Seal(_) | TaskKind::Sums(_));
        if once || !errors.may_be_withdrawn() {
            told.append(errors);
            return self.send(lease, (told, false), outcome, ended);
        }
        let end = Outcome { work: outcome.work, ..Outcome::default() };
        self.send(lease, (told, false), outcome, false);
        self.send(lease, (errors, true), end, true);
    }

    /// Passes a report to the sender; waits while too many reports are not sent.
    fn send(
        &self,
        lease: &Lease,
        (told, hosts): (MoverReport, bool),
        outcome: Outcome,
        ended: bool,
    ) {
        let Some(sequence) = self.state().held.get(&lease.number).map(|held| held.sequence) else {
            return;
        };
        if !outcome.tasks.is_empty() {
            self.fed_ms.store(Lease::now_ms() + FED, Ordering::Relaxed);
        }
        let said = OutcomeMessage {
            mover: self.channel.id,
            number: lease.number,
            sequence: sequence + 1,
            told,
            outcome,
            ended,
            more: false,
            hosts,
        };
        let pieces = dmover_wire::cut(said, self.piece_max());
        if let (Some((last, _)), Some(held)) =
            (pieces.last(), self.state().held.get_mut(&lease.number))
        {
            held.sequence = last.sequence;
        }
        let pieces = pieces.into_iter().map(|(_, bytes)| bytes).collect();
        self.outbox.put(Saying { lease: lease.clone(), pieces, ended });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_take_what_fits_and_one_piece_in_any_case() {
        let count = |sizes: &[usize], most| fitting(sizes.iter().copied(), most);
        assert_eq!(count(&[], 10), 0);
        assert_eq!(count(&[4, 6, 1], 10), 2);
        assert_eq!(count(&[11, 1], 10), 1);
        assert_eq!(count(&[1, 11], 10), 1);
        assert_eq!(count(&[BUNDLE_MAX / 2; 9], usize::MAX), 2);
    }
}
