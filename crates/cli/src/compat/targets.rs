//! Where cp copies each source, and what it does if source and destination are the same file.
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::backups::{Backups, Control};
use super::{Refused, flag_os, follows, kept_attributes, refused, streams};
use crate::args::CpArgs;
use crate::print::say;
use dmover_job::quote::quoted;

/// Sources and destination for `copy`.
#[derive(Default)]
pub(super) struct Named {
    pub words: Vec<OsString>,
    /// Copies that are made as streams.
    pub streams: Vec<(OsString, PathBuf)>,
    /// Files that cp removes first.
    pub removed: Vec<PathBuf>,
    /// The backups that are made.
    pub control: Control,
    /// A source was skipped, and reported.
    pub failed: bool,
}

/// cp decides where a copy goes by what the destination is now, and keeps no state between runs.
pub(super) fn named(
    args: &CpArgs,
    backups: &Backups,
    (program, ranged): (&str, bool),
) -> Result<Named, Refused> {
    let (sources, directory, target) = operands(args)?;
    let recursive = args.recursive || args.archive;
    let given = sources.len();
    let mut sources = sources;
    sources.retain(|source| is_copied(args, source, program));
    let mut named = Named { failed: sources.len() < given, ..Named::default() };
    let within = |source: &OsStr| match (&directory, &target) {
        (Some(directory), _) => {
            Path::new(directory).join(Path::new(source).file_name().unwrap_or(OsStr::new(".")))
        }
        (None, target) => PathBuf::from(target.as_deref().unwrap_or_default()),
    };
    if !ranged {
        let all: Vec<PathBuf> = sources.iter().map(|source| within(source)).collect();
        sources.retain(|source| {
            let at = within(source);
            let is_stream =
                !recursive && (streams::is_stream(Path::new(source)) || streams::is_stream(&at));
            let streamed = is_stream || streams::is_made_up(source);
            if streamed && !(args.no_clobber && std::fs::symlink_metadata(&at).is_ok()) {
                named.streams.push((source.clone(), at));
            }
            !streamed
        });
        let twice = |at: &Path| all.iter().filter(|other| *other == at).count() > 1;
        if let Some((_, at)) = named.streams.iter().find(|(_, at)| twice(at)) {
            let shown = quoted(at.as_os_str().as_bytes());
            return Err(refused(
                format!("two sources have the same destination {shown}"),
                "copy one at a time",
            ));
        }
    }
    let targets: Vec<PathBuf> = sources.iter().map(|source| within(source)).collect();
    named.control = backups.settled(&targets);
    let mut place = target.map(PathBuf::from);
    if let ([source], [at], false) = (&sources[..], &targets[..], ranged || given > 1) {
        match way(args, backups, source, at)? {
            Way::Done => return Ok(named),
            Way::At(path) => place = path.or(place),
            Way::IsBackup(path) => {
                named.control = Control::None;
                place = Some(path);
            }
            Way::AfterRemoval => {
                named.removed.push(at.clone());
                place = Some(at.clone());
            }
        }
    }
    if sources.is_empty() {
        return Ok(named);
    }
    let sources = sources.iter().map(|source| local(&stripped(args, source)));
    match (place, directory) {
        (Some(place), _) => {
            named.words.extend(["--no-target-directory".into(), "--".into()]);
            named.words.extend(sources);
            named.words.push(local(place.as_os_str()));
        }
        (None, directory) => {
            named.words.push(flag_os("--target-directory", &directory.unwrap_or_default()));
            named.words.push("--".into());
            named.words.extend(sources);
        }
    }
    Ok(named)
}

/// The sources, and the directory that receives them or the name of the only copy.
type Operands = (Vec<OsString>, Option<OsString>, Option<OsString>);

fn operands(args: &CpArgs) -> Result<Operands, Refused> {
    let mut sources = args.paths.clone();
    if let Some(directory) = &args.target_directory {
        if sources.is_empty() {
            return Err(refused("missing file operand", "--help shows the usage"));
        }
        return Ok((sources, Some(directory.clone()), None));
    }
    let Some(last) = sources.pop().filter(|_| !sources.is_empty()) else {
        let given = args.paths.first().map(|path| quoted(path.as_bytes()));
        let after = given.map_or(String::new(), |path| format!(" after {path}"));
        return Err(refused(
            format!("missing destination file operand{after}"),
            "--help shows the usage",
        ));
    };
    if args.no_target_directory {
        if sources.len() > 1 {
            return Err(refused(
                "-T allows only one source",
                "omit -T, or copy one source at a time",
            ));
        }
        return Ok((sources, None, Some(last)));
    }
    if is_directory(&last) {
        return Ok((sources, Some(last), None));
    }
    if sources.len() > 1 {
        let shown = quoted(last.as_bytes());
        let hint = "several sources need a directory as destination";
        return Err(refused(format!("destination {shown} is not a directory"), hint));
    }
    Ok((sources, None, Some(last)))
}

fn is_directory(path: &OsStr) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir())
}

