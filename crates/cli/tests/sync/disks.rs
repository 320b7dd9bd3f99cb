//! Disks that are mounted in one place in turn: what is known of one is not believed of another.
use dmover_testkit::image::FileSystem;
use dmover_testkit::powercut::PowerCutDevice;
use dmover_testkit::skip;

use super::Bench;
use super::bench::disks::AWAY;

/// A source, two disks, and what undoes that.
macro_rules! place {
    () => {{
        let bench = Bench::new();
        if !bench.make_disks() {
            skip!("no loop devices");
        }
        bench.sh("mkdir a; touch a/{1..9}");
        bench
    }};
}

/// The job that a run was.
fn job(bench: &Bench, line: &str) -> String {
    let run = bench.dmover(&format!("{line} --json")).expect_code(0);
    run.lines().unwrap().last().unwrap().text("job").to_owned()
}

/// Nothing that this job did not bring is deleted from what is mounted there.
#[track_caller]
fn assert_keeps(bench: &Bench, line: &str, precious: &str) {
    let run = bench.dmover(line).expect_code(2);
    assert!(run.stderr.contains("this job did not copy"), "{}", run.tell());
    assert!(bench.exists(precious), "{}", run.tell());
}

#[test]
fn a_power_cut_does_not_make_another_disk_the_first_one() {
    let Some(device) = PowerCutDevice::create_or_skip("disks", FileSystem::Ext4, 128 << 20) else {
        return;
    };
    let bench = place!();
    let _away = bench.undo(AWAY);
    let line = |state: &str| format!("sync --delete --state-dir {state} a disk/d");
    bench.put_disk(Some("A"));
    bench.dmover(&line(&device.path().join("state").display().to_string())).expect_code(0);
    device.cut_power().unwrap();
    let storage = device.recover().unwrap();
    let line = line(&storage.path().join("state").display().to_string());
    bench.dmover(&line).expect_code(0);
    bench.put_disk(Some("B"));
    bench.sh("touch disk/d/precious");
    assert_keeps(&bench, &line, "disk/d/precious");
}

#[test]
fn what_has_no_name_is_not_the_disk_that_has_one() {
    let bench = place!();
    let _away = bench.undo(AWAY);
    let line = "sync --delete a disk/d";
    let in_memory = "mount -t tmpfs none disk; mkdir disk/d; touch disk/d/precious";
    bench.put_disk(Some("A"));
    let first = job(&bench, line);
    bench.put_disk(None);
    bench.sh(in_memory);
    assert_keeps(&bench, line, "disk/d/precious");
    bench.sh("umount disk");
    bench.put_disk(Some("A"));
    assert_eq!(job(&bench, line), first, "the disk is known as before");
    // The other way round.
    bench.put_disk(None);
    let line = "sync --delete a disk/other";
    bench.sh("mount -t tmpfs none disk");
    job(&bench, line);
    bench.sh("umount disk");
    bench.put_disk(Some("B"));
    bench.sh("mkdir disk/other; touch disk/other/precious");
    assert_keeps(&bench, line, "disk/other/precious");
}

#[test]
fn a_disk_keeps_its_job_when_that_of_the_first_disk_is_forgotten() {
    let bench = place!();
    let _away = bench.undo(AWAY);
    let lines = ["sync a disk/d", "copy a disk/e"];
    bench.put_disk(Some("A"));
    let first = lines.map(|line| job(&bench, line));
    bench.put_disk(Some("B"));
    let second = lines.map(|line| job(&bench, line));
    assert!(first.iter().all(|job| !second.contains(job)));
    for job in &first {
        bench.dmover(&format!("cleanup {job}")).expect_code(0);
    }
    assert_eq!(lines.map(|line| job(&bench, line)), second);
    // It is known that 'e' is the copy: nothing goes into it.
    assert!(!bench.exists("disk/e/a"));
    bench.put_disk(Some("A"));
    assert_eq!(job(&bench, lines[0]), first[0]);
    for job in [&first[0], &second[0], &second[1]] {
        bench.dmover(&format!("cleanup {job}")).expect_code(0);
    }
    let state = bench.dmover.state_directory();
    assert_eq!(bench.sh(&format!("ls '{}/file-systems'", state.display())), "");
}
