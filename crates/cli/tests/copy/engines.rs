//! How bytes are moved, how many calls that takes, and what is told of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use dmover_testkit::faultfs::{Action, Config, FaultFs, Op, Rule, errno_by_name};
use dmover_testkit::image::{FileSystem, Image, Mounted};
use dmover_testkit::lanes::lines::Line;
use dmover_testkit::skip::skipped;

use super::bench::{Bench, eventually, pattern};

const ENGINES: [&str; 5] = ["auto", "kernel", "buffered", "direct", "uring"];
const MIB: usize = 1 << 20;

fn mounted(test: &str, file_system: FileSystem) -> Option<(Mounted, Bench)> {
    let mounted = Image::create_or_skip(test, file_system, 700 << 20)?;
    let bench = Bench::inside(mounted.path());
    Some((mounted, bench))
}

/// The summary of a copy with these flags from `s` to `d`.
fn summary(bench: &Bench, flags: &str) -> Line {
    let run = bench.copy(&format!("--json {flags} -T s d")).expect_code(0);
    run.lines().unwrap().into_iter().find(|line| line.is("summary")).unwrap()
}

/// Bytes of a file in the page cache, by util-linux.
fn cached_bytes(path: &Path) -> u64 {
    let output = Command::new("fincore").args(["-nbo", "RES"]).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Nothing is printed for a file of which nothing is cached.
    text.trim().parse().unwrap_or(0)
}

#[test]
fn every_engine_brings_every_tail_over() {
    for file_system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs] {
        let Some((_mounted, bench)) = mounted("engines", file_system) else { continue };
        for size in [0, 1, 511, 4095, 4096, 4097, 3 * MIB + 13] {
            bench.write(&format!("s/{size}"), pattern(size));
        }
        // Holes, and data that does not end on a border.
        bench.sh(
            "truncate -s 9M s/sparse && printf x | dd of=s/sparse bs=1 seek=5000001 conv=notrunc",
        );
        for engine in ENGINES {
            for more in ["", "--split-size=1M", "--sparse=always", "--buffer-size=64K"] {
                bench
                    .copy(&format!("--engine={engine} --reflink=never {more} -T s d"))
                    .expect_code(0);
                bench.assert_same("s", "d");
                bench.sh("rm -r d");
            }
        }
    }
}

/// Without this, every engine could be the same one.
#[test]
fn an_engine_that_was_asked_for_moves_the_bytes() {
    let Some((_mounted, bench)) = mounted("which engine", FileSystem::Ext4) else { return };
    bench.write("s/f", pattern(MIB + 5));
    let moved = |engine: &str| {
        let line = summary(&bench, &format!("--engine={engine}"));
        bench.sh("rm -r d");
        ["bytes_in_kernel", "bytes_read_direct", "bytes_written_direct", "bytes_by_ring"]
            .map(|counter| line.number(counter).unwrap())
    };
    let (all, whole) = (MIB as u64 + 5, MIB as u64);
    assert_eq!(moved("kernel"), [all, 0, 0, 0]);
    assert_eq!(moved("buffered"), [0, 0, 0, 0]);
    let [kernel, read, written, ring] = moved("direct");
    assert_eq!((kernel, written, ring), (0, whole, 0));
    assert!(read >= whole, "{read}");
    assert_eq!(moved("uring"), [0, 0, 0, whole], "io_uring is there on the kernels that CI has");
}

#[test]
fn ranges_that_lie_between_borders_arrive_by_every_engine() {
    for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
        let Some((_mounted, bench)) = mounted("ranges by engine", file_system) else { continue };
        bench.write("s", pattern(2 * MIB));
        for engine in ENGINES {
            for (offset, length, to) in
                [(1, 9000, 1), (4097, 100_000, 4097), (5, 70_000, 1000), (8192, 700_001, 1 << 20)]
            {
                bench.write("d", vec![7; 3 * MIB]);
                let range = format!("--offset={offset} --length={length} --dst-offset={to}");
                bench.copy(&format!("--engine={engine} --inplace {range} -T s d")).expect_code(0);
                let (source, got) = (pattern(2 * MIB), fs::read(bench.at("d")).unwrap());
                let mut expected = vec![7; 3 * MIB];
                expected[to..to + length].copy_from_slice(&source[offset..offset + length]);
                assert!(got == expected, "{engine} {range}");
            }
        }
    }
}

