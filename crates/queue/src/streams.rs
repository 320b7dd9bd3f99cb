//! What a job has at the broker: two streams for each run, and a bucket for all jobs.
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, GetStreamError, GetStreamErrorKind,
};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{Context, ErrorCode, kv};
use dmover_engine::{Fatal, queue::Class};
use futures_util::future::{join, try_join, try_join_all};
use std::time::Duration;

/// The bucket in which jobs are offered.
pub(crate) const JOBS: &str = "dmover_jobs";
/// Where tasks go that no mover survives.
const DEAD: &str = "DMOVER_DEAD";
/// A broker gives a message to somebody else after so long without a word. The coordinator decides who has a task, so this is
/// only for messages that got lost on their way.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// Movers that may wait for tasks at a time.
const WAITING_MAX: i64 = 1 << 16;
/// What is found at a broker after so long is nobody's.
const AGE_MAX: Duration = Duration::from_hours(30 * 24);
/// Messages with outcomes that may wait for the coordinator, each of 256 KiB at most unless it is one large piece. A limit in bytes would
/// reserve as much of the broker's storage for each job, used or not.
const OUTCOMES_MAX: i64 = 1 << 13;
/// Servers of a cluster that store a stream: it survives the loss of one.
const REPLICAS: usize = 3;

/// Names of one run.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub job: String,
    pub run: u64,
}

pub(crate) fn call_subject(job: &str, run: u64) -> String {
    format!("dmover.call.{job}.{run:016x}")
}

impl Names {
    pub fn tasks(&self) -> String {
        format!("DMOVER_TASKS_{}_{:016x}", self.job, self.run)
    }

    pub fn outcomes(&self) -> String {
        format!("DMOVER_OUTCOMES_{}_{:016x}", self.job, self.run)
    }

    pub fn task_subject(&self, class: Class) -> String {
        format!("dmover.task.{}.{:016x}.{}", self.job, self.run, word(class))
    }

    pub fn outcome_subject(&self) -> String {
        format!("dmover.outcome.{}.{:016x}", self.job, self.run)
    }

    /// What the coordinator says to all movers.
    pub fn tell_subject(&self) -> String {
        format!("dmover.tell.{}.{:016x}", self.job, self.run)
    }

    pub fn call_subject(&self) -> String {
        call_subject(&self.job, self.run)
    }

    pub fn log_subject(&self) -> String {
        format!("dmover.log.{}.{:016x}", self.job, self.run)
    }

    /// Where jobs that share their limits tell of each other.
    pub fn pool_subject(pool: &str) -> String {
        format!("dmover.pool.{pool}")
    }

    pub fn dead_subject(&self) -> String {
        format!("dmover.dead.{}", self.job)
    }
}

/// The word for a class in subjects and names.
pub(crate) fn word(class: Class) -> &'static str {
    match class {
        Class::Small => "small",
        Class::Large => "large",
    }
}

