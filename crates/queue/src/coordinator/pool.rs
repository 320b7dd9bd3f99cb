//! Limits that several jobs share: each job announces itself and counts the others.
use futures_util::StreamExt;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dmover_engine::queue::Lease;
use dmover_wire::PoolMessage;

use super::Shared;
use crate::link::decode_or_log;
use crate::streams::Names;

/// How often a job announces itself; it counts as gone after this many milliseconds without a message.
const TELL_EVERY: Duration = Duration::from_secs(1);
const GONE_AFTER: u64 = 5_000;

/// The jobs that announced themselves, and when.
#[derive(Debug, Default)]
struct Pool(HashMap<(String, u64), u64>);

impl Pool {
    fn hear(&mut self, said: PoolMessage, own: &(String, u64), now_ms: u64) {
        let who = (said.job, said.run);
        let before = self.0.get(&who).copied();
        if &who == own && before.is_some_and(|then| now_ms > then + GONE_AFTER / 2) {
            // The way was closed for a while: the others have as long as if they had just been heard.
            self.0.values_mut().for_each(|then| *then = now_ms);
        }
        if said.is_last {
            self.0.remove(&who);
        } else {
            self.0.insert(who, now_ms);
        }
    }

    /// The number of jobs. Only a job that receives its own messages knows that the others are gone, and not merely
    /// unreachable.
    fn count(&mut self, own: &(String, u64), now_ms: u64) -> Option<u32> {
        let heard = *self.0.get(own)?;
        if now_ms.saturating_sub(heard) < GONE_AFTER / 2 {
            self.0.retain(|_, then| now_ms.saturating_sub(*then) < GONE_AFTER);
        }
        Some(self.0.len() as u32)
    }
}

/// Shares the limits of the job with the other jobs of a pool, until the end of the run.
pub(super) async fn share_limits(shared: Arc<Shared>, pool: String) {
    let subject = Names::pool_subject(&pool);
    let own = (shared.names.job.clone(), shared.names.run);
    let tell = async |is_new: bool, is_last: bool| {
        let said = PoolMessage { job: own.0.clone(), run: own.1, is_new, is_last };
        let said = shared.link.client.publish(subject.clone(), dmover_wire::encode(&said)).await;
        if let Err(error) = said {
            tracing::debug!(%error, "cannot send a message to the other jobs of the pool");
        }
    };
    let mut others = match shared.link.client.subscribe(subject.clone()).await {
        Ok(others) => others,
        Err(error) => {
            return tracing::warn!(%error, pool, "cannot share limits with the other jobs of the pool");
        }
    };
    let mut known = Pool::default();
    let mut told_ms = Lease::now_ms();
    tell(true, false).await;
    while !shared.is_closed() {
        let left = (told_ms + TELL_EVERY.as_millis() as u64).saturating_sub(Lease::now_ms());
        let heard = tokio::time::timeout(Duration::from_millis(left), others.next()).await;
        let mut answers = heard.is_err();
        if let Ok(heard) = heard {
            let Some(heard) = heard else { return };
            let Some(said) = decode_or_log::<PoolMessage>(&heard.payload) else { continue };
            answers = said.is_new && (&said.job, said.run) != (&own.0, own.1);
            known.hear(said, &own, Lease::now_ms());
        }
        if answers {
            told_ms = Lease::now_ms();
            tell(false, false).await;
        }
        if let Some(jobs) = known.count(&own, Lease::now_ms()) {
            shared.broadcast.steer(|control| control.jobs = jobs);
        }
    }
    tell(false, true).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(job: &str, is_last: bool) -> PoolMessage {
        PoolMessage { job: job.into(), run: 1, is_new: false, is_last }
    }

    #[test]
    fn whoever_is_silent_is_gone_unless_nobody_is_heard() {
        let (mut pool, own) = (Pool::default(), ("own".to_owned(), 1));
        assert_eq!(pool.count(&own, 0), None, "the way to the others is not known to be open");
        for (who, now_ms) in [("own", 1000), ("other", 1000), ("third", 1500)] {
            pool.hear(said(who, false), &own, now_ms);
        }
        assert_eq!(pool.count(&own, 1500), Some(3));
        pool.hear(said("third", true), &own, 1600);
        assert_eq!(pool.count(&own, 1700), Some(2));
        // Not even the own voice comes back: the broker is away, and the others go on.
        assert_eq!(pool.count(&own, 9000), Some(2));
        pool.hear(said("own", false), &own, 9000);
        assert_eq!(pool.count(&own, 9000), Some(2), "it may speak in a moment");
        for now_ms in [10_000, 12_000, 14_000] {
            pool.hear(said("own", false), &own, now_ms);
        }
        assert_eq!(pool.count(&own, 14_000), Some(1), "it was silent for too long");
    }
}
