//! Turns arguments into a [`JobSpec`]; the only place that does.
use clap::ArgMatches;
use clap::parser::ValueSource;
use dmover_model::{
    Attribute, AttributeSet, Backup, ByteRange, CopyEngine, CopyPolicy, DigestPolicy, FollowLinks,
    HashType, JobSpec, Limits, ListFile, LossKind, LossSet, NameTables, Overwrite, PathBytes,
    RangeCopy, Selection, Side, TargetMode, Timestamp, Verb, VerifyLevel, VerifyPolicy, When,
    units,
};
use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::args::{
    BackupArg, CopyArgs, DEFAULT_SUFFIX, EngineArg, FidelityArgs, FilterArgs, KeepArgs, LevelArg,
    LimitArgs, OverwriteArg, ProofArgs, ReadBackArg, ReplaceArgs, SelectionArgs, SumArgs,
    VerifyArgs, WhenArg, WritingArgs,
};

mod braces;
mod endpoints;
mod maps;
mod passes;
mod rules;
pub(crate) use endpoints::is_remote;
use endpoints::{refuse_remote, sources_are_remote};
use maps::{owner_rules, project_rules};
pub(crate) use passes::{confirmed, snapshot_paths, snapshot_spec, sync_spec};

/// Arguments that are not a valid job.
#[derive(Debug)]
pub(crate) struct Unusable {
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: Cow<'static, str>,
}

fn unusable(message: impl Into<String>, hint: &'static str) -> Unusable {
    Unusable { message: message.into(), hint: hint.into() }
}

/// The job of these arguments of `copy`.
pub(crate) fn job_spec(args: &CopyArgs, matches: &ArgMatches) -> Result<JobSpec, Unusable> {
    let (sources, destination, target_mode) = paths(args)?;
    let spec = JobSpec {
        schema: JobSpec::SCHEMA,
        verb: Verb::Copy,
        sources_are_remote: sources_are_remote(&sources)?,
        host: None,
        sources,
        destination,
        target_mode,
        selection: selection(&args.selection, matches)?,
        policy: CopyPolicy {
            range: range(&args.selection),
            ..replacing(policy(&args.fidelity, &args.writing, &args.proof)?, args, matches)?
        },
        limits: limits(&args.limits),
    };
    check_links(&args.fidelity, &args.selection.filter)?;
    check_range(&spec)?;
    check_read_back(&args.proof, &spec)?;
    Ok(spec)
}

/// The job of these arguments of `sum`. `directories`: the directories among its paths.
pub(crate) fn sum_spec(
    args: &SumArgs,
    directories: Vec<PathBytes>,
    matches: &ArgMatches,
) -> Result<JobSpec, Unusable> {
    let (digest, reading) = (&args.digest, &args.reading);
    let hash = digest.hash_type.unwrap_or_default();
    let serial = digest.hash_leaf_size.filter(|_| !hash.is_parallel());
    check_pieces(digest.check_tree && !args.check.check, hash, serial)?;
    let policy = DigestPolicy {
        leaf_bytes: serial,
        plain_up_to_bytes: serial.filter(|_| digest.mutil.is_some()).unwrap_or(0),
        piece_bytes: piece_bytes(digest.mutil, digest.hash_leaf_size, digest.check_tree),
        pieces: digest.check_tree,
        ignore_missing: args.check.ignore_missing,
        ..DigestPolicy::plain(hash)
    };
    Ok(JobSpec {
        schema: JobSpec::SCHEMA,
        verb: Verb::Sum,
        sources_are_remote: sources_are_remote(&directories)?,
        host: None,
        sources: directories,
        destination: PathBytes::default(),
        target_mode: TargetMode::Auto,
        selection: filter(&args.filter, matches)?,
        policy: CopyPolicy {
            digest: Some(policy),
            split_bytes: digest.split_size,
            buffer_bytes: reading.buffer_size,
            direct_read: when(reading.direct_read),
            forget_read: reading.fadvise_read,
            ..CopyPolicy::default()
        },
        limits: limits(&args.limits),
    })
}

