//! Include and exclude rules mean what they mean to rsync, also for what may be deleted.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::run::Dmover;
use super::{LaneOptions, LaneReport, MEANT, rng};
use crate::image::base_directory;
use crate::skip::skipped;

/// What names and patterns are made of. Long names would never match anything.
const NAMES: [&[u8]; 10] =
    [b"a", b"b", b"ab", b"c", b"1", b"a*", b"b ", b"\xff", "\u{e9}".as_bytes(), b"a\\b"];
const PIECES: [&[u8]; 24] = [
    b"a",
    b"b",
    b"ab",
    b"c",
    b"1",
    b"*",
    b"*",
    b"**",
    b"***",
    b"?",
    b"??",
    b"[ab]",
    b"[!a]",
    b"[^1]",
    b"[[:digit:]]",
    b"[a-c]",
    b"[]a]",
    b"\\*",
    b"\\",
    b" ",
    b"\xff",
    "\u{e9}".as_bytes(),
    b"/",
    b"{a,b}",
];

/// Copies random trees by random rules with both programs, then once more with deletes.
pub fn filters(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("filters");
    if Command::new("rsync").arg("--version").output().is_err() {
        report.add("skipped", 1);
        skipped("lane filters", "rsync is missing");
        return Ok(report);
    }
    let directory = tempfile::Builder::new().prefix("filters-").tempdir_in(base_directory()?)?;
    report.each_seed(options, |seed, report| {
        let place = directory.path().join(seed.to_string());
        let failures = experiment(options, &place, seed, report)?;
        std::fs::remove_dir_all(&place)?;
        Ok(failures)
    });
    Ok(report)
}

fn experiment(
    options: &LaneOptions,
    place: &Path,
    seed: u64,
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let mut rng = rng("filters", seed);
    let (source, theirs, ours) = (place.join("source"), place.join("theirs"), place.join("ours"));
    grow(&source, &mut rng, 3)?;
    let rules = rules(&mut rng, place)?;
    let dmover = Dmover::new(&options.program)?;
    let mut failures = Vec::new();
    for deletes in [false, true] {
        if deletes {
            let mut other = rng.clone();
            grow(&theirs, &mut rng, 3)?;
            grow(&ours, &mut other, 3)?;
        }
        let from = [source.as_os_str(), OsStr::new("/")].concat_words();
        let mut rsync = Command::new("rsync");
        rsync.arg("-a").args(deletes.then_some("--delete")).args(&rules).arg(&from).arg(&theirs);
        let ended = rsync.output()?;
        if !ended.status.success() && !deletes {
            bail!("rsync: {}", String::from_utf8_lossy(&ended.stderr));
        }
        let mut words: Vec<OsString> = vec!["sync".into(), "--json".into()];
        words.extend(["--delete", MEANT].iter().filter(|_| deletes).map(OsString::from));
        words.extend(rules.iter().cloned());
        words.extend([source.clone().into_os_string(), ours.clone().into_os_string()]);
        let run = dmover.run(&words)?;
        // What a rule keeps may be in the way of another type: both name it then.
        if run.code() != Some(0) && (!deletes || ended.status.success()) {
            failures.push(run.tell());
        }
        let (expected, found) = (names(&theirs)?, names(&ours)?);
        report.add("entries", expected.len() as u64);
        let told = |what: &str, name: &OsString| {
            format!("only {what}, deletes {deletes}: {name:?} by {rules:?}")
        };
        failures.extend(expected.difference(&found).map(|name| told("rsync", name)));
        for name in found.difference(&expected) {
            if deletes && stays_for_another_type([&source, &theirs, &ours], name) {
                report.add("kept_for_another_type", 1);
            } else {
                failures.push(told("dmover", name));
            }
        }
        if !failures.is_empty() {
            break;
        }
    }
    report.add("rules", rules.len() as u64);
    Ok(failures)
}

/// What DEST has stays where the source has an entry of another type that a rule leaves out (docs/sync.md).
/// One that no rule leaves out would have been brought by rsync.
fn stays_for_another_type([source, theirs, ours]: [&Path; 3], name: &OsStr) -> bool {
    let path = Path::new(OsStr::from_bytes(&name.as_bytes()[2..]));
    let kind = |top: &Path, path: &Path| {
        top.join(path).symlink_metadata().ok().map(|found| found.file_type())
    };
    path.ancestors().any(|path| {
        let at_source = kind(source, path);
        at_source.is_some() && at_source != kind(ours, path) && at_source != kind(theirs, path)
    })
}