/// Whether a source can be copied. Reports the reason if not.
fn is_copied(args: &CpArgs, source: &OsStr, program: &str) -> bool {
    let recursive = args.recursive || args.archive;
    let found = std::fs::symlink_metadata(source);
    let is_link = found.as_ref().is_ok_and(Metadata::is_symlink);
    if is_directory(source) && !(is_link && args.no_dereference) && !recursive {
        let shown = quoted(source.as_bytes());
        say(&format!("dmover: {program}: -r not specified; omitting directory {shown}"));
        return false;
    }
    let followed = std::fs::metadata(source);
    if found.is_ok() && !(follows(args, recursive) && followed.is_err()) {
        return true;
    }
    let error = followed.err().or(found.err());
    let why = error.map_or_else(String::new, |error| error.to_string());
    say(&format!("dmover: {program}: cannot stat {}: {why}", quoted(source.as_bytes())));
    false
}

/// How a source that is not a directory is copied.
enum Way {
    /// It replaces the entry at this path; `None`: at the destination as given.
    At(Option<PathBuf>),
    /// The copy is the backup.
    IsBackup(PathBuf),
    /// The existing entry is removed first, because it is another name of the source.
    AfterRemoval,
    /// There is nothing to do.
    Done,
}

/// Decides as cp does where source and target may be one file, or the target is a symbolic link.
fn way(args: &CpArgs, backups: &Backups, source: &OsStr, target: &Path) -> Result<Way, Refused> {
    let Ok(there) = std::fs::symlink_metadata(target) else { return Ok(Way::At(None)) };
    let Ok(named) = std::fs::symlink_metadata(source) else { return Ok(Way::At(None)) };
    let as_link = named.is_symlink() && !follows(args, args.recursive || args.archive);
    let followed = std::fs::metadata(source).ok();
    let Some(read) = (if as_link { Some(named.clone()) } else { followed.clone() }) else {
        return Ok(Way::At(None));
    };
    if read.is_dir() || there.is_dir() {
        return Ok(Way::At(None));
    }
    let at = Path::new(target);
    let shown = (quoted(source.as_bytes()), quoted(at.as_os_str().as_bytes()));
    let same = |hint| {
        if args.no_clobber {
            return Ok(Way::Done);
        }
        let message = format!("{} and {} are the same file", shown.0, shown.1);
        Err(refused(message, hint))
    };
    let keeps_old = backups.control != Control::None;
    let is_one = is_same_entry(Path::new(source), at);
    let takes_place = keeps_old || args.remove_destination || as_link;
    if there.is_symlink() && !takes_place {
        let Ok(beyond) = std::fs::metadata(target) else {
            let hint = "remove the link, or use the path that it points to";
            return Err(refused(format!("not writing through dangling symlink {}", shown.1), hint));
        };
        if is_same(&beyond, &read) {
            return same("nothing to do");
        }
        if beyond.nlink() > 1 && kept_attributes(args)?.contains(&"links") && !args.no_clobber {
            return Ok(Way::At(Some(at.into()))); // other names of that file keep its content
        }
        let path = std::fs::canonicalize(target);
        let path = path
            .map_err(|e| refused(format!("cannot resolve {}: {e}", shown.1), "check the link"))?;
        return Ok(if args.no_clobber { Way::Done } else { Way::At(Some(path)) });
    }
    if is_one {
        let is_plain = followed.is_some_and(|found| found.is_file());
        return if args.force && keeps_old && is_plain && source == at.as_os_str() {
            Ok(Way::IsBackup(backups.name_for(at)))
        } else {
            same("nothing to do")
        };
    }
    // From here on, source and target are two names.
    let is_one_inode = is_same(&there, &read);
    if as_link && there.is_symlink() {
        return Ok(if is_one_inode && !keeps_old { Way::Done } else { Way::At(Some(at.into())) });
    }
    if is_one_inode && !as_link {
        return match (named.is_symlink(), keeps_old) {
            // The file that the link points to would be gone when it is read.
            (true, _) => same("use the path of the file instead of the link"),
            (false, true) => Ok(Way::At(Some(at.into()))),
            (false, false) if args.remove_destination && there.nlink() > 1 => Ok(Way::AfterRemoval),
            (false, false) => same("--remove-destination creates a separate file"),
        };
    }
    let leads_there = as_link && followed.is_some_and(|found| is_same(&found, &there));
    if leads_there && !keeps_old {
        return same("the link would replace the file that it points to");
    }
    let is_kept = args.no_clobber;
    Ok(if is_kept { Way::Done } else { Way::At(takes_place.then(|| at.into())) })
}

pub(super) fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Whether two paths are the same name in the same directory.
fn is_same_entry(one: &Path, other: &Path) -> bool {
    let above = |path: &Path| {
        let above = path.parent().filter(|above| *above != Path::new(""));
        std::fs::metadata(above.unwrap_or(Path::new(".")))
    };
    let (Ok(first), Ok(second)) = (above(one), above(other)) else { return false };
    one.file_name() == other.file_name() && is_same(&first, &second)
}

fn stripped(args: &CpArgs, source: &OsStr) -> OsString {
    let bytes = source.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(1, |at| at + 1);
    let cut = if args.strip_trailing_slashes { &bytes[..end.min(bytes.len())] } else { bytes };
    OsStr::from_bytes(cut).to_owned()
}

/// The path, so that `copy` takes it neither for a path on another host nor for an option.
fn local(path: &OsStr) -> OsString {
    let bytes = path.as_bytes();
    let first = bytes.split(|byte| *byte == b'/').next().unwrap_or_default();
    let odd = first.contains(&b':') || bytes.starts_with(b"-");
    if odd { OsString::from_vec([b"./", bytes].concat()) } else { path.to_owned() }
}