/// The job of these arguments of `verify`. `recorded`: the base directory and the start time of a manifest.
pub(crate) fn verify_spec(
    args: &VerifyArgs,
    recorded: Option<(PathBytes, Timestamp)>,
    matches: &ArgMatches,
) -> Result<JobSpec, Unusable> {
    let begun = recorded.as_ref().map(|(_, begun)| *begun);
    let (sources, destination, target_mode) = match recorded {
        None => compared_paths(args)?,
        Some((base, _)) => {
            let paths = manifest_paths(args, base)?;
            let why = "run 'dmover verify --manifest' on that host";
            paths.0.iter().chain([&paths.1]).try_for_each(|path| refuse_remote(path, why))?;
            paths
        }
    };
    let since = match (args.since.as_deref(), begun) {
        (Some("job"), Some(begun)) => Some(a_tick_before(begun)),
        (Some("job"), None) => {
            let hint = "give a time, or the manifest of the job with --manifest";
            return Err(unusable("--since=job needs --manifest, which names the job", hint));
        }
        (text, _) => text.map(|text| time(text, "--since")).transpose()?,
    };
    let (asked, dropped) = asked(&args.keep)?;
    let mut demanded = asked;
    dropped.iter().for_each(|attribute| demanded.remove(attribute));
    let mut preserve = if args.keep.preserve.is_empty() { AttributeSet::all() } else { asked };
    dropped.iter().for_each(|attribute| preserve.remove(attribute));
    let verify = VerifyPolicy {
        marks_unproven: false,
        level: match args.level {
            LevelArg::Exists => VerifyLevel::Exists,
            LevelArg::Size => VerifyLevel::Size,
            LevelArg::Mtime => VerifyLevel::Mtime,
            LevelArg::Digest => VerifyLevel::Digest,
            LevelArg::Bytes => VerifyLevel::Bytes,
        },
        repair: args.repair,
        extra: !args.ignore_extra,
        sample_millionths: args.sample,
        seed: dmover_host::random_u64(),
        since,
        stored: args.direct_read,
    };
    let users = owner_rules(&args.keep.usermap, "--usermap")?;
    let groups = owner_rules(&args.keep.groupmap, "--groupmap")?;
    Ok(JobSpec {
        schema: JobSpec::SCHEMA,
        verb: Verb::Verify,
        sources_are_remote: sources_are_remote(&sources)?,
        host: None,
        sources,
        destination,
        target_mode,
        selection: filter(&args.filter, matches)?,
        policy: CopyPolicy {
            preserve,
            demanded,
            // A repair copies every difference, even if size and time are equal.
            overwrite: Overwrite::Always,
            dry_run: !args.repair,
            split_bytes: args.split_size,
            buffer_bytes: args.buffer_size,
            verify: Some(verify),
            owners_by_name: args.keep.owners_by_name,
            user_map: users.ids,
            group_map: groups.ids,
            names: NameTables { users: users.names, groups: groups.names },
            project_map: project_rules(&args.keep.projectmap)?,
            ..CopyPolicy::default()
        },
        limits: limits(&args.limits),
    })
}

/// Change times come from a clock that may be one tick behind: at most ten milliseconds (CONFIG_HZ=100).
fn a_tick_before(time: Timestamp) -> Timestamp {
    const TICK_NS: u32 = 10_000_000;
    let (seconds, nanoseconds) = match time.nanoseconds.checked_sub(TICK_NS) {
        Some(nanoseconds) => (time.seconds, nanoseconds),
        None => (time.seconds - 1, time.nanoseconds + 1_000_000_000 - TICK_NS),
    };
    Timestamp { seconds, nanoseconds }
}