/// Whether an error says that a stream is not there.
pub(crate) fn is_missing(error: &GetStreamError) -> bool {
    matches!(
        error.kind(),
        GetStreamErrorKind::JetStream(ref error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND
    )
}

fn fail(what: &str, error: &dyn std::fmt::Display) -> Fatal {
    let hint = "check its free space, the limits of JetStream, and its log";
    Fatal::unavailable(format!("the broker cannot store {what}: {error}"), hint)
}

/// Whether an error says that there are too few servers for several replicas.
fn lacks_servers(error: &CreateStreamError) -> bool {
    let CreateStreamErrorKind::JetStream(error) = error.kind() else { return false };
    let codes = [
        ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED,
        ErrorCode::CLUSTER_NO_PEERS,
        ErrorCode::INSUFFICIENT_RESOURCES,
    ];
    codes.contains(&error.error_code())
}

/// Makes a stream, with three replicas if the cluster has the servers for them. One that exists is left as it is.
async fn get_or_create(context: &Context, config: Config) -> Result<Stream, CreateStreamError> {
    let replicated = Config { num_replicas: REPLICAS, ..config.clone() };
    match context.get_or_create_stream(replicated).await {
        Err(error) if lacks_servers(&error) => {
            tracing::debug!(%error, stream = config.name, "cannot create a stream with replicas");
            context.get_or_create_stream(config).await
        }
        result => result,
    }
}

/// Makes the streams of a run, with their consumers; those that are there stay.
pub(crate) async fn make(context: &Context, names: &Names) -> Result<(Stream, Stream), Fatal> {
    let plain = Config {
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        // Whoever publishes has to know when there is no room; nothing that waits goes.
        discard: DiscardPolicy::New,
        max_age: AGE_MAX,
        ..Config::default()
    };
    let tasks = Config {
        name: names.tasks(),
        subjects: Class::ALL.map(|class| names.task_subject(class)).to_vec(),
        ..plain.clone()
    };
    let outcomes = Config {
        name: names.outcomes(),
        subjects: vec![names.outcome_subject()],
        max_messages: OUTCOMES_MAX,
        ..plain
    };
    let tasks = async {
        let tasks = get_or_create(context, tasks).await.map_err(|e| fail("tasks", &e))?;
        try_join_all(Class::ALL.map(|class| consumer(&tasks, names, class))).await?;
        Ok(tasks)
    };
    let outcomes = async {
        let made = get_or_create(context, outcomes).await;
        made.map_err(|e| fail("outcomes", &e))
    };
    try_join(tasks, outcomes).await
}

/// The consumer that movers take tasks of a class from.
pub(crate) async fn consumer(
    tasks: &Stream,
    names: &Names,
    class: Class,
) -> Result<PullConsumer, Fatal> {
    let config = pull::Config {
        durable_name: Some(word(class).into()),
        filter_subject: names.task_subject(class),
        ack_policy: AckPolicy::Explicit,
        ack_wait: ACK_WAIT,
        max_deliver: -1,
        max_ack_pending: -1,
        max_waiting: WAITING_MAX,
        ..pull::Config::default()
    };
    let made = tasks.get_or_create_consumer(word(class), config).await;
    made.map_err(|e| fail("a consumer of tasks", &e))
}

/// The consumer from which the coordinator hears outcomes. What a lost connection has taken along comes again while whoever said it
/// has his lease.
pub(crate) async fn hearer(outcomes: &Stream, lease_ms: u64) -> Result<PullConsumer, Fatal> {
    let config = pull::Config {
        durable_name: Some("coordinator".into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_millis(lease_ms / 4),
        max_ack_pending: 1 << 14,
        ..pull::Config::default()
    };
    let made = outcomes.get_or_create_consumer("coordinator", config).await;
    made.map_err(|e| fail("the consumer of outcomes", &e))
}

/// Takes away what a run had.
pub(crate) async fn remove(context: &Context, names: &Names) {
    let remove = async |name: String| {
        if let Err(error) = context.delete_stream(&name).await {
            tracing::debug!(%error, name, "cannot remove a stream");
        }
    };
    join(remove(names.tasks()), remove(names.outcomes())).await;
}

/// The bucket of jobs, made if need be.
pub(crate) async fn jobs(context: &Context) -> Result<kv::Store, Fatal> {
    if let Ok(store) = context.get_key_value(JOBS).await {
        add_replicas(context, &store).await;
        return Ok(store);
    }
    // The client's own way asks for the account as nats-server 2.9 does not describe it yet (NATS, ADR-8 has the stream of a
    // bucket).
    let config = Config {
        name: format!("KV_{JOBS}"),
        description: Some("jobs that movers can work for".into()),
        subjects: vec![format!("$KV.{JOBS}.>")],
        max_messages_per_subject: 1,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..Config::default()
    };
    let made = get_or_create(context, config).await;
    made.map_err(|e| fail("jobs", &e))?;
    context.get_key_value(JOBS).await.map_err(|e| fail("jobs", &e))
}

/// The bucket of jobs outlives jobs: the cluster may have had fewer servers when it was made.
async fn add_replicas(context: &Context, store: &kv::Store) {
    let known = store.stream.cached_info();
    if known.cluster.is_none() || known.config.num_replicas >= REPLICAS {
        return;
    }
    let config = Config { num_replicas: REPLICAS, ..known.config.clone() };
    match context.update_stream(config).await {
        Ok(_) => tracing::info!(replicas = REPLICAS, "added replicas to the bucket of jobs"),
        // The cluster still has too few servers, or one of them is down.
        Err(error) => tracing::debug!(%error, "cannot add replicas to the bucket of jobs"),
    }
}

/// Keeps a task that no mover survives, to be looked at.
pub(crate) async fn bury(context: &Context, names: &Names, body: bytes::Bytes) {
    let config = Config {
        name: DEAD.into(),
        subjects: vec!["dmover.dead.*".into()],
        max_messages: 100_000,
        max_age: AGE_MAX,
        ..Config::default()
    };
    let made = get_or_create(context, config).await.map(|_| ());
    let published = match made {
        Ok(()) => context.publish(names.dead_subject(), body).await.map(|_| ()),
        Err(error) => return tracing::warn!(%error, "cannot create the dead-letter stream"),
    };
    if let Err(error) = published {
        tracing::warn!(%error, "cannot store a dead letter");
    }
}
