//! Files that change while they come from another host.
use super::bench::eventually;
use super::ends::{Ends, WAYS, ends};
use super::lost::kill;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::os::unix::fs::FileExt;

const SIZE: usize = 12 << 20;
const PART: usize = 512 << 10;

/// The number of a part that the temporary file has as SOURCE has it.
const COPIED_PART: &str = "temporary=$(find d -name '.dmover-*' 2> /dev/null || true)
    if test -f \"$temporary\"; then
        for part in $(seq 0 23); do
            if cmp -s -i $((part << 19)) -n 524288 s/large \"$temporary\"; then echo $part; break; fi
        done
    fi";

/// Parts of a large file share what the first opening has shown, so only the check at the end of each part tells that the file is
/// another one by now.
#[test]
fn a_large_file_that_changes_between_its_parts_is_copied_as_it_is_in_the_end() {
    let ends = ends!("a_large_file_that_changes_between_its_parts_is_copied_as_it_is_in_the_end");
    let bench = &ends.bench;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for way in [WAYS[0], WAYS[1]] {
        for verb in ["copy -T", "sync"] {
            println!("{way:?} {verb}");
            let mut content = vec![0; SIZE];
            rng.fill_bytes(&mut content);
            bench.sh("rm -rf s d");
            bench.write("s/large", content);
            // A pass makes the new version from the old one.
            if verb == "sync" {
                bench.sh("mkdir d; head -c 9M s/large > d/large; touch -d 2001-01-01 d/large");
            }
            let line = format!("{verb} --split-size=512K -j2 --bwlimit=4M --compress=never");
            let running = ends.start_job(way, &line, ("s", "d"));
            let mut copied = 0;
            eventually("a part that was copied", || {
                let found = bench.sh(COPIED_PART);
                found.trim().parse().is_ok_and(|part: usize| {
                    copied = part;
                    true
                })
            });
            // Of the same length, in a part that is not read again if nobody notices.
            let at = copied * PART + rng.random_range(0..PART - 9);
            let write = format!("dd of=s/large bs=1 seek={at} conv=notrunc status=none");
            bench.sh(&format!("printf CHANGED! | {write}"));
            let run = running.finish().unwrap();
            run.expect_code(0);
            bench.sh("cmp s/large d/large");
        }
    }
}

/// A part is made from the older version first, and compared then. A later run may not find the older version any more.
#[test]
fn old_bytes_that_a_killed_run_has_left_in_holes_do_not_stay() {
    let ends = ends!("old_bytes_that_a_killed_run_has_left_in_holes_do_not_stay");
    let parts = "sync --split-size=8M -j1 --compress=never";
    let holes = Holes { before: 0, length: 32, after: 32 };
    left_in_holes(&ends, &holes, (&format!("{parts} --bwlimit=16M"), parts));
    // Now the file is one part, whose second step is in the hole.
    let whole = "sync --split-size=0 -j1 --compress=never";
    let shared = "sync --split-size=0 -j4 --compress=never";
    let holes = Holes { before: 64, length: 64, after: 32 };
    left_in_holes(&ends, &holes, (whole, shared));
}

/// MiB of a file before, in and after its hole.
struct Holes {
    before: u32,
    length: u32,
    after: u32,
}

fn left_in_holes(ends: &Ends, holes: &Holes, (first, second): (&str, &str)) {
    let bench = &ends.bench;
    let Holes { before, length, after } = holes;
    for _ in 0..10 {
        bench.sh(&format!(
            "rm -rf s d old; mkdir s d; head -c {before}M /dev/urandom > s/large
            truncate -s {}M s/large; head -c {after}M /dev/urandom >> s/large
            head -c {before}M s/large > d/large; head -c {}M /dev/urandom >> d/large
            touch -d 2001-01-01 d/large; cp d/large old",
            before + length,
            length + after
        ));
        let mut running = ends.start_job(WAYS[0], first, ("s", "d"));
        eventually("old bytes", || has_old_bytes(ends, holes) || running.has_ended().unwrap());
        // Without digests of the other host nothing more is compared.
        let agents = ends.agents();
        for agent in &agents {
            stop(*agent);
        }
        running.kill().unwrap();
        for agent in &agents {
            kill(*agent);
        }
        eventually("the agent to end", || ends.agents().is_empty());
        let is_hit = has_old_bytes(ends, holes);
        bench.sh("rm -f d/large");
        ends.job(WAYS[0], second, ("s", "d")).expect_code(0);
        bench.sh("cmp s/large d/large");
        if is_hit {
            return;
        }
    }
    panic!("no run was killed before it had compared what it copied");
}

/// Whether the temporary has bytes of the older version in the hole.
fn has_old_bytes(ends: &Ends, holes: &Holes) -> bool {
    let names = std::fs::read_dir(ends.bench.at("d")).unwrap().flatten();
    let mut temporaries =
        names.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".dmover-"));
    let old = File::open(ends.bench.at("old")).unwrap();
    let read = |file: &File, at: u64| {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, at).is_ok().then_some(bytes)
    };
    temporaries.any(|entry| {
        let Ok(temporary) = File::open(entry.path()) else { return false };
        let mut places = (holes.before..holes.before + holes.length).step_by(8);
        places.any(|at| {
            let at = (u64::from(at) << 20) + 12_288;
            read(&temporary, at).is_some_and(|bytes| Some(bytes) == read(&old, at))
        })
    })
}

fn stop(pid: u32) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
}
