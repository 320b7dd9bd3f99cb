//! What a power cut may have taken from files that look complete, and what is compared because of that.
use super::Bench;
use super::bench::disks::AWAY;
use dmover_testkit::clock::WrongClock;
use dmover_testkit::image::{FileSystem, Image, Mounted};
use dmover_testkit::lanes::run::Dmover;
use dmover_testkit::skip;

/// As a cut may leave a file: of the right size and time, with zeroes in it.
const BLANK: &str = "cp --attributes-only -p d/f time; head -c 6 /dev/zero | dd of=d/f conv=notrunc status=none; touch -r time d/f";

fn mounted(test: &str, file_system: FileSystem) -> Option<(Mounted, Bench)> {
    let mounted = Image::create_or_skip(test, file_system, 128 << 20)?;
    let bench = Bench::inside(mounted.path());
    bench.sh("mkdir s; echo right > s/f");
    Some((mounted, bench))
}

/// How many files a run has compared.
fn compared(bench: &Bench, words: &str) -> u64 {
    let words = format!("{words} --json");
    let run = bench.dmover.run(words.split(' ')).unwrap().expect_code(0);
    let lines = run.lines().unwrap();
    let summary = lines.iter().find(|line| line.is("summary")).unwrap();
    summary.number("files_compared").unwrap()
}

#[test]
fn what_a_copy_has_not_flushed_is_compared_after_a_boot() {
    for file_system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
        let Some((_mounted, bench)) = mounted("cuts", file_system) else { continue };
        compared(&bench, "copy -T s d");
        bench.sh(BLANK);
        assert_eq!(compared(&bench, "copy -T s d"), 0, "memory has what storage has not yet");
        assert_ne!(bench.sh("cat d/f | tr '\\0' 0"), "right\n");
        let bench = bench.with(Dmover::booted);
        assert_eq!(compared(&bench, "copy -T s d"), 1);
        assert_eq!(bench.sh("cat d/f"), "right\n");
    }
}

#[test]
fn another_command_compares_it_as_well() {
    for words in ["sync s d", "copy -u -T s d", "copy -T other d"] {
        let Some((_mounted, bench)) = mounted("cuts", FileSystem::Ext4) else { return };
        bench.sh("cp -a s other");
        compared(&bench, "copy -T s d");
        bench.sh(BLANK);
        let bench = bench.with(Dmover::booted);
        assert_eq!(compared(&bench, words), 1, "{words}");
        assert_eq!(bench.sh("cat d/f"), "right\n");
    }
}

#[test]
fn what_was_flushed_is_not_compared() {
    let Some((_mounted, bench)) = mounted("cuts", FileSystem::Ext4) else { return };
    compared(&bench, "copy --fsync -T s d");
    bench.sh("sync -f .");
    let bench = bench.with(Dmover::booted);
    assert_eq!(compared(&bench, "copy --fsync -T s d"), 0);
    assert_eq!(compared(&bench, "sync s d"), 0);
}

/// A tree that something else has made: nothing is known of it before the first run.
#[test]
fn files_are_asked_about_by_one_run() {
    const FILES: usize = 600;
    let Some((_mounted, bench)) = mounted("asked", FileSystem::Ext4) else { return };
    bench.sh(&format!("for i in $(seq {FILES}); do echo $i > s/$i; done; cp -a s d; cp -a s e"));
    let log = bench.at("log").to_str().unwrap().to_owned();
    let bench = bench.with(|dmover| dmover.wrapped(["strace", "-f", "-e", "ioctl", "-o", &log]));
    let asked = |words: &str| {
        compared(&bench, words);
        bench.read("log").lines().filter(|line| line.contains("FS_IOC_FIEMAP")).count()
    };
    assert!(asked("copy -T s d") >= FILES, "nothing is known");
    assert_eq!(asked("copy -T s d"), 0, "the first run has looked at all of them");
    // What was written since is looked at if it may have been cut off.
    bench.sh(&BLANK.replace("d/f", "d/7").replace("-c 6", "-c 2"));
    assert_eq!(compared(&bench, "copy -T s d"), 0, "memory has it");
    let bench = bench.with(Dmover::booted);
    assert_eq!(compared(&bench, "copy -T s d"), 1);
    bench.sh("diff -r s d");
}

