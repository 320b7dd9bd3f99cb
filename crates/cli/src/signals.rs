//! Signals: the first INT, TERM or HUP parks the job, the second drops it; USR1 asks for a status line.
use dmover_engine::{Control, StopReason};
use dmover_sys::process::is_ignored;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Listens until the process ends.
pub fn listen(
    control: Arc<Control>,
    status: impl Fn() + Send + 'static,
    parked: impl Fn(i32) + Send + 'static,
) -> std::io::Result<()> {
    // What nohup(1), or a shell that starts something in the background, has had ignored stays so.
    let stopping = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = Signals::new(stopping.chain([SIGUSR1]))?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            match signal {
                SIGUSR1 => status(),
                _ if control.is_stopping() => control.stop_now(StopReason::Signal(signal)),
                _ => {
                    control.stop(StopReason::Signal(signal));
                    parked(signal);
                }
            }
        }
    })?;
    Ok(())
}

/// A file that becomes larger than RLIMIT_FSIZE allows is an error (EFBIG) and not the end of the process.
pub fn survive_file_size_limit() {
    // It can be refused for no signal that may be caught.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Listens to USR1 only: where nothing is written, other signals may end the process as they always do.
pub fn listen_for_status(status: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGUSR1])?;
    let listen = move || signals.forever().for_each(|_| status());
    std::thread::Builder::new().name("signals".into()).spawn(listen)?;
    Ok(())
}

/// Ends the process by the signal itself, so that a shell sees what happened.
pub fn raise_again(signal: i32) -> std::process::ExitCode {
    // This does not come back for the signals listened to; the code is for the case that it does.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::ExitCode::from(128u8.wrapping_add(signal as u8))
}
