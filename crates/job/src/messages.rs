//! The file with the messages of a job, which is followed until the job ends.
use dmover_schedule::thread;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::follow::LOOK_EVERY;
use crate::known::KnownJob;
use crate::quote::quoted;
use crate::refusal::{Reason, Refusal};

/// The search for the start of the last lines reads this many bytes at a time.
const STEP: u64 = 64 << 10;

impl KnownJob {
    /// The file with the messages of the last run of the job.
    fn message_file(&self) -> Result<PathBuf, Refusal> {
        let path = self.file.output.as_ref().map(dmover_model::PathBytes::to_path);
        path.ok_or_else(|| {
            let message = format!("the last run of job {} has no message file", self.id());
            let hint =
                "use --detach or --log-file to get one; 'dmover status' shows the state of the job";
            Refusal::new(Reason::NoRecord, message, hint)
        })
    }

    /// Writes the messages of the last run of the job, or only its last lines. `follows`: also those that are added until
    /// the job ends. An output that nobody reads any more ends this without an error.
    ///
    /// # Errors
    /// The messages went to no file, the file cannot be read, or the output cannot be written.
    pub fn copy_messages(
        &self,
        lines: Option<u64>,
        follows: bool,
        out: &mut dyn Write,
    ) -> Result<(), Refusal> {
        let path = self.message_file()?;
        self.copy(&path, (lines, follows), out).map_err(|error| {
            let shown = quoted(path.as_os_str().as_encoded_bytes());
            let message = format!("cannot print {shown}: {error}");
            Refusal::new(Reason::NoRecord, message, "check permissions")
        })
    }

    fn copy(
        &self,
        path: &Path,
        (lines, follows): (Option<u64>, bool),
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        let mut file = File::open(path)?;
        if let Some(lines) = lines {
            seek_last(&mut file, lines)?;
        }
        loop {
            // Read the status first: the file then has everything that a job writes before its end.
            let status = self.state.status(self.id());
            let has_ended = status.is_none_or(|status| self.has_ended(&status));
            let ended = !follows || (has_ended && !self.is_running());
            if file.metadata()?.len() < file.stream_position()? {
                // Another run has truncated the file.
                file.rewind()?;
            }
            if !copy_rest(&mut file, out)? || ended {
                return Ok(());
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Writes the rest of the file. Returns whether the output still has a reader.
fn copy_rest(file: &mut File, mut out: &mut dyn Write) -> std::io::Result<bool> {
    let written = std::io::copy(file, &mut out).and_then(|_| out.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_record::OnRecord;
    use dmover_model::PathBytes;

    #[test]
    fn the_last_lines_of_the_messages_are_written() {
        let records = OnRecord::new();
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("output");
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        let bytes = PathBytes::from(path.as_os_str());
        let job = records.put("a1", |file| file.output = Some(bytes));
        let last = |lines| {
            let mut out = Vec::new();
            job.copy_messages(lines, true, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(last(None), "one\ntwo\nthree\n");
        assert_eq!(last(Some(2)), "two\nthree\n");
        assert_eq!(last(Some(9)), "one\ntwo\nthree\n");
        assert_eq!(last(Some(0)), "");
    }

    #[test]
    fn following_ends_when_the_record_is_removed() {
        let (records, place) = (OnRecord::new(), tempfile::tempdir().unwrap());
        let path = place.path().join("output");
        std::fs::write(&path, "one\n").unwrap();
        let job = records.put("a1", |file| file.output = Some(PathBytes::from(path.as_os_str())));
        let lock = records.runs("a1");
        records.state().forget("a1", &lock).unwrap();
        drop(lock);
        let (tell, ended) = dmover_schedule::sync::mpsc::channel();
        thread::spawn(move || {
            let mut out = Vec::new();
            job.copy_messages(None, true, &mut out).unwrap();
            tell.send(out)
        });
        let out = ended.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(out.expect("it ends"), b"one\n");
    }

    #[test]
    fn a_job_whose_messages_went_to_no_file_has_none() {
        let job = OnRecord::new().put("a1", |_| {});
        let refused = job.copy_messages(None, false, &mut Vec::new()).unwrap_err();
        assert_eq!(refused.reason, Reason::NoRecord);
    }
}
