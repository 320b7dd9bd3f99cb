//! The metrics endpoint of this process, for Prometheus.
use dmover_model::Fatal;
use dmover_observe::{Board, JobView, ProcessView, exposition};
use std::sync::Arc;

use crate::print::say;

/// The version and the resource usage of this process.
pub(crate) fn this_process() -> ProcessView {
    ProcessView {
        version: env!("CARGO_PKG_VERSION"),
        cpu_s: dmover_host::processors::process_seconds(),
        resident_bytes: dmover_host::memory::resident_bytes(),
        open_files: dmover_host::process::open_files(),
    }
}

/// Serves the metrics of a job from now on. `None`: no address is given.
///
/// # Errors
/// The address is not valid or is in use.
pub(crate) fn of_job(address: Option<&str>) -> Result<Option<Arc<Board<Option<JobView>>>>, Fatal> {
    let Some(address) = address else { return Ok(None) };
    let board: Arc<Board<Option<JobView>>> = Arc::default();
    let shown = Arc::clone(&board);
    serve(address, move || exposition::of_job(&this_process(), shown.get().as_ref()))?;
    Ok(Some(board))
}

/// Serves metrics until the process ends.
///
/// # Errors
/// The address is not valid or is in use.
pub(crate) fn serve(
    address: &str,
    text: impl Fn() -> String + Send + Sync + 'static,
) -> Result<(), Fatal> {
    let bound = dmover_server::serve_metrics(address, text)?;
    say(&format!("dmover: metrics at http://{bound}/metrics"));
    Ok(())
}
