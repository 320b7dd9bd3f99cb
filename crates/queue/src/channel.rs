//! The authenticated channel between a mover and the coordinator of one run.
use bytes::Bytes;
use dmover_model::Fatal;
use dmover_plan::leases::MoverId;
use dmover_schedule::sync::Mutex;
use dmover_wire::{Call, Control, Envelope, Meeting, MoverInfo, OfferRecord, Reply};
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use crate::clock;
use crate::identity::Trust;
use crate::link::{Link, decode_or_log};
use crate::offer;
use crate::seal::{self, Fresh, Keys, Kind, Purpose};
use crate::streams::Names;

/// A mover's channel to the coordinator of one run.
pub(crate) struct Channel {
    pub link: Arc<Link>,
    pub names: Names,
    pub id: MoverId,
    trust: Arc<Trust>,
    /// The public key that signed the offer, and the digest of the offer.
    coordinator: String,
    offer: [u8; 32],
    /// The keys of the last handshake, and its number.
    keys: Mutex<Option<(u32, Keys)>>,
    /// Serialises handshakes.
    meeting: tokio::sync::Mutex<u32>,
    /// Numbers of calls, of outcomes, of log lines, and of the last broadcast.
    called: AtomicU64,
    said: AtomicU64,
    told: AtomicU64,
}

/// Logs a message that the coordinator did not send.
fn refuse(what: &str) {
    tracing::warn!("refused {what} that the coordinator did not send: forged or replayed");
}

impl Channel {
    pub fn new(link: &Arc<Link>, trust: &Arc<Trust>, id: MoverId, record: &OfferRecord) -> Self {
        Self {
            link: Arc::clone(link),
            names: Names { job: record.job.clone(), run: record.run },
            id,
            trust: Arc::clone(trust),
            coordinator: record.signer.clone(),
            offer: offer::digest(record),
            keys: Mutex::default(),
            meeting: tokio::sync::Mutex::new(0),
            called: AtomicU64::new(0),
            said: AtomicU64::new(0),
            told: AtomicU64::new(0),
        }
    }

    fn keys(&self) -> Option<(u32, Keys)> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends an authenticated call to the coordinator. `None`: no answer.
    pub async fn call(&self, call: &Call) -> Option<Reply> {
        let (turn, keys) = self.keys()?;
        let number = self.called.fetch_add(1, Ordering::Relaxed) + 1;
        let request = keys.seal(Kind::Call, (self.id, turn), number, &dmover_wire::encode(call));
        let answer = self.link.request(self.names.call_subject(), request.clone()).await?;
        match dmover_wire::open(&answer) {
            Some(Envelope::Sealed(sealed))
                if sealed.number == number && keys.fits(Kind::Reply, &sealed) =>
            {
                decode_or_log(sealed.body)
            }
            // Without keys it can say no more than that.
            Some(Envelope::Signed(_)) => {
                let reply = self.signed(&answer, Purpose::Answer, &request)?;
                matches!(reply, Reply::Stranger).then_some(reply)
            }
            _ => {
                refuse("an answer");
                None
            }
        }
    }

    /// Sends an authenticated message to the coordinator, without an answer.
    pub async fn tell(&self, call: &Call) {
        let Some((turn, keys)) = self.keys() else { return };
        let number = self.called.fetch_add(1, Ordering::Relaxed) + 1;
        let body = keys.seal(Kind::Call, (self.id, turn), number, &dmover_wire::encode(call));
        if let Err(error) = self.link.client.publish(self.names.call_subject(), body).await {
            tracing::debug!(%error, "cannot send a message to the coordinator");
        }
    }

    /// Sends a signed call, before there are keys.
    async fn introduce(&self, call: &Call) -> Option<Reply> {
        let body = dmover_wire::encode(call);
        let request = seal::sign(&self.trust.identity, Purpose::Call, &self.names, (b"", &body));
        let answer = self.link.request(self.names.call_subject(), request.clone()).await?;
        self.signed(&answer, Purpose::Answer, &request)
    }

    /// The content of a message that the coordinator has signed.
    fn signed<T: DeserializeOwned>(&self, bytes: &[u8], purpose: Purpose, to: &[u8]) -> Option<T> {
        match dmover_wire::open(bytes) {
            Some(Envelope::Signed(signed))
                if signed.by == self.coordinator
                    && seal::is_genuine(&signed, purpose, &self.names, to) =>
            {
                decode_or_log(signed.body)
            }
            _ => {
                refuse(if purpose == Purpose::Told {
                    "a message to all movers"
                } else {
                    "an answer"
                });
                None
            }
        }
    }

    /// Performs a handshake: both sides prove their identity and agree on keys.
    ///
    /// # Errors
    /// The coordinator refuses, or does not prove its identity.
    pub async fn meet(&self, info: &MoverInfo) -> Result<(), Fatal> {
        let mut turn = self.meeting.lock().await;
        *turn += 1;
        let fresh = Fresh::new().ok_or_else(|| {
            Fatal::unavailable("cannot get random numbers", "the mover tries again")
        })?;
        let (movers_key, offer) = (fresh.public, self.offer);
        let (info, clock_ms) = (info.clone(), clock::now_ms());
        let hello = Call::Hello { info, clock_ms, turn: *turn, key: movers_key, offer };
        let coordinators_key = match self.introduce(&hello).await {
            Some(Reply::Welcome { key }) => key,
            Some(Reply::Refused { why, hint }) => return Err(Fatal::refused(why, hint)),
            _ => {
                let message = "the coordinator of this job does not answer: it is not reachable, \
                    it has ended, or the offer is outdated";
                return Err(Fatal::unavailable(message, "the mover tries again"));
            }
        };
        let (mover, turn) = (self.id, *turn);
        let meeting = Meeting { offer, mover, turn, movers_key, coordinators_key };
        let keys = fresh.agree(&coordinators_key, &meeting);
        let keys = keys.ok_or_else(|| {
            Fatal::unavailable("cannot agree on keys with the coordinator", "the mover tries again")
        })?;
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = Some((turn, keys));
        Ok(())
    }

    /// Reports to the coordinator why this mover cannot work for it.
    pub async fn excuse(&self, info: &MoverInfo, why: String, has_worked: bool) {
        let call = Call::Unable { info: info.clone(), why, has_worked };
        self.introduce(&call).await;
    }

    /// A message of this mover with its number and authentication code. Messages of one kind must be sent in the order
    /// of their numbers.
    pub fn seal(&self, kind: Kind, body: &[u8]) -> Bytes {
        let Some((turn, keys)) = self.keys() else { return Bytes::new() };
        let number = self.said.fetch_add(1, Ordering::Relaxed) + 1;
        keys.seal(kind, (self.id, turn), number, body)
    }

    /// A broadcast of the coordinator; each is accepted once.
    pub fn told(&self, bytes: &[u8]) -> Option<Control> {
        let (number, control) = self.signed::<(u64, Control)>(bytes, Purpose::Told, b"")?;
        // An overtaken message has nothing new.
        let before = self.told.fetch_max(number, Ordering::Relaxed);
        (number > before).then_some(control)
    }
}
