//! Files that change while they come from another host.
use super::bench::eventually;
use super::ends::{WAYS, ends};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

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