#[test]
fn large_files_are_written_past_the_page_cache_and_small_ones_are_not() {
    let Some((_mounted, bench)) = mounted("direct by size", FileSystem::Ext4) else { return };
    bench.write("s/large", pattern(130 * MIB + 17));
    bench.write("s/small", pattern(MIB));
    let line = summary(&bench, "");
    assert_eq!(line.number("bytes_written_direct"), Some(130 * MIB as u64), "all but the tail");
    assert_eq!(line.number("direct_refusals"), Some(0));
    assert!(cached_bytes(&bench.at("d/large")) <= 1 << 20, "the copy is not in the page cache");
    bench.assert_same("s", "d");
}

#[test]
fn where_direct_io_is_refused_the_page_cache_is_used_and_the_refusal_counted() {
    let bench = Bench::new();
    bench.write("s/f", pattern(MIB + 5));
    bench.sh("mkdir backing m");
    let refusal = Action::Errno(errno_by_name("EINVAL").unwrap());
    let config = Config { rules: vec![Rule::new(Op::Write, refusal)], ..Config::default() };
    let mounted = match FaultFs::mount(&bench.at("backing"), &bench.at("m"), config) {
        Ok(mounted) => mounted,
        Err(error) => return skipped("direct refusals", &format!("{error:#}")),
    };
    let run = bench.copy("--json --direct-write --reflink=never -j1 -T s m/d").expect_code(0);
    let line = run.lines().unwrap().into_iter().find(|line| line.is("summary")).unwrap();
    assert_eq!(line.number("direct_refusals"), Some(1));
    assert_eq!(line.number("retries"), Some(0));
    bench.assert_same("s", "backing/d");
    drop(mounted);
}

#[test]
fn advice_keeps_a_copy_out_of_the_page_cache() {
    let Some((_mounted, bench)) = mounted("fadvise", FileSystem::Ext4) else { return };
    bench.write("s/f", pattern(40 * MIB));
    bench.sh("sync -f . && echo 1 > /proc/sys/vm/drop_caches");
    bench.copy("--fadvise-read --fadvise-write -T s d").expect_code(0);
    for path in ["s/f", "d/f"] {
        let cached = cached_bytes(&bench.at(path));
        assert!(cached < 2 << 20, "{path} has {cached} bytes in the page cache");
    }
    bench.assert_same("s", "d");
    bench.sh("rm -r d");
    bench.copy("--engine=buffered -T s d").expect_code(0);
    assert!(cached_bytes(&bench.at("d/f")) > 30 << 20, "the control: it is cached without");
}

/// What is promised of the small-file path, as documented in docs/performance.md.
#[test]
fn a_small_file_takes_no_more_calls_than_documented() {
    const CALLS_MAX: f64 = 13.0;
    let Some((_mounted, bench)) = mounted("calls", FileSystem::Ext4) else { return };
    let files = 1000;
    for number in 0..files {
        bench.write(&format!("s/d{}/f{number}", number % 10), "content");
    }
    // Of what is still to be written back, or was changed a moment ago, it is asked as well who has it open for writing.
    bench.sh("sync -f s");
    eventually("files that rest", || {
        bench.sh("find s -type f -newerct '5 seconds ago'").is_empty()
    });
    let of_files = [
        "openat",
        "close",
        "statx",
        "fchmod",
        "fchown",
        "utimensat",
        "flistxattr",
        "fgetxattr",
        "ioctl",
        "copy_file_range",
        "pread64",
        "pwrite64",
        "lseek",
        "fcntl",
        "cachestat",
        // Its name in releases of strace that do not know it.
        "syscall_0x1c3",
    ];
    let total = calls_of_copy(&bench, &of_files);
    assert!(total > 1000.0, "strace counted {total}");
    let each = total / f64::from(files);
    assert!(each <= CALLS_MAX, "{each:.1} calls a file");
}

