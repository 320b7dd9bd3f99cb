//! The offer of a job: signs it, and verifies its signature.
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dmover_engine::JobOffer;
use dmover_wire::OfferRecord;

use crate::identity::{Identity, Trust, is_signed_by};

/// The advice for programs with different protocols.
pub(crate) const ONE_VERSION: &str = "use the same version of dmover on all hosts";

/// The context of signatures of offers.
const OFFER: &str = "offer";

/// What the record offers, whoever has signed it.
pub(crate) fn offered(record: &OfferRecord) -> Result<JobOffer, serde_json::Error> {
    serde_json::from_str(record.text())
}

/// The digest that identifies this offer.
pub(crate) fn digest(record: &OfferRecord) -> [u8; 32] {
    *blake3::hash(&record.signed()).as_bytes()
}

/// Signs an offer.
pub(crate) fn sign(record: &mut OfferRecord, identity: &Identity) {
    identity.public().clone_into(&mut record.signer);
    record.signature = BASE64_STANDARD.encode(identity.sign(OFFER, &record.signed()));
}

/// The offer, if a trusted user has signed it and all its fields are covered by the signature.
pub(crate) fn verify(record: &OfferRecord, trust: &Trust) -> Result<JobOffer, String> {
    if record.signature.is_empty() {
        return Err("the offer of the job is not signed".into());
    }
    let signature = BASE64_STANDARD.decode(&record.signature).unwrap_or_default();
    if !is_signed_by(&record.signer, OFFER, &record.signed(), &signature) {
        return Err("the offer of the job is altered or forged: its signature is wrong".into());
    }
    let users = trust.users_of(&record.signer);
    if users.is_empty() {
        return Err(format!(
            "the offer of the job is signed by the key {}, which is not trusted",
            record.signer
        ));
    }
    let offer = offered(record)
        .map_err(|error| format!("the offer of the job is not readable: {error}"))?;
    if offer.key != record.job || offer.run != record.run {
        return Err("the offer belongs to another job".into());
    }
    if !users.contains(&offer.uid) {
        let (claimed, user) = (offer.uid, users[0]);
        return Err(format!(
            "the offer of the job claims user {claimed}, but is signed by the key of user \
            {user}"
        ));
    }
    Ok(offer)
}
