//! Holes are compared and hashed without being read; cmp and sha256sum judge.
use super::bench::PROGRAM;
use super::{Bench, Found};
use dmover_testkit::image::{FileSystem, Image};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The size of a file that would take long to read.
const SIZE: u64 = 8 << 30;

/// Bytes that a command and its children have read, by the kernel's books (proc_pid_io(5)).
fn bytes_read(bench: &Bench, command: &str) -> u64 {
    let script = format!("{command} >/dev/null 2>&1 || true; sed -n 's/rchar: //p' /proc/$$/io");
    bench.sh(&script).trim().parse().unwrap()
}

/// What differs by cmp(1), as positions that count from 0.
fn positions(bench: &Bench) -> Vec<u64> {
    let lines = bench.sh("cmp -l a b 2>/dev/null || true");
    let number = |line: &str| line.split_whitespace().next().unwrap().parse::<u64>().unwrap() - 1;
    lines.lines().map(number).collect()
}

/// Every differing byte is in a range, and each range begins and ends with one.
fn assert_located(found: &[Found], positions: &[u64], seed: u64) {
    let ranges: Vec<_> = found.iter().flat_map(|one| one.ranges.clone()).collect();
    let inside = |at: &u64| ranges.iter().any(|(start, end)| (start..end).contains(&at));
    assert!(positions.iter().all(inside), "seed {seed}: {ranges:?}");
    for (start, end) in ranges {
        let differs = |at: u64| positions.binary_search(&at).is_ok();
        assert!(differs(start) && differs(end - 1), "seed {seed}: {start}-{end}");
    }
}

#[test]
fn holes_of_both_sides_are_not_read() {
    let test = "holes_of_both_sides_are_not_read";
    let mut benches = vec![(Bench::new(), None)];
    for system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
        let Some(image) = Image::create_or_skip(test, system, 400 << 20) else { continue };
        benches.push((Bench::inside(image.path()), Some(image)));
    }
    for (bench, _image) in &benches {
        let file = File::create(bench.at("a")).unwrap();
        file.set_len(SIZE + 77).unwrap();
        for at in [5, 1 << 30, (3 << 30) + 12_345] {
            file.write_all_at(&vec![7; 300_000], at).unwrap();
        }
        bench.sh("cp --sparse=always --preserve=all a b");
        let read = bytes_read(bench, &format!("{PROGRAM} verify a b"));
        assert!(read < 64 << 20, "{read} bytes");
        for line in ["a b", "--split-size=64M a b", "--direct-read a b"] {
            assert_eq!(bench.verify(line, 0), []);
        }
        // A hole of one side, and zeroes or a byte of the other.
        let copy = File::options().write(true).open(bench.at("b")).unwrap();
        copy.write_all_at(&vec![0; 200_000], 2 << 30).unwrap();
        bench.sh("touch -r a b");
        assert_eq!(bench.verify("a b", 0), []);
        copy.write_all_at(&[9], (2 << 30) + 100_000).unwrap();
        bench.sh("touch -r a b");
        for line in ["a b", "b a", "--split-size=64M a b", "--direct-read a b"] {
            let found = bench.verify(line, 1);
            let range = ((2 << 30) + 100_000, (2 << 30) + 100_001);
            assert_eq!(found[0].ranges, [range], "{line}");
        }
        let read = bytes_read(bench, &format!("{PROGRAM} verify a b"));
        assert!(read < 64 << 20, "{read} bytes");
        let summary = bench.dmover("verify --json a b").expect_code(1).said().unwrap().summary;
        assert!(summary.unwrap().number("bytes_hashed").unwrap() < 4 << 20);
        bench.dmover("verify --repair a b").expect_code(0);
        // All of it would take long to read.
        assert_eq!(bench.sh("cmp -i 2G -n 1M a b"), "");
    }
}

#[test]
fn digests_of_holes_are_made_without_reading_them() {
    let bench = Bench::new();
    let file = File::create(bench.at("f")).unwrap();
    file.set_len((256 << 20) + 77).unwrap();
    file.write_all_at(&vec![7; 300_000], (100 << 20) + 5).unwrap();
    for (line, judge) in [("-a sha256", "sha256sum"), ("-a md5 --split-size=32M", "md5sum")] {
        let made = bench.dmover(&format!("sum {line} f")).expect_code(0);
        let made = String::from_utf8(made.stdout).unwrap();
        assert_eq!(made, bench.sh(&format!("{judge} f")), "{line}");
        let read = bytes_read(&bench, &format!("{PROGRAM} sum {line} f"));
        assert!(read < 32 << 20, "{read} bytes");
    }
    bench.sh("mkdir s; mv f s/f");
    bench.copy("--manifest=m --verify=read-back -T s t").expect_code(0);
    bench.dmover("verify --manifest=m").expect_code(0);
    let read = bytes_read(&bench, &format!("{PROGRAM} verify --manifest=m"));
    assert!(read < 32 << 20, "{read} bytes");
    File::options().write(true).open(bench.at("t/f")).unwrap().write_all_at(&[1], 9 << 20).unwrap();
    bench.sh("touch -r s/f t/f");
    bench.dmover("verify --manifest=m").expect_code(7);
}

/// Two files with random data, zeroes and holes, often the same in both.
fn layout(bench: &Bench, random: &mut ChaCha8Rng) {
    let block = 4096 * random.random_range(1..24);
    let size = random.random_range(1..4_000_000);
    let files = ["a", "b"].map(|name| File::create(bench.at(name)).unwrap());
    for file in &files {
        file.set_len(size).unwrap();
    }
    for at in (0..size).step_by(block as usize) {
        let length = block.min(size - at) as usize;
        let common = random.random_range(0..3u8);
        let alike = random.random_bool(0.8);
        for file in &files {
            let kind = if alike { common } else { random.random_range(0..3) };
            let mut bytes = vec![0; length];
            match kind {
                0 => continue,
                1 => {}
                _ => bytes.fill(3),
            }
            if random.random_bool(0.03) {
                bytes[random.random_range(0..length)] = 8;
            }
            file.write_all_at(&bytes, at).unwrap();
        }
    }
    bench.sh("touch -r a b; chmod --reference=a b");
}

#[test]
fn random_layouts_compare_as_cmp_does() {
    let test = "random_layouts_compare_as_cmp_does";
    let mut benches = vec![(Bench::new(), None)];
    for system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
        let Some(image) = Image::create_or_skip(test, system, 400 << 20) else { continue };
        benches.push((Bench::inside(image.path()), Some(image)));
    }
    let first: u64 = rand::rng().random_range(0..1 << 32);
    for seed in first..first + 6 {
        for (bench, _image) in &benches {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            layout(bench, &mut random);
            let positions = positions(bench);
            let code = i32::from(!positions.is_empty());
            for option in ["", "--split-size=1M", "--direct-read", "--level=bytes"] {
                println!("seed {seed}, {option}");
                let found = bench.verify(&format!("{option} a b"), code);
                assert_located(&found, &positions, seed);
            }
            let digests = bench.dmover("sum -a sha256 a b").expect_code(0).stdout;
            let judged = bench.sh("sha256sum a b");
            assert_eq!(String::from_utf8(digests).unwrap(), judged, "seed {seed}");
        }
    }
}