/// Written in any order, its end may be on storage before its middle.
#[test]
fn what_a_ring_has_written_is_flushed() {
    let Some((_mounted, bench)) = mounted("ring flushes", FileSystem::Ext4) else { return };
    bench.write("s/f", pattern(MIB));
    let log = bench.at("log").to_str().unwrap().to_owned();
    let bench =
        bench.with(|dmover| dmover.wrapped(["strace", "-f", "-e", "fdatasync", "-o", &log]));
    let flushes = |line: &str| {
        bench.copy(line).expect_code(0);
        fs::read_to_string(&log).unwrap().matches("fdatasync(").count()
    };
    assert_eq!(flushes("--engine=uring --reflink=never -T s d1"), 1);
    assert_eq!(flushes("--engine=buffered --reflink=never -T s d2"), 0, "the control");
}

/// As a shell hands them over for a '*'.
#[test]
fn many_sources_take_few_calls_each() {
    let Some((_mounted, bench)) = mounted("many sources", FileSystem::Ext4) else { return };
    bench.sh("mkdir s d && for i in $(seq 500); do echo $i > s/$i; done");
    let log = bench.at("log").to_str().unwrap().to_owned();
    let few_files = ["prlimit", "--nofile=200:200", "strace", "-f", "-c", "-o", &log];
    let bench = bench.with(|dmover| dmover.wrapped(few_files));
    let mut words: Vec<String> = (1..=500).map(|i| format!("s/{i}")).collect();
    words.push("d".into());
    words.insert(0, "-j2".into());
    bench.copy_words(&words).expect_code(0);
    let text = fs::read_to_string(&log).unwrap();
    let calls = |name: &str| {
        let line = text.lines().find(|line| line.trim_end().ends_with(&format!(" {name}")));
        line.unwrap().split_whitespace().nth(3).unwrap().parse::<u32>().unwrap()
    };
    assert!(calls("total") / 500 < 120, "{text}");
    assert!(calls("getdents64") < 50, "the destination is not read for each of them: {text}");
    bench.sh("diff -r s d");
}

/// Where several tasks may work in a directory, one of them may open it to others.
#[test]
fn files_in_shared_directories_are_closed_until_they_are_finished() {
    let Some((_mounted, bench)) = mounted("closed files", FileSystem::Ext4) else { return };
    bench.sh("mkdir -p s/d; echo 1 > s/d/f; chmod 644 s/d/f; echo d > list");
    let log = bench.at("log").to_str().unwrap().to_owned();
    let bench = bench.with(|dmover| dmover.wrapped(["strace", "-f", "-e", "openat", "-o", &log]));
    let created = |line: &str| {
        bench.copy(line).expect_code(0);
        let text = fs::read_to_string(&log).unwrap();
        let line = text.lines().find(|line| line.contains("\"f\"") && line.contains("O_CREAT"));
        // The mode follows the flags, and a bracket or the note that another thread came in between follows the mode.
        let arguments = line.unwrap().split("O_CREAT").nth(1).unwrap();
        let mode = arguments.split(", ").nth(1).unwrap();
        mode.chars().take_while(char::is_ascii_digit).collect::<String>()
    };
    assert_eq!(created("--files-from list -T s d1"), "0600");
    assert_eq!(created("-T s d2"), "0644", "the control");
    bench.sh("mkdir -p other/d both");
    assert_eq!(created("s/. other/d both"), "0600", "two sources meet in both/d");
}

/// Between two file systems nothing can be shared, which the first file shows.
#[test]
fn sharing_blocks_is_not_tried_for_every_file() {
    let Some((_mounted, bench)) = mounted("sharing", FileSystem::Xfs) else { return };
    let Some((_other, source)) = mounted("sharing", FileSystem::Ext4) else { return };
    source.sh("mkdir s && for i in $(seq 100); do echo $i > s/$i; done");
    let log = bench.at("log").to_str().unwrap().to_owned();
    let bench = bench.with(|dmover| dmover.wrapped(["strace", "-f", "-e", "ioctl", "-o", &log]));
    let tree = source.at("s");
    bench.copy(&format!("-j1 -T {} d", tree.display())).expect_code(0);
    let text = fs::read_to_string(&log).unwrap();
    let asked = text.lines().filter(|line| line.contains("FICLONE")).count();
    assert_eq!(asked, 1, "{text}");
}