/// SOURCE and DEST of a comparison of trees.
fn compared_paths(args: &VerifyArgs) -> Result<Paths, Unusable> {
    let hint = "usage: dmover verify [OPTIONS] SOURCE DEST (see 'dmover verify -h')";
    let paths = path_arguments(&args.paths)?;
    if let Some(directory) = &args.target_directory {
        if paths.is_empty() {
            return Err(unusable("no SOURCE given", hint));
        }
        return Ok((paths, PathBytes::from(directory.as_os_str()), TargetMode::Into));
    }
    let [source, destination] = paths.as_slice() else {
        let message = match paths.len() {
            0 | 1 => "SOURCE and DEST are required, or --manifest",
            _ => "more than one SOURCE given; name the directory of their copies with -t",
        };
        return Err(unusable(message, hint));
    };
    Ok((vec![source.clone()], destination.clone(), TargetMode::Auto))
}

/// The tree that a manifest lists, and the source of repairs.
fn manifest_paths(args: &VerifyArgs, base: PathBytes) -> Result<Paths, Unusable> {
    let mut paths = path_arguments(&args.paths)?;
    if paths.len() > 1 {
        let hint = "usage: dmover verify --manifest FILE [--repair --from DIR] [DEST]";
        return Err(unusable("--manifest takes at most one path, DEST", hint));
    }
    if args.level == LevelArg::Bytes {
        let hint = "use --level=digest";
        return Err(unusable("--level=bytes: a manifest has digests, not bytes", hint));
    }
    if args.repair && args.from.is_none() {
        let hint = "name the directory with the correct content";
        return Err(unusable("--repair with --manifest needs --from DIR", hint));
    }
    let sources = args.from.iter().map(|from| PathBytes::from(from.as_os_str()));
    Ok((sources.collect(), paths.pop().unwrap_or(base), TargetMode::As))
}

fn path_arguments(paths: &[OsString]) -> Result<Vec<PathBytes>, Unusable> {
    let paths: Vec<PathBytes> = paths.iter().map(|p| PathBytes::from(p.as_os_str())).collect();
    if paths.iter().any(|path| path.0.is_empty()) {
        return Err(unusable("a path is empty", "name a file or directory"));
    }
    Ok(paths)
}

type Paths = (Vec<PathBytes>, PathBytes, TargetMode);

fn paths(args: &CopyArgs) -> Result<Paths, Unusable> {
    let hint = "usage: dmover copy [OPTIONS] SOURCE… DEST (see 'dmover copy -h')";
    let mut paths = path_arguments(&args.paths)?;
    if args.selection.read_stdin {
        return match paths.first() {
            None => Ok((Vec::new(), PathBytes::default(), TargetMode::Auto)),
            Some(_) => Err(unusable("--read-stdin takes its paths from standard input", hint)),
        };
    }
    if let Some(directory) = &args.target.target_directory {
        if paths.is_empty() {
            return Err(unusable("no SOURCE given", hint));
        }
        return Ok((paths, PathBytes::from(directory.as_os_str()), TargetMode::Into));
    }
    let destination = match (paths.len(), paths.pop()) {
        (0, _) | (_, None) => return Err(unusable("no SOURCE and no DEST given", hint)),
        (1, Some(only)) => {
            let shown = only.to_path().display().to_string();
            return Err(unusable(format!("no DEST given after '{shown}'"), hint));
        }
        (_, Some(last)) => last,
    };
    if args.selection.files_from.is_some() && paths.len() != 1 {
        return Err(unusable("--files-from takes exactly one SOURCE and one DEST", hint));
    }
    let as_is = args.target.no_target_directory;
    let mode = if as_is { TargetMode::As } else { TargetMode::Auto };
    Ok((paths, destination, mode))
}

fn selection(args: &SelectionArgs, matches: &ArgMatches) -> Result<Selection, Unusable> {
    let list = match (&args.files_from, args.read_stdin) {
        (Some(file), _) => Some((PathBytes::from(file.as_os_str()), false)),
        (None, true) => Some((PathBytes(b"-".to_vec()), true)),
        (None, false) => None,
    };
    let list = list.map(|(path, pairs)| ListFile { path, nul: args.from0, pairs });
    let follow = match (args.filter.dereference, args.dereference_args) {
        (true, _) if args.link_followed => FollowLinks::AlwaysLinked,
        (true, _) => FollowLinks::Always,
        (false, true) => FollowLinks::Arguments,
        _ => FollowLinks::Never,
    };
    Ok(Selection { list, follow, ..filter(&args.filter, matches)? })
}

