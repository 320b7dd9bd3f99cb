//! Metrics over HTTP, for Prometheus.
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use dmover_engine::Fatal;
use dmover_observe::{Board, JobView, ProcessView, exposition};
use dmover_sys::process;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use crate::print::say;

/// Where a port without a host is listened on.
const HERE: &str = "127.0.0.1";

/// What this process is and uses.
pub(crate) fn this_process() -> ProcessView {
    ProcessView {
        version: env!("CARGO_PKG_VERSION"),
        cpu_s: process::processor_seconds(),
        resident_bytes: process::resident_memory_bytes(),
        open_files: process::open_files(),
    }
}

/// Shows what a job tells, from now on. `None`: nobody wants to know.
///
/// # Errors
/// The address is none, or is in use.
pub(crate) fn of_job(address: Option<&str>) -> Result<Option<Arc<Board<Option<JobView>>>>, Fatal> {
    let Some(address) = address else { return Ok(None) };
    let board: Arc<Board<Option<JobView>>> = Arc::default();
    let shown = Arc::clone(&board);
    serve(address, move || exposition::of_job(&this_process(), shown.get().as_ref()))?;
    Ok(Some(board))
}

/// Answers whoever asks for metrics, for as long as the process lives.
///
/// # Errors
/// The address is none, or is in use.
pub(crate) fn serve(
    address: &str,
    text: impl Fn() -> String + Send + Sync + 'static,
) -> Result<(), Fatal> {
    let (host, port) = address.rsplit_once(':').unwrap_or((HERE, address));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let refuse = |why: String| {
        let hint = "name another [HOST:]PORT; 0 takes any port that is free";
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
            tracing::warn!(%error, "metrics cannot be asked for any more");
        }
    };
    std::thread::Builder::new().name("metrics".into()).spawn(run).map_err(Fatal::Thread)?;
    say(&format!("dmover: metrics at http://{bound}/metrics"));
    Ok(())
}