/// How often these calls are made while `s` is copied to `d`.
fn calls_of_copy(bench: &Bench, names: &[&str]) -> f64 {
    // A job whose total is known from its last run does not count ahead, which would add calls by the clock.
    bench.copy("-q -j2 -T s d").expect_code(0);
    bench.sh("rm -r d");
    let (_, calls) = bench.calls("copy -q -j2 -T s d");
    names.iter().filter_map(|name| calls.get(*name)).copied().map(f64::from).sum()
}

/// Directories that go from mover to mover are not looked at each time.
#[test]
fn a_directory_is_looked_at_a_few_times_only() {
    let Some((_mounted, bench)) = mounted("looks", FileSystem::Ext4) else { return };
    let directories = 2000;
    for number in 0..directories {
        bench.write(&format!("s/d{number}/f"), "content");
    }
    // Two for the file, four for the directory on its way in and out.
    let each = calls_of_copy(&bench, &["statx"]) / f64::from(directories);
    assert!((4.0..=7.0).contains(&each), "{each:.1} looks for each directory and its file");
}

/// Blocks of a file without checksums cannot be shared with one that has them: that is its own affair.
#[test]
fn a_file_that_cannot_be_shared_does_not_keep_others_from_it() {
    let Some((_mounted, bench)) = mounted("odd files", FileSystem::Btrfs) else { return };
    bench.sh("mkdir s && for n in 1 2 3; do touch s/odd$n && chattr +C s/odd$n; done");
    for number in 1..=3 {
        bench.sh(&format!("head -c 1M /dev/urandom >> s/odd{number}"));
        bench.write(&format!("s/plain{number}"), pattern(MIB));
    }
    let line = summary(&bench, "-j1 --preserve=mode,times");
    assert_eq!(line.number("bytes_shared"), Some(3 * MIB as u64));
    bench.sh("diff -r s d");
}

/// Storage is asked for long stretches on borders, not for scraps.
#[test]
fn large_files_reach_storage_in_long_aligned_pieces() {
    let bench = Bench::new();
    bench.write("s/large", pattern(24 * MIB + 5));
    bench.sh("mkdir backing m");
    let cached = Config { direct_io: false, copy_file_range: false, ..Config::default() };
    for (flags, config) in [
        ("--engine=buffered", cached),
        ("--engine=direct", Config { copy_file_range: false, ..Config::default() }),
        ("--engine=kernel", Config { direct_io: false, ..Config::default() }),
    ] {
        let config = Config { keep_records: true, ..config };
        bench.sh("rm -rf backing/* && cp -a s backing/s");
        let mounted = match FaultFs::mount(&bench.at("backing"), &bench.at("m"), config) {
            Ok(mounted) => mounted,
            Err(error) => return skipped("request sizes", &format!("{error:#}")),
        };
        bench.copy(&format!("{flags} --split-size=8M -j2 -T m/s m/d")).expect_code(0);
        let records = mounted.records();
        let of = |op| records.iter().filter(move |r| r.op == op && r.bytes > 0);
        let server_side = of(Op::CopyFileRange).count() > 0;
        for op in [Op::Read, Op::Write, Op::CopyFileRange] {
            let bytes: u64 = of(op).map(|r| r.bytes).sum();
            if bytes == 0 {
                continue;
            }
            // Two movers that read ahead of themselves may ask for a stretch twice.
            let most = if op == Op::Read { 28 * MIB } else { 24 * MIB + 5 };
            let range = (24 * MIB + 5) as u64..=most as u64;
            assert!(range.contains(&bytes), "{flags}: {op:?} of {bytes} bytes");
            let mean = bytes / of(op).count() as u64;
            assert!(mean >= 96 << 10, "{flags}: {op:?} in pieces of {mean} bytes");
            let odd = of(op).filter(|r| r.offset % 4096 != 0).count();
            assert_eq!(odd, 0, "{flags}: {op:?} between borders");
        }
        assert!(!server_side, "{flags}: the kernel is not trusted with copies from FUSE");
        bench.assert_same("s", "backing/d");
    }
}

#[test]
fn the_limit_is_named_with_evidence() {
    let bench = Bench::new();
    bench.write("s/f", pattern(2 * MIB));
    let line = summary(&bench, "--bwlimit=1M");
    let limit = &line.0["limit"];
    assert_eq!(limit["what"], "cap", "{limit}");
    assert!(limit["evidence"].as_str().unwrap().contains("waiting"), "{limit}");
}
