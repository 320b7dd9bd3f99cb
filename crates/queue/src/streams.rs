//! The data of a job at the broker: two streams for each run, and one bucket for all jobs.
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, GetStreamError, GetStreamErrorKind,
};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{Context, ErrorCode, kv};
use dmover_engine::queue::Class;
use dmover_model::Fatal;
use futures_util::future::{join, try_join, try_join_all};
use std::time::Duration;

/// The bucket in which jobs are offered.
pub(crate) const JOBS: &str = "dmover_jobs";
/// The stream for tasks that no mover survives.
const DEAD: &str = "DMOVER_DEAD";
/// After this long without an acknowledgement, the broker delivers a message to another mover. The coordinator decides
/// which mover has a task, so this is only for lost messages.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// How many movers may wait for tasks at a time.
const WAITING_MAX: i64 = 1 << 16;
/// Data at a broker of this age belongs to no job any more.
const AGE_MAX: Duration = Duration::from_hours(30 * 24);
/// The most messages with outcomes that wait for the coordinator, each of at most 256 KiB unless it is one large piece.
/// A limit in bytes would reserve that much of the broker's storage for each job, used or not.
const OUTCOMES_MAX: i64 = 1 << 13;
/// The number of replicas of a stream in a cluster: it survives the loss of one server.
const REPLICAS: usize = 3;

/// The names of one run.
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

    /// The subject for broadcasts of the coordinator.
    pub fn tell_subject(&self) -> String {
        format!("dmover.tell.{}.{:016x}", self.job, self.run)
    }

    pub fn call_subject(&self) -> String {
        call_subject(&self.job, self.run)
    }

    pub fn log_subject(&self) -> String {
        format!("dmover.log.{}.{:016x}", self.job, self.run)
    }

    /// The subject on which jobs that share limits announce themselves.
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

/// Whether an error says that a stream does not exist.
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

/// Creates a stream, with three replicas if the cluster has the servers for them. An existing one is unchanged.
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

/// Creates the streams of a run, with their consumers; existing ones stay.
pub(crate) async fn make(context: &Context, names: &Names) -> Result<(Stream, Stream), Fatal> {
    let plain = Config {
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        // The publisher must know when there is no room; waiting messages are never dropped.
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

/// The consumer from which movers fetch tasks of a class.
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

/// The consumer from which the coordinator receives outcomes. An outcome that is lost with a connection is delivered
/// again while its mover has the lease.
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

/// Removes the streams of a run.
pub(crate) async fn remove(context: &Context, names: &Names) {
    let remove = async |name: String| {
        if let Err(error) = context.delete_stream(&name).await {
            tracing::debug!(%error, name, "cannot remove a stream");
        }
    };
    join(remove(names.tasks()), remove(names.outcomes())).await;
}

/// The bucket of jobs; created if it does not exist.
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

/// Adds replicas to the bucket of jobs: it outlives jobs, and the cluster may have had fewer servers when it was
/// created.
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

/// Stores a task that no mover survives, for inspection.
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
