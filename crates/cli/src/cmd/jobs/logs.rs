//! `dmover logs`: prints the file with the messages of a job.
use dmover_model::ExitCode as Code;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::wait::{LOOK_EVERY, has_ended};
use super::{Known, Refused, refuse};
use crate::args::LogsArgs;
use crate::cmd::choose::{Choice, named_or_last};
use crate::cmd::run::exit;
use crate::print::data;
use dmover_job::quote::quoted;

/// The search for the start of the last lines reads this many bytes at a time.
const STEP: u64 = 64 << 10;

pub(crate) fn logs(args: &LogsArgs) -> ExitCode {
    let known = named_or_last(args.job.as_deref(), args.place.state_dir.as_ref(), Choice::Any);
    let printed = known.and_then(|known| {
        let path = output(&known)?;
        print(args, &known, &path).map_err(|error| unreadable(&path, &error))
    });
    printed.map_or_else(refuse, |()| exit(Code::Done))
}

fn output(known: &Known) -> Result<PathBuf, Refused> {
    let path = known.file.output.as_ref().map(dmover_model::PathBytes::to_path);
    path.ok_or_else(|| {
        let message = format!("the last run of job {} has no message file", known.file.job);
        (
            message,
            "use --detach or --log-file to get one; 'dmover status' shows the state of the job",
            Code::Usage,
        )
    })
}

fn unreadable(path: &Path, error: &std::io::Error) -> Refused {
    let shown = quoted(path.as_os_str().as_encoded_bytes());
    (format!("cannot print {shown}: {error}"), "check permissions", Code::Usage)
}

/// Prints the file, or its last lines. With `--follow`, prints what is appended until the job ends.
fn print(args: &LogsArgs, known: &Known, path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    if let Some(lines) = args.lines {
        seek_last(&mut file, lines)?;
    }
    loop {
        // Read the status first: the file then has everything that a job writes before its end.
        let status = known.state.status(&known.file.job).unwrap_or_default();
        let ended =
            !args.follow || (has_ended(known, &status) && !known.state.is_running(&known.file.job));
        if file.metadata()?.len() < file.stream_position()? {
            // Another run has truncated the file.
            file.rewind()?;
        }
        if !copy_rest(&mut file)? || ended {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Prints the rest of the file. Returns whether standard output still has a reader.
fn copy_rest(file: &mut File) -> std::io::Result<bool> {
    let mut out = data();
    let printed = std::io::copy(file, &mut out).and_then(|_| out.flush());
    match printed {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        printed => printed.map(|()| true),
    }
}

/// Seeks to the start of the last lines of a file.
fn seek_last(file: &mut File, lines: u64) -> std::io::Result<()> {
    let end = file.seek(SeekFrom::End(0))?;
    let (mut from, mut found) = (end, 0);
    while from > 0 {
        let to = from;
        from = from.saturating_sub(STEP);
        let mut bytes = vec![0; (to - from) as usize];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut bytes)?;
        for (index, byte) in bytes.iter().enumerate().rev() {
            let at = from + index as u64;
            // The newline at the end of the file starts no line.
            if *byte != b'\n' || at + 1 == end {
                continue;
            }
            found += 1;
            if found == lines {
                return file.seek(SeekFrom::Start(at + 1)).map(drop);
            }
        }
    }
    let start = if lines == 0 { end } else { 0 };
    file.seek(SeekFrom::Start(start)).map(drop)
}
