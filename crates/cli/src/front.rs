//! `cp`, `mcp` and `msum`: other programs' words become those of `copy` and `sum`.
//!
//! Everything that is done is done by those; here is only what the words mean.
use clap::FromArgMatches;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;

use crate::args::{CpArgs, McpArgs, MsumArgs, MutilArgs};
use crate::print::{failure, say};
use crate::quote::quoted;
use crate::{Cli, Verb, cmd};

const MIB: u64 = 1 << 20;
/// Attributes that `copy` knows, by its words.
const ATTRIBUTES: [&str; 8] =
    ["mode", "owner", "times", "links", "xattr", "acl", "flags", "project"];

/// Called by another program's name, this is that program.
pub(crate) fn as_called(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.first().map(Path::new).and_then(Path::file_name).map(OsStr::to_owned);
    if let Some(name) = name.filter(|name| name == "mcp" || name == "msum") {
        arguments.insert(1, name);
    }
    arguments
}

/// What stands in the way.
struct Refused {
    message: String,
    hint: &'static str,
}

fn refused(message: impl Into<String>, hint: &'static str) -> Refused {
    Refused { message: message.into(), hint }
}

/// `dmover cp`.
pub(crate) fn cp(args: &CpArgs) -> ExitCode {
    run_cp(args, Vec::new(), "cp")
}

/// `mcp`.
pub(crate) fn mcp(args: &McpArgs) -> ExitCode {
    let words = mutil_words(&args.mutil, Some(1024)).and_then(|words| mcp_words(args, words));
    match words {
        Ok(words) => run_cp(&args.cp, words, "mcp"),
        Err(refused) => refuse(&refused),
    }
}

/// `msum`.
pub(crate) fn msum(args: &MsumArgs) -> ExitCode {
    let words = mutil_words(&args.mutil, None).map(|mut words| {
        let mutil = &args.mutil;
        words.extend([flag("--hash-type", mutil.hash_type.word())]);
        words.extend(leaf_words(mutil, mutil.check_tree && !args.check));
        let flags = [
            (args.binary, "--binary"),
            (args.check, "--check"),
            (args.quiet, "--quiet"),
            (args.status, "--status"),
            (args.warn, "--warn"),
        ];
        words.extend(chosen(&flags));
        words.push("--".into());
        words.extend(args.paths.iter().cloned());
        words
    });
    match words {
        Ok(words) => run_as("sum", words),
        Err(refused) => refuse(&refused),
    }
}

fn refuse(Refused { message, hint }: &Refused) -> ExitCode {
    failure(message, hint);
    ExitCode::from(dmover_model::ExitCode::Usage.code())
}

/// Runs `copy` or `sum` with these words. What configuration files say of `copy` is not meant.
fn run_as(verb: &str, words: Vec<OsString>) -> ExitCode {
    let arguments = ["dmover".into(), verb.into()].into_iter().chain(words);
    let matches = crate::command().try_get_matches_from(arguments);
    let parsed = matches.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    match parsed {
        Ok((cli, matches)) => {
            let of_verb = matches.subcommand().map(|(_, sub)| sub);
            match cli.verb {
                Verb::Copy(args) => cmd::copy::run(&args, of_verb),
                Verb::Sum(args) => cmd::sum::run(&args, of_verb),
                _ => refuse(&refused("nothing to do", "report this as a fault of dmover")),
            }
        }
        Err(error) => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            let message = first.trim_start_matches("error: ");
            refuse(&refused(message, "see the options by --help"))
        }
    }
}

fn flag(name: &str, value: impl std::fmt::Display) -> OsString {
    format!("{name}={value}").into()
}

fn flag_os(name: &str, value: &OsStr) -> OsString {
    OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())
}

fn chosen(flags: &[(bool, &str)]) -> Vec<OsString> {
    flags.iter().filter(|(given, _)| *given).map(|(_, word)| (*word).into()).collect()
}

