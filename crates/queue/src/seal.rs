//! Authenticates messages: each one is from the coordinator of a run or from one of its movers, and from no other
//! client of the broker.
//!
//! A mover joins with a signed message, and the coordinator answers with one. Both sign an ephemeral public key
//! (X25519), from which they derive keys that these two alone have. All other messages between them carry a keyed
//! BLAKE3 code made with these keys. A message cannot be replayed: the keys belong to one mover in one run; calls,
//! outcomes, log lines and broadcasts are numbered; each answer names its call.
use bytes::Bytes;
use dmover_plan::leases::MoverId;
use dmover_wire::{Meeting, PublicKey, Sealed, Signed, signed_in_run};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use std::collections::BTreeSet;

use crate::identity::{Identity, is_signed_by};
use crate::streams::Names;

/// The kind of a message with a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    Reply,
    Outcome,
    Log,
}

/// The purpose of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A call of a mover without keys.
    Call,
    /// The answer of the coordinator to it.
    Answer,
    /// A broadcast of the coordinator.
    Told,
}

impl Purpose {
    fn context(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Answer => "answer",
            Self::Told => "told",
        }
    }
}

/// The keys that a mover and the coordinator share.
#[derive(Clone)]
pub(crate) struct Keys([[u8; 32]; 4]);

/// A key that is used once.
pub(crate) struct Fresh {
    secret: EphemeralPrivateKey,
    pub public: PublicKey,
}

impl Fresh {
    /// `None`: the system has no random numbers.
    pub fn new() -> Option<Self> {
        let random = ring::rand::SystemRandom::new();
        let secret = EphemeralPrivateKey::generate(&X25519, &random).ok()?;
        let public = secret.compute_public_key().ok()?.as_ref().try_into().ok()?;
        Some(Self { secret, public })
    }

    /// The keys from this key and the other side's public key. `None`: the other side's key is invalid, or the meeting has no
    /// bytes.
    pub fn agree(self, theirs: &PublicKey, meeting: &Meeting) -> Option<Keys> {
        let meeting = meeting.to_bytes()?;
        let theirs = UnparsedPublicKey::new(&X25519, theirs);
        let derive = |secret: &[u8]| {
            let key = |context: &str| {
                let mut hasher = blake3::Hasher::new_derive_key(context);
                *hasher.update(secret).update(&meeting).finalize().as_bytes()
            };
            Keys([
                key("dmover 5 calls of a mover"),
                key("dmover 5 replies to a mover"),
                key("dmover 5 outcomes of a mover"),
                key("dmover 5 log of a mover"),
            ])
        };
        agree_ephemeral(self.secret, &theirs, derive).ok()
    }
}

impl Keys {
    fn code(&self, kind: Kind, number: u64, body: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0[kind as usize]);
        hasher.update(&number.to_le_bytes()).update(body).finalize()
    }

    /// Whether the code of a message is valid. The check takes constant time.
    pub fn fits(&self, kind: Kind, sealed: &Sealed<'_>) -> bool {
        self.code(kind, sealed.number, sealed.body) == blake3::Hash::from_bytes(sealed.code)
    }

    /// Puts the code before a message. `from`: the mover and its handshake.
    pub fn seal(
        &self,
        kind: Kind,
        (mover, turn): (MoverId, u32),
        number: u64,
        body: &[u8],
    ) -> Bytes {
        let code = *self.code(kind, number, body).as_bytes();
        Sealed { mover, turn, number, code, body }.to_bytes()
    }
}

/// The signed bytes: a message of this run, and the message that it answers.
fn of_run(names: &Names, to: &[u8], body: &[u8]) -> Vec<u8> {
    let (to, body) = (blake3::hash(to), blake3::hash(body));
    signed_in_run(&names.job, names.run, to.as_bytes(), body.as_bytes())
}

/// Puts a signature before a message of a run. `to`: the message that it answers.
pub(crate) fn sign(
    identity: &Identity,
    purpose: Purpose,
    names: &Names,
    (to, body): (&[u8], &[u8]),
) -> Bytes {
    let signature = identity.sign(purpose.context(), &of_run(names, to, body));
    Signed { by: identity.public(), signature: &signature, body }.to_bytes()
}

/// Whether the key that a message names has signed it. `to`: the message that it answers.
pub(crate) fn is_genuine(signed: &Signed<'_>, purpose: Purpose, names: &Names, to: &[u8]) -> bool {
    let bytes = of_run(names, to, signed.body);
    is_signed_by(signed.by, purpose.context(), &bytes, signed.signature)
}

/// Numbers that were received. Each is accepted once; they arrive nearly in order.
#[derive(Debug, Default)]
pub(crate) struct Window {
    highest: u64,
    heard: BTreeSet<u64>,
}

/// How far a number may be behind the highest one.
const BEHIND: u64 = 1024;

impl Window {
    /// Whether a number is new and not too late.
    pub fn hear(&mut self, number: u64) -> bool {
        if number + BEHIND <= self.highest || !self.heard.insert(number) {
            return false;
        }
        self.highest = self.highest.max(number);
        if self.heard.len() > 2 * BEHIND as usize {
            self.heard = self.heard.split_off(&(self.highest - BEHIND + 1));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_wire::{Envelope, open};

    fn keys(change: impl Fn(&mut Meeting)) -> Keys {
        let (mover, coordinator) = (Fresh::new().unwrap(), Fresh::new().unwrap());
        let mut meeting = Meeting {
            offer: [1; 32],
            mover: 7,
            turn: 1,
            movers_key: mover.public,
            coordinators_key: coordinator.public,
        };
        let movers = mover.agree(&meeting.coordinators_key, &meeting).unwrap();
        let theirs = meeting.movers_key;
        change(&mut meeting);
        let coordinators = coordinator.agree(&theirs, &meeting).unwrap();
        let sealed = movers.seal(Kind::Call, (7, 1), 5, b"body");
        let Some(Envelope::Sealed(sealed)) = open(&sealed) else { panic!("it is sealed") };
        assert_eq!(coordinators.fits(Kind::Call, &sealed), meeting.offer == [1; 32]);
        movers
    }

    #[test]
    fn both_have_the_same_keys_if_they_speak_of_the_same_offer() {
        keys(|_| {});
        keys(|meeting| meeting.offer = [2; 32]);
    }

    #[test]
    fn a_code_holds_for_its_message_its_kind_and_its_number() {
        let (own, other) = (keys(|_| {}), keys(|_| {}));
        let bytes = own.seal(Kind::Outcome, (7, 1), 5, b"body");
        let Some(Envelope::Sealed(sealed)) = open(&bytes) else { panic!("it is sealed") };
        assert!(own.fits(Kind::Outcome, &sealed) && sealed.body == b"body" && sealed.mover == 7);
        assert!(!own.fits(Kind::Call, &sealed) && !other.fits(Kind::Outcome, &sealed));
        assert!(!own.fits(Kind::Outcome, &Sealed { number: 6, ..sealed }));
        assert!(!own.fits(Kind::Outcome, &Sealed { body: b"bodY", ..sealed }));
    }

    #[test]
    fn numbers_are_heard_once_and_not_much_too_late() {
        let mut window = Window::default();
        assert!(window.hear(2) && window.hear(1) && !window.hear(2) && !window.hear(1));
        (3..10_000).for_each(|number| assert!(window.hear(number)));
        assert!(
            !window.hear(9_998) && !window.hear(3) && window.hear(10_001) && window.hear(10_000)
        );
        assert!(window.heard.len() <= 2 * BEHIND as usize + 1);
    }
}