/// Rules, sizes and times.
pub(crate) fn filter(args: &FilterArgs, matches: &ArgMatches) -> Result<Selection, Unusable> {
    let time = |text: &Option<String>, flag| text.as_deref().map(|t| time(t, flag)).transpose();
    let (newer_than, older_than) = (time(&args.newer, "--newer")?, time(&args.older, "--older")?);
    if let (Some(newer), Some(older)) = (newer_than, older_than)
        && newer >= older
    {
        return Err(unusable("no file can match both --newer and --older", "swap the two"));
    }
    if let (Some(min), Some(max)) = (args.min_size, args.max_size)
        && min > max
    {
        return Err(unusable("--min-size is larger than --max-size", "swap the two"));
    }
    Ok(Selection {
        list: None,
        rules: rules::rules(args, matches)?,
        min_size_bytes: args.min_size,
        max_size_bytes: args.max_size,
        newer_than,
        ages_ms: [&args.newer, &args.older]
            .map(|text| text.as_deref().and_then(|text| units::parse_duration_ms(text).ok())),
        older_than,
        one_file_system: args.one_file_system,
        follow: if args.dereference { FollowLinks::Always } else { FollowLinks::Never },
    })
}

/// An instant: RFC 3339, a date, or a duration ago.
fn time(text: &str, flag: &str) -> Result<Timestamp, Unusable> {
    if let Ok(ms) = units::parse_duration_ms(text) {
        let ago = std::time::Duration::from_millis(ms);
        let then = std::time::SystemTime::now() - ago;
        let since = then.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        return Ok(Timestamp {
            seconds: since.as_secs() as i64,
            nanoseconds: since.subsec_nanos(),
        });
    }
    let instant = text.parse::<jiff::Timestamp>().ok().or_else(|| {
        let local = text.parse::<jiff::civil::DateTime>().ok()?;
        local.to_zoned(jiff::tz::TimeZone::system()).ok().map(|z| z.timestamp())
    });
    let Some(instant) = instant else {
        return Err(unusable(
            format!("{flag} '{text}' is not a time"),
            "write 2026-01-31, 2026-01-31T12:00:00Z, or a duration ago such as 7d",
        ));
    };
    let nanoseconds = instant.as_nanosecond();
    Ok(Timestamp {
        seconds: nanoseconds.div_euclid(1_000_000_000) as i64,
        nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32,
    })
}

/// With -L, names of one inode become separate files.
fn check_links(args: &FidelityArgs, filter: &FilterArgs) -> Result<(), Unusable> {
    let (_, demanded) = preserve(args)?;
    let links = demanded.has(Attribute::Links) || args.hard_links;
    if links && filter.dereference {
        let hint = "with -L every name becomes a separate file; omit one of the two options";
        return Err(unusable("--dereference cannot keep hard links", hint));
    }
    Ok(())
}

/// The policy, with the options about entries that exist at the destination.
fn replacing(
    policy: CopyPolicy,
    args: &CopyArgs,
    matches: &ArgMatches,
) -> Result<CopyPolicy, Unusable> {
    let CopyArgs { replace, writing, .. } = args;
    let suffix = replace.suffix.as_bytes();
    if suffix.is_empty() || suffix.contains(&b'/') {
        let hint = "use something such as --suffix=.old";
        return Err(unusable("--suffix must not be empty or contain '/'", hint));
    }
    // As in cp, --suffix alone enables backups. A value from a file is a default for clap, as the built-in one is.
    let is_set = matches.value_source("suffix") != Some(ValueSource::DefaultValue)
        || suffix != DEFAULT_SUFFIX.as_bytes();
    let backup = replace.backup.or(is_set.then_some(BackupArg::Simple));
    // clap refuses --backup with these, but only on the command line.
    if backup.is_some() && (writing.inplace || replace.no_clobber) {
        let hint = "omit --backup and --suffix, or omit --inplace and --no-clobber; --no-config ignores the \
                    configuration file";
        let message = "--backup and --suffix make backups, which needs replacing the old file";
        return Err(unusable(message, hint));
    }
    // An option on the command line wins over defaults of other options from files and the environment.
    let typed = matches.value_source("overwrite") == Some(ValueSource::CommandLine);
    let overwrite = overwrite(replace, typed);
    let keeps = matches!(overwrite, Overwrite::Never | Overwrite::Older);
    if writing.inplace && keeps {
        let hint = "omit --inplace: the next run would keep a file that an interruption left \
                    incomplete";
        return Err(unusable("--inplace contradicts --update and --no-clobber", hint));
    }
    let backup = backup.map(|how| Backup {
        numbered: matches!(how, BackupArg::Numbered),
        suffix: suffix.to_vec(),
    });
    Ok(CopyPolicy { overwrite, backup, ..policy })
}