/// Sizes are rounded down to powers of two, as mutil does it, which says so.
fn rounded(name: &str, value: u64, unit: u64) -> u64 {
    if value == 0 || value.is_power_of_two() {
        return value.saturating_mul(unit);
    }
    let down = 1 << value.ilog2();
    say(&format!("dmover: note: {name} was rounded down from {value} to {down}"));
    let down: u64 = down;
    down.saturating_mul(unit)
}

/// What mcp and msum have in common, `split` being the default.
fn mutil_words(args: &MutilArgs, split: Option<u64>) -> Result<Vec<OsString>, Refused> {
    let hosts = &args.hosts;
    let many = [
        (hosts.mpi, "--mpi"),
        (hosts.manager_host.is_some(), "--manager-host"),
        (hosts.manager_port.is_some(), "--manager-port"),
        (hosts.listen_port.is_some(), "--listen-port"),
        (hosts.password_file.is_some(), "--password-file"),
    ];
    if let Some((_, name)) = many.into_iter().find(|(given, _)| *given) {
        let hint = "leave it out to work on this host with all its processors";
        return Err(refused(
            format!("{name} needs several hosts, which is not possible yet"),
            hint,
        ));
    }
    let split = args.split_size.or(split).unwrap_or(0);
    let buffer = args.buffer_size.clamp(1, 1024) * MIB;
    let mut words = vec![
        flag("--buffer-size", buffer),
        flag("--memory", (u64::from(args.threads) * buffer * 3).max(64 * MIB)),
        flag("--split-size", rounded("--split-size", split, MIB)),
        flag("--threads", args.threads),
        "--progress=never".into(),
    ];
    words.extend(args.offset.iter().map(|at| flag("--offset", at)));
    words.extend(args.length.iter().map(|bytes| flag("--length", bytes)));
    words.extend(chosen(&[
        (args.direct_read, "--direct-read"),
        (args.fadvise_read, "--fadvise-read"),
        (args.read_stdin, "--read-stdin"),
    ]));
    Ok(words)
}

/// How digests are put together and printed.
fn leaf_words(args: &MutilArgs, tree: bool) -> Vec<OsString> {
    let leaf = rounded("--hash-leaf-size", args.hash_leaf_size.max(1), 1024);
    // Rounded, and said, already.
    let split = args
        .split_size
        .filter(|split| *split > 0)
        .map(|split| (1_u64 << split.ilog2()).saturating_mul(MIB));
    let piece = split.filter(|_| args.check_tree).unwrap_or(0);
    let leaf = if piece > 0 { leaf.min(piece) } else { leaf };
    let mut words = vec![flag("--hash-leaf-size", leaf), flag("--mutil", piece)];
    words.extend(chosen(&[(tree, "--check-tree")]));
    words
}

fn mcp_words(args: &McpArgs, mut words: Vec<OsString>) -> Result<Vec<OsString>, Refused> {
    let lustre =
        [(args.stripe_count.is_some(), "--stripe-count"), (args.print_stripe, "--print-stripe")];
    for (_, name) in lustre.into_iter().filter(|(given, _)| *given) {
        say(&format!("dmover: note: {name} needs Lustre; layouts are left to the file system"));
    }
    if args.print_hash {
        words.push(flag("--hash-type", args.mutil.hash_type.word()));
        words.extend(leaf_words(&args.mutil, args.mutil.check_tree));
    } else if args.mutil.check_tree {
        return Err(refused("--check-tree prints digests", "add --print-hash"));
    }
    words.extend(args.dst_offset.iter().map(|at| flag("--dst-offset", at)));
    words.extend(chosen(&[
        (args.print_hash, "--print-hash"),
        (args.print_src && args.print_hash, "--print-src"),
        (args.print_stats, "--print-stats"),
        (args.direct_write, "--direct-write"),
        (args.fadvise_write, "--fadvise-write"),
        (args.skip_chmod, "--skip-chmod"),
    ]));
    Ok(words)
}

