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