/// The policy that is common to all verbs that copy entries.
fn policy(
    fidelity: &FidelityArgs,
    writing: &WritingArgs,
    proof: &ProofArgs,
) -> Result<CopyPolicy, Unusable> {
    let (preserve, demanded) = preserve(fidelity)?;
    let users = owner_rules(&fidelity.keep.usermap, "--usermap")?;
    let groups = owner_rules(&fidelity.keep.groupmap, "--groupmap")?;
    Ok(CopyPolicy {
        preserve,
        demanded,
        allow_loss: losses(&fidelity.allow_loss)?,
        inplace: writing.inplace,
        whole_files: writing.whole_file,
        split_bytes: writing.split_size,
        sparse: when(fidelity.sparse),
        reflink: when(fidelity.reflink),
        engine: match writing.engine {
            EngineArg::Auto => CopyEngine::Auto,
            EngineArg::Kernel => CopyEngine::Kernel,
            EngineArg::Buffered => CopyEngine::Buffered,
            EngineArg::Direct => CopyEngine::Direct,
            EngineArg::Uring => CopyEngine::Uring,
        },
        buffer_bytes: writing.buffer_size,
        direct_read: when(writing.direct_read),
        direct_write: when(writing.direct_write),
        forget_read: writing.fadvise_read,
        forget_written: writing.fadvise_write,
        fsync: writing.fsync,
        skip_chmod: fidelity.skip_chmod,
        dry_run: writing.dry_run,
        digest: digest(proof)?,
        print_hash: proof.print_hash.then_some(if proof.print_src {
            Side::Source
        } else {
            Side::Destination
        }),
        owners_by_name: fidelity.keep.owners_by_name,
        user_map: users.ids,
        group_map: groups.ids,
        names: NameTables { users: users.names, groups: groups.names },
        project_map: project_rules(&fidelity.keep.projectmap)?,
        ..CopyPolicy::default()
    })
}

/// The digest that a copy makes of the content, if it makes one.
fn digest(args: &ProofArgs) -> Result<Option<DigestPolicy>, Unusable> {
    if !args.print_hash && args.manifest.is_none() && args.verify == ReadBackArg::None {
        return Ok(None);
    }
    let serial = args.hash_leaf_size.filter(|_| !args.hash_type.is_parallel());
    check_pieces(args.check_tree, args.hash_type, serial)?;
    Ok(Some(DigestPolicy {
        leaf_bytes: serial,
        plain_up_to_bytes: serial.filter(|_| args.mutil.is_some()).unwrap_or(0),
        piece_bytes: piece_bytes(args.mutil, args.hash_leaf_size, args.check_tree),
        pieces: args.check_tree,
        ..DigestPolicy::plain(args.hash_type)
    }))
}

/// The piece size: the split size with --mutil, else the leaf size.
fn piece_bytes(mutil: Option<u64>, leaf: Option<u64>, wanted: bool) -> Option<u64> {
    mutil.filter(|bytes| *bytes > 0).or(leaf).filter(|_| wanted)
}

fn check_pieces(wanted: bool, hash: HashType, leaf: Option<u64>) -> Result<(), Unusable> {
    if wanted && leaf.is_none() && !hash.is_parallel() {
        let hint = "add --hash-leaf-size=SIZE, or omit --hash-type: BLAKE3 always has pieces";
        return Err(unusable(format!("--check-tree: a plain {hash} digest has no pieces"), hint));
    }
    Ok(())
}

