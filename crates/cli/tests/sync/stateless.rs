//! Passes without a state directory: the destination carries the lock.
use super::Bench;
use crate::bench::PROGRAM;

/// Nothing names a directory for state. Who is root has one in any case.
const STATELESS: &str = "env -u HOME -u XDG_STATE_HOME -u DMOVER_STATE_DIR setpriv --reuid=65534 --regid=65534 --clear-groups";

#[test]
fn two_passes_without_state_do_not_meet() {
    let bench = Bench::new();
    bench.sh("mkdir a; head -c 3M /dev/urandom > a/f; chown -R 65534:65534 .; chmod 755 .");
    // A first pass that takes seconds, and a second one as soon as it has begun.
    let said = bench.sh(&format!(
        "{STATELESS} {PROGRAM} sync -q -j1 --bwlimit=1M --label=x a b 2> first & first=$!
         n=0; while ! [ -e b/f ] && kill -0 $first && [ $n -lt 6000 ]; do n=$((n + 1)); sleep 0.01; done
         {STATELESS} {PROGRAM} sync -q a b 2> second && echo 0 || echo $?
         wait $first && echo 0 || echo $?; ls -A b"
    ));
    assert_eq!(said, "6\n0\nf\n", "{}", bench.read("second"));
    bench.sh("cmp a/f b/f");
    let first = bench.read("first");
    assert_eq!(first.lines().count(), 1, "{first}");
    for words in
        ["neither $XDG_STATE_HOME nor $HOME is set", "no journal", "--label", "--state-dir"]
    {
        assert!(first.contains(words), "{first}");
    }
    // The lock goes with its holder, and a destination that is there already has one as well.
    bench.sh(&format!("{STATELESS} {PROGRAM} sync -q a b; exec 9< b; flock -n 9; {STATELESS} {PROGRAM} sync -q a b 9<&- || [ $? = 6 ]"));
}

#[test]
fn every_job_that_cannot_be_remembered_says_so_in_one_line() {
    let bench = Bench::new();
    bench.sh("mkdir a s; echo 1 > a/f; chown -R 65534:65534 .; chmod 755 .");
    // No name for the directory, and one that cannot be made.
    let elsewhere = STATELESS.replace(
        "-u HOME -u XDG_STATE_HOME -u DMOVER_STATE_DIR",
        "-u XDG_STATE_HOME -u DMOVER_STATE_DIR HOME=/proc/nowhere",
    );
    for (how, why) in [
        (STATELESS, "neither $XDG_STATE_HOME nor $HOME is set"),
        (&*elsewhere, "cannot use '/proc/nowhere/.local/state/dmover'"),
    ] {
        for line in ["copy a b", "sync a b", "verify --repair a b", "snapshot create a s"] {
            bench.sh("rm -rf b; [ ! -e b ]");
            let made =
                if line.starts_with("verify") { "mkdir b; chown 65534:65534 b;" } else { "" };
            bench.sh(&format!("{made} {how} {PROGRAM} {line} -q 2> said"));
            let said = bench.read("said");
            assert_eq!(said.lines().count(), 1, "{line}: {said}");
            for words in ["the job keeps no state", why, "--state-dir"] {
                assert!(said.contains(words), "{line}: {said}");
            }
            // Nobody asked cp to remember anything, and what writes nothing has nothing to be remembered.
            bench.sh(&format!(
                "rm -rf b; {how} {PROGRAM} cp -r a b 2> said; {how} {PROGRAM} sync -nq a b 2>> said"
            ));
            assert_eq!(bench.read("said"), "", "{line}");
        }
    }
    // Those that need it end, and say why.
    for line in
        ["jobs", "status x", "errors x", "resume x", "sync --only-failed a b", "copy --detach a c"]
    {
        let said = bench.sh(&format!("{STATELESS} {PROGRAM} {line} 2>&1 || echo $?"));
        let lines: Vec<&str> = said.lines().collect();
        let [error, hint, "2"] = lines[..] else { panic!("{line}: {said}") };
        assert!(error.contains("state directory") && hint.contains("--state-dir"), "{said}");
    }
    assert!(!bench.exists("c"));
}

#[test]
fn a_system_without_locks_is_named_and_does_not_keep_a_job_from_running() {
    const ENOLCK: i32 = 37;
    let bench = Bench::new();
    bench.sh("mkdir a b; echo 1 > a/f");
    let bench =
        bench.with(|dmover| dmover.denied(&["flock", "f_ofd_setlk", "f_ofd_getlk"], ENOLCK));
    for line in ["sync --no-state a b", "copy --no-state -T a b"] {
        let run = bench.dmover(line).expect_code(0);
        assert!(run.stderr.contains("cannot lock"), "{}", run.tell());
        assert!(run.stderr.contains("No locks available"), "{}", run.tell());
    }
    bench.sh("cmp a/f b/f");
}
