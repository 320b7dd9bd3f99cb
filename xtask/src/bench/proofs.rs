//! `cargo xtask bench proof`: what it costs to know that a copy is right, beside rsync, cp and b3sum.
use anyhow::Result;
use dmover_testkit::image::{FileSystem, Image, ImageOptions};
use dmover_testkit::shapes::{Shape, generate};
use std::path::Path;

use super::duel::{Duel, DuelArgs, Rounds};
use super::machine::{describe, first_line};
use super::report::Report;
use super::{subjects, word};

const MIB: u64 = 1 << 20;

/// A tree, and two ways to prove something about it. `DMOVER` is the program, `s` the tree and `d` its copy.
struct Case {
    name: &'static str,
    shape: Shape,
    /// The copy is there already.
    copied: bool,
    own: &'static str,
    tool: &'static str,
    most: f64,
}

const fn files(count: u64, size_bytes: u64, per_directory: u64) -> Shape {
    Shape { count, size_bytes, per_directory }
}

const MANY: Shape = files(1_000_000, 1, 200);
const SMALL: Shape = files(100_000, 4096, 100);
const LARGE: Shape = files(4, 512 * MIB, 4);

const CASES: &[Case] = &[
    Case {
        name: "1,000,000 entries, --level=mtime / rsync -an",
        shape: MANY,
        copied: true,
        own: "DMOVER verify -q --level=mtime s d",
        tool: "rsync -an s/ d/",
        most: 0.5,
    },
    Case {
        name: "100,000 x 4 KiB, --level=digest / rsync -anc",
        shape: SMALL,
        copied: true,
        own: "DMOVER verify -q s d",
        tool: "rsync -anc s/ d/",
        most: 0.6,
    },
    Case {
        name: "4 x 512 MiB, --level=digest / rsync -anc",
        shape: LARGE,
        copied: true,
        own: "DMOVER verify -q s d",
        tool: "rsync -anc s/ d/",
        most: 0.6,
    },
    Case {
        name: "4 x 512 MiB, copy with digests / cp -a --reflink=never",
        shape: LARGE,
        copied: false,
        own: "DMOVER copy -q --print-hash -T s d",
        tool: "cp -a --reflink=never s d",
        most: 1.2,
    },
    Case {
        name: "4 x 512 MiB, copy with digests / dmover copy, then b3sum",
        shape: LARGE,
        copied: false,
        own: "DMOVER copy -q --print-hash -T s d",
        tool: "DMOVER copy -q -T s d; b3sum d/*/* || b3sum d/*",
        most: 0.7,
    },
];

/// Runs the cases and prints a table.
pub fn run(args: &DuelArgs) -> Result<()> {
    let dmover = word(&crate::soak::program()?);
    let programs = subjects::Programs::find(Path::new("target/peers"))?;
    print!("{}", Report { machine: describe(&programs) }.heading());
    println!(
        "On ext4 in memory. {}; b3sum: {}\n",
        first_line("rsync", &["--version"]),
        first_line("b3sum", &["--version"])
    );
    println!("{}", Rounds::HEADING);
    for case in CASES.iter().filter(|case| case.name.contains(&args.only)) {
        println!("{}", play(case, args, &dmover)?);
    }
    Ok(())
}

fn play(case: &Case, args: &DuelArgs, dmover: &str) -> Result<String> {
    let shape = case.shape.scaled(args.scale);
    let inodes = (shape.count * 2 + shape.count / 20 + 100_000).to_string();
    // Blocks of 1 KiB, so that a million files fit into memory twice.
    let block = if shape.size_bytes < 1024 { 1024 } else { 4096 };
    let mkfs_arguments = vec!["-N".into(), inodes, "-b".into(), block.to_string()];
    let each = shape.size_bytes.next_multiple_of(block) * 9 / 4 + 1200;
    let size_bytes = shape.count * each + 1024 * MIB;
    let options = ImageOptions { size_bytes, mkfs_arguments, ..ImageOptions::default() };
    let mounted = Image::create_with(FileSystem::Ext4, &options)?;
    let scratch = tempfile::tempdir()?;
    let root = mounted.path().join("s");
    std::fs::create_dir(&root)?;
    generate(&root, shape, 1.0, 1)?;
    let at = word(mounted.path());
    let words = |script: &str| format!("cd {at}; {}", script.replace("DMOVER", dmover));
    if case.copied {
        super::measure::run(
            &["bash".into(), "-euc".into(), words("cp -a s d; sync -f .")],
            scratch.path(),
        )?;
    }
    let before = if case.copied { String::new() } else { words("rm -rf d; sync -f .") };
    let duel = Duel {
        before: &before,
        own: &words(case.own),
        tool: &words(case.tool),
        rounds: args.rounds,
        scratch: scratch.path(),
    };
    Ok(duel.run()?.row(case.name, case.most))
}
