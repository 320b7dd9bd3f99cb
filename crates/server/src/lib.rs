//! The HTTP endpoints of dmover. tokio stays inside this crate.
#![forbid(unsafe_code)]

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use dmover_model::Fatal;
use dmover_observe::exposition;
use dmover_schedule::thread;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

/// The address to listen on if only a port is given.
const HERE: &str = "127.0.0.1";

/// Serves Prometheus metrics for as long as the process lives. `address` is `[HOST:]PORT`; returns the address that is
/// in use.
///
/// # Errors
/// The address is invalid or already in use.
pub fn serve_metrics(
    address: &str,
    text: impl Fn() -> String + Send + Sync + 'static,
) -> Result<SocketAddr, Fatal> {
    let (host, port) = address.rsplit_once(':').unwrap_or((HERE, address));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let refuse = |why: String| {
        let hint = "choose another [HOST:]PORT; port 0 selects a free one";
        Fatal::refused(format!("--metrics {address}: {why}"), hint)
    };
    let port: u16 = port.parse().map_err(|_| refuse(format!("'{port}' is not a port")))?;
    let found = (host, port).to_socket_addrs().map_err(|error| refuse(error.to_string()))?;
    let all: Vec<SocketAddr> = found.collect();
    let listener = TcpListener::bind(&all[..]).map_err(|error| refuse(error.to_string()))?;
    listener.set_nonblocking(true).map_err(Fatal::Thread)?;
    let bound = listener.local_addr().map_err(Fatal::Thread)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Fatal::Thread)?;
    let text = Arc::new(text);
    let metrics = move || {
        let text = Arc::clone(&text);
        async move { ([(CONTENT_TYPE, exposition::CONTENT_TYPE)], text()) }
    };
    let routes = Router::new()
        .route("/", get(async || "dmover: see /metrics\n"))
        .route("/metrics", get(metrics));
    let work = async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        axum::serve(listener, routes).await
    };
    let run = move || {
        if let Err(error) = runtime.block_on(work) {
            tracing::warn!(%error, "the metrics server ended");
        }
    };
    thread::Builder::new().name("metrics".into()).spawn(run).map_err(Fatal::Thread)?;
    Ok(bound)
}
