//! Jobs see each other where one of them cannot open, or does not have, the directories of the other, and other users' locks do no more
//! than they have to.
use dmover_testkit::lanes::run::{Dmover, Run, Running};
use std::io::Read as _;
use std::process::{Child, Command, Stdio};

use super::Bench;
use crate::bench::{NOBODY, PROGRAM, eventually};

const SLOW: &str = "--json --bwlimit=1M";
/// Another user without privilege.
const OTHER: u32 = 65533;

fn bench() -> Bench {
    let bench = Bench::new();
    bench
        .sh("mkdir a a2; head -c 9M /dev/zero | tr '\\0' x > a/f; echo 2 > a2/g; chmod 755 . a a2");
    bench
}

/// The program behind a shell script in namespaces of its own.
fn behind(bench: &Bench, options: &[&str], script: &str) -> Dmover {
    let dmover = Dmover::new(PROGRAM).unwrap().in_directory(bench.root());
    let script = format!("{script}; exec \"$@\"");
    let words = ["unshare", "--kill-child"].into_iter().chain(options.iter().copied());
    dmover.wrapped(words.chain(["sh", "-euc", &script, "sh"]))
}

fn of_user(bench: &Bench, user: u32) -> Dmover {
    Dmover::new(PROGRAM).unwrap().in_directory(bench.root()).unprivileged(user).unwrap()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').filter(|word| !word.is_empty())
}

/// A job that has begun and does not end by itself.
#[track_caller]
fn begin(dmover: &Dmover, line: &str) -> Running {
    let (verb, rest) = line.split_once(' ').unwrap();
    let line = format!("{verb} {SLOW} {rest}");
    let running = dmover.start(words(&line)).unwrap();
    assert!(running.wait_for_stdout("\"start\"", 1), "{line}: {}", running.stderr_so_far());
    running
}

#[track_caller]
fn is_refused(run: Run, said: &str) -> Run {
    let run = run.expect_code(6);
    assert!(run.stderr.contains(said), "no {said:?}: {}", run.tell());
    run
}

#[test]
fn a_directory_that_a_user_cannot_read_hides_no_job() {
    let bench = bench();
    bench.sh(&format!("mkdir p; mkdir p/u; echo kept > p/u/own; chown {NOBODY} p/u; chmod 711 p"));
    let nobody = of_user(&bench, NOBODY);
    let running = begin(&nobody, "copy -T a p/u/d");
    assert!(!running.stderr_so_far().contains("cannot lock"), "{}", running.stderr_so_far());
    let run = is_refused(bench.dmover("sync --delete --yes a2 p"), "already writes below");
    let named = format!("(process {}: ", running.pid().as_raw_nonzero());
    assert!(run.stderr.contains(&named), "{}", run.tell());
    running.kill().unwrap();
    bench.sh("cat p/u/own; rm -rf p/u/d");
    let running = begin(&bench.dmover, "sync a p");
    for line in ["copy -T a2 p/u/d", "copy a2 p/u/.", "copy a2/g p/u/g", "sync a2 p/u/in"] {
        is_refused(nobody.run(words(line)).unwrap(), "already writes to");
    }
    running.kill().unwrap();
    nobody.run(words("sync a2 p/u/in")).unwrap().expect_code(0);
}

#[test]
fn a_directory_that_a_job_has_made_is_seen_after_it_was_renamed() {
    let bench = bench();
    bench.sh(&format!("mkdir -m 711 p; mkdir p/u; chown {NOBODY} p/u"));
    let running = begin(&of_user(&bench, NOBODY), "copy -T a p/u/d");
    eventually("DEST", || bench.exists("p/u/d"));
    bench.sh("mv p/u/d p/u/e");
    is_refused(bench.dmover("sync --delete --yes a2 p/u/e"), "already writes");
    running.kill().unwrap();
}

#[test]
fn a_bind_mount_hides_no_job_above_it() {
    let bench = bench();
    bench.sh("mkdir -p d/sub m; mount --bind d/sub m");
    let undo = bench.undo("umount -l m");
    let running = begin(&bench.dmover, "copy -T a m/c");
    is_refused(bench.dmover("sync --no-state a2 d"), "already writes below");
    running.kill().unwrap();
    let running = begin(&bench.dmover, "sync a d");
    let run = is_refused(bench.dmover("copy --no-state a2 m/c"), "already writes to");
    let place = format!("'{}'", bench.at("d").canonicalize().unwrap().display());
    assert!(run.stderr.contains(&place), "{}", run.tell());
    is_refused(bench.dmover("sync --no-state a2 m"), "already writes to");
    running.kill().unwrap();
    // Beside it there is room.
    let running = begin(&bench.dmover, "copy -T a m/c");
    bench.sh("mkdir d/other");
    bench.dmover("sync --no-state a2 d/other").expect_code(0);
    running.kill().unwrap();
    drop(undo);
}

