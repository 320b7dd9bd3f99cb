//! Answers movers after they have proved their identity.
use bytes::Bytes;
use dmover_engine::queue::Lease;
use dmover_wire::{Call, Envelope, PING, Reply, Sealed, Signed};
use futures_util::StreamExt;
use std::sync::Arc;

use super::keyring::{Met, Refusal};
use super::messages::refuse;
use super::{Shared, lock};
use crate::link::decode_or_log;
use crate::seal::{self, Keys, Kind, Purpose};

/// Answers movers until the end of the run.
pub(super) async fn answer_all(shared: Arc<Shared>, mut calls: async_nats::Subscriber) {
    while let Some(call) = calls.next().await {
        if shared.is_closed() {
            return;
        }
        let request = &call.payload[..];
        let answer = match dmover_wire::open(request) {
            Some(Envelope::Plain(PING)) => Some(dmover_wire::encode(&shared.offer.pong())),
            Some(Envelope::Signed(signed)) => shared.hear_signed(&signed, request),
            Some(Envelope::Sealed(sealed)) => {
                let keys = lock(&shared.keyring).hear_call(&sealed, Lease::now_ms());
                match keys {
                    Ok(keys) => shared.hear_sealed(&keys, &sealed, call.reply.clone()),
                    // Who has forgotten nothing has keys to say so.
                    Err(Refusal::Stranger) => Some(shared.sign(request, &Reply::Stranger)),
                    Err(Refusal::Forged) => {
                        refuse("a call");
                        None
                    }
                }
            }
            _ => {
                refuse("a call");
                None
            }
        };
        if let (Some(answer), Some(to)) = (answer, call.reply) {
            shared.send(to, answer).await;
        }
    }
}

impl Shared {
    async fn send(&self, to: async_nats::Subject, answer: Bytes) {
        if let Err(error) = self.link.client.publish(to, answer).await {
            tracing::debug!(%error, "cannot send an answer");
        }
    }

    /// A signed answer to a mover without keys.
    fn sign(&self, request: &[u8], reply: &Reply) -> Bytes {
        let body = dmover_wire::encode(reply);
        seal::sign(&self.trust.identity, Purpose::Answer, &self.names, (request, &body))
    }

    /// Handles a call of a mover without keys. `None`: it gets no answer.
    fn hear_signed(self: &Arc<Self>, signed: &Signed<'_>, request: &[u8]) -> Option<Bytes> {
        let known = self.trust.movers.iter().any(|known| known == signed.by);
        if !known || !seal::is_genuine(signed, Purpose::Call, &self.names, b"") {
            let why = if known { "its signature is wrong" } else { "its key is not trusted" };
            tracing::warn!(key = signed.by.get(..56), why, "refused a mover");
            return None;
        }
        match decode_or_log(signed.body)? {
            Call::Hello { info, clock_ms, turn, key, offer } => {
                match lock(&self.keyring).look(info.id, turn, signed.body) {
                    Met::Again(answer) => return Some(answer),
                    Met::Late => {
                        refuse("a hello");
                        return None;
                    }
                    Met::New => {}
                }
                if let Some(reply) = self.objection(&info, clock_ms) {
                    return Some(self.sign(request, &reply));
                }
                // It has seen another offer than this one.
                if offer != self.offer.digest() {
                    refuse("a hello for another offer");
                    return None;
                }
                let answer = |key| self.sign(request, &Reply::Welcome { key });
                let facts = (turn, offer, key);
                lock(&self.keyring).meet((info, signed.body), facts, Lease::now_ms(), answer)
            }
            unable @ Call::Unable { .. } => Some(self.sign(request, &self.answer(unable))),
            _ => {
                refuse("a call without keys");
                None
            }
        }
    }

    /// Handles a call of a mover with keys. `None`: it is answered later, or not at all.
    fn hear_sealed(
        self: &Arc<Self>,
        keys: &Keys,
        call: &Sealed<'_>,
        to: Option<async_nats::Subject>,
    ) -> Option<Bytes> {
        let wanted: Call = decode_or_log(call.body)?;
        if wanted.mover() != Some(call.mover) {
            refuse("a call in the name of another mover");
            return None;
        }
        let (from, number) = ((call.mover, call.turn), call.number);
        if !matches!(wanted, Call::Ask { .. }) {
            let reply = dmover_wire::encode(&self.answer(wanted));
            return Some(keys.seal(Kind::Reply, from, number, &reply));
        }
        // That may ask a disk.
        let (answering, keys, to) = (Arc::clone(self), keys.clone(), to?);
        tokio::task::spawn(async move {
            let asked = Arc::clone(&answering);
            let answer = tokio::task::spawn_blocking(move || asked.answer(wanted)).await;
            let reply = dmover_wire::encode(&answer.unwrap_or(Reply::Noted));
            answering.send(to, keys.seal(Kind::Reply, from, number, &reply)).await;
        });
        None
    }
}
