//! The connection to a broker, for threads that do not use tokio.
use async_nats::jetstream::{self, Context, context::ContextBuilder};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};
use bytes::Bytes;
use dmover_model::Fatal;
use dmover_wire::{PING, Reply};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::address::{Address, Secret};
use crate::impostor::{Seldom, Watch};
use crate::{streams, tls};

/// The time limit for the first connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The time limit for JetStream.
const JETSTREAM_WITHIN: Duration = Duration::from_secs(2);
/// The time limit for an answer; the caller asks again.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The longest pause between attempts to reconnect.
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// How long an answer to a request of the lost connection may still arrive over the next one.
const LATE: Duration = Duration::from_millis(100);

/// A connection to a broker.
pub(crate) struct Link {
    pub client: Client,
    pub jetstream: Context,
    pub runtime: Arc<Runtime>,
    pub shown: String,
    /// The user allows connections in clear text.
    pub insecure: bool,
    /// The number of connections so far.
    connections: watch::Receiver<u64>,
}

impl Link {
    /// Connects. `name`: the name that the administrator of the broker sees.
    pub fn new(address: &Address, name: &str) -> Result<Arc<Self>, Fatal> {
        let shown = address.shown();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // This runtime waits nearly all the time; a second thread would mostly be woken for nothing.
            .worker_threads(1)
            .thread_name("broker")
            .enable_all()
            .build()
            .map_err(Fatal::Thread)?;
        let (connected, connections) = watch::channel(0);
        let client = runtime.block_on(connect(address, name, connected))?;
        // It starts a task of its own.
        let entered = runtime.enter();
        let jetstream = ContextBuilder::new()
            .timeout(ANSWER_WITHIN)
            .ack_timeout(ANSWER_WITHIN)
            .build(client.clone());
        drop(entered);
        let insecure = address.insecure;
        let runtime = Arc::new(runtime);
        let link = Self { client, jetstream, runtime, shown, insecure, connections };
        link.runtime.block_on(link.check())?;
        Ok(Arc::new(link))
    }

    /// Checks that the broker has the features that dmover needs.
    async fn check(&self) -> Result<(), Fatal> {
        let version = self.client.server_info().version;
        if !self.client.is_server_compatible(2, 9, 0) {
            let message = format!("the broker {} is nats-server {version}", self.shown);
            return Err(Fatal::refused(message, "dmover needs nats-server 2.9 or later"));
        }
        let begun = tokio::time::Instant::now();
        loop {
            // Any answer that knows of streams will do.
            let known = self.jetstream.get_stream(format!("KV_{}", streams::JOBS)).await;
            let error = match known {
                Ok(_) => return Ok(()),
                Err(error) if streams::is_missing(&error) => return Ok(()),
                Err(error) => error.to_string(),
            };
            // The error of async-nats if no server listens.
            if !error.contains("resource does not exist") {
                let message = format!("the broker {} does not answer: {error}", self.shown);
                return Err(Fatal::unavailable(message, "check that it runs, and see its log"));
            }
            // A server lets clients in a moment before its JetStream is there.
            if begun.elapsed() > JETSTREAM_WITHIN {
                let message = format!("the broker {} has no JetStream: {error}", self.shown);
                let hint = "enable JetStream (nats-server -js), or use 'dmover broker'";
                return Err(Fatal::refused(message, hint));
            }
            tokio::time::sleep(LATE).await;
        }
    }

    /// Asks a coordinator whether it is alive. `None`: no answer. The answer is not authenticated; it only shows that
    /// it is better to wait.
    pub async fn ping(&self, job: &str, run: u64) -> Option<Reply> {
        let answer = self.request(streams::call_subject(job, run), Bytes::from_static(PING)).await;
        decode_or_log(&answer?)
    }

    /// Sends a request to a subject. `None`: no answer.
    pub async fn request(&self, subject: String, payload: Bytes) -> Option<Bytes> {
        let request = async_nats::Request::new().payload(payload).timeout(Some(ANSWER_WITHIN));
        let answer = self.unless_cut(self.client.send_request(subject, request)).await?;
        let answer = answer.inspect_err(|error| tracing::debug!(%error, "no answer")).ok()?;
        Some(answer.payload)
    }

