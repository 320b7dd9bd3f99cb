//! What the coordinator broadcasts to all movers of a run.
use bytes::Bytes;
use dmover_schedule::sync::Mutex;
use dmover_wire::Control;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::lock;
use crate::identity::Trust;
use crate::link::Link;
use crate::seal::{self, Purpose};
use crate::streams::Names;

/// The state that all movers of a run must know, and the messages that carry it.
pub(super) struct Broadcast {
    /// The connection that carries the messages.
    link: Arc<Link>,
    /// The names of the run: movers of other runs ignore the messages.
    names: Names,
    /// The key that signs the messages.
    trust: Arc<Trust>,
    /// The present state.
    control: Mutex<Control>,
    /// The number of the last message: movers ignore older ones.
    number: AtomicU64,
    /// A message that no mover waits for work is scheduled.
    settling: AtomicBool,
}

impl Broadcast {
    /// Nothing is sent until the state changes.
    pub fn new(link: &Arc<Link>, names: &Names, trust: &Arc<Trust>) -> Self {
        Self {
            link: Arc::clone(link),
            names: names.clone(),
            trust: Arc::clone(trust),
            control: Mutex::default(),
            number: AtomicU64::new(0),
            settling: AtomicBool::new(false),
        }
    }

    /// The present state.
    pub fn control(&self) -> Control {
        *lock(&self.control)
    }

    /// Changes the state and sends it to all movers, unless it stays the same.
    pub fn steer(&self, change: impl FnOnce(&mut Control)) {
        let mut control = lock(&self.control);
        let before = *control;
        change(&mut control);
        if *control == before {
            return;
        }
        let body = self.message(*control);
        drop(control);
        let (client, subject) = (self.link.client.clone(), self.names.tell_subject());
        self.link.runtime.spawn(async move {
            // A mover that misses this gets it with the next answer.
            if let Err(error) = client.publish(subject, body).await {
                tracing::debug!(%error, "cannot send a message to the movers");
            }
        });
    }

    /// Sends to all movers that the run has ended.
    pub async fn close(&self) {
        let body = self.message(Control { closed: true, ..self.control() });
        let _ = self.link.client.publish(self.names.tell_subject(), body).await;
    }

    /// Whether the caller must send that no mover waits for work: no other thread has scheduled that.
    pub fn begin_settling(&self) -> bool {
        !self.settling.swap(true, Ordering::SeqCst)
    }

    /// Allows the next scheduled message.
    pub fn end_settling(&self) {
        self.settling.store(false, Ordering::SeqCst);
    }

    fn message(&self, control: Control) -> Bytes {
        let number = self.number.fetch_add(1, Ordering::SeqCst) + 1;
        let body = dmover_wire::encode(&(number, control));
        seal::sign(&self.trust.identity, Purpose::Told, &self.names, (b"", &body))
    }
}
