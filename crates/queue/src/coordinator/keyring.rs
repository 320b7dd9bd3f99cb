//! The keys of movers: they authenticate messages, and messages without valid keys are refused.
use bytes::Bytes;
use dmover_plan::leases::MoverId;
use dmover_wire::{Envelope, Meeting, MoverInfo, Sealed};
use std::collections::HashMap;

use crate::seal::{Fresh, Keys, Kind, Window};

/// Movers without a message for this long are forgotten, once there are many.
const FORGOTTEN_MS: u64 = 600_000;
const MANY: usize = 1024;

/// A mover that has proved its identity.
struct Known {
    info: MoverInfo,
    /// The last handshake: its number, the message, and the answer.
    turn: u32,
    said: blake3::Hash,
    answer: Bytes,
    /// The keys of the last two handshakes: messages sent before the last one may still arrive.
    keys: Vec<(u32, Keys)>,
    window: Window,
    last: Last,
    heard_ms: u64,
}

/// The last unanswered messages of a mover, which numbers them and sends them one by one.
#[derive(Debug, Default, Clone, Copy)]
struct Last {
    outcome: u64,
    /// The position of that outcome in the stream.
    place: u64,
    log: u64,
}

/// The movers that have proved their identity.
#[derive(Default)]
pub(super) struct Keyring(HashMap<MoverId, Known>);

/// The result of a hello.
pub(super) enum Met {
    /// It was answered before, and the answer was lost.
    Again(Bytes),
    /// It is older than the last one.
    Late,
    New,
}

/// Why an authenticated message is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The keys of this mover are not known here; they may have been forgotten.
    Stranger,
    Forged,
}

impl Keyring {
    /// Checks a signed hello.
    pub fn look(&self, mover: MoverId, turn: u32, said: &[u8]) -> Met {
        match self.0.get(&mover) {
            Some(known) if known.turn == turn && known.said == blake3::hash(said) => {
                Met::Again(known.answer.clone())
            }
            Some(known) if known.turn >= turn => Met::Late,
            _ => Met::New,
        }
    }

    /// Agrees on keys with a mover. `None`: its key is invalid. `answer` makes the answer from the public half of our
    /// key.
    pub fn meet(
        &mut self,
        (info, said): (MoverInfo, &[u8]),
        (turn, offer, movers_key): (u32, [u8; 32], [u8; 32]),
        now_ms: u64,
        answer: impl FnOnce([u8; 32]) -> Bytes,
    ) -> Option<Bytes> {
        let fresh = Fresh::new()?;
        let (mover, coordinators_key) = (info.id, fresh.public);
        let meeting = Meeting { offer, mover, turn, movers_key, coordinators_key };
        let keys = fresh.agree(&movers_key, &meeting)?;
        let answer = answer(coordinators_key);
        if self.0.len() > MANY {
            self.0.retain(|_, known| now_ms < known.heard_ms + FORGOTTEN_MS);
        }
        let before = self.0.remove(&mover);
        let last = before.as_ref().map(|known| known.last).unwrap_or_default();
        let before = before.and_then(|known| known.keys.into_iter().next());
        let known = Known {
            info,
            turn,
            said: blake3::hash(said),
            answer: answer.clone(),
            keys: std::iter::once((turn, keys)).chain(before).collect(),
            window: Window::default(),
            last,
            heard_ms: now_ms,
        };
        self.0.insert(mover, known);
        Some(answer)
    }

    /// The description that a mover sent.
    pub fn info(&self, mover: MoverId) -> Option<MoverInfo> {
        self.0.get(&mover).map(|known| known.info.clone())
    }

    /// The keys for a call, if the named mover sent it and it is not a replay.
    pub fn hear_call(&mut self, call: &Sealed<'_>, now_ms: u64) -> Result<Keys, Refusal> {
        let known = self.0.get_mut(&call.mover).ok_or(Refusal::Stranger)?;
        let keys = known.keys.first().filter(|(turn, _)| *turn == call.turn);
        let (_, keys) = keys.ok_or(Refusal::Forged)?;
        if !keys.fits(Kind::Call, call) || !known.window.hear(call.number) {
            return Err(Refusal::Forged);
        }
        known.heard_ms = now_ms;
        Ok(keys.clone())
    }

