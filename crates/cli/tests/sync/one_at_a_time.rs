//! Jobs that write to one place see each other by locks of the directories there, whatever state directories they have.
use dmover_testkit::lanes::run::{Run, Running};

use super::Bench;
use crate::bench::{NOBODY, PROGRAM};

/// What slows a job down until it is killed.
const SLOW: &str = "--json --bwlimit=1M";

fn bench() -> Bench {
    let bench = Bench::new();
    bench.sh(
        "mkdir a a2 a2/sub; head -c 9M /dev/zero | tr '\\0' x > a/f; echo 2 > a2/g; cp a/f big; echo s > small",
    );
    bench
}

/// A job that has begun and does not end by itself.
#[track_caller]
fn begin(bench: &Bench, line: &str) -> Running {
    let (verb, rest) = line.split_once(' ').unwrap();
    let line = match rest.strip_prefix("create ") {
        Some(rest) => format!("{verb} create {SLOW} {rest}"),
        None => format!("{verb} {SLOW} {rest}"),
    };
    let running = bench.dmover.start(line.split(' ').filter(|word| !word.is_empty())).unwrap();
    assert!(running.wait_for_stdout("\"start\"", 1), "{line}: {}", running.stderr_so_far());
    running
}

/// It was refused for another job, which the message names.
#[track_caller]
fn is_refused(run: Run, words: &[&str], by: &Running) {
    let run = run.expect_code(6);
    let pid = format!("process {}", by.pid().as_raw_nonzero());
    for words in words.iter().chain([&&*pid]) {
        assert!(run.stderr.contains(words), "no {words:?}: {}", run.tell());
    }
    assert_eq!(run.stderr.lines().count(), 2, "{}", run.tell());
}

#[test]
fn two_jobs_to_one_place_do_not_run_at_once() {
    // The first one, the second one, and what the refusal says; nothing: both may run.
    const PAIRS: &[(&str, &str, &str)] = &[
        ("sync a d", "sync --no-state a d", "already writes to"),
        ("sync --no-state a d", "sync --state-dir other a d", "already writes to"),
        ("sync a d", "sync --state-dir other a2 d", "already writes to"),
        ("sync a d", "copy -T --state-dir other a2 d", "already writes to"),
        ("sync a d", "copy --no-state a2 d", "already writes to"),
        ("sync a d", "copy --no-state small d/h", "already writes to"),
        ("sync a d", "cp -r a2 d", "already writes to"),
        ("sync a old", "verify --repair --state-dir other a2 old", "already writes to"),
        ("copy --no-state -T a d", "sync a2 d", "already writes"),
        ("copy -T a d", "sync --no-state a2 d", "already writes"),
        ("copy a old", "sync --no-state a2 old", "already writes below"),
        ("copy big old/new", "sync --no-state a2 old", "already writes below"),
        ("verify --repair a old", "sync --no-state a2 old", "already writes"),
        // The same copy, also where its DEST exists by now.
        ("copy -T a d", "copy -T --no-state a d", "the same copy already runs"),
        ("copy a d", "copy --state-dir other a d", "the same copy already runs"),
        ("copy --no-state a d", "cp -r a d", "the same copy already runs"),
        ("copy big d", "copy --no-state big d", "already"),
        ("copy big d", "copy --no-state small d", "already writes to"),
        ("copy big old", "cp big old", "already"),
        // One inside the other.
        ("sync a old/in", "sync --no-state a2 old", "already writes below"),
        ("sync a old", "sync --no-state a2 old/in", "already writes to"),
        ("sync a d", "copy --no-state a2 d/in", "already writes to"),
        ("copy -T a old", "sync --no-state a2 old/in", "already writes to"),
        ("copy -T a old/in", "sync --no-state a2 old", "already writes below"),
        ("snapshot create a snaps", "sync --no-state a2 snaps", "already writes below"),
        ("sync --no-state a snaps", "snapshot create a2 snaps", "already writes to"),
        // These do not meet, or only add.
        ("sync a old/in", "sync --no-state a2 old/out", ""),
        ("sync a old/in", "copy --no-state a2 old/out", ""),
        ("copy -T a d", "copy -T --no-state a2 d", ""),
        ("copy a old", "copy --no-state a2 old", ""),
        ("copy a old", "cp -r a2 small old", ""),
        ("copy big old/new", "copy --no-state small old/other", ""),
        ("copy a old", "sync --no-state a2 old/in", ""),
        ("snapshot create a snaps", "copy --no-state a2 snaps", ""),
        ("sync a old", "sync -n --no-state a2 old", ""),
        ("sync a old", "verify --level=exists a2 a2", ""),
    ];
    let bench = bench();
    for (first, second, words) in PAIRS {
        bench.sh("rm -rf d old snaps other; mkdir -p old/in snaps; echo old > old/in/f");
        let running = begin(&bench, first);
        if second.contains(" d/") {
            crate::bench::eventually("DEST", || bench.exists("d"));
        }
        let run = bench.dmover(second);
        if words.is_empty() {
            assert_eq!(run.code(), Some(0), "{first}, then {}", run.tell());
        } else {
            is_refused(run, &[words], &running);
        }
        running.kill().unwrap();
    }
    // Locks go with the process that has them.
    bench.sh("rm -rf d");
    begin(&bench, "sync --no-state a d").kill().unwrap();
    // A new file has its name from the beginning, if the job came that far.
    bench.sh("rm -f d/f");
    bench.dmover("sync a2 d").expect_code(0);
    assert_eq!(bench.rsync("a2", "d"), "");
}

