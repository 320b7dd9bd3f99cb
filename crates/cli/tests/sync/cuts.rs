//! What a pass that was cut off leaves in doubt stays so until it was looked into.
use super::Bench;
use super::bench::disks::AWAY;
use super::bench::wait_for_fault;
use dmover_testkit::faultfs::{Action, Op, Rule};
use dmover_testkit::image::FileSystem;
use dmover_testkit::powercut::PowerCutDevice;
use dmover_testkit::skip;
use rusqlite::Connection;

/// As ext4 may leave a file: of the right size and time, with zeroes in it.
const BLANK: &str = "cp --attributes-only -p backing/f time; head -c 6 /dev/zero | dd of=backing/f conv=notrunc status=none; touch -r time backing/f";

#[test]
fn what_fails_after_a_cut_is_compared_again() {
    let test = "what_fails_after_a_cut_is_compared_again";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir a; echo right > a/f; touch a/{1..9}");
    bench.sync("a faulty", 0);
    bench.sh(BLANK);
    bench.as_if_killed();
    handle.set_rules(&[Rule::new(Op::Write, Action::Errno(28)).count(0)]).unwrap();
    bench.sync("a faulty", 3);
    handle.set_rules(&[]).unwrap();
    bench.sync("a faulty", 0);
    assert_eq!(bench.sh("cat backing/f"), "right\n");
    assert_eq!(bench.ask("SELECT count(*) FROM doubt"), 0, "it was looked into");
}

/// A pass with rules ends, and has not looked at what one without rules may have left.
#[test]
fn a_pass_with_rules_does_not_end_the_doubts_of_one_without() {
    let test = "a_pass_with_rules_does_not_end_the_doubts_of_one_without";
    let Some((_handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir a; echo right > a/f; touch a/{1..9}");
    bench.sync("a faulty", 0);
    bench.sh(BLANK);
    bench.as_if_killed();
    bench.sync("--exclude=f a faulty", 0);
    bench.sync("a faulty", 0);
    assert_eq!(bench.sh("cat backing/f"), "right\n");
}

/// The journal may lie on other storage than the destination.
#[test]
fn that_a_pass_has_begun_survives_a_power_cut() {
    let test = "that_a_pass_has_begun_survives_a_power_cut";
    let Some(storage) = PowerCutDevice::create_or_skip(test, FileSystem::Ext4, 64 << 20) else {
        return;
    };
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir a; echo x > a/f");
    handle.set_rules(&[Rule::new(Op::Create, Action::Hang { duration_ms: 60_000 })]).unwrap();
    let state = storage.path().join("state").display().to_string();
    let running = bench.dmover.start(["sync", "--state-dir", &state, "a", "faulty"]).unwrap();
    wait_for_fault(&handle);
    storage.cut_power().unwrap();
    running.signal(rustix::process::Signal::KILL);
    handle.release_hangs();
    running.finish().unwrap();
    let storage = storage.recover().unwrap();
    let jobs = std::fs::read_dir(storage.path().join("state/jobs")).unwrap();
    let job = jobs.map(|job| job.unwrap().path()).find(|job| job.is_dir()).unwrap();
    let journal = Connection::open(job.join("journal.sqlite")).unwrap();
    let sql = "SELECT count(*) FROM pass WHERE state = 'running'";
    let begun: i64 = journal.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(begun, 1);
}

/// What a pass over one disk has left in doubt is not settled by a pass over another one in its place, and is not gone on with there.
#[test]
fn a_pass_that_was_cut_off_on_one_disk_is_not_gone_on_with_on_another() {
    let bench = Bench::new();
    let _away = bench.undo(AWAY);
    if !bench.make_disks() {
        skip!("no loop devices");
    }
    bench
        .sh("mkdir -p a/d; echo right > a/f; touch -d '2 days ago' a/f; touch a/{1..9} a/d/{1..9}");
    bench.put_disk(Some("B"));
    bench.sync("a disk/d", 0);
    bench.sh(&BLANK.replace("backing/f", "disk/d/f"));
    bench.as_if_killed();
    bench.put_disk(Some("A"));
    for _ in 0..2 {
        bench.sync("a disk/d", 0);
        bench.sh("diff -r a disk/d");
    }
    bench.put_disk(Some("B"));
    bench.sync("a disk/d", 0);
    assert_eq!(bench.sh("cat disk/d/f"), "right\n");
    // Deletes follow from what is known of this disk alone.
    bench.put_disk(Some("A"));
    bench.sh("rm a/1");
    bench.dmover("sync --delete a disk/d").expect_code(0);
    bench.sh("diff -r a disk/d");
}