fn run_cp(args: &CpArgs, more: Vec<OsString>, program: &str) -> ExitCode {
    let batch = more.iter().any(|word| word == "--read-stdin");
    let (mut words, paths) = match cp_words(args, batch, program) {
        Ok(prepared) => prepared,
        Err(refused) => return refuse(&refused),
    };
    if paths.words.is_empty() && !batch {
        return ExitCode::FAILURE; // every source was a directory, and was named
    }
    let ranged = ["--offset=", "--length=", "--dst-offset="];
    let ranged = more
        .iter()
        .any(|word| ranged.iter().any(|flag| word.as_bytes().starts_with(flag.as_bytes())));
    if !ranged && let Some(code) = stream(args) {
        return code;
    }
    words.extend(more);
    words.extend(paths.words);
    let code = run_as("copy", words);
    if paths.omitted && code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
}

/// Sources and destination as `copy` is to have them.
struct Paths {
    words: Vec<OsString>,
    /// A directory was left out, for want of -R.
    omitted: bool,
}

fn cp_words(args: &CpArgs, batch: bool, program: &str) -> Result<(Vec<OsString>, Paths), Refused> {
    let cannot = &args.impossible;
    let impossible = [
        (cannot.attributes_only, "--attributes-only"),
        (cannot.copy_contents, "--copy-contents"),
        (cannot.interactive, "--interactive"),
        (cannot.link, "--link"),
        (cannot.symbolic_link, "--symbolic-link"),
        (cannot.parents, "--parents"),
        (cannot.security_context || cannot.context.is_some(), "--context"),
    ];
    if let Some((_, name)) = impossible.into_iter().find(|(given, _)| *given) {
        let hint = "use the system's own cp for it";
        return Err(refused(format!("{program} {name} is not possible with dmover"), hint));
    }
    // Nothing is remembered: the same command may mean another place the next time.
    let mut words: Vec<OsString> =
        vec!["--quiet".into(), "--progress=never".into(), "--no-state".into()];
    words.extend(attribute_words(args)?);
    let recursive = args.recursive || args.archive;
    let follows = follows(args, recursive);
    words.extend(chosen(&[
        (follows && (args.dereference || !args.dereference_args), "--dereference"),
        (args.dereference_args && !args.dereference, "--dereference-args"),
        (args.one_file_system, "--one-file-system"),
    ]));
    words.push(match (args.no_clobber, args.update) {
        (true, _) => "--no-clobber".into(),
        (_, true) => "--update".into(),
        _ => "--overwrite=always".into(),
    });
    words.extend(args.reflink.iter().map(|when| flag("--reflink", when)));
    words.extend(args.sparse.iter().map(|when| flag("--sparse", when)));
    words.extend(backup_words(args)?);
    if args.verbose {
        words.push("--format='%n' -> '%d'".into());
    }
    let paths = if batch {
        Paths { words: Vec::new(), omitted: false }
    } else {
        paths(args, recursive, program)?
    };
    Ok((words, paths))
}

/// What cp keeps is little unless it is asked for more.
fn attribute_words(args: &CpArgs) -> Result<Vec<OsString>, Refused> {
    const USUAL: [&str; 4] = ["mode", "owner", "times", "acl"];
    const ALL: [&str; 6] = ["mode", "owner", "times", "links", "xattr", "acl"];
    let of = |word: &str| -> Result<Vec<&'static str>, Refused> {
        Ok(match word {
            "mode" => vec!["mode", "acl"],
            "ownership" => vec!["owner"],
            "timestamps" => vec!["times"],
            "links" => vec!["links"],
            "xattr" => vec!["xattr"],
            // Labels are made anew at the destination.
            "context" => vec![],
            "all" => ALL.to_vec(),
            other => {
                let hint = "there are mode, ownership, timestamps, links, context, xattr and all";
                return Err(refused(format!("--preserve: unknown attribute '{other}'"), hint));
            }
        })
    };
    let mut kept: Vec<&str> = if args.archive { ALL.to_vec() } else { Vec::new() };
    if args.preserve_usual {
        kept.extend(USUAL);
    }
    if args.no_dereference_links {
        kept.push("links");
    }
    for word in &args.preserve {
        kept.extend(of(word)?);
    }
    for word in &args.no_preserve {
        let dropped = of(word)?;
        kept.retain(|attribute| !dropped.contains(attribute));
    }
    let dropped: Vec<&str> = ATTRIBUTES.into_iter().filter(|word| !kept.contains(word)).collect();
    // cp -a goes on without a word where the destination cannot hold something.
    let losses = (args.archive && args.preserve.is_empty()).then(|| "--allow-loss=all".into());
    Ok(std::iter::once(flag("--no-preserve", dropped.join(","))).chain(losses).collect())
}