    /// Publishes a message into a stream and waits for the acknowledgement.
    pub async fn publish(
        &self,
        subject: String,
        payload: Bytes,
    ) -> Result<(), jetstream::context::PublishError> {
        let said = async { self.jetstream.publish(subject, payload).await?.await.map(drop) };
        let kind = jetstream::context::PublishErrorKind::TimedOut;
        self.unless_cut(said).await.unwrap_or_else(|| Err(kind.into()))
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    /// Waits until the present connection has been replaced.
    pub fn reconnected(&self) -> impl Future<Output = ()> + use<> {
        let mut connections = self.connections.clone();
        connections.mark_unchanged();
        async move {
            // It fails when the client is dropped; then there is no further connection.
            let _ = connections.changed().await;
        }
    }

    /// Waits for an answer, but stops soon after the connection is lost.
    async fn unless_cut<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let reconnected = self.reconnected();
        let cut = async {
            reconnected.await;
            tokio::time::sleep(LATE).await;
        };
        tokio::select! {
            answer = answer => Some(answer),
            () = cut => None,
        }
    }
}

/// Decodes a message; logs it if it is invalid.
pub(crate) fn decode_or_log<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let decoded = dmover_wire::decode(bytes);
    decoded.inspect_err(|error| tracing::warn!(%error, "cannot read a message")).ok()
}

async fn connect(
    address: &Address,
    name: &str,
    connected: watch::Sender<u64>,
) -> Result<Client, Fatal> {
    let connected = Arc::new(connected);
    let watch = (!address.is_clear_text()).then(|| Arc::new(Watch::new(&address.url)));
    let shown = address.shown();
    let failures = Arc::new(Seldom::default());
    let mut options = ConnectOptions::new()
        .name(format!("dmover {name}"))
        .connection_timeout(CONNECT_WITHIN)
        .request_timeout(Some(ANSWER_WITHIN))
        .ping_interval(Duration::from_secs(5))
        .subscription_capacity(1 << 16)
        .reconnect_delay_callback(|attempts| {
            // The first attempt is the first connection.
            let wait = if attempts <= 1 { 0 } else { 25 << attempts.min(6) };
            RECONNECT_MAX.min(Duration::from_millis(wait))
        })
        .event_callback(move |event| {
            if event == Event::Connected {
                connected.send_modify(|connections| *connections += 1);
            }
            let (watch, failures) = (watch.clone(), Arc::clone(&failures));
            async move {
                match event {
                    Event::Connected => tracing::info!("connected to the broker"),
                    Event::Disconnected => tracing::warn!("lost the connection to the broker"),
                    other => {
                        // A failed attempt to connect is one, several times a second.
                        if !matches!(other, Event::ClientError(_)) || failures.is_due() {
                            tracing::info!(event = %other, "broker");
                        }
                        if let (Event::ClientError(_), Some(watch)) = (other, watch) {
                            watch.look().await;
                        }
                    }
                }
            }
        });
    options = match &address.secret {
        Secret::None => options,
        Secret::Nkey(seed) => options.nkey(seed.clone()),
        Secret::Token(token) => options.token(token.clone()),
        Secret::Credentials(path) => options.credentials_file(path).await.map_err(|error| {
            let message = format!("--credentials '{}': {error}", path.display());
            Fatal::refused(message, "use a file that nsc wrote")
        })?,
    };
    if let Some(certificates) = &address.certificates {
        options = options.tls_client_config(tls::trusting(certificates)?);
    }
    // Whatever a server says of itself, or of others of its cluster.
    options = options.require_tls(!address.is_clear_text());
    let servers: Vec<&str> = address.url.split(',').collect();
    let connected = tokio::time::timeout(2 * CONNECT_WITHIN, options.connect(servers)).await;
    let error = match connected {
        Ok(Ok(client)) => return Ok(client),
        Ok(Err(error)) => error,
        Err(_) => {
            let message = format!("the broker {shown} does not answer");
            return Err(Fatal::unavailable(
                message,
                "check that it runs and that this host can reach it",
            ));
        }
    };
    let reason = error.to_string();
    Err(match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            let message = format!("the broker {shown} refuses the credentials: {reason}");
            Fatal::refused(message, "check --credentials, or the join file of 'dmover broker'")
        }
        ConnectErrorKind::ServerParse => {
            let message = format!("--broker {shown}: {reason}");
            Fatal::refused(message, "use nats://HOST:PORT")
        }
        _ if reason.contains("certificate") => {
            let message =
                format!("the broker {shown} has a certificate that is not trusted: {reason}");
            let hint = "use the join file that 'dmover broker' wrote as --broker; the certificate \
                of the broker may have changed since";
            Fatal::refused(message, hint)
        }
        _ => {
            let message = format!("cannot reach the broker {shown}: {reason}");
            Fatal::unavailable(message, "check that it runs; 'dmover broker' starts one")
        }
    })
}
