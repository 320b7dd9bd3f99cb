//! `cargo xtask bench pass`: passes, snapshots and what a watch costs, beside rsync, fpsync, rclone and a bare loop of looks.
use anyhow::{Context, Result};
use dmover_testkit::image::{FileSystem, Image, ImageOptions, Mounted};
use dmover_testkit::shapes::{Shape, generate};
use std::path::Path;

use super::duel::{Duel, DuelArgs, Rounds};
use super::machine::{describe, first_line};
use super::report::Report;
use super::{subjects, word};

const MIB: u64 = 1 << 20;

/// A tree `s`, its copy `d`, and two ways to bring the one to the other. `DMOVER` is the program, `LOOKS` the bare loop.
struct Case {
    name: &'static str,
    on: FileSystem,
    shape: Shape,
    /// Done once.
    first: &'static str,
    /// Done before every run, and not measured.
    before: &'static str,
    own: &'static str,
    tool: &'static str,
    most: f64,
    /// Prints what else is to be known; done once in the end.
    after: &'static str,
}

const fn files(count: u64, size_bytes: u64, per_directory: u64) -> Shape {
    Shape { count, size_bytes, per_directory }
}

const MANY: Shape = files(1_000_000, 1, 200);
const TINY: Shape = files(300_000, 16, 100);
const LARGE: Shape = files(1, 1024 * MIB, 1);

const COPY: &str = "cp -a s d; sync -f .; DMOVER sync -q s d; DMOVER sync -q s d";
const PASS: &str = "DMOVER sync -q s d";
/// Sectors of 512 bytes that a pass has had written, and entries of the copy whose change time is younger than it.
const NO_WRITES: &str = "sync -f .; touch mark; sync -f .; n=$(findmnt -no SOURCE -T . | sed 's|/dev/||')
    w() { awk '{print $7}' /sys/block/$n/stat; }
    sleep 6; b=$(w); sleep 6; i=$(($(w)-b)); b=$(w); DMOVER sync -q s d; sleep 6; sync -f .
    echo \"sectors written around a pass: $(($(w)-b)), in as long without one: $i; entries of the copy that changed: $(find d -cnewer mark | wc -l)\"
    DMOVER sync --json s d | tail -1 | jq -c '{peak_memory_mib: (.peak_memory_bytes/1048576|floor)}'";