fn backup_words(args: &CpArgs) -> Result<Vec<OsString>, Refused> {
    let control = args.backup.as_deref().or(args.simple_backup.then_some("existing"));
    let control = control.or(args.suffix.is_some().then_some("existing"));
    let mut words = Vec::new();
    match control {
        None | Some("none" | "off") => return Ok(words),
        Some("numbered" | "t") => words.push("--backup=numbered".into()),
        Some("existing" | "nil" | "simple" | "never") => words.push("--backup=simple".into()),
        Some(other) => {
            let hint = "there are none, simple, numbered and existing";
            return Err(refused(format!("--backup: '{other}' is unknown"), hint));
        }
    }
    words.extend(args.suffix.iter().map(|suffix| flag_os("--suffix", suffix)));
    Ok(words)
}

/// Where cp puts things depends on what stands there now, and on nothing that is remembered.
fn paths(args: &CpArgs, recursive: bool, program: &str) -> Result<Paths, Refused> {
    let mut sources = args.paths.clone();
    let is_directory = |path: &OsStr| std::fs::metadata(path).is_ok_and(|found| found.is_dir());
    let mut words = Vec::new();
    if let Some(directory) = &args.target_directory {
        words.push(flag_os("--target-directory", directory));
    } else {
        let Some(last) = sources.pop().filter(|_| !sources.is_empty()) else {
            let given = args.paths.first().map(|path| quoted(path.as_bytes()));
            let after = given.map_or(String::new(), |path| format!(" after {path}"));
            return Err(refused(format!("missing destination file operand{after}"), "see --help"));
        };
        if args.no_target_directory {
            words.extend(["--no-target-directory".into(), local(&last)]);
        } else if is_directory(&last) {
            words.push(flag_os("--target-directory", &last));
        } else if sources.len() > 1 {
            let shown = quoted(last.as_bytes());
            return Err(refused(format!("target {shown} is not a directory"), "name a directory"));
        } else {
            let link = std::fs::symlink_metadata(&sources[0]).is_ok_and(|found| found.is_symlink());
            // A link that is copied as one takes the place of a link, never of what that leads to.
            let as_link = link && !follows(args, recursive);
            let at = if as_link { last } else { beyond_links(&sources[0], &last)? };
            words.extend(["--no-target-directory".into(), local(&at)]);
        }
    }
    if sources.is_empty() {
        return Err(refused("missing file operand", "see --help"));
    }
    let given = sources.len();
    sources.retain(|source| {
        let link = std::fs::symlink_metadata(source).is_ok_and(|found| found.is_symlink());
        let entered = is_directory(source) && !(link && args.no_dereference);
        let left_out = entered && !recursive;
        if left_out {
            let shown = quoted(source.as_bytes());
            say(&format!("dmover: {program}: -r not specified; omitting directory {shown}"));
        }
        !left_out
    });
    sources.retain(|source| {
        let found = std::fs::symlink_metadata(source);
        let is_there =
            found.is_ok() && !(follows(args, recursive) && std::fs::metadata(source).is_err());
        if !is_there {
            let error = std::fs::metadata(source).err().or(found.err());
            let why = error.map_or_else(String::new, |error| error.to_string());
            say(&format!("dmover: {program}: cannot stat {}: {why}", quoted(source.as_bytes())));
        }
        is_there
    });
    let omitted = sources.len() < given;
    let strip = |source: &OsString| {
        let bytes = source.as_bytes();
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(1, |at| at + 1);
        let cut = if args.strip_trailing_slashes { &bytes[..end.min(bytes.len())] } else { bytes };
        local(OsStr::from_bytes(cut))
    };
    let sources: Vec<OsString> = sources.iter().map(strip).collect();
    if sources.is_empty() {
        return Ok(Paths { words: Vec::new(), omitted });
    }
    // The destination, where it is a path, comes last.
    let at = words
        .iter()
        .position(|word| word == "--no-target-directory")
        .map_or(words.len(), |at| at + 1);
    words.splice(at..at, std::iter::once("--".into()).chain(sources));
    Ok(Paths { words, omitted })
}

