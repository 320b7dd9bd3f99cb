//! The background loops beside the driver: they publish tasks, receive outcomes, answer movers, and check the broker.
use dmover_engine::queue::{Class, Lease};
use dmover_model::Fatal;
use dmover_observe::{LogLevel, LogLine};
use dmover_wire::LogMessage;
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use super::messages::refuse;
use super::{Shared, TROUBLE, lock};
use crate::job_registry::Refused;
use crate::link::decode_or_log;
use crate::streams;

/// How many tasks to publish before checking that the broker has them.
const PUBLISHED_AT_ONCE: usize = 64;
/// How often the state of the job at the broker is checked.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// An offered task that is missing in the stream is published again after this long.
const OFFER_AGAIN: Duration = Duration::from_secs(3);
/// After this long without any mover, a message tells the user.
const ALONE: Duration = Duration::from_secs(10);

/// Publishes tasks as they come.
pub(super) async fn publish_all(shared: Arc<Shared>, mut tasks: mpsc::UnboundedReceiver<u32>) {
    let mut numbers = Vec::new();
    while tasks.recv_many(&mut numbers, PUBLISHED_AT_ONCE).await > 0 {
        let mut last = None;
        for number in numbers.drain(..) {
            let Some((class, body)) = shared.tasks.message(number) else { continue };
            let limit = shared.link.client.max_payload();
            if body.len() > limit {
                let size = body.len();
                let message =
                    format!("a task has {size} bytes, but the broker accepts at most {limit}");
                let hint = "raise max_payload of nats-server, for example to 8 MiB";
                return shared.inbox.fail(Fatal::unavailable(message, hint));
            }
            let next = (shared.names.task_subject(class), body);
            // Whether the broker takes what it is given shows in the last of several: what is lost of the others is found
            // missing, and published again.
            if let Some((subject, body)) = last.replace(next)
                && let Err(error) = shared.link.client.publish(subject, body).await
            {
                shared.health.note_trouble(Some(error.to_string()));
            }
        }
        let Some((subject, body)) = last else { continue };
        match shared.link.jetstream.publish(subject, body).await {
            Ok(arrival) => {
                let shared = Arc::clone(&shared);
                // Lost messages are published again at the next check.
                tokio::spawn(async move {
                    let arrived = arrival.await.map(|_| ()).map_err(|error| error.to_string());
                    shared.health.note_trouble(arrived.err());
                });
            }
            Err(error) => shared.health.note_trouble(Some(error.to_string())),
        }
        if shared.is_closed() {
            return;
        }
    }
}