    /// The content of a sealed message, if the named mover sealed it, and the mover's last messages.
    fn find<'a>(&mut self, kind: Kind, envelope: &Envelope<'a>) -> Option<(Sealed<'a>, &mut Last)> {
        let Envelope::Sealed(sealed) = envelope else { return None };
        let known = self.0.get_mut(&sealed.mover)?;
        let (_, keys) = known.keys.iter().find(|(turn, _)| *turn == sealed.turn)?;
        keys.fits(kind, sealed).then_some((*sealed, &mut known.last))
    }

    /// An outcome, if the named mover sent it. `place`: its position in the stream. The broker redelivers a message at
    /// its old position; a copy at a later position is a replay.
    pub fn hear_outcome<'a>(
        &mut self,
        envelope: &Envelope<'a>,
        place: u64,
    ) -> Option<(MoverId, &'a [u8])> {
        let (sealed, last) = self.find(Kind::Outcome, envelope)?;
        if place > last.place {
            if sealed.number <= last.outcome {
                return None;
            }
            (last.outcome, last.place) = (sealed.number, place);
        }
        Some((sealed.mover, sealed.body))
    }

    /// Log lines, if the named mover sent them and they are not a replay.
    pub fn hear_log<'a>(&mut self, envelope: &Envelope<'a>) -> Option<&'a [u8]> {
        let (sealed, last) = self.find(Kind::Log, envelope)?;
        if sealed.number <= last.log {
            return None;
        }
        last.log = sealed.number;
        Some(sealed.body)
    }

    /// Forgets positions, because the stream of outcomes was created again and counts from 1.
    pub fn forget_places(&mut self) {
        self.0.values_mut().for_each(|known| known.last.place = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_wire::{PROTOCOL, open};

    fn info(id: MoverId) -> MoverInfo {
        MoverInfo {
            id,
            protocol: PROTOCOL,
            version: String::new(),
            host: "h".into(),
            pid: 1,
            cores: 1,
            memory_bytes: 0,
            labels: Vec::new(),
            mounts: Vec::new(),
        }
    }

    /// A mover meets the coordinator. Answers its keys.
    fn meet(keyring: &mut Keyring, id: MoverId, turn: u32) -> Keys {
        let (fresh, offer) = (Fresh::new().unwrap(), [3; 32]);
        let movers_key = fresh.public;
        let said = [&movers_key[..], &turn.to_le_bytes()].concat();
        let facts = (turn, offer, movers_key);
        let answer = |key: [u8; 32]| Bytes::copy_from_slice(&key);
        let answer = keyring.meet((info(id), &said), facts, 0, answer).unwrap();
        assert!(matches!(keyring.look(id, turn, &said), Met::Again(again) if again == answer));
        assert!(matches!(keyring.look(id, turn, b"else"), Met::Late), "another hello of that turn");
        let coordinators_key = answer[..].try_into().unwrap();
        let meeting = Meeting { offer, mover: id, turn, movers_key, coordinators_key };
        fresh.agree(&coordinators_key, &meeting).unwrap()
    }

    #[test]
    fn nobody_speaks_as_another_mover_and_nothing_is_heard_twice() {
        let mut keyring = Keyring::default();
        let (one, two) = (meet(&mut keyring, 1, 1), meet(&mut keyring, 2, 1));
        let call = |keyring: &mut Keyring, keys: &Keys, from, number| {
            let bytes = keys.seal(Kind::Call, from, number, b"call");
            let Some(Envelope::Sealed(sealed)) = open(&bytes) else { panic!("it is sealed") };
            keyring.hear_call(&sealed, 0).map(|_| ())
        };
        assert_eq!(call(&mut keyring, &one, (1, 1), 1), Ok(()));
        assert_eq!(call(&mut keyring, &one, (1, 1), 1), Err(Refusal::Forged), "replayed");
        assert_eq!(call(&mut keyring, &two, (1, 1), 2), Err(Refusal::Forged), "another mover");
        assert_eq!(call(&mut keyring, &one, (9, 1), 2), Err(Refusal::Stranger));
        let outcome = |keyring: &mut Keyring, keys: &Keys, from, number, place| {
            let bytes = keys.seal(Kind::Outcome, from, number, b"outcome");
            keyring.hear_outcome(&open(&bytes).unwrap(), place).map(|(mover, _)| mover)
        };
        assert_eq!(outcome(&mut keyring, &one, (1, 1), 1, 1), Some(1));
        assert_eq!(outcome(&mut keyring, &two, (1, 1), 2, 2), None, "another mover");
        assert_eq!(keyring.hear_outcome(&Envelope::Plain(b"outcome"), 3), None);
        assert_eq!(outcome(&mut keyring, &one, (1, 1), 1, 1), Some(1), "delivered again");
        assert_eq!(outcome(&mut keyring, &one, (1, 1), 1, 4), None, "replayed");
        assert_eq!(outcome(&mut keyring, &one, (1, 1), 2, 5), Some(1));
        keyring.forget_places();
        assert_eq!(outcome(&mut keyring, &one, (1, 1), 2, 1), None, "replayed into a new stream");
        assert_eq!(outcome(&mut keyring, &one, (1, 1), 3, 2), Some(1));
        let line = one.seal(Kind::Log, (1, 1), 1, b"line");
        assert_eq!(keyring.hear_log(&open(&line).unwrap()), Some(&b"line"[..]));
        assert_eq!(keyring.hear_log(&open(&line).unwrap()), None, "replayed");
        // It meets the coordinator again: calls are heard with the new keys alone, outcomes with those before as well.
        let again = meet(&mut keyring, 1, 2);
        assert_eq!(call(&mut keyring, &one, (1, 1), 3), Err(Refusal::Forged));
        assert_eq!(call(&mut keyring, &again, (1, 2), 1), Ok(()));
        assert_eq!(outcome(&mut keyring, &one, (1, 1), 4, 3), Some(1));
        assert_eq!(outcome(&mut keyring, &again, (1, 2), 4, 4), None, "numbers go on");
        assert_eq!(outcome(&mut keyring, &again, (1, 2), 5, 5), Some(1));
        assert!(matches!(keyring.look(1, 1, b"old"), Met::Late), "an old hello");
    }
}
