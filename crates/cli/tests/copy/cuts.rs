//! What a power cut may have taken from files that look complete, and what is compared because of that.
use super::Bench;
use dmover_testkit::image::{FileSystem, Image, Mounted};
use dmover_testkit::lanes::run::Dmover;

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
                fallocate -l $n $c/unwritten; touch -r s/unwritten $c/unwritten; sync -f .; echo -n $c");
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
