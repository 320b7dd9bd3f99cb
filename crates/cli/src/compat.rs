//! `cp`, `mcp` and `msum`: options of other programs are translated to those of `copy` and `sum`, which do the work.
use clap::FromArgMatches;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

use crate::args::{CpArgs, McpArgs, MsumArgs, MutilArgs};
use crate::print::{failure, say};
use crate::{Cli, Verb, cmd};
use dmover_job::quote::quoted;

mod backups;
mod streams;
mod targets;

use backups::{Backups, Control};
use targets::{Named, named};

const MIB: u64 = 1 << 20;
/// The attributes of `copy --preserve`.
const ATTRIBUTES: [&str; 8] =
    ["mode", "owner", "times", "links", "xattr", "acl", "flags", "project"];

/// Inserts the verb if the program was called as `mcp` or `msum`.
pub(crate) fn as_called(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let name = arguments.first().map(Path::new).and_then(Path::file_name).map(OsStr::to_owned);
    if let Some(name) = name.filter(|name| name == "mcp" || name == "msum") {
        arguments.insert(1, name);
    }
    arguments
}

/// Why a command line is refused, and what to do.
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

/// Runs `copy` or `sum` with these words. Defaults of `copy` in configuration files do not apply.
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
                _ => refuse(&refused(
                    "internal error: no verb to run",
                    "report this as a bug in dmover",
                )),
            }
        }
        Err(error) => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            let message = first.trim_start_matches("error: ");
            refuse(&refused(message, "--help shows all options"))
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

/// Rounds a size down to a power of two and says so, as mutil does.
fn rounded(name: &str, value: u64, unit: u64) -> u64 {
    if value == 0 || value.is_power_of_two() {
        return value.saturating_mul(unit);
    }
    let down = 1 << value.ilog2();
    say(&format!("dmover: note: {name} was rounded down from {value} to {down}"));
    let down: u64 = down;
    down.saturating_mul(unit)
}

/// Options that mcp and msum share. `split` is the default of `--split-size`.
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
        let hint = "omit it, or run the copy on several hosts by 'dmover submit'";
        return Err(refused(format!("dmover does not support {name} of mutil"), hint));
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

/// How digests are computed and printed.
fn leaf_words(args: &MutilArgs, tree: bool) -> Vec<OsString> {
    let leaf = rounded("--hash-leaf-size", args.hash_leaf_size.max(1), 1024);
    // The note about rounding was printed already.
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
        say(&format!("dmover: note: {name} has no effect: the file system chooses the layout"));
    }
    if args.print_hash {
        words.push(flag("--hash-type", args.mutil.hash_type.word()));
        words.extend(leaf_words(&args.mutil, args.mutil.check_tree));
    } else if args.mutil.check_tree {
        return Err(refused("--check-tree needs --print-hash", "add --print-hash"));
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
    let is_typed =
        |flag: &str| more.iter().any(|word| word.as_bytes().starts_with(flag.as_bytes()));
    let batch = is_typed("--read-stdin");
    let ranged = ["--offset=", "--length=", "--dst-offset="].into_iter().any(is_typed);
    let planned = option_words(args, program).and_then(|(words, backups)| {
        let named = match (batch, backups.control) {
            // The pairs are not read yet. Numbered backups overwrite nothing.
            (true, Control::Existing) => Named { control: Control::Numbered, ..Named::default() },
            (true, control) => Named { control, ..Named::default() },
            (false, _) => named(args, &backups, (program, ranged))?,
        };
        let mut words = words;
        words.extend(backups.words(named.control));
        Ok((words, named, backups))
    });
    let (mut words, named, backups) = match planned {
        Ok(planned) => planned,
        Err(refused) => return refuse(&refused),
    };
    let mut failed = named.failed;
    for (source, target) in &named.streams {
        failed |= !streams::write(args, &backups, source, target);
    }
    for target in &named.removed {
        if let Err(error) = std::fs::remove_file(target) {
            let shown = quoted(target.as_os_str().as_bytes());
            return refuse(&refused(
                format!("cannot remove {shown}: {error}"),
                "check the permissions of its directory",
            ));
        }
    }
    if !batch && named.words.is_empty() {
        return if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    words.extend(more);
    words.extend(named.words);
    let code = run_as("copy", words);
    if failed && code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
}

/// The words for all options except paths and backups.
fn option_words(args: &CpArgs, program: &str) -> Result<(Vec<OsString>, Backups), Refused> {
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
        let hint = "use cp(1) for this";
        return Err(refused(format!("dmover {program} does not support {name}"), hint));
    }
    let backups = Backups::new(args)?;
    if args.no_clobber && backups.control != Control::None {
        let message = "--backup cannot be used with --no-clobber";
        return Err(refused(message, "omit one of them"));
    }
    // No state is kept: the same command may write to another place the next time.
    let mut words: Vec<OsString> =
        vec!["--quiet".into(), "--progress=never".into(), "--no-state".into()];
    let kept = kept_attributes(args)?;
    words.extend(attribute_words(args, &kept));
    let recursive = args.recursive || args.archive;
    let all = follows(args, recursive) && (args.dereference || !args.dereference_args);
    words.extend(chosen(&[
        (all, "--dereference"),
        (all && kept.contains(&"links"), "--link-followed"),
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
    if args.verbose {
        words.push("--format='%n' -> '%d'".into());
    }
    Ok((words, backups))
}

/// The attributes that cp preserves with these options; by default, only few.
fn kept_attributes(args: &CpArgs) -> Result<Vec<&'static str>, Refused> {
    const USUAL: [&str; 4] = ["mode", "owner", "times", "acl"];
    const ALL: [&str; 6] = ["mode", "owner", "times", "links", "xattr", "acl"];
    let of = |word: &str| -> Result<Vec<&'static str>, Refused> {
        Ok(match word {
            "mode" => vec!["mode", "acl"],
            "ownership" => vec!["owner"],
            "timestamps" => vec!["times"],
            "links" => vec!["links"],
            "xattr" => vec!["xattr"],
            // The destination assigns labels of its own.
            "context" => vec![],
            "all" => ALL.to_vec(),
            other => {
                let hint = "use mode, ownership, timestamps, links, context, xattr or all";
                return Err(refused(format!("--preserve: unknown attribute '{other}'"), hint));
            }
        })
    };
    let mut kept: Vec<&'static str> = if args.archive { ALL.to_vec() } else { Vec::new() };
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
    Ok(kept)
}

fn attribute_words(args: &CpArgs, kept: &[&str]) -> Vec<OsString> {
    let dropped: Vec<&str> = ATTRIBUTES.into_iter().filter(|word| !kept.contains(word)).collect();
    // cp -a ignores silently what the destination cannot store. --preserve=all ignores only extended attributes, unless
    // they are named as well.
    let has = |name: &str| args.preserve.iter().any(|word| word == name);
    let losses = match (args.archive && args.preserve.is_empty(), has("all") && !has("xattr")) {
        (true, _) => Some("--allow-loss=all"),
        (false, true) => Some("--allow-loss=xattr,capability"),
        (false, false) => None,
    };
    let losses = losses.map(OsString::from);
    std::iter::once(flag("--no-preserve", dropped.join(","))).chain(losses).collect()
}

/// Whether symbolic links among the sources are followed.
fn follows(args: &CpArgs, recursive: bool) -> bool {
    let keeps = args.no_dereference || args.no_dereference_links || args.archive;
    args.dereference || args.dereference_args || !(keeps || recursive)
}
