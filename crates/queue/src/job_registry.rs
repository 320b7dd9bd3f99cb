//! A job in the bucket of jobs: its owner, the takeover from a dead coordinator, and conflicting jobs.
use async_nats::jetstream::kv;
use dmover_engine::{Engine, JobOffer};
use dmover_model::Fatal;
use dmover_wire::{OfferRecord, Reply};
use futures_util::TryStreamExt;
use std::sync::Arc;
use std::time::Duration;

use crate::link::Link;
use crate::offer;
use crate::streams::{self, Names};

/// How often a waiting job checks whether it must stop.
const LOOK: Duration = Duration::from_millis(20);

/// An entry of the bucket of jobs.
pub(crate) struct Offered {
    pub store: kv::Store,
    pub body: OfferRecord,
    pub revision: u64,
}

/// Why a job cannot be offered.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The broker cannot accept it now.
    Broker(Fatal),
    /// Another process runs it, or another job conflicts with it.
    Taken(Fatal),
}

impl From<Fatal> for Refused {
    fn from(error: Fatal) -> Self {
        Self::Broker(error)
    }
}

pub(crate) fn unavailable(what: &str, error: &dyn std::fmt::Display) -> Fatal {
    Fatal::unavailable(format!("the broker does not accept {what}: {error}"), "see its log")
}

pub(crate) async fn put(
    store: &kv::Store,
    body: &OfferRecord,
    before: Option<u64>,
) -> Result<u64, Refused> {
    let bytes = serde_json::to_vec(body).map_err(|e| unavailable("the job", &e))?;
    let taken = || {
        // It may be what was put before, and got no answer: who looks again finds out.
        let message = format!("another coordinator has just started job {}", body.job);
        Refused::Broker(Fatal::unavailable(message, "wait for it to end, or stop it first"))
    };
    match before {
        None => store.create(&body.job, bytes.into()).await.map_err(|error| match error.kind() {
            kv::CreateErrorKind::AlreadyExists => taken(),
            _ => unavailable("the job", &error).into(),
        }),
        Some(revision) => {
            let updated = store.update(&body.job, bytes.into(), revision).await;
            updated.map_err(|error| match error.kind() {
                kv::UpdateErrorKind::WrongLastRevision => taken(),
                _ => unavailable("the job", &error).into(),
            })
        }
    }
}

/// Checks whether another process runs this job, and takes it over from a dead one. Returns the revision to replace.
/// `has_waited`: the leases of the old run have expired.
pub(crate) async fn take_over(
    link: &Arc<Link>,
    store: &kv::Store,
    names: &Names,
    (engine, has_waited): (&Engine, bool),
) -> Result<Option<u64>, Refused> {
    let found = store.entry(&names.job).await.map_err(|e| unavailable("questions", &e))?;
    let Some(found) = found else { return Ok(None) };
    if found.operation != kv::Operation::Put {
        return Ok(Some(found.revision));
    }
    let Ok(old) = serde_json::from_slice::<OfferRecord>(&found.value) else {
        let message = format!("the broker's record of job {} is not readable", names.job);
        let hint = "use the version of dmover that started the job";
        return Err(Refused::Taken(Fatal::refused(message, hint)));
    };
    if old.run == names.run {
        return Ok(Some(found.revision));
    }
    refuse_living(link, &old).await?;
    if !has_waited {
        // No process extends the leases of the old run any more.
        let wait = Duration::from_millis(old.lease_ms + old.lease_ms / 5);
        let (host, pid) = (&old.host, old.pid);
        tracing::info!(?wait, host, pid, "waiting until the leases of an interrupted run expire");
        pause(engine, wait).await?;
        // It may have been cut off for a moment.
        refuse_living(link, &old).await?;
    }
    streams::remove(&link.jetstream, &Names { job: old.job, run: old.run }).await;
    Ok(Some(found.revision))
}

/// Waits, unless the job is stopped.
async fn pause(engine: &Engine, length: Duration) -> Result<(), Refused> {
    let until = tokio::time::Instant::now() + length;
    while tokio::time::Instant::now() < until {
        if engine.is_stopping() {
            let message = "the job stopped while it waited for the leases of another run";
            return Err(Fatal::unavailable(message, "run the same command again").into());
        }
        tokio::time::sleep(LOOK.min(until - tokio::time::Instant::now())).await;
    }
    Ok(())
}

/// Refuses the job if its present coordinator answers.
async fn refuse_living(link: &Arc<Link>, old: &OfferRecord) -> Result<(), Refused> {
    match link.ping(&old.job, old.run).await {
        Some(Reply::Pong(host, pid)) => {
            let message = format!("job {} already runs in process {pid} on {host}", old.job);
            let hint = "wait for it to end, or stop it first";
            Err(Refused::Taken(Fatal::unavailable(message, hint)))
        }
        _ => Ok(()),
    }
}

/// Refuses to start beside an older, living job with the same paths, such as the same command with another state
/// directory.
pub(crate) async fn refuse_others(
    link: &Arc<Link>,
    store: &kv::Store,
    (offer, revision): (&JobOffer, u64),
    engine: &Engine,
) -> Result<(), Refused> {
    if offer.places.is_empty() {
        return Ok(());
    }
    let fail = |error: &dyn std::fmt::Display| unavailable("questions", error);
    let keys = store.keys().await.map_err(|e| fail(&e))?;
    let keys: Vec<String> = keys.try_collect().await.map_err(|e| fail(&e))?;
    for key in keys.iter().filter(|key| **key != offer.key) {
        let found = store.entry(key).await.map_err(|e| fail(&e))?;
        // If two jobs begin at the same time, the one that was offered first continues.
        let found = found.filter(|f| f.operation == kv::Operation::Put && f.revision < revision);
        let Some(found) = found else { continue };
        let Ok(record) = serde_json::from_slice::<OfferRecord>(&found.value) else { continue };
        if !offer::offered(&record).is_ok_and(|other| offer.is_in_the_way_of(&other)) {
            continue;
        }
        let mut lives = refuse_living(link, &record).await.is_err();
        if !lives {
            // It may not have reconnected to the broker yet, and movers of a dead job may run until their leases end.
            let wait = Duration::from_millis(record.lease_ms + record.lease_ms / 5);
            let (job, seconds) = (&record.job, wait.as_secs());
            engine.tell_of_movers(format!(
                "waiting {seconds} s, because job {job} does not answer and may still write to the \
                 same destination"
            ));
            pause(engine, wait).await?;
            lives = refuse_living(link, &record).await.is_err();
        }
        if lives {
            let (job, pid, host) = (&record.job, record.pid, &record.host);
            let message =
                format!("job {job} in process {pid} on {host} writes to the same destination");
            let hint = "wait for it to end, or stop it first";
            return Err(Refused::Taken(Fatal::unavailable(message, hint)));
        }
        // No other job should wait for it again. If it is alive after all, it publishes its offer again and finds this
        // job.
        let _ = store.delete_expect_revision(key, Some(found.revision)).await;
    }
    Ok(())
}
