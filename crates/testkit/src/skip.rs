//! Skipping a test so that nobody overlooks it.

use std::io::Write;

/// Says on stderr that `test` cannot run here, and appends a line to the file named by
/// `DMOVER_SKIP_LOG`, so that a run can be failed for having skipped too much.
pub fn skipped(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {}\n", why.replace('\n', "; "));
    // Written, not printed: the test harness hides what a test that passes has printed.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
    let Some(log) = std::env::var_os("DMOVER_SKIP_LOG") else { return };
    let file = std::fs::File::options().create(true).append(true).open(&log);
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        let _ = writeln!(std::io::stderr(), "cannot write to {}: {error}", log.display());
    }
}

/// Skips the running test: `skip!("needs {tool}")` prints, logs and returns from the test.
#[macro_export]
macro_rules! skip {
    ($($why:tt)+) => {{
        let name = std::thread::current().name().unwrap_or("test").to_owned();
        $crate::skip::skipped(&name, &format!($($why)+));
        return;
    }};
}
