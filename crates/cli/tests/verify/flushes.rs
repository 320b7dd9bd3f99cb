//! A device that loses writes: what the page cache has is no proof of what the device has.
use super::{Bench, damage, found, pattern};
use dmover_testkit::failing_disk::FailingDisk;

/// One file as its source, then damaged in three places, on a device that is about to fail.
fn damaged(disk: &FailingDisk) -> Bench {
    let bench = Bench::inside(&disk.path());
    bench.write("a/f", pattern(3_000_000));
    bench.sh("cp -a a b");
    for at in [5, 1_500_000, 2_900_000] {
        damage(&bench, "b/f", at);
    }
    bench.sh("sync -f .");
    bench
}

#[test]
fn what_could_not_be_flushed_is_written_again_or_told() {
    let test = "what_could_not_be_flushed_is_written_again_or_told";
    for (count, more) in [
        (1, ""),
        (2, ""),
        (3, ""),
        (2, "--split-size=1M"),
        (2, "--manifest m --from a"),
        (2, "--manifest m --from a --split-size=1M"),
        (0, ""),
        (0, "--manifest m --from a"),
    ] {
        let Some(disk) = FailingDisk::create_or_skip(test, 64 << 20) else { return };
        let bench = damaged(&disk);
        let line = match more.strip_prefix("--manifest m") {
            Some(_) => {
                bench.dmover("copy -q -T --manifest m a c").expect_code(0);
                bench.sh("rm -r c; sync -f .");
                format!("verify --repair --json {more} b")
            }
            None => format!("verify --repair --json {more} a b"),
        };
        disk.fail_writes(count).unwrap();
        let run = bench.dmover(&line);
        assert!(disk.heal().unwrap() > 0, "no write has failed: {}", run.tell());
        let found = found(&run);
        let repaired =
            found.iter().any(|one| one.path.ends_with("/f") && one.repaired == Some(true));
        assert_eq!(repaired, run.code() == Some(0), "{count} {more}: {}", run.tell());
        if run.code() != Some(0) {
            // The page cache has what the device has not, also for the next run.
            assert_eq!(run.code(), Some(7), "{count} {more}: {}", run.tell());
            bench.dmover(&line).expect_code(0);
        }
        let name = bench.root().file_name().unwrap().to_owned();
        disk.remount().unwrap();
        let b = disk.path().join(name);
        let same = std::fs::read(b.join("a/f")).unwrap() == std::fs::read(b.join("b/f")).unwrap();
        assert!(same, "{count} {more}: {}", run.tell());
        assert!(count != 0 || run.code() == Some(7), "{more}: {}", run.tell());
    }
}

/// Runs a command on a failing disk, then again until it ends with 0, and answers the exit codes. The files under `a` and
/// `b` have to be the same on the device then.
fn until_done(disk: &FailingDisk, bench: &Bench, line: &str) -> Vec<Option<i32>> {
    let mut codes = Vec::new();
    while codes.last() != Some(&Some(0)) && codes.len() < 4 {
        let run = bench.dmover(line);
        if codes.is_empty() {
            assert!(disk.heal().unwrap() > 0, "{line}: no write has failed");
        }
        codes.push(run.code());
    }
    let name = bench.root().file_name().unwrap().to_owned();
    disk.remount().unwrap();
    let b = disk.path().join(name);
    for file in ["f", "g"] {
        let read = |tree: &str| std::fs::read(b.join(tree).join(file)).unwrap();
        assert!(read("a") == read("b"), "{line}: {file} differs after {codes:?}");
    }
    codes
}

#[test]
fn what_did_not_read_back_is_brought_over_by_the_next_run() {
    let test = "what_did_not_read_back_is_brought_over_by_the_next_run";
    for (writes, line) in [
        ("fail", "copy --verify=read-back -T a b"),
        ("fail", "copy --verify=read-back --split-size=1M -T a b"),
        ("spoil", "copy --verify=read-back -T a b"),
        ("spoil", "copy --verify=read-back --split-size=1M -T a b"),
        ("spoil", "copy --update --verify=read-back -T a b"),
        ("spoil", "sync --verify=read-back a b"),
    ] {
        let Some(disk) = FailingDisk::create_or_skip(test, 64 << 20) else { return };
        let bench = Bench::inside(&disk.path());
        bench.write("a/f", pattern(3_000_000));
        bench.write("a/g", pattern(30_000));
        bench.sh("touch -d @0 a/g; sync -f .");
        match writes {
            "fail" => disk.fail_writes(0).unwrap(),
            _ => disk.spoil_writes(2).unwrap(),
        }
        let codes = until_done(&disk, &bench, line);
        let split = line.contains("split-size");
        // A large file is flushed before it gets its name, so that its failure is one of the copy.
        let first = if split && writes == "fail" { codes[0] } else { Some(7) };
        assert_eq!(codes, [first, Some(0)], "{writes} {line}");
    }
}

#[test]
fn what_could_not_be_flushed_into_a_file_in_place_is_written_again() {
    let test = "what_could_not_be_flushed_into_a_file_in_place_is_written_again";
    for line in ["sync --inplace a b", "copy --inplace -T a b", "sync --inplace --checksum a b"] {
        for count in [1, 2, 3, 0] {
            let Some(disk) = FailingDisk::create_or_skip(test, 64 << 20) else { return };
            let bench = Bench::inside(&disk.path());
            bench.write("a/f", pattern(3_000_000));
            bench.write("a/g", pattern(30_000));
            bench.sh("cp -a a b");
            for at in [5, 1_500_000, 2_900_000] {
                damage(&bench, "a/f", at);
            }
            damage(&bench, "a/g", 20_000);
            if !line.contains("--checksum") {
                bench.sh("touch a/f a/g");
            }
            bench.sh("sync -f .");
            disk.fail_writes(count).unwrap();
            until_done(&disk, &bench, line);
        }
    }
}