#[test]
fn a_container_that_has_only_a_part_of_a_tree_sees_and_shows_its_job() {
    let bench = bench();
    bench.sh("mkdir -p d/sub m");
    let script = "mount --bind d/sub m; mount -t tmpfs none d";
    let inside = behind(&bench, &["-m"], script);
    let running = begin(&inside, "copy -T a m/c");
    is_refused(bench.dmover("sync --delete --yes a2 d"), "already writes below");
    running.kill().unwrap();
    let running = begin(&bench.dmover, "sync a d");
    is_refused(inside.run(words("copy a2 m/c")).unwrap(), "already writes to");
    is_refused(inside.run(words("sync a2 m")).unwrap(), "already writes to");
    // This one is elsewhere, in spite of its path.
    inside.run(words("copy a2 d")).unwrap().expect_code(0);
    running.kill().unwrap();
}

#[test]
fn a_message_names_no_process_of_another_namespace() {
    let bench = bench();
    bench.sh("mkdir d");
    let inside = behind(&bench, &["-mpf", "--mount-proc"], "true");
    let running = begin(&inside, "sync a d");
    let run = is_refused(bench.dmover("sync --no-state a2 d"), "already writes to");
    let parent = running.pid().as_raw_nonzero();
    let child = bench.sh(&format!("cat /proc/{parent}/task/{parent}/children"));
    assert!(run.stderr.contains(&format!("(process {}: ", child.trim())), "{}", run.tell());
    running.kill().unwrap();
    let running = begin(&bench.dmover, "sync a d");
    let run = is_refused(inside.run(words("sync a2 d")).unwrap(), "in a container");
    assert!(!run.stderr.contains("(process"), "{}", run.tell());
    assert!(run.stderr.contains("--no-lock"), "{}", run.tell());
    running.kill().unwrap();
}

/// A process of a user that holds a lock of a descriptor (OFD) on a directory until it is killed.
struct Holder(Child);

impl Holder {
    /// Locks `length` bytes from the mark of a process that says that it alone writes to `top`.
    fn new(bench: &Bench, (user, process): (u32, u32), length: u64) -> Self {
        const SCRIPT: &str = "import fcntl, os, struct, sys, time
at, length, user = map(int, sys.argv[1:])
os.setgroups([])
os.setgid(user)
os.setuid(user)
directory = os.open('top', os.O_RDONLY)
fcntl.fcntl(directory, 37, struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, at, length, 0))
print('held', flush=True)
time.sleep(1000)";
        let at = (1u64 << 60 | u64::from(process)).to_string();
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT, &at, &length.to_string(), &user.to_string()]);
        command.current_dir(bench.root()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = [0; 4];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_lock_above_counts_only_if_its_user_can_write_there() {
    let bench = bench();
    bench.sh(
        "mkdir -p top/x top/sticky; chmod 755 top top/x; chmod 1777 top/sticky; mkdir top/sticky/y",
    );
    // No dmover locks all of it.
    let holder = Holder::new(&bench, (NOBODY, 0), 1 << 24);
    bench.dmover("sync a2 top/x/d").expect_code(0);
    drop(holder);
    // A mark as it has to be, also one that says that it is of another process.
    for process in [77, 1] {
        let holder = Holder::new(&bench, (NOBODY, process), 1);
        bench.dmover("sync --no-state a2 top/x/d").expect_code(0);
        bench.dmover("copy --no-state a2 top/sticky/y").expect_code(0);
        // He could write here.
        bench.sh(&format!("chown {NOBODY} top/x"));
        let run = is_refused(bench.dmover("sync --no-state a2 top/x/d"), "already writes to");
        let named = format!("(process {}: ", holder.0.id());
        assert!(run.stderr.contains(&named), "{}", run.tell());
        bench.sh("chown 0 top/x; chmod 777 top/x");
        is_refused(bench.dmover("sync --no-state a2 top/x/d"), "already writes to");
        bench.sh("chmod 755 top/x");
    }
    // And the same of root counts.
    let holder = Holder::new(&bench, (0, 77), 1);
    is_refused(bench.dmover("sync --no-state a2 top/x/d"), "already writes to");
    drop(holder);
}

#[test]
fn who_cannot_see_the_holder_of_a_lock_has_a_way_out() {
    let bench = bench();
    bench.sh(&format!("mkdir -p top/x; chmod 755 top; chown {OTHER} top/x"));
    let other = of_user(&bench, OTHER);
    let holder = Holder::new(&bench, (NOBODY, 1), 1);
    for line in ["copy a2 top/x", "sync a2 top/x/d"] {
        let run = is_refused(other.run(words(line)).unwrap(), "already writes to");
        assert!(run.stderr.contains("--no-lock"), "{}", run.tell());
        assert!(!run.stderr.contains("process 1"), "{}", run.tell());
        let line = format!("{line} --no-lock");
        other.run(words(&line)).unwrap().expect_code(0);
    }
    drop(holder);
    other.run(words("sync a2 top/x/d")).unwrap().expect_code(0);
}

#[test]
fn a_job_that_cannot_be_seen_says_so() {
    let bench = bench();
    bench.sh(&format!("mkdir -m 711 p; mkdir p/u; chown {NOBODY} p/u"));
    let nobody = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    let said = bench.sh(&format!(
        "cp {PROGRAM} program; chmod 755 program
         unshare -m sh -euc 'touch none; chmod 0 none; mount --bind none /proc/locks
             exec {nobody} ./program copy --no-state -T a2 p/u/in 2>&1'"
    ));
    assert!(said.contains("note: cannot lock ") && said.contains("/p against"), "{said}");
}