fn overwrite(args: &ReplaceArgs, typed: bool) -> Overwrite {
    match args.overwrite {
        _ if args.no_clobber && !typed => Overwrite::Never,
        _ if args.update && !typed => Overwrite::Older,
        OverwriteArg::Changed => Overwrite::Changed,
        OverwriteArg::Always => Overwrite::Always,
        OverwriteArg::Never => Overwrite::Never,
        OverwriteArg::Older => Overwrite::Older,
    }
}

fn when(value: WhenArg) -> When {
    match value {
        WhenArg::Auto => When::Auto,
        WhenArg::Always => When::Always,
        WhenArg::Never => When::Never,
    }
}

/// The attributes of --preserve, and those of --no-preserve.
fn asked(args: &KeepArgs) -> Result<(AttributeSet, AttributeSet), Unusable> {
    let parse = |words: &[String], flag: &str| -> Result<AttributeSet, Unusable> {
        let mut set = AttributeSet::NONE;
        for word in words {
            match Attribute::parse(word) {
                Some(attribute) => set.insert(attribute),
                None if word == "all" => set = AttributeSet::all(),
                None => {
                    let hint =
                        "choose from mode, owner, times, links, xattr, acl, flags, project, all";
                    return Err(unusable(format!("{flag}: unknown attribute '{word}'"), hint));
                }
            }
        }
        Ok(set)
    };
    Ok((parse(&args.preserve, "--preserve")?, parse(&args.no_preserve, "--no-preserve")?))
}

fn preserve(args: &FidelityArgs) -> Result<(AttributeSet, AttributeSet), Unusable> {
    let (demanded, dropped) = asked(&args.keep)?;
    let mut kept = if args.keep.preserve.is_empty() { AttributeSet::all() } else { demanded };
    let letters = [
        (args.hard_links, Attribute::Links, "-H"),
        (args.acls, Attribute::Acl, "-A"),
        (args.xattrs, Attribute::Xattr, "-X"),
    ];
    for (given, attribute, letter) in letters {
        if given && dropped.has(attribute) {
            let word = attribute.word();
            let hint = "omit one of the two";
            return Err(unusable(format!("{letter} contradicts --no-preserve={word}"), hint));
        }
        if given {
            kept.insert(attribute);
        }
    }
    let mut demanded = demanded;
    for attribute in dropped.iter() {
        kept.remove(attribute);
        demanded.remove(attribute);
    }
    Ok((kept, demanded))
}

fn losses(words: &[String]) -> Result<LossSet, Unusable> {
    let mut set = LossSet::NONE;
    for word in words {
        match LossKind::parse(word) {
            Some(kind) => set.insert(kind),
            None if word == "all" => set = LossSet::all(),
            None => {
                let hint = "choose from xattr, acl, capability, flags, project, times, mode, owner, \
                            links, all";
                return Err(unusable(format!("--allow-loss: unknown kind '{word}'"), hint));
            }
        }
    }
    Ok(set)
}

fn range(args: &SelectionArgs) -> Option<RangeCopy> {
    if args.offset.is_none() && args.length.is_none() && args.dst_offset.is_none() {
        return None;
    }
    let start = args.offset.unwrap_or(0);
    let end = args.length.map_or(u64::MAX, |length| start.saturating_add(length));
    let ranges = vec![ByteRange { start, end }];
    Some(RangeCopy { ranges, destination_offset: args.dst_offset })
}

/// A read-back compares with a manifest of the job, which lists only whole files.
fn check_read_back(args: &ProofArgs, spec: &JobSpec) -> Result<(), Unusable> {
    if args.verify == ReadBackArg::None {
        return Ok(());
    }
    let hint = "copy without --verify, then compare with 'dmover verify'";
    let pairs = spec.selection.list.as_ref().is_some_and(|list| list.pairs);
    match () {
        () if spec.policy.dry_run => Err(unusable("--verify: a dry run writes nothing", hint)),
        () if pairs || spec.policy.range.is_some() => {
            Err(unusable("--verify supports no ranges and no lists of pairs", hint))
        }
        () => Ok(()),
    }
}