#[test]
fn bytes_that_were_never_written_are_noticed_without_any_record() {
    let rules = ["copy -T s d", "copy -u -T s d", "sync s d"];
    for (file_system, words) in [FileSystem::Ext4, FileSystem::Btrfs].into_iter().zip([0, 1, 2]) {
        let Some((_mounted, bench)) = mounted("cuts", file_system) else { continue };
        // Never written, a hole where the source has data, and holes that both have.
        bench.sh(
            "seq 3000 > s/unwritten; seq 3000 > s/hole; truncate -s 1M s/sparse; seq 3000 | dd of=s/sparse conv=notrunc status=none
            cp -a --sparse=always s d; rm d/unwritten d/hole
            n=$(stat -c %s s/hole); fallocate -l $n d/unwritten; truncate -s $n d/hole
            touch -r s/unwritten d/unwritten; touch -r s/hole d/hole; touch -r s d; sync -f .",
        );
        for words in &rules[words..] {
            let copy = bench.sh("c=copy-$RANDOM; cp -a --sparse=always d $c; rm $c/unwritten; n=$(stat -c %s s/hole)
                fallocate -l $n $c/unwritten; touch -r s/unwritten $c/unwritten; sync -f .; touch $c-mark
                until [ $(($(date +%s%N) - $(date -r $c-mark +%s%N))) -gt 50000000 ]; do :; done; echo -n $c");
            let words = words.replace(" d", &format!(" {copy}"));
            assert_eq!(
                compared(&bench, &format!("{words} --state-dir={copy}-state")),
                2,
                "{words}"
            );
            bench.sh(&format!("diff -r s {copy}"));
        }
    }
}

/// Backup disks take turns in one place: that one was looked at says nothing of the other.
#[test]
fn a_disk_that_another_one_stood_in_for_is_compared() {
    let bench = Bench::new().with(Dmover::booted);
    let _away = bench.undo(AWAY);
    if !bench.make_disks() {
        skip!("no loop devices");
    }
    bench.sh("mkdir s; echo right > s/f; touch -d '2 days ago' s/f");
    let copy = "copy -T s disk/d";
    bench.put_disk(Some("B"));
    compared(&bench, copy);
    bench.sh(&BLANK.replace("d/f", "disk/d/f"));
    for _ in 0..2 {
        bench.put_disk(Some("A"));
        compared(&bench, copy);
        compared(&bench, copy);
    }
    bench.put_disk(Some("B"));
    assert_eq!(compared(&bench, copy), 1);
    assert_eq!(bench.sh("cat disk/d/f"), "right\n");
}

/// Disks that take turns are known each by itself, and nothing is compared again.
#[test]
fn disks_that_take_turns_are_known_by_themselves() {
    let bench = Bench::new();
    let _away = bench.undo(AWAY);
    if !bench.make_disks() {
        skip!("no loop devices");
    }
    bench.sh("mkdir s; echo right > s/f; touch -d '2 days ago' s/f");
    for (turn, disk) in ["A", "B", "A", "B", "A"].iter().enumerate() {
        bench.put_disk(Some(disk));
        let first = turn < 2;
        let copied = compared(&bench, "sync s disk/d");
        let state = bench.dmover.state_directory();
        let wanted = bench.sh(&format!("cat '{}'/file-systems/* | wc -l", state.display()));
        assert_eq!(
            (copied, wanted.trim()),
            (0, if turn == 0 { "1" } else { "2" }),
            "{turn} {first}"
        );
    }
}

/// The record of a kernel before 6.8, which has no numbers of mounts that it does not use again.
#[test]
fn an_old_kernel_does_not_vouch_for_a_mount() {
    let Some((mut mounted, bench)) = mounted("cuts", FileSystem::Ext4) else { return };
    let root = bench.root().to_owned();
    let bench = bench.with(|dmover| dmover.denied(&["statx"], libc_enosys()));
    let away = |bench: &Bench| bench.dmover.state_directory();
    assert!(!away(&bench).starts_with(&root));
    compared(&bench, "copy -T s d");
    bench.sh(BLANK);
    let bench = bench.with(|dmover| dmover.in_directory(std::path::Path::new("/")));
    mounted.unmount().unwrap();
    mounted.mount().unwrap();
    let bench = bench.with(|dmover| dmover.in_directory(&root));
    assert_eq!(compared(&bench, "copy -T s d"), 1);
    assert_eq!(bench.sh("cat d/f"), "right\n");
}

const fn libc_enosys() -> i32 {
    38
}

/// Times of a clock that was set back since say nothing.
#[test]
fn a_clock_that_was_set_back_vouches_for_nothing() {
    let Ok(clock) = WrongClock::new(86_400) else { skip!("no libfaketime") };
    let Some((_mounted, bench)) = mounted("cuts", FileSystem::Ext4) else { return };
    // Each run is of another boot, so that it flushes what the one before has left.
    let ahead = |dmover: Dmover| {
        let words = [clock.words(), dmover.booted_words()].concat();
        dmover.wrapped(words)
    };
    let bench = bench.with(ahead);
    for _ in 0..3 {
        compared(&bench, "copy --fsync -T s d");
    }
    let record = bench.dmover.state_directory();
    let whole = bench
        .sh(&format!("grep -c '\"whole\":{{' '{}'/jobs/*/written.json || true", record.display()));
    assert_eq!(whole.trim(), "1", "nothing could be vouched for");
    bench.sh(BLANK);
    let bench = bench.with(Dmover::booted);
    assert_eq!(compared(&bench, "copy --fsync -T s d"), 1);
    assert_eq!(bench.sh("cat d/f"), "right\n");
    assert_eq!(compared(&bench, "copy --fsync -T s d"), 0, "once is enough");
}
