//! The words by which messages name a job: its verb, its paths, its label.
use dmover_journal::JobFile;
use dmover_model::PathBytes;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::quote::quoted;

/// The absolute path of a path that was typed in a directory.
pub(crate) fn absolute(directory: &PathBytes, path: &PathBytes) -> PathBuf {
    // components() drops '.'.
    directory.to_path().join(path.to_path()).components().collect()
}

/// The verb that the user typed: a snapshot is recorded as a 'sync' job.
pub fn verb(file: &JobFile) -> &str {
    let typed = file.command.get(1).map(|word| &word.0[..]);
    if typed == Some(b"snapshot") { "snapshot" } else { &file.verb }
}

fn at(file: &JobFile, path: &PathBytes) -> String {
    quoted(absolute(&file.directory, path).as_os_str().as_bytes())
}

/// The absolute path of a source, or its name on another host.
pub(crate) fn source_place(file: &JobFile, source: &PathBytes) -> PathBuf {
    if file.sources_are_remote { source.to_path() } else { absolute(&file.directory, source) }
}

fn source_at(file: &JobFile, source: &PathBytes) -> String {
    quoted(source_place(file, source).as_os_str().as_bytes())
}

/// The sources of a job.
pub fn sources(file: &JobFile) -> String {
    match &file.sources[..] {
        [] => "a list".into(),
        [one] => source_at(file, one),
        [first, rest @ ..] => format!("{} and {} more", source_at(file, first), rest.len()),
    }
}

/// The destination of a job, if it has one.
pub fn destination(file: &JobFile) -> Option<String> {
    Some(&file.destination).filter(|path| !path.0.is_empty()).map(|path| at(file, path))
}

/// The sources and the destination of a job.
pub fn places(file: &JobFile) -> String {
    match destination(file) {
        None => sources(file),
        Some(destination) => format!("{} -> {destination}", sources(file)),
    }
}

/// The id, the label, the verb and the places of a job.
pub fn described(file: &JobFile) -> String {
    let label = file.label.as_deref().map_or(String::new(), |label| format!(" [{label}]"));
    format!("{}{label}: {} {}", file.job, file.verb, places(file))
}