fn check_range(spec: &JobSpec) -> Result<(), Unusable> {
    if spec.policy.range.is_none() {
        return Ok(());
    }
    let hint = "--offset, --length and --dst-offset copy part of one file";
    if spec.policy.backup.is_some() {
        return Err(unusable(
            "--backup cannot be used with a range, which is written in place",
            hint,
        ));
    }
    if spec.selection.list.is_some() || spec.sources.len() != 1 {
        return Err(unusable("a range needs exactly one SOURCE", hint));
    }
    Ok(())
}

pub(crate) fn limits(args: &LimitArgs) -> Limits {
    Limits {
        threads: args.threads.unwrap_or(0).into(),
        bytes_per_s: args.bwlimit,
        operations_per_s: args.ops_limit,
        opens_per_s: args.open_limit,
        creates_per_s: args.create_limit,
        errors_max: args.max_errors,
        duration_max_ms: args.max_duration,
        memory_bytes: args.memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;
    use dmover_model::IdRule;

    fn spec(line: &str) -> Result<JobSpec, Unusable> {
        let matches = crate::command().try_get_matches_from(line.split_whitespace()).unwrap();
        let cli = crate::Cli::from_arg_matches(&matches).unwrap();
        let (_, sub) = matches.subcommand().unwrap();
        let crate::Verb::Copy(args) = cli.verb else { panic!("not copy") };
        job_spec(&args, sub)
    }

    #[test]
    fn rules_keep_the_order_of_the_command_line() {
        let spec = spec("dmover copy --exclude a --include b --exclude c x y").unwrap();
        let rules: Vec<_> =
            spec.selection.rules.iter().map(|r| (r.include, &r.pattern.0[..])).collect();
        assert_eq!(rules, [(false, &b"a"[..]), (true, b"b"), (false, b"c")]);
    }

    #[test]
    fn preserve_narrows_and_demands_and_no_preserve_drops() {
        let all = spec("dmover copy a b").unwrap().policy;
        assert_eq!((all.preserve, all.demanded), (AttributeSet::all(), AttributeSet::NONE));
        let some = spec("dmover copy --preserve=mode,acl --no-preserve=acl a b").unwrap().policy;
        let mode: AttributeSet = [Attribute::Mode].into_iter().collect();
        assert_eq!((some.preserve, some.demanded), (mode, mode));
        assert!(spec("dmover copy --preserve=colour a b").is_err());
    }

    #[test]
    fn id_maps_take_two_or_three_numbers() {
        let policy = spec("dmover copy --usermap 1:2,10:20:5 a b").unwrap().policy;
        assert_eq!(policy.user_map[0], IdRule { from: 1, to: 2, count: 1 });
        assert_eq!(policy.user_map[1], IdRule { from: 10, to: 20, count: 5 });
        assert_eq!(policy.user_map.len(), 2);
        let all = spec("dmover copy --usermap 1:2,*:65534 a b").unwrap().policy;
        assert_eq!(all.user_map[1], IdRule { from: 0, to: 65534, count: 0 });
        let beyond =
            ["1:2:0", "4294967295:1:2", "1:4294967295:2", "*:*", "*:1:2", "@/nowhere/table"];
        for bad in ["1", "1:2:3:4", "1:2:x"].into_iter().chain(beyond) {
            assert!(spec(&format!("dmover copy --usermap {bad} a b")).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_colon_before_the_first_slash_names_another_machine() {
        let is_remote = |line| spec(line).unwrap().sources_are_remote;
        assert!(is_remote("dmover copy host:a b"));
        assert!(is_remote("dmover copy host:a ann@host2:/b c"));
        assert!(!is_remote("dmover copy ./host:a b"));
        assert!(!is_remote("dmover copy a/b:c d"));
        assert!(spec("dmover copy host:a b c").is_err(), "a host and this one");
        assert!(spec("dmover copy host: b").is_err(), "no path");
    }
}
