//! The offer of a job in the broker's bucket of jobs.
use async_nats::jetstream::kv;
use dmover_engine::Engine;
use dmover_model::Fatal;
use dmover_schedule::sync::Mutex;
use dmover_wire::{OfferRecord, Reply};
use std::sync::Arc;

use super::lock;
use super::messages::UserMessages;
use crate::identity::Trust;
use crate::job_registry::{Offered, Refused, put, refuse_others};
use crate::link::Link;
use crate::{offer, streams};

/// The offer of the present run.
pub(super) struct PublishedOffer {
    /// Where it is, and its last revision.
    record: Mutex<Offered>,
}

impl PublishedOffer {
    /// `offered`: the entry as it was put into the bucket.
    pub fn new(offered: Offered) -> Self {
        Self { record: Mutex::new(offered) }
    }

    /// How long a mover keeps a task without a message.
    pub fn lease_ms(&self) -> u64 {
        lock(&self.record).body.lease_ms
    }

    /// Whether movers send their log lines.
    pub fn wants_log(&self) -> bool {
        lock(&self.record).body.wants_log
    }

    /// The digest that identifies the offer.
    pub fn digest(&self) -> [u8; 32] {
        offer::digest(&lock(&self.record).body)
    }

    /// Whether a mover with these labels may work for the job.
    pub fn is_for(&self, labels: &[(String, String)]) -> bool {
        lock(&self.record).body.is_for(labels)
    }

    /// The labels that movers need, as options of 'dmover mover' after a space.
    pub fn labels(&self) -> String {
        let record = lock(&self.record);
        let add = |words: String, (key, value): &(String, String)| {
            format!("{words} --label {key}={value}")
        };
        record.body.only.iter().fold(String::new(), add)
    }

    /// The answer to a process that asks who offers the job.
    pub fn pong(&self) -> Reply {
        let record = lock(&self.record);
        Reply::Pong(record.body.host.clone(), record.body.pid)
    }

    /// Removes the offer from the bucket, unless another client has replaced it.
    pub async fn withdraw(&self) {
        let (store, job, revision) = {
            let record = lock(&self.record);
            (record.store.clone(), record.body.job.clone(), record.revision)
        };
        if let Err(error) = store.delete_expect_revision(&job, Some(revision)).await {
            tracing::debug!(%error, "cannot withdraw the offer");
        }
    }

    /// Writes the offer into the bucket of jobs, if it is not there. The previous value must be our own, or none.
    pub async fn renew(
        &self,
        link: &Arc<Link>,
        trust: &Trust,
        messages: &UserMessages,
        engine: &Engine,
    ) -> Result<(), Refused> {
        let (store, body, revision) = {
            let record = lock(&self.record);
            (record.store.clone(), record.body.clone(), record.revision)
        };
        match store.entry(&body.job).await {
            Ok(Some(found)) if found.revision == revision => return Ok(()),
            Ok(Some(found)) if found.operation == kv::Operation::Put => {
                match serde_json::from_slice::<OfferRecord>(&found.value) {
                    Ok(other) if offer::digest(&other) == offer::digest(&body) => {
                        // Put twice, because an answer was lost.
                        lock(&self.record).revision = found.revision;
                        return Ok(());
                    }
                    Ok(other) if other.run != body.run && offer::verify(&other, trust).is_ok() => {
                        let OfferRecord { pid, host, job, .. } = other;
                        let message = format!("process {pid} on {host} has taken over job {job}");
                        let error = Fatal::unavailable(
                            message,
                            "wait for that run to end, or stop it first",
                        );
                        return Err(Refused::Taken(error));
                    }
                    other => {
                        let why = other.map_or_else(
                            |error| error.to_string(),
                            |other| offer::verify(&other, trust).err().unwrap_or_default(),
                        );
                        tracing::warn!(
                            why,
                            "another client replaced the offer of this job at the \
                            broker; restoring it"
                        );
                        let words = "another client replaced the offer of this job at the broker; the \
                            coordinator restores it";
                        messages.tell_once(words.into());
                    }
                }
            }
            Ok(_) => {}
            // The bucket is gone with everything else.
            Err(error) => tracing::debug!(%error, "cannot read the offer"),
        }
        tracing::warn!("the broker no longer has the offer of the job; publishing it again");
        let store = streams::jobs(&link.jetstream).await?;
        let before = store.entry(&body.job).await.ok().flatten().map(|found| found.revision);
        let revision = put(&store, &body, before).await?;
        {
            let mut record = lock(&self.record);
            (record.store, record.revision) = (store.clone(), revision);
        }
        // Another run may have begun while the broker did not know this one.
        match offer::offered(&body) {
            Ok(offer) => refuse_others(link, &store, (&offer, revision), engine).await,
            Err(_) => Ok(()),
        }
    }
}
