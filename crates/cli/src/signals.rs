//! Signals: the first INT, TERM or HUP stops the job after the tasks in progress, the second stops it at once. USR1 prints a
//! status line.
use dmover_engine::{Control, StopReason};
use dmover_host::signals;
use dmover_schedule::thread;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Listens until the process ends.
pub fn listen(
    control: Arc<Control>,
    status: impl Fn() + Send + 'static,
    parked: impl Fn(i32) + Send + 'static,
) -> std::io::Result<()> {
    // A signal that is ignored at the start stays ignored: nohup(1), and shells for background processes, rely on that.
    let stopping =
        [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !signals::is_ignored(*signal));
    let mut signals = Signals::new(stopping.chain([SIGUSR1]))?;
    thread::Builder::new().name("signals".into()).spawn(move || {
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

/// Makes a write beyond RLIMIT_FSIZE fail with EFBIG instead of ending the process.
pub fn survive_file_size_limit() {
    // This cannot fail: SIGXFSZ may be caught.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Listens to USR1 only. A process that writes no files may end on other signals as usual.
pub fn listen_for_status(status: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGUSR1])?;
    let listen = move || signals.forever().for_each(|_| status());
    thread::Builder::new().name("signals".into()).spawn(listen)?;
    Ok(())
}

/// Ends the process by the signal itself, so that a shell sees what happened.
pub fn raise_again(signal: i32) -> std::process::ExitCode {
    // This does not return for the signals in use; the exit code covers the case that it does.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::ExitCode::from(code_of(signal))
}

/// The exit code by which a shell shows that a process ended by a signal.
pub fn code_of(signal: i32) -> u8 {
    128u8.wrapping_add(signal as u8)
}
