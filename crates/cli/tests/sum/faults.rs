//! Files that change or cannot be read while they are hashed.
use super::bench::{eventually, wait_for_fault};
use super::{Bench, append, is_root, pattern, words};
use dmover_testkit::faultfs::{Action, Op, Rule, When};
use dmover_testkit::skip;

#[test]
fn a_file_that_changes_while_it_is_hashed_is_read_again() {
    let Some((handle, bench)) = Bench::faulty().filter(|_| is_root()) else {
        skip!("needs root and /dev/fuse");
    };
    // Whole, in parts, and as an entry of a tree.
    for line in ["sum faulty/f", "sum --split-size=1M -j2 faulty/f", "sum faulty"] {
        bench.write("backing/f", pattern(3_000_000));
        handle.set_rules(&[Rule::new(Op::Read, Action::Hang { duration_ms: 60_000 })]).unwrap();
        let running = bench.dmover.start(line.split_whitespace()).unwrap();
        wait_for_fault(&handle);
        append(&bench.at("backing/f"), "more");
        handle.set_rules(&[]).unwrap();
        handle.release_hangs();
        let run = running.finish().unwrap().expect_code(0);
        let expected = bench.sh("b3sum backing/f | cut -c1-64");
        assert_eq!(run.text()[..64], *expected.trim(), "{line}: {}", run.tell());
    }
}

#[test]
fn what_cannot_be_read_has_no_digest() {
    let Some((handle, bench)) = Bench::faulty().filter(|_| is_root()) else {
        skip!("needs root and /dev/fuse");
    };
    for (line, length) in [
        ("sum faulty/f faulty/g", 100_000),
        ("sum --split-size=1M -j2 faulty/f faulty/g", 3_000_000),
        ("sum faulty", 3_000_000),
    ] {
        bench.write("backing/f", pattern(length));
        bench.write("backing/g", "1");
        let rule = Rule::new(Op::Read, Action::Errno(5)).name("f").when(When::Always).count(0);
        handle.set_rules(&[rule]).unwrap();
        let run = bench.dmover(line).expect_code(3);
        assert_eq!(run.text().lines().count(), 1, "{line}: {}", run.tell());
        assert!(words(&run).contains("cannot read faulty/f: Input/output error"), "{}", run.tell());
        handle.set_rules(&[]).unwrap();
        // Short answers are read on.
        let short = Rule::new(Op::Read, Action::ShortRead(5000)).when(When::Every(3)).count(0);
        handle.set_rules(&[short]).unwrap();
        let run = bench.dmover(line).expect_code(0);
        handle.set_rules(&[]).unwrap();
        let expected = bench.sh("b3sum backing/f | cut -c1-64");
        assert!(run.text().contains(expected.trim()), "{line}: {}", run.tell());
    }
}

/// Found, then written to, then opened: the manifest has one version of it.
#[test]
fn a_manifest_has_one_version_of_a_file() {
    let Some((handle, bench)) = Bench::faulty().filter(|_| is_root()) else {
        skip!("needs root and /dev/fuse");
    };
    bench.write("backing/s/f", pattern(1000));
    for (existing, name) in [("mkdir d", "d"), ("cp -a backing/s kept", "kept")] {
        bench.sh(existing);
        let hang = Rule::new(Op::Open, Action::Hang { duration_ms: 60_000 }).name("f");
        handle.set_rules(&[hang]).unwrap();
        let line = format!("copy -q --manifest {name}.m -T faulty/s {name}");
        let running = bench.dmover.start(line.split_whitespace()).unwrap();
        wait_for_fault(&handle);
        append(&bench.at("backing/s/f"), "more");
        handle.set_rules(&[]).unwrap();
        handle.release_hangs();
        running.finish().unwrap().expect_code(0);
        let list = bench.out(&format!("manifest print --format=sums --prefix {name} {name}.m"));
        assert_eq!(list.lines().count(), 1, "{list}");
        bench.dmover_with("sum -c", list).expect_code(0);
        bench.sh(&format!("diff -r backing/s {name}"));
    }
}

/// The other files of a list do not wait for a large one.
#[test]
fn movers_share_large_files_before_the_first_is_done() {
    let Some((handle, bench)) = Bench::faulty().filter(|_| is_root()) else {
        skip!("no FUSE");
    };
    for name in ["f", "g", "h", "i"] {
        bench.write(&format!("backing/{name}"), pattern(9 << 20));
    }
    let rule = Rule::new(Op::Read, Action::Hang { duration_ms: 200_000 }).name("f");
    handle.set_rules(&[rule]).unwrap();
    let words = "sum -a md5 -j2 faulty/f faulty/g faulty/h faulty/i";
    let running = bench.dmover.start(words.split_whitespace()).unwrap();
    let others = 3 * (9 << 20);
    eventually("the other three", || handle.counters().of(Op::Read).bytes >= others);
    handle.release_hangs();
    let run = running.finish().unwrap().expect_code(0);
    assert_eq!(run.text(), bench.sh("md5sum faulty/f faulty/g faulty/h faulty/i"));
}
