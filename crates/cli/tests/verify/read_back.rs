//! `copy --verify`: what was written is read back from storage.
use super::{Bench, pattern, two_trees};
use dmover_testkit::faultfs::{Action, Config, FaultFs, Op, Rule};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::skip::skipped;
use std::fs::File;
use std::os::unix::fs::FileExt;

#[test]
fn a_good_copy_reads_back_equal_and_says_so() {
    let bench = Bench::new();
    two_trees(&bench);
    let run = bench.dmover("copy --verify=read-back -T a c").expect_code(0);
    assert!(run.stderr.contains("read back 13 entries"), "{}", run.tell());
    bench.assert_same("a", "c");
    // What was there already was not written.
    let run = bench.copy("--verify=read-back -T a c").expect_code(0);
    let lines = run.lines().unwrap();
    let back = lines.iter().find(|line| line.is("read_back")).unwrap();
    assert_eq!(back.number("bytes"), Some(0));
    for bad in ["--verify=some", "--verify=sample:0", "--verify=read-back -n"] {
        bench.dmover(&format!("copy {bad} a elsewhere")).expect_code(2);
        assert!(!bench.exists("elsewhere"));
    }
    bench.dmover("copy -q --verify=sample:50 -T a e").expect_code(0);
    bench.dmover("copy -q --verify=read-back a/d/one f").expect_code(0);
}

/// The device changes below the page cache, which goes on to have what was written.
#[test]
fn what_storage_has_counts_and_not_the_page_cache() {
    let test = "what_storage_has_counts_and_not_the_page_cache";
    let Some(image) = Image::create_or_skip(test, FileSystem::Ext4, 256 << 20) else { return };
    let bench = Bench::new();
    let mut content = pattern(3_000_000);
    content[2_000_000..2_000_016].copy_from_slice(b"\x01MARK OF A TEST\x02");
    bench.write("backing/one/first", &content);
    bench.write("backing/two/second", pattern(1000));
    bench.sh("mkdir seen");
    // The second file can only be read once the first one has been spoiled.
    let long = Rule::new(Op::Read, Action::Hang { duration_ms: 60_000 });
    let rules = vec![long.name("second").count(1)];
    let config = Config { rules, ..Config::default() };
    let served = FaultFs::mount(&bench.at("backing"), &bench.at("seen"), config).unwrap();
    let copy = image.path().join("copy");
    // One mover: the source that is named last comes first.
    let copy = copy.to_str().unwrap();
    std::fs::create_dir(copy).unwrap();
    let words = ["copy", "-j1", "--verify=read-back", "--json", "-t", copy, "seen/two", "seen/one"];
    let running = bench.dmover.start(words).unwrap();
    bench.sh(&format!(
        "n=0; while ! cmp -s backing/one/first {copy}/one/first && [ $n -lt 3000 ]; do sleep 0.01; n=$((n + 1)); done; sync -f {copy}"
    ));
    let device = std::fs::read(image.image()).unwrap();
    let places: Vec<usize> = (0..device.len() - 16)
        .step_by(16)
        .filter(|at| device[*at..].starts_with(b"\x01MARK OF A TEST\x02"))
        .collect();
    assert_eq!(places.len(), 1, "the mark lies on the device once");
    let file = File::options().write(true).open(image.image()).unwrap();
    file.write_all_at(b"X", places[0] as u64 + 3).unwrap();
    // A reader still sees what was written.
    bench.sh(&format!("cmp backing/one/first {copy}/one/first"));
    served.release_hangs();
    let run = running.finish().unwrap().expect_code(7);
    let found = super::found(&run);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].path.ends_with("/first"));
    assert_eq!(found[0].ranges, [(1_048_576, 2_097_152)]);
}

/// What only got other attributes or another name was not written.
#[test]
fn what_was_not_written_is_not_read_back() {
    let bench = Bench::new();
    two_trees(&bench);
    bench.sh("rm -r b");
    bench.dmover("sync -q a b").expect_code(0);
    for verify in ["read-back", "sample:100"] {
        for change in [
            "setfattr -n user.new -v 1 a/d/two a/d",
            "chmod 640 a/d/one",
            "ln a/d/one a/again",
            "ln a/d/e/three a/d/three; printf new > a/new; ln a/new a/d/new; ln -s x a/symlink",
        ] {
            bench.sh(change);
            let run = bench.dmover(&format!("sync --verify={verify} a b")).expect_code(0);
            assert!(run.stderr.contains("dmover: read back "), "{change}: {}", run.tell());
            bench.assert_same("a", "b");
        }
        bench.sh("rm a/again a/d/three a/new a/d/new a/symlink; setfattr -x user.new a/d/two; chmod 644 a/d/one");
        bench.sh("rm -r b; cp -a a b");
    }
}

/// Storage that spoils every file: a few are shown, all are listed.
#[test]
fn of_many_differences_twenty_are_shown_and_all_are_listed() {
    let test = "of_many_differences_twenty_are_shown_and_all_are_listed";
    let Some((handle, bench)) = Bench::faulty() else { return skipped(test, "no FUSE") };
    bench.sh("mkdir a; for n in $(seq 30); do seq $n $((n + 1000)) > a/f$n; done");
    let spoils = Rule::new(Op::Read, Action::BitFlip { offset_in_buffer: 5 }).count(0);
    handle.set_rules(&[spoils]).unwrap();
    let expected = bench.sh("ls a | sort | sed \"s|.*|$PWD/faulty/b/&|\"");
    for verb in ["copy -T", "sync"] {
        let words = format!("{verb} --verify=read-back --errors-to list a faulty/b");
        let run = bench.dmover(&words).expect_code(7);
        let shown = |part: &str| run.stderr.lines().filter(|line| line.contains(part)).count();
        assert_eq!(shown("read back differs"), 20, "{}", run.tell());
        let further = "further read-back differences are not shown (-v shows all)";
        assert_eq!(shown(further), 1, "{}", run.tell());
        assert_eq!(shown("30 did NOT match"), 1, "{}", run.tell());
        let line =
            run.stderr.lines().find_map(|line| line.trim().strip_prefix("full list: dmover "));
        let listing = bench.dmover(line.unwrap_or_else(|| panic!("{}", run.tell())));
        let listing = listing.expect_code(0).text();
        let paths = |text: &str| {
            let mut paths: Vec<_> =
                text.lines().map(|line| line.split(": ").next().unwrap().to_owned()).collect();
            paths.sort_unstable();
            paths.join("\n") + "\n"
        };
        assert_eq!(paths(&listing), expected);
        assert!(listing.lines().all(|line| line.ends_with("[integrity]")), "{listing}");
        assert_eq!(bench.read("list").lines().count(), 30);
        bench.sh("rm -r backing/b");
    }
    let run = bench.dmover("copy -T -v --no-state --verify=read-back a faulty/b").expect_code(7);
    let all = run.stderr.lines().filter(|line| line.contains("read back differs")).count();
    assert_eq!(all, 30, "{}", run.tell());
}