/// The file that a link as DEST leads to is what is replaced, as cp would write to it.
fn beyond_links(source: &OsStr, target: &OsStr) -> Result<OsString, Refused> {
    use std::os::unix::fs::MetadataExt;
    let is_link = std::fs::symlink_metadata(target).is_ok_and(|found| found.is_symlink());
    if !is_link {
        return Ok(target.to_owned());
    }
    let shown = quoted(target.as_bytes());
    let Ok(there) = std::fs::metadata(target) else {
        let hint = "remove the link, or name what it leads to";
        return Err(refused(format!("not writing through dangling symlink {shown}"), hint));
    };
    let same = std::fs::metadata(source)
        .is_ok_and(|found| (found.dev(), found.ino()) == (there.dev(), there.ino()));
    if same {
        let source = quoted(source.as_bytes());
        return Err(refused(format!("{source} and {shown} are the same file"), "nothing to do"));
    }
    let at = std::fs::canonicalize(target);
    at.map(Into::into).map_err(|e| refused(format!("cannot resolve {shown}: {e}"), "check it"))
}

/// No name is another machine's, and none is an option.
fn local(path: &OsStr) -> OsString {
    let bytes = path.as_bytes();
    let first = bytes.split(|byte| *byte == b'/').next().unwrap_or_default();
    let odd = first.contains(&b':') || bytes.starts_with(b"-");
    if odd { OsString::from_vec([b"./", bytes].concat()) } else { path.to_owned() }
}

/// Whether symbolic links among the sources are followed.
fn follows(args: &CpArgs, recursive: bool) -> bool {
    let keeps = args.no_dereference || args.no_dereference_links || args.archive;
    args.dereference || args.dereference_args || !(keeps || recursive)
}

/// A device or FIFO is read from and written to, as cp does it, instead of being copied and replaced.
fn stream(args: &CpArgs) -> Option<ExitCode> {
    let [source, target] = args.paths.as_slice() else { return None };
    if args.target_directory.is_some() || args.recursive || args.archive {
        return None;
    }
    let mut at = std::path::PathBuf::from(target);
    let look = |path: &Path| std::fs::metadata(path).map(|found| found.file_type());
    let is_stream = |path: &Path| {
        look(path).is_ok_and(|of| of.is_char_device() || of.is_block_device() || of.is_fifo())
    };
    if look(&at).is_ok_and(|of| of.is_dir()) && !args.no_target_directory {
        at.push(Path::new(source).file_name()?);
    }
    if !is_stream(Path::new(source)) && !is_stream(&at) {
        return None;
    }
    if args.no_clobber && look(&at).is_ok() {
        return Some(ExitCode::SUCCESS);
    }
    let written = std::fs::File::open(source).and_then(|mut from| {
        let mut options = std::fs::OpenOptions::new();
        let mut to = options.write(true).create(true).truncate(true).open(&at)?;
        std::io::copy(&mut from, &mut to)
    });
    Some(match written {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let (from, to) = (quoted(source.as_bytes()), quoted(at.as_os_str().as_bytes()));
            failure(&format!("cannot write {from} to {to}: {error}"), "check both");
            ExitCode::from(dmover_model::ExitCode::Partial.code())
        }
    })
}