/// Receives outcomes until the end of the run.
pub(super) async fn hear_all(shared: Arc<Shared>) {
    while !shared.is_closed() {
        if let Err(error) = hear_some(&shared).await {
            tracing::debug!(%error, "cannot receive outcomes");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn hear_some(shared: &Arc<Shared>) -> Result<(), String> {
    let outcomes = shared.link.jetstream.get_stream(shared.names.outcomes()).await;
    let outcomes = outcomes.map_err(|error| error.to_string())?;
    let lease_ms = shared.offer.lease_ms();
    let consumer = streams::hearer(&outcomes, lease_ms).await.map_err(|error| error.to_string())?;
    let stream = consumer
        .stream()
        .max_messages_per_batch(256)
        .expires(Duration::from_secs(10))
        .heartbeat(Duration::from_secs(2));
    let mut messages = stream.messages().await.map_err(|error| error.to_string())?;
    while let Some(message) = messages.next().await {
        let message = message.map_err(|error| error.to_string())?;
        let place = message.info().map_or(0, |info| info.stream_sequence);
        if let Err(error) = shared.hear_bundle(&message.payload, place) {
            // What cannot be read is lost, and the job must not wait for it for ever.
            let why = format!("cannot read the outcome of a task: {error}");
            let hint = "please report this as a bug in dmover; the job may work without --broker";
            shared.inbox.fail(Fatal::unavailable(why, hint));
        }
        shared.inbox.keep(message);
        while shared.inbox.is_full() && !shared.is_closed() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(())
}

/// Writes log lines of movers to the log of this process, until the end of the run.
pub(super) async fn hear_logs(shared: Arc<Shared>) {
    if !shared.offer.wants_log() {
        return;
    }
    let Ok(mut said) = shared.link.client.subscribe(shared.names.log_subject()).await else {
        return;
    };
    while !shared.is_closed() {
        let Ok(message) = tokio::time::timeout(LOOK_EVERY, said.next()).await else { continue };
        let Some(message) = message else { return };
        let envelope = dmover_wire::open(&message.payload);
        let heard = envelope.as_ref().and_then(|e| lock(&shared.keyring).hear_log(e));
        let Some(body) = heard else {
            refuse("a log line");
            continue;
        };
        let Some(LogMessage { host, pid, lines }) = decode_or_log(body) else { continue };
        for LogLine { level, target: from, text, missed } in lines {
            if missed > 0 {
                tracing::warn!(target: "mover", host, pid, missed, "log lines of a mover are missing here");
            }
            match level {
                LogLevel::Error => tracing::error!(target: "mover", host, pid, from, "{text}"),
                LogLevel::Warn => tracing::warn!(target: "mover", host, pid, from, "{text}"),
                LogLevel::Info => tracing::info!(target: "mover", host, pid, from, "{text}"),
            }
        }
    }
}

/// Checks that the broker has all tasks and that the job still belongs to this process. `patience`: the job ends after
/// this long without a mover or a broker.
pub(super) async fn look_after(shared: Arc<Shared>, patience: Duration) {
    let (mut alone_since, mut told_alone) = (Lease::now_ms(), false);
    while !shared.is_closed() {
        tokio::time::sleep(LOOK_EVERY).await;
        if shared.is_closed() {
            return;
        }
        let now = Lease::now_ms();
        let length = shared.tasks.lease_ms();
        // Who cannot be heard is not silent.
        let reach = shared.health.reach();
        let silent = if reach.has_lasted(now, 2 * length) {
            shared.movers.members().remove_silent(now, 2 * length)
        } else {
            Vec::new()
        };
        for mover in silent {
            tracing::warn!(mover, "no message from a mover");
            let seconds = 2 * length / 1000;
            shared.messages.tell(format!(
                "no message from {mover} for {seconds} s: other movers get its tasks"
            ));
        }
        let news = shared.movers.members().look(now);
        if let Some(words) = news {
            shared.messages.tell(words);
        }
        // A mover without tasks leaves its share of the limits to the others.
        let movers = shared.tasks.holders();
        shared.broadcast.steer(|control| control.movers = movers);
        if shared.movers.members().len() > 0 {
            (alone_since, told_alone) = (now, false);
        }
        let alone = Duration::from_millis(now - alone_since);
        if alone > ALONE && !told_alone && reach.has_lasted(now, ALONE.as_millis() as u64) {
            told_alone = true;
            let labels = shared.offer.labels();
            let which = if labels.is_empty() { "" } else { " that has the labels of the job" };
            let words = format!(
                "no mover is connected{which}: start 'dmover mover{labels}' on a host that has \
                the trees"
            );
            shared.messages.tell(words);
        }
        if let Some(away) = reach.away(now).filter(|away| *away > patience) {
            let (shown, seconds) = (&shared.link.shown, away.as_secs());
            let message = format!("the broker {shown} has not answered for {seconds} s");
            let hint = "start the broker, then run the same command again";
            return shared.inbox.fail(Fatal::unavailable(message, hint));
        }
        if alone > patience {
            let seconds = alone.as_secs();
            let message = format!("no mover connected to {} for {seconds} s", shared.link.shown);
            let labels = shared.offer.labels();
            let hint = format!(
                "start movers ('dmover mover{labels}'), or correct what they were refused for, then run the same command again"
            );
            return shared.inbox.fail(Fatal::unavailable(message, hint));
        }
        if let Some(why) = shared.lasting_trouble(now, TROUBLE.min(patience)) {
            let message =
                format!("the broker {} accepts no more messages: {why}", shared.link.shown);
            let hint = "check its free space and its log, then run the same command again";
            return shared.inbox.fail(Fatal::unavailable(message, hint));
        }
        let Shared { link, trust, engine, messages, offer, .. } = &*shared;
        match offer.renew(link, trust, messages, engine).await {
            Ok(()) => {}
            Err(Refused::Taken(error)) => return shared.inbox.fail(error),
            Err(Refused::Broker(error)) => {
                tracing::warn!(%error, "cannot use the broker; retrying");
            }
        }
        if let Err(error) = Box::pin(offer_again(&shared, now)).await {
            tracing::warn!(%error, "cannot use the broker; retrying");
        }
    }
}

/// Publishes tasks again that are missing in the stream.
async fn offer_again(shared: &Arc<Shared>, now: u64) -> Result<(), String> {
    let before = now.saturating_sub(OFFER_AGAIN.as_millis() as u64);
    let is_complete = !shared.tasks.has_unclaimed(before);
    let names = &shared.names;
    let found = shared.link.jetstream.get_stream(names.tasks()).await;
    let is_lost = match found {
        Ok(_) if is_complete => {
            // If a mover has a task, it was published, even if the acknowledgement was lost.
            if !shared.tasks.has_unclaimed(u64::MAX) {
                shared.health.note_trouble(None);
            }
            false
        }
        Ok(stream) => {
            // Tasks that the broker has not delivered are still in the stream.
            let mut waiting = 0;
            for class in Class::ALL {
                let consumer = streams::consumer(&stream, names, class).await;
                let mut consumer = consumer.map_err(|error| error.to_string())?;
                let info = consumer.info().await.map_err(|error| error.to_string())?;
                // What others are to try first comes back again and again until they do.
                waiting += info.num_pending + info.num_ack_pending as u64;
            }
            waiting == 0
        }
        Err(error) => {
            if !streams::is_missing(&error) {
                return Err(error.to_string());
            }
            tracing::warn!("the broker lost the streams of the job; creating them again");
            streams::make(&shared.link.jetstream, names).await.map_err(|e| e.to_string())?;
            lock(&shared.keyring).forget_places();
            true
        }
    };
    if is_lost {
        shared.tasks.publish_again(before);
    }
    Ok(())
}