/// A watch, 100 changed files, and how long until the last of them is there; then the same with its system calls counted.
const WATCH: &str = "DMOVER sync --watch --delete --json s d >SCRATCH/watch & p=$!
    until grep -q '\"summary\"' SCRATCH/watch; do sleep 0.2; done
    change() { python3 -c \"
import os, time
places = []
for at, _, names in os.walk('s'):
    places += [os.path.join(at, name) for name in sorted(names)[:1]]
step = max(1, len(places) // 100)
chosen = places[::step][:100]
for path in chosen:
    with open(path, 'ab') as f: f.write(b'changed!')
since = time.time()
while any(os.stat(path).st_size != os.stat('d' + path[1:]).st_size for path in chosen): time.sleep(0.01)
print('%d changed files were there after %.2f s' % (len(chosen), time.time() - since))
\"; }
    change; change; change; sleep 2
    strace -f -c -o SCRATCH/calls -p $p 2>SCRATCH/strace & t=$!; sleep 2; change; sleep 2; kill -INT $t; wait $t || true
    kill $p; wait $p || true
    echo \"system calls meanwhile: $(tail -1 SCRATCH/calls | awk '{print $4}')\"
    strace -f -c -o SCRATCH/calls DMOVER sync -q s d; echo \"of a whole pass: $(tail -1 SCRATCH/calls | awk '{print $4}')\"";
const APPEND: &str = "python3 -c \"
import os
for at, _, names in os.walk('s'):
    for number, name in enumerate(names):
        if number % 20 < 3:
            with open(os.path.join(at, name), 'ab') as f: f.write(b'8 bytes.')
\"; sync -f .";
/// A hundredth of the blocks of the large file, at random places.
const PATCH: &str = "python3 -c \"
import glob, os, random
p = [p for p in glob.glob('s/**', recursive=True) if os.path.isfile(p)][0]
n = os.path.getsize(p) // 4096
with open(p, 'r+b') as f:
    for at in random.sample(range(n), n // 100):
        f.seek(at * 4096); f.write(os.urandom(4096))
\"; sync -f .; sleep 1.1";
const CHANGE_FEW: &str = "python3 -c \"
import os
for at, _, names in os.walk('s'):
    for number, name in enumerate(names):
        if number % 100 == 7:
            with open(os.path.join(at, name), 'ab') as f: f.write(b'8 bytes.')
\"; for t in own tool; do ls -d $t/*/ | head -n -1 | xargs -r rm -rf; done; sync -f .";

const CASES: &[Case] = &[
    Case {
        name: "no change, 1,000,000 entries, ext4: sync / rsync -a",
        on: FileSystem::Ext4,
        shape: MANY,
        first: COPY,
        before: "",
        own: PASS,
        tool: "rsync -a s/ d/",
        most: 0.4,
        after: NO_WRITES,
    },
    Case {
        name: "no change, 1,000,000 entries, ext4: sync / bare statx loop, two threads",
        on: FileSystem::Ext4,
        shape: MANY,
        first: COPY,
        before: "",
        own: PASS,
        tool: "LOOKS s d",
        most: 1.25,
        after: WATCH,
    },
    Case {
        name: "no change, 1,000,000 entries, ext4: sync / fpsync -n 2",
        on: FileSystem::Ext4,
        shape: MANY,
        first: COPY,
        before: "",
        own: PASS,
        tool: "fpsync -n 2 -t SCRATCH/fpsync $PWD/s/ $PWD/d/",
        most: 0.6,
        after: "",
    },
    Case {
        name: "no change, 1,000,000 entries, ext4: sync / rclone sync --checkers 8",
        on: FileSystem::Ext4,
        shape: MANY,
        first: COPY,
        before: "",
        own: PASS,
        tool: "rclone sync --checkers 8 --links --metadata s d",
        most: 0.6,
        after: "",
    },
    Case {
        name: "no change, 1,000,000 entries, xfs: sync / rsync -a",
        on: FileSystem::Xfs,
        shape: MANY,
        first: COPY,
        before: "",
        own: PASS,
        tool: "rsync -a s/ d/",
        most: 0.4,
        after: NO_WRITES,
    },
    Case {
        name: "no change, 1,000,000 entries, xfs: sync / bare statx loop, two threads",
        on: FileSystem::Xfs,
        shape: MANY,
        first: COPY,
        before: "",
        own: PASS,
        tool: "LOOKS s d",
        most: 1.25,
        after: "",
    },
    Case {
        name: "8 bytes appended to 15 % of 300,000 files, ext4: sync / rsync -a",
        on: FileSystem::Ext4,
        shape: TINY,
        first: COPY,
        before: APPEND,
        own: PASS,
        tool: "rsync -a s/ d/",
        most: 0.4,
        after: "",
    },
    Case {
        name: "1 GiB with 1 % changed, xfs: sync (clones) / rsync -a --inplace --no-whole-file",
        on: FileSystem::Xfs,
        shape: LARGE,
        // On another file system, or its blocks would be shared.
        first: "mv s $DMOVER_STATE_DIR.source; ln -s $DMOVER_STATE_DIR.source s; cp -a s/ d; sync -f .; DMOVER sync -q s d",
        before: PATCH,
        own: PASS,
        tool: "rsync -a --inplace --no-whole-file s/ d/",
        most: 1.0,
        after: "DMOVER sync -q s d; PATCH; DMOVER sync --json s d | tail -1 | jq -c '{bytes_copied, bytes_kept}'; rm -r $DMOVER_STATE_DIR.source",
    },
    Case {
        name: "1 GiB with 1 % changed, ext4: sync --inplace / rsync -a --inplace --no-whole-file",
        on: FileSystem::Ext4,
        shape: LARGE,
        first: COPY,
        before: PATCH,
        own: "DMOVER sync -q --inplace s d",
        tool: "rsync -a --inplace --no-whole-file s/ d/",
        most: 1.0,
        after: "DMOVER sync -q --inplace s d; PATCH; DMOVER sync --inplace --json s d | tail -1 | jq -c '{bytes_copied, bytes_kept}'",
    },
    Case {
        name: "snapshot of 300,000 files of which 1 % changed, ext4: snapshot create / rsync -a --link-dest",
        on: FileSystem::Ext4,
        shape: TINY,
        first: "mkdir own tool; DMOVER snapshot create -q s own; DMOVER snapshot create -q s own
            rsync -a s/ tool/1/; rsync -a --link-dest=$PWD/tool/1 s/ tool/2/",
        before: CHANGE_FEW,
        own: "DMOVER snapshot create -q s own",
        tool: "l=$(ls tool | sort -n | tail -1); rsync -a --link-dest=$PWD/tool/$l s/ tool/$((l+1))/",
        most: 1.0,
        after: "",
    },
];

/// Runs the cases and prints a table.
pub fn run(args: &DuelArgs) -> Result<()> {
    let dmover = word(&crate::soak::program()?);
    let looks = word(&crate::soak::release_build("dmover-testkit", "dmover-looks")?);
    let programs = subjects::Programs::find(Path::new("target/peers"))?;
    print!("{}", Report { machine: describe(&programs) }.heading());
    println!("File systems in memory. {}\n", first_line("rsync", &["--version"]));
    println!("{}", Rounds::HEADING);
    let mut facts = Vec::new();
    let mut made: Option<(FileSystem, Shape, &str, Mounted)> = None;
    for case in CASES.iter().filter(|case| case.name.contains(&args.only)) {
        let key = (case.on, case.shape, case.first);
        let scratch = tempfile::tempdir()?;
        let known = made.take().filter(|(on, shape, first, _)| (*on, *shape, *first) == key);
        let is_new = known.is_none();
        let mounted = match known {
            Some((.., mounted)) => mounted,
            None => ground(case, args)?,
        };
        let words = |script: &str| {
            // The state lies elsewhere, so that it is no part of what is counted.
            let script = script.replace("PATCH", PATCH).replace("DMOVER ", &format!("{dmover} "));
            let script = script.replace("LOOKS", &looks).replace("SCRATCH", &word(scratch.path()));
            let state = word(&mounted.image().with_extension("state"));
            format!("cd {}; export DMOVER_STATE_DIR={state}; {script}", word(mounted.path()))
        };
        if is_new {
            let first = ["bash".into(), "-euc".into(), words(case.first)];
            super::measure::run(&first, scratch.path())?;
        }
        let before = if case.before.is_empty() { String::new() } else { words(case.before) };
        let (own, tool) = (words(case.own), words(case.tool));
        let duel = Duel {
            before: &before,
            own: &own,
            tool: &tool,
            rounds: args.rounds,
            scratch: scratch.path(),
        };
        println!("{}", duel.run().with_context(|| case.name)?.row(case.name, case.most));
        if !case.after.is_empty() {
            let output =
                std::process::Command::new("bash").args(["-euc", &words(case.after)]).output()?;
            facts.push(format!(
                "{}: {}",
                case.name,
                String::from_utf8_lossy(&output.stdout).trim()
            ));
        }
        made = Some((case.on, case.shape, case.first, mounted));
    }
    println!();
    for fact in facts {
        println!("{fact}\n");
    }
    Ok(())
}

fn ground(case: &Case, args: &DuelArgs) -> Result<Mounted> {
    let shape = case.shape.scaled(args.scale);
    let small = shape.size_bytes < 4096;
    // A tree and its copy; of snapshots there are two kinds, and their directories.
    let times = if case.name.starts_with("snapshot") { 5 } else { 3 };
    let block = if small { 1024 } else { 4096 };
    let mkfs_arguments: Vec<String> = match case.on {
        // Blocks of 1 KiB, so that a million files fit into memory twice.
        FileSystem::Ext4 => {
            let inodes = (shape.count * times + 200_000).to_string();
            vec!["-N".into(), inodes, "-b".into(), block.to_string()]
        }
        FileSystem::Xfs if small => vec!["-b".into(), "size=1024".into()],
        _ => Vec::new(),
    };
    let each = shape.size_bytes.next_multiple_of(block) * times + 1300;
    let size_bytes = shape.count * each + 1024 * MIB;
    let options = ImageOptions { size_bytes, mkfs_arguments, ..ImageOptions::default() };
    let mounted = Image::create_with(case.on, &options)?;
    let root = mounted.path().join("s");
    std::fs::create_dir(&root)?;
    generate(&root, shape, 1.0, 1)?;
    Ok(mounted)
}
