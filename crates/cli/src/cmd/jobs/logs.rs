//! `dmover logs`: the messages of a job, from the file that they go to.
use dmover_model::ExitCode as Code;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::wait::{LOOK_EVERY, has_ended};
use super::{Known, Refused, find, refuse};
use crate::args::LogsArgs;
use crate::cmd::run::exit;
use crate::print::data;
use crate::quote::quoted;

/// A file is searched for the beginning of its last lines in steps of so many bytes.
const STEP: u64 = 64 << 10;

pub(crate) fn logs(args: &LogsArgs) -> ExitCode {
    let printed = find(&args.job, args.place.state_dir.as_ref()).and_then(|known| {
        let path = output(&known)?;
        print(args, &known, &path).map_err(|error| unreadable(&path, &error))
    });
    printed.map_or_else(refuse, |()| exit(Code::Done))
}

fn output(known: &Known) -> Result<PathBuf, Refused> {
    let path = known.file.output.as_ref().map(dmover_model::PathBytes::to_path);
    path.ok_or_else(|| {
        let message = format!("the last run of job {} keeps no messages", known.file.job);
        (
            message,
            "--detach and --log-file keep them; 'dmover status' says how it stands",
            Code::Usage,
        )
    })
}

fn unreadable(path: &Path, error: &std::io::Error) -> Refused {
    let shown = quoted(path.as_os_str().as_encoded_bytes());
    (format!("cannot print {shown}: {error}"), "check permissions", Code::Usage)
}

/// Prints the file from where it is wanted, and then what is added until the job has ended.
fn print(args: &LogsArgs, known: &Known, path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    if let Some(lines) = args.lines {
        seek_last(&mut file, lines)?;
    }
    loop {
        // Looked at first: what is written before the end is there then.
        let status = known.state.status(&known.file.job).unwrap_or_default();
        let ended =
            !args.follow || (has_ended(known, &status) && !known.state.is_running(&known.file.job));
        if file.metadata()?.len() < file.stream_position()? {
            // Another run has begun the file anew.
            file.rewind()?;
        }
        if !copy_rest(&mut file)? || ended {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Prints what is there. Answers whether somebody reads it.
fn copy_rest(file: &mut File) -> std::io::Result<bool> {
    let mut out = data();
    let printed = std::io::copy(file, &mut out).and_then(|_| out.flush());
    match printed {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        printed => printed.map(|()| true),
    }
}

/// Goes to the beginning of the last lines of a file.
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
            // The end of the last line begins none.
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