/// Makes directories and files below a directory, as far as nothing of another type is there.
fn grow(at: &Path, rng: &mut ChaCha8Rng, depth: usize) -> Result<()> {
    std::fs::create_dir_all(at)?;
    for name in NAMES {
        let path = at.join(OsStr::from_bytes(name));
        let draw = rng.random_range(0..10);
        if draw < 3 {
            if path.symlink_metadata().is_err() {
                std::fs::write(&path, name)?;
            }
        } else if draw < 6 && depth > 0 {
            // The numbers drawn do not depend on what is there.
            let mut below: ChaCha8Rng = rng.clone();
            for _ in 0..depth * 16 {
                rng.random_range(0..10);
            }
            if path.symlink_metadata().map_or(true, |found| found.is_dir()) {
                grow(&path, &mut below, depth - 1)?;
            }
        }
    }
    Ok(())
}

fn rules(rng: &mut ChaCha8Rng, place: &Path) -> Result<Vec<OsString>> {
    let mut rules = Vec::new();
    for number in 0..rng.random_range(1..6) {
        let sign = if rng.random_bool(0.3) { "include" } else { "exclude" };
        let file = place.join(format!("rules-{number}"));
        let (option, value) = match rng.random_range(0..10) {
            0..3 => (sign, signed(rng)?),
            3..5 => (&*format!("{sign}-from"), written(rng, &file, signed)?),
            5..8 => ("filter", named(rng)?),
            8 => ("filter", [b"merge ", &written(rng, &file, named)?[..]].concat()),
            _ => {
                // Files that name others, by a path from where the program runs.
                let inner = written(rng, &place.join(format!("inner-{number}")), named)?;
                let lines = [&named(rng)?[..], b"\n. ", &inner, b"\n", &named(rng)?].concat();
                std::fs::write(&file, lines)?;
                ("filter", [b". ", file.as_os_str().as_bytes()].concat())
            }
        };
        let value = OsString::from_vec(value);
        rules.push([OsStr::new(&format!("--{option}=")), &value].concat_words());
    }
    Ok(rules)
}

/// Writes a file of rules. Answers its name.
fn written(
    rng: &mut ChaCha8Rng,
    file: &Path,
    rule: fn(&mut ChaCha8Rng) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let mut lines = b"# a comment\n\n; another\n".to_vec();
    for _ in 0..rng.random_range(1..4) {
        lines.extend(rule(rng)?);
        lines.push(b'\n');
    }
    std::fs::write(file, lines)?;
    Ok(file.as_os_str().as_bytes().to_vec())
}

/// What options and files of patterns take: a sign may be before a pattern.
fn signed(rng: &mut ChaCha8Rng) -> Result<Vec<u8>> {
    let pattern = pattern(rng)?;
    let sign: &[u8] = match rng.random_range(0..20) {
        0 => return Ok(b"!".to_vec()),
        1 => b"!",
        2..5 => b"- ",
        5..7 => b"+ ",
        _ => b"",
    };
    Ok([sign, &pattern].concat())
}

/// What `--filter` and files of rules take.
fn named(rng: &mut ChaCha8Rng) -> Result<Vec<u8>> {
    let pattern = pattern(rng)?;
    let names: [&[u8]; 10] = [
        b"- ",
        b"- ",
        b"-_",
        b"-, ",
        b"exclude ",
        b"exclude_",
        b"+ ",
        b"+_",
        b"include ",
        b"include, ",
    ];
    if rng.random_bool(0.1) {
        return Ok(if rng.random_bool(0.5) { b"!".to_vec() } else { b"clear".to_vec() });
    }
    Ok([*names.choose(rng).context("a name")?, &pattern].concat())
}

fn pattern(rng: &mut ChaCha8Rng) -> Result<Vec<u8>> {
    let mut pattern = Vec::new();
    if rng.random_bool(0.3) {
        pattern.push(b'/');
    }
    for _ in 0..rng.random_range(1..6) {
        let piece = PIECES.choose(rng).context("a piece")?;
        if *piece != b"/" || !pattern.ends_with(b"/") {
            pattern.extend_from_slice(piece);
        }
    }
    if rng.random_bool(0.25) && !pattern.ends_with(b"/") {
        pattern.push(b'/');
    }
    if pattern == b"/" {
        pattern.push(b'a');
    }
    Ok(pattern)
}

/// Every entry below a directory, with its type.
fn names(at: &Path) -> Result<BTreeSet<OsString>> {
    let found = Command::new("find").arg(at).args(["-printf", "%y %P\\0"]).output()?;
    let all = found.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(all.map(|name| OsString::from_vec(name.to_vec())).collect())
}

trait ConcatWords {
    fn concat_words(&self) -> OsString;
}

impl ConcatWords for [&OsStr; 2] {
    fn concat_words(&self) -> OsString {
        let mut all = self[0].to_owned();
        all.push(self[1]);
        all
    }
}
