//! The digest depends on the content, the function and the leaf, never on splits and movers.
//!
//! What it should be comes from `b3sum` and from a few lines of Python around `hashlib`, which share nothing with
//! the program.

use std::process::Command;

use anyhow::{Context, Result, bail};
use rand::Rng;

use super::run::Dmover;
use super::stage::random;
use super::{LaneOptions, LaneReport, rng};
use crate::image::base_directory;
use crate::skip::skipped;

/// Trees as `docs/digests.md` defines them.
const REFERENCE: &str = r#"
import hashlib, sys, zlib
def digest(hash, data):
    if hash == "crc32":
        return zlib.crc32(data).to_bytes(4, "big")
    return hashlib.new(hash, data).digest()
def tree(hash, leaves):
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    return digest(hash, tree(hash, leaves[:left]) + tree(hash, leaves[left:]))
hash, leaf, start, end, name = sys.argv[1:]
data = open(name, "rb").read()[int(start):int(end)]
leaf = int(leaf) or len(data) or 1
if hash == "crc32":
    leaf = len(data) or 1
leaves = [digest(hash, data[at:at + leaf]) for at in range(0, len(data), leaf)]
print(tree(hash, leaves or [digest(hash, b"")]).hex())
"#;

const HASHES: [&str; 6] = ["blake3", "md5", "sha1", "sha256", "sha512", "crc32"];
/// Ways to hash each file: splits and movers.
const WAYS: usize = 3;

/// Hashes files of random sizes by random leaves, ranges, splits and movers.
pub fn digests(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("digests");
    for tool in ["b3sum", "python3"] {
        if Command::new(tool).arg("--version").output().is_err() {
            report.add("skipped", 1);
            skipped("lane digests", &format!("{tool} is missing"));
            return Ok(report);
        }
    }
    let directory = tempfile::Builder::new().prefix("digests-").tempdir_in(base_directory()?)?;
    let dmover = Dmover::new(&options.program)?.in_directory(directory.path());
    std::fs::write(directory.path().join("reference.py"), REFERENCE)?;
    let shell = |script: &str| -> Result<String> {
        let mut shell = Command::new("bash");
        let output = shell.args(["-euc", script]).current_dir(directory.path()).output()?;
        if !output.status.success() {
            bail!("{script}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    };
    report.each_seed(options, |seed, report| {
        let mut rng = rng("digests", seed);
        let hash = HASHES[rng.random_range(0..HASHES.len())];
        let size: u64 = match rng.random_range(0..4) {
            0 => rng.random_range(0..3),
            1 => 1 << rng.random_range(8..22),
            _ => rng.random_range(0..4_000_000),
        };
        std::fs::write(directory.path().join("f"), random(size as usize, &mut rng))?;
        let leaf = if rng.random_bool(0.5) { rng.random_range(1..300_000) } else { 0 };
        let (mut start, mut end) = (0, size);
        let ranged = rng.random_bool(0.5);
        let length = rng.random_range(1..size + 2);
        if ranged {
            start = rng.random_range(0..=size);
            end = (start + length).min(size);
        }
        let expected = if hash == "blake3" {
            shell(&format!("tail -c +{} f | head -c {} | b3sum", start + 1, end - start))?
        } else {
            shell(&format!("python3 reference.py {hash} {leaf} {start} {end} f"))?
        };
        let expected = expected.split_whitespace().next().context("a digest")?.to_owned();
        let mut failures = Vec::new();
        for _ in 0..WAYS {
            let split = if rng.random_bool(0.5) { rng.random_range(1..2_000_000) } else { 0 };
            let threads = rng.random_range(1..8);
            let leaves = if leaf > 0 { format!("--hash-leaf-size {leaf}") } else { String::new() };
            let range = format!("--offset {start} --length {length}");
            let range = if ranged { range } else { String::new() };
            let line =
                format!("sum -a {hash} -j {threads} --split-size {split} {leaves} {range} f");
            let run = dmover.run(line.split_whitespace())?;
            let text = run.text();
            let digest = text.trim_end().rsplit('#').next().unwrap_or_default();
            let digest = digest.split(' ').next().unwrap_or_default();
            report.add("digests", 1);
            if run.code() != Some(0) || digest != expected {
                failures.push(format!("{line}, {size} bytes: not {expected}: {}", run.tell()));
            }
        }
        Ok(failures)
    });
    Ok(report)
}
