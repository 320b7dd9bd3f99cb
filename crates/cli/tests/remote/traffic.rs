//! What goes over the line: of a large file of which DEST has an older version, only the blocks that differ; and less if it
//! is compressed.
use super::bench::eventually;
use super::ends::{Ends, WAYS, count, ends};
use rand::seq::index::sample;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const BLOCK: usize = 4096;

fn random(length: usize, rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Changes some blocks of a file, and nothing else.
fn change_blocks(ends: &Ends, path: &str, blocks: usize, rng: &mut ChaCha8Rng) {
    let path = ends.bench.at(path);
    let file = File::options().write(true).open(&path).unwrap();
    let all = fs::metadata(&path).unwrap().len() as usize / BLOCK;
    for block in sample(rng, all, blocks) {
        file.write_all_at(&random(BLOCK, rng), (block * BLOCK) as u64).unwrap();
    }
}

/// What may happen to a file between two passes.
fn change(ends: &Ends, path: &str, rng: &mut ChaCha8Rng) {
    let size = fs::metadata(ends.bench.at(path)).unwrap().len() as usize;
    let bench = &ends.bench;
    match rng.random_range(0..7) {
        0 => change_blocks(ends, path, 1 + size / BLOCK / 50, rng),
        1 => _ = bench.sh(&format!("truncate -s {} {path}", size * 2 / 3 + 77)),
        2 => {
            bench.write("more", random(rng.random_range(1..700_000), rng));
            bench.sh(&format!("cat more >> {path}"));
        }
        3 => _ = bench.sh(&format!("fallocate -p -o 131072 -l 200704 {path}")),
        4 => _ = bench.write(path, random(size + 5, rng)),
        5 => _ = bench.sh(&format!("(printf x; cat {path}) > other; mv other {path}")),
        _ => {
            let write = format!("dd of={path} bs=1 seek=99999 conv=notrunc status=none");
            bench.sh(&format!("printf '\\0' | {write}"));
        }
    }
}
#[test]
fn what_is_made_of_an_older_version_is_the_new_one() {
    let ends = ends!("what_is_made_of_an_older_version_is_the_new_one");
    let bench = &ends.bench;
    let options =
        ["", "--inplace", "--split-size=1M", "--print-hash --split-size=1M", "--print-hash", "-W"];
    for (number, way) in WAYS.into_iter().enumerate() {
        let seed: u64 = rand::random();
        println!("{way:?} seed {seed}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let tree = format!("s{number}");
        let trees = (tree.as_str(), format!("d{number}"));
        for (file, size) in [300_000, 1_000_000, 2_500_000, 4_000_001].into_iter().enumerate() {
            bench.write(&format!("{tree}/{file}"), random(size, &mut rng));
        }
        ends.job(way, "sync", (&tree, &trees.1)).expect_code(0);
        for options in options {
            println!("{options}");
            for file in 0..4 {
                change(&ends, &format!("{tree}/{file}"), &mut rng);
            }
            let run = ends.job(way, &format!("sync {options}"), (&tree, &trees.1)).expect_code(0);
            bench.assert_same(trees.0, &trees.1);
            if options.contains("hash") {
                // The digests are those of the new content.
                let sums = bench.sh(&format!("cd d{number}; b3sum *"));
                let printed = run.text();
                let digests = sums.lines().filter_map(|line| line.split(' ').next());
                for digest in digests.filter(|_| options == "--print-hash") {
                    assert!(printed.contains(digest), "{digest}\n{printed}");
                }
            }
        }
    }
}

/// Bytes that have passed the network interfaces of a host, by the kernel's count.
fn passed(ends: &Ends, host: &str) -> u64 {
    let mut cat = ends.cluster.host(host).command("cat");
    let output = cat.arg("/proc/net/dev").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.filter(|(name, _)| name.trim() != "lo");
    lines
        .map(|(_, numbers)| {
            let numbers: Vec<u64> =
                numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
            numbers[0] + numbers[8]
        })
        .sum()
}

#[test]
fn one_percent_that_has_changed_is_all_that_travels() {
    let ends = ends!("one_percent_that_has_changed_is_all_that_travels");
    let (bench, size) = (&ends.bench, 150 << 20);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    bench.write("s/large", random(size, &mut rng));
    bench.sh("cp -a s first");
    change_blocks(&ends, "s/large", size / BLOCK / 100, &mut rng);
    for way in [WAYS[0], WAYS[1]] {
        for options in ["", "--inplace", "-W"] {
            println!("{way:?} {options}");
            bench.sh("rm -rf d; cp -a first d; touch -d 2001-01-01 d/large");
            let before = passed(&ends, "far");
            let run = ends.job(way, &format!("sync --json {options}"), ("s", "d")).expect_code(0);
            eventually("agents to end", || ends.agents().is_empty());
            let bytes = passed(&ends, "far") - before;
            bench.assert_same("s", "d");
            let all = count(&run, "bytes_copied") + count(&run, "bytes_kept");
            assert_eq!(all, size as u64, "{}", run.tell());
            match options {
                "-W" => assert!(bytes > size as u64, "{bytes}"),
                _ => assert!(bytes < size as u64 / 20, "{bytes} of {size}"),
            }
        }
    }
}

#[test]
fn what_can_be_compressed_is() {
    let ends = ends!("what_can_be_compressed_is");
    let (bench, size) = (&ends.bench, 8 << 20);
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let letters: Vec<u8> = random(size, &mut rng).iter().map(|byte| b'a' + byte % 4).collect();
    bench.write("s/letters", letters);
    bench.write("noise/random", random(size, &mut rng));
    for way in [WAYS[0], WAYS[1]] {
        for (tree, options, most) in [
            ("s", "--compress=always", size / 2),
            ("s", "--compress", size / 2),
            ("s", "--compress=never", 2 * size),
            ("noise", "-z", size + size / 10),
        ] {
            println!("{way:?} {tree} {options}");
            bench.sh("rm -rf d");
            let before = passed(&ends, "far");
            let run = ends.job(way, &format!("copy -T --json {options}"), (tree, "d"));
            run.expect_code(0);
            eventually("agents to end", || ends.agents().is_empty());
            let bytes = passed(&ends, "far") - before;
            bench.assert_same(tree, "d");
            assert!(bytes < most as u64, "{bytes}");
            let is_packed = options != "--compress=never" && tree == "s";
            assert_eq!(bytes < size as u64, is_packed, "{bytes}");
        }
    }
}
