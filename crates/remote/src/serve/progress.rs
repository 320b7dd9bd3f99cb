//! What the local end asks and tells while a request is served.
use dmover_model::{LossKind, Note, PathBytes};
use dmover_net::connection::{Broken, Channel};
use dmover_observe::Counter;
use dmover_schedule::time::Instant;
use dmover_tree::{Denied, Limit, Permit, Reports};
use dmover_wire::agent::DigestPart;
use dmover_wire::encode;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// The other side hears of progress after so many bytes, or after this time.
const TELL_BYTES: u64 = 16 << 20;
const TELL_AFTER: Duration = Duration::from_millis(500);

/// Collects losses.
#[derive(Debug, Default)]
pub(super) struct Losses(RefCell<Vec<(LossKind, String)>>);

impl Losses {
    pub(super) fn take(&self) -> Vec<(LossKind, String)> {
        self.0.take()
    }
}

impl Reports for Losses {
    fn add(&self, _: Counter, _: u64) {}

    fn note(&self, _: Note, _: &dyn Fn() -> PathBytes) {}

    fn loss(&self, kind: LossKind, _: PathBytes, detail: String) {
        self.0.borrow_mut().push((kind, detail));
    }
}

/// Permits everything: limits are for the side that has the job.
#[derive(Debug)]
pub(super) struct Unlimited;

impl Permit for Unlimited {
    fn step(&self) -> Result<(), Denied> {
        Ok(())
    }

    fn may_commit(&self) -> Result<(), Denied> {
        Ok(())
    }

    fn progress(&self) {}

    fn is_stopping(&self) -> bool {
        false
    }

    fn bytes(&self, _: u64) {}

    fn limits_bytes(&self) -> bool {
        false
    }

    fn block_bytes(&self, block: usize) -> usize {
        block
    }

    fn one_more(&self, _: Limit) {}
}

/// Tells the other side how much was hashed, until it wants no more.
#[derive(Debug)]
pub(super) struct Hashing<'a> {
    channel: &'a Channel,
    untold: Cell<u64>,
    told: Cell<Instant>,
    broken: RefCell<Option<Broken>>,
}

impl<'a> Hashing<'a> {
    pub(super) fn new(channel: &'a Channel) -> Self {
        let (untold, told, broken) = (Cell::new(0), Cell::new(Instant::now()), RefCell::default());
        Self { channel, untold, told, broken }
    }

    fn tell(&self) {
        self.told.set(Instant::now());
        let part = DigestPart::Progress(self.untold.take());
        if let Err(why) = self.channel.send(&encode(&part)) {
            self.broken.replace(Some(why));
        }
    }

    /// Tells the rest.
    ///
    /// # Errors
    /// The other side wants no more.
    pub(super) fn finish(self) -> Result<(), Broken> {
        if self.untold.get() > 0 && self.broken.borrow().is_none() {
            self.tell();
        }
        self.broken.into_inner().map_or(Ok(()), Err)
    }
}

impl Reports for Hashing<'_> {
    fn add(&self, counter: Counter, amount: u64) {
        if counter == Counter::BytesHashed {
            self.untold.set(self.untold.get() + amount);
        }
    }

    fn note(&self, _: Note, _: &dyn Fn() -> PathBytes) {}

    fn loss(&self, _: LossKind, _: PathBytes, _: String) {}
}

impl Permit for Hashing<'_> {
    fn step(&self) -> Result<(), Denied> {
        let untold = self.untold.get();
        if untold >= TELL_BYTES || (untold > 0 && self.told.get().elapsed() >= TELL_AFTER) {
            self.tell();
        }
        if self.broken.borrow().is_some() { Err(Denied::Dropped) } else { Ok(()) }
    }

    fn may_commit(&self) -> Result<(), Denied> {
        Ok(())
    }

    fn progress(&self) {}

    fn is_stopping(&self) -> bool {
        false
    }

    fn bytes(&self, _: u64) {}

    fn limits_bytes(&self) -> bool {
        false
    }

    fn block_bytes(&self, block: usize) -> usize {
        block
    }

    fn one_more(&self, _: Limit) {}
}
