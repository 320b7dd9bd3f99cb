//! `cargo xtask bench sum`: `dmover sum` beside the tools that make the same digests, on files that lie in memory.
use anyhow::{Context, Result, ensure};
use dmover_testkit::image::base_directory;
use dmover_testkit::shapes::{Shape, generate};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::duel::{Duel, DuelArgs, Rounds};
use super::machine::{describe, first_line};
use super::report::Report;
use super::{subjects, word};

const MIB: u64 = 1 << 20;

/// Files, and two ways to hash them.
struct Case {
    name: &'static str,
    shape: Shape,
    hash: &'static str,
    /// A shell's words for the tool, in the directory with the files.
    tool: &'static str,
    /// Wall clock at most so many times the tool's.
    most: f64,
}

const fn files(count: u64, size_bytes: u64, per_directory: u64) -> Shape {
    Shape { count, size_bytes, per_directory }
}

const ONE: Shape = files(1, 4096 * MIB, 1);
const SIXTEEN: Shape = files(16, 256 * MIB, 16);
const SMALL: Shape = files(100_000, 4096, 100);
const BY_TWO: &str = "find . -type f -print0 | xargs -0 -P2 sha256sum";

const CASES: &[Case] = &[
    Case {
        name: "one 4 GiB file, blake3",
        shape: ONE,
        hash: "blake3",
        tool: "find . -type f -exec b3sum {} +",
        most: 1.05,
    },
    Case {
        name: "16 x 256 MiB, sha256",
        shape: SIXTEEN,
        hash: "sha256",
        tool: "find . -type f -exec sha256sum {} +",
        most: 0.55,
    },
    Case {
        name: "16 x 256 MiB, md5",
        shape: SIXTEEN,
        hash: "md5",
        tool: "find . -type f -exec md5sum {} +",
        most: 0.55,
    },
    Case { name: "100,000 x 4 KiB, sha256", shape: SMALL, hash: "sha256", tool: BY_TWO, most: 0.4 },
    Case { name: "100,000 x 4 KiB, blake3", shape: SMALL, hash: "blake3", tool: BY_TWO, most: 0.4 },
];

/// Runs the cases and prints a table.
pub fn run(args: &DuelArgs) -> Result<()> {
    let dmover = crate::soak::program()?;
    let programs = subjects::Programs::find(Path::new("target/peers"))?;
    print!("{}", Report { machine: describe(&programs) }.heading());
    println!(
        "b3sum: {}; sha256sum: {}\n",
        first_line("b3sum", &["--version"]),
        first_line("sha256sum", &["--version"])
    );
    println!("{}", Rounds::HEADING);
    let directory = tempfile::Builder::new().prefix("sums-").tempdir_in(base_directory()?)?;
    let mut made: Option<(Shape, PathBuf)> = None;
    for case in CASES.iter().filter(|case| case.name.contains(&args.only)) {
        if made.as_ref().is_none_or(|(shape, _)| *shape != case.shape) {
            if let Some((_, old)) = made.take() {
                std::fs::remove_dir_all(old)?;
            }
            let root = directory.path().join("files");
            std::fs::create_dir(&root)?;
            generate(&root, case.shape, args.scale, 1)?;
            made = Some((case.shape, root));
        }
        let Some((_, root)) = &made else { continue };
        let own = format!("cd {0} && {1} sum -a {2} .", word(root), word(&dmover), case.hash);
        let tool = format!("cd {} && {}", word(root), case.tool);
        // The first round shows whether both say the same, where they speak of the same function.
        if !case.tool.contains("xargs") || case.hash == "sha256" {
            same_digests(&own, &tool)?;
        }
        let (rounds, scratch) = (args.rounds, directory.path());
        let duel = Duel { before: "", own: &own, tool: &tool, rounds, scratch };
        println!("{}", duel.run()?.row(case.name, case.most));
    }
    Ok(())
}

fn same_digests(own: &str, tool: &str) -> Result<()> {
    let output = |script: &str| -> Result<Vec<String>> {
        let run = Command::new("bash").args(["-c", script]).output().context("cannot run bash")?;
        ensure!(run.status.success(), "{script}: {}", String::from_utf8_lossy(&run.stderr));
        let text = String::from_utf8(run.stdout)?;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    };
    ensure!(output(own)? == output(tool)?, "the digests differ");
    Ok(())
}