#[test]
fn other_users_and_bind_mounts_do_not_hide_a_job() {
    let bench = bench();
    bench.sh("mkdir d m; mount --bind d m; chmod 755 . a a2; chmod 777 d");
    let undo = bench.undo("umount -l m");
    let running = begin(&bench, "sync a d");
    is_refused(bench.dmover("sync --no-state a2 m"), &["already writes to"], &running);
    is_refused(bench.dmover("copy --no-state a2 m/in"), &["already writes to"], &running);
    let nobody = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    let said = bench.sh(&format!(
        "cp {PROGRAM} program; chmod 755 program; {nobody} ./program copy --no-state -T a2 d 2>&1 || echo $?"
    ));
    assert!(said.contains("already writes to") && said.ends_with("\n6\n"), "{said}");
    running.kill().unwrap();
    drop(undo);
}

#[test]
fn the_lock_of_a_destination_is_that_of_flock() {
    let bench = bench();
    for (made, line) in [
        ("mkdir d", "sync a d"),
        // DEST is locked as soon as it is there.
        ("true", "sync a d"),
        ("true", "copy -T a d"),
        ("mkdir d", "copy -T a d"),
        ("mkdir d", "copy a d"),
        ("mkdir d", "copy big d"),
        ("mkdir d", "snapshot create a d"),
    ] {
        bench.sh(&format!("rm -rf d; {made}"));
        let running = begin(&bench, line);
        crate::bench::eventually("the lock", || {
            bench.sh("[ -d d ] && { flock -nx d true || echo held; }; true") == "held\n"
        });
        let shared = if line.starts_with("sync") { "held\n" } else { "free\n" };
        assert_eq!(bench.sh("flock -ns d echo free || echo held"), shared, "{line}");
        running.kill().unwrap();
    }
    // Somebody else's lock.
    bench.sh("mkdir -p d");
    let mut holder = std::process::Command::new("flock");
    let holder = holder.args(["-x", "d", "cat"]).current_dir(bench.root());
    let mut holder = holder.stdin(std::process::Stdio::piped()).spawn().unwrap();
    crate::bench::eventually("the lock", || bench.sh("flock -nx d true || echo held") == "held\n");
    let pid = format!("process {}", holder.id());
    for line in [
        "sync a2 d",
        "sync --no-state a2 d",
        "copy a2 d",
        "copy -T a2 d",
        "copy small d",
        "cp small d",
        "verify --repair a2 d",
        "snapshot create a2 d",
    ] {
        let run = bench.dmover(line).expect_code(6);
        let words = run.stderr.contains("(flock)") && run.stderr.contains("d'");
        assert!(words && run.stderr.contains(&pid), "{}", run.tell());
        assert_eq!(bench.sh("find d ! -path 'd/.dmover-snapshots*'"), "d\n", "{line}");
    }
    bench.dmover("sync -n a2 d").expect_code(0);
    bench.dmover("verify a2 a2").expect_code(0);
    holder.kill().unwrap();
    holder.wait().unwrap();
    bench.dmover("sync --yes a2 d").expect_code(0);
}

#[test]
fn a_lock_that_was_taken_for_the_command_is_its_own() {
    let bench = bench();
    let state = format!("DMOVER_STATE_DIR={}", bench.dmover.state_directory().display());
    bench.sh(&format!(
        "mkdir d; export {state}; flock -nx d {PROGRAM} sync -q a2 d; flock -nx d {PROGRAM} cp -r a2 d
         ( flock -n 9; {PROGRAM} sync -q --no-state a2 d ) 9< d; exec 9< d; flock -n 9; ! {PROGRAM} sync -q a2 d 9<&-"
    ));
}
