//! Jobs: what is remembered of them, what is asked of them, and what they refuse.
use super::Bench;
use super::bench::{eventually, pattern, wait_for_fault};
use dmover_testkit::faultfs::{Action, FaultFsHandle, Op, Rule, When};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

impl Bench {
    pub(super) fn journal(&self) -> PathBuf {
        let found = self.sh(&format!("ls {}/jobs/*/journal.sqlite", self.state()));
        PathBuf::from(found.trim())
    }

    pub(super) fn state(&self) -> String {
        self.dmover.state_directory().display().to_string()
    }

    pub(super) fn ask(&self, sql: &str) -> i64 {
        let journal = Connection::open(self.journal()).unwrap();
        journal.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    pub(super) fn tell(&self, sql: &str) {
        Connection::open(self.journal()).unwrap().execute_batch(sql).unwrap();
    }

    /// Makes the record of the last pass one of a run that was killed.
    pub(super) fn as_if_killed(&self) {
        self.tell("UPDATE pass SET state = 'running', ended_ms = NULL, unflushed_ms = begun_ms");
    }

    /// `dmover status --json`.
    #[track_caller]
    pub(super) fn status(&self) -> serde_json::Value {
        let run = self.dmover("status --json").expect_code(0);
        serde_json::from_str(&run.text()).unwrap()
    }

    #[track_caller]
    pub(super) fn wait_for(&self, what: &str, mut is_so: impl FnMut(&serde_json::Value) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !is_so(&self.status()) {
            assert!(Instant::now() < deadline, "no {what}: {}", self.status());
            std::thread::yield_now();
        }
    }
}

/// A destination that hangs at the first write to a file of this name.
fn hanging(name: &str) -> Option<(FaultFsHandle, Bench)> {
    let (handle, bench) = Bench::faulty()?;
    let rule = Rule::new(Op::Create, Action::Hang { duration_ms: 60_000 }).name(name);
    handle.set_rules(&[rule]).unwrap();
    Some((handle, bench))
}

/// Kills a run, which the kernel only ends once its request is answered.
fn kill(running: Running, handle: &FaultFsHandle) {
    running.signal(rustix::process::Signal::KILL);
    handle.release_hangs();
    assert_eq!(running.finish().unwrap().signal(), Some(9));
}

#[test]
fn a_killed_pass_goes_on_and_copies_nothing_again_that_was_done() {
    let test = "a_killed_pass_goes_on_and_copies_nothing_again_that_was_done";
    let Some((handle, bench)) = hanging("last") else { return skip::skipped(test, "no FUSE") };
    // Directories that are tasks of their own, a file in chunks, linked names, and one that hangs.
    bench.sh("mkdir -p source/{a,b,c,d,e,f}; for d in source/?; do seq 900 | sed s,^,$d/f, | xargs touch; done");
    bench.sh("for i in $(seq 50); do head -c 3000 /dev/urandom > source/a/g$i; ln source/a/g$i source/b/h$i; done");
    bench.write("source/big", pattern(12_000_000));
    bench.sh("mkdir source/z; touch source/z/last");
    let words = ["sync", "-j3", "--split-size=1M", "source", "faulty"];
    let running = bench.dmover.start(words).unwrap();
    wait_for_fault(&handle);
    // Everything but what hangs is done.
    let open = "SELECT count(*) FROM task WHERE done = 0";
    bench.wait_for("end of the other tasks", |_| bench.ask(open) <= 1);
    let done = bench.ask("SELECT coalesce(sum(bytes), 0) FROM outcome");
    assert!(done >= 12_000_000, "{done}");
    kill(running, &handle);
    assert_eq!(bench.status()["state"], "died");
    let pass = bench.sync("-j3 --split-size=1M source faulty", 0);
    assert_eq!(pass.summary().0["resumed"], true);
    assert_eq!(pass.number("bytes_copied"), 50 * 3000, "links come last");
    bench.assert_same("source", "backing");
    // The next pass begins anew, and has nothing to do.
    let pass = bench.sync("-j3 --split-size=1M source faulty", 0);
    assert_eq!((pass.summary().0["resumed"] == true, pass.done()), (false, vec![]));
}

/// A task that was in hand is done again, but not what it had handed on.
#[test]
fn what_was_handed_on_is_not_done_again() {
    let test = "what_was_handed_on_is_not_done_again";
    let Some((handle, bench)) = hanging("last") else { return skip::skipped(test, "no FUSE") };
    // A directory in memory lists what came last first; the other mover gets the first half.
    bench.sh("mkdir -p source/z source/a; touch source/z/last source/a/{1..300}");
    // The destination is not read before the other mover is there to be given something.
    let hang = |op| Rule::new(op, Action::Hang { duration_ms: 60_000 });
    // Its root is read once before: has it content that is not this program's?
    handle.set_rules(&[hang(Op::Readdir).when(When::Nth(3))]).unwrap();
    // A run that goes on and has a manifest does not look at everything once more.
    let words = ["sync", "-j2", "--manifest", "m", "source", "faulty"];
    let running = bench.dmover.start(words).unwrap();
    wait_for_fault(&handle);
    bench.wait_for("round", |status| status["state"] == "running");
    handle.release_hangs();
    handle.set_rules(&[hang(Op::Create).name("last")]).unwrap();
    wait_for_fault(&handle);
    let open = "SELECT count(*) FROM task WHERE done = 0";
    // If there is one mover only by now, nobody ends them.
    let until = Instant::now() + Duration::from_secs(10);
    let late = || Instant::now() > until;
    bench.wait_for("end of the other tasks", |_| bench.ask(open) == 1 || late());
    let on_record = bench.ask("SELECT coalesce(sum(entries), 0) FROM outcome");
    kill(running, &handle);
    let pass = bench.sync("-j2 --manifest m source faulty", 0);
    assert_eq!(pass.summary().0["resumed"], true);
    // Directories are opened again on the way.
    let again = pass.number("entries_found") as i64;
    assert!(again + on_record <= 301 + 2 * 3, "{again} again, {on_record} on record");
    assert!(pass.0.text().contains("source/z/"));
    bench.assert_same("source", "backing");
}

#[test]
fn chunks_that_were_done_stay_done() {
    let Some((handle, bench)) = Bench::faulty() else {
        return skip::skipped("chunks_that_were_done_stay_done", "no FUSE");
    };
    bench.write("backing/big", pattern(16 << 20));
    let rule = Rule::new(Op::Read, Action::Hang { duration_ms: 60_000 }).from_offset(15 << 20);
    handle.set_rules(&[rule]).unwrap();
    let words = ["sync", "-j2", "--split-size=1M", "--engine=buffered", "faulty", "b"];
    let running = bench.dmover.start(words).unwrap();
    wait_for_fault(&handle);
    bench.wait_for("chunks", |_| bench.ask("SELECT count(*) FROM task WHERE kind = 'chunk'") == 1);
    kill(running, &handle);
    assert_eq!(leftovers(&bench.at("b")).unwrap().len(), 1, "the file that goes on");
    let pass = bench.sync("-j2 --split-size=1M --engine=buffered faulty b", 0);
    assert_eq!(pass.summary().0["resumed"], true);
    assert_eq!(pass.number("chunks_copied"), 1);
    assert_eq!(pass.number("bytes_copied"), 1 << 20);
    bench.assert_same("backing", "b");
}

/// A server that does not hear syncfs(2) hears of every chunk before it is on record.
#[test]
fn chunks_that_are_on_record_are_on_storage() {
    let test = "chunks_that_are_on_record_are_on_storage";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.write("source/big", pattern(8 << 20));
    let words = "-j2 --split-size=1M --engine=buffered source faulty";
    let pass = bench.sync(words, 0);
    let flushed = handle.counters().of(Op::Fsync).calls;
    assert!(flushed >= pass.number("chunks_copied") && flushed >= 8, "{flushed}");
}

#[test]
fn a_stopped_pass_goes_on_unless_something_else_is_wanted() {
    let test = "a_stopped_pass_goes_on_unless_something_else_is_wanted";
    let Some((handle, bench)) = hanging("z9") else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir -p source/{a,b}; touch source/{a,b}/x{1..9} source/b/z9");
    let running = bench.dmover.start(["sync", "-j2", "source", "faulty"]).unwrap();
    wait_for_fault(&handle);
    running.signal(rustix::process::Signal::TERM);
    handle.release_hangs();
    let run = running.finish().unwrap();
    assert_eq!(run.signal(), Some(15), "{}", run.tell());
    assert_eq!(bench.status()["state"], "stopped");
    // Other rules: what was done was done for others.
    let pass = bench.sync("-j2 --exclude x9 source faulty", 0);
    assert_eq!(pass.summary().0["resumed"], false);
    bench.sync("-j2 source faulty", 0);
    bench.assert_same("source", "backing");
}

/// What an interrupted run has seen of the source is not what there is by now.
#[test]
fn a_pass_that_goes_on_looks_at_everything_once_more() {
    let test = "a_pass_that_goes_on_looks_at_everything_once_more";
    let Some((handle, bench)) = hanging("z9") else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir -p source/{a,b}; touch source/a/x{1..9} source/b/z9 source/done; cp -a source/. backing; rm backing/b/z9");
    let running =
        bench.dmover.start(["sync", "-j2", "--yes", "--delete", "source", "faulty"]).unwrap();
    wait_for_fault(&handle);
    // If there is one mover only by now, nobody ends them.
    let until = Instant::now() + Duration::from_secs(10);
    let late = || Instant::now() > until;
    bench.wait_for("end of the other tasks", |_| {
        bench.ask("SELECT count(*) FROM task WHERE done = 0") <= 1 || late()
    });
    kill(running, &handle);
    handle.set_rules(&[]).unwrap();
    bench.sh(
        "mv source/a source/renamed; echo more > source/done; touch source/new; rm source/b/z9",
    );
    let pass = bench.sync("-j2 --delete source faulty", 0);
    assert_eq!(pass.summary().0["resumed"], true);
    assert_eq!(bench.rsync("source", "backing"), "");
}

/// What failed before an interruption is not tried again by the run that goes on: without another look at everything, which
/// does not fit a manifest, it must not say that all is well.
#[test]
fn what_failed_before_an_interruption_is_not_forgotten() {
    let test = "what_failed_before_an_interruption_is_not_forgotten";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    let hang = Rule::new(Op::Create, Action::Hang { duration_ms: 60_000 }).name("z9");
    let fail = Rule::new(Op::Create, Action::Errno(rustix::io::Errno::ACCESS.raw_os_error()));
    handle.set_rules(&[hang, fail.name("x5")]).unwrap();
    // The directory with what fails is a task of its own, which has ended when the other one hangs: many levels further down, so that
    // the second mover has begun by then.
    bench.sh("mkdir -p source/a source/b/1/2/3/4/5/6/7/8/9; touch source/{a,b}/x{1..4} source/a/x5 source/b/1/2/3/4/5/6/7/8/9/z9");
    let words = ["sync", "-j2", "--manifest", "m", "source", "faulty"];
    let running = bench.dmover.start(words).unwrap();
    wait_for_fault(&handle);
    bench.wait_for("the error to be on record", |_| {
        let count = |journal: Connection| {
            journal.query_row("SELECT count(*) FROM error", [], |row| row.get::<_, i64>(0))
        };
        Connection::open(bench.journal()).and_then(count).is_ok_and(|count| count == 1)
    });
    kill(running, &handle);
    handle.set_rules(&[]).unwrap();
    let pass = bench.sync("-j2 --manifest m source faulty", 3);
    assert_eq!(pass.summary().0["resumed"], true);
    assert_eq!(pass.number("earlier_failures"), 1, "{}", pass.0.tell());
    bench.sync("-j2 source faulty", 0);
    bench.assert_same("source", "backing");
}

#[test]
fn state_may_be_deleted_at_any_time() {
    let Some((handle, bench)) = hanging("z9") else {
        return skip::skipped("state_may_be_deleted_at_any_time", "no FUSE");
    };
    bench.sh("mkdir -p source/{a,b}; touch source/{a,b}/x{1..9} source/b/z9");
    let running = bench.dmover.start(["sync", "source", "faulty"]).unwrap();
    wait_for_fault(&handle);
    bench.sh(&format!("rm -r {}", bench.state()));
    handle.release_hangs();
    let run = running.finish().unwrap().expect_code(0);
    assert!(!run.stderr.contains("error"), "{}", run.tell());
    bench.assert_same("source", "backing");
    bench.sh("rm -r backing/a; touch source/new");
    bench.sync("source faulty", 0);
    bench.assert_same("source", "backing");
}

#[test]
fn a_job_holds_and_goes_on_and_is_given_up() {
    let Some((handle, bench)) = hanging("z9") else {
        return skip::skipped("a_job_holds_and_goes_on_and_is_given_up", "no FUSE");
    };
    bench.sh("mkdir -p source/{a,b}; touch source/{a,b}/x{1..9} source/b/z9");
    let words = ["sync", "-j2", "--label", "mine", "source", "faulty"];
    let running = bench.dmover.start(words).unwrap();
    wait_for_fault(&handle);
    bench.dmover("pause mine").expect_code(0);
    bench.wait_for("pause", |status| status["state"] == "paused");
    handle.release_hangs();
    bench.dmover("wait --timeout 300ms mine").expect_code(6);
    // A second run, of the same job or over the same place, has to wait.
    bench.sh("mkdir -p other/a; touch other/a/x1");
    bench.dmover("sync source faulty").expect_code(6);
    bench.dmover("sync other faulty").expect_code(6);
    bench.dmover("sync other faulty/a").expect_code(6);
    bench.dmover("copy -T other faulty").expect_code(6);
    bench.dmover("sync other elsewhere").expect_code(0);
    bench.dmover("resume mine").expect_code(0);
    running.finish().unwrap().expect_code(0);
    bench.dmover("wait mine").expect_code(0);
    bench.assert_same("source", "backing");
    // Given up: what it has left is removed on demand, and the next run begins anew.
    bench.write("source/big", pattern(9_000_000));
    let rule = Rule::new(Op::Write, Action::Hang { duration_ms: 60_000 }).from_offset(8 << 20);
    handle.set_rules(&[rule]).unwrap();
    let words = ["sync", "-j2", "--split-size=1M", "--engine=buffered", "source", "faulty"];
    let running = bench.dmover.start(words).unwrap();
    wait_for_fault(&handle);
    bench.dmover("cancel --state-dir /nowhere mine").expect_code(2);
    let id = bench.status()["job"].as_str().unwrap().to_owned();
    bench.dmover(&format!("cancel {}", &id[..6])).expect_code(0);
    let ask = PathBuf::from(bench.state()).join("jobs").join(&id).join("ask");
    bench.wait_for("hearing", |_| std::fs::symlink_metadata(&ask).is_err());
    handle.release_hangs();
    running.finish().unwrap().expect_code(3);
    assert_eq!(bench.status()["state"], "cancelled");
    let left = leftovers(&bench.at("backing")).unwrap().len();
    let listed = bench.dmover(&format!("cleanup -n {id}")).expect_code(0);
    assert_eq!(listed.text().lines().count(), left, "{}", listed.tell());
    bench.dmover(&format!("cleanup {id}")).expect_code(0);
    assert_eq!(leftovers(&bench.at("backing")).unwrap(), Vec::<PathBuf>::new());
    assert!(bench.exists("backing/a/x1"), "only leftovers go");
    bench.dmover(&format!("status {id}")).expect_code(2);
}

#[test]
fn what_failed_is_listed_and_tried_again() {
    let Some((handle, bench)) = Bench::faulty() else {
        return skip::skipped("what_failed_is_listed_and_tried_again", "no FUSE");
    };
    bench.sh("mkdir -p backing/d b; touch backing/{1..30} backing/d/{1..9}; echo x > backing/d/bad; echo y > backing/worse");
    let rules =
        ["bad", "worse"].map(|name| Rule::new(Op::Open, Action::Errno(5)).name(name).count(0));
    handle.set_rules(&rules).unwrap();
    bench.sync("faulty b", 3);
    let listed = bench.dmover("errors --json faulty").expect_code(2);
    assert!(listed.stderr.contains("no job"), "{}", listed.tell());
    let id = bench.status()["job"].as_str().unwrap().to_owned();
    let errors = bench.dmover(&format!("errors -0 {id}")).expect_code(0).text();
    let paths: BTreeSet<&str> = errors.split_terminator('\0').collect();
    assert_eq!(paths, BTreeSet::from(["faulty/d/bad", "faulty/worse"]));
    let classes = bench.dmover(&format!("errors --json --class io {id}")).expect_code(0);
    assert_eq!(classes.text().lines().count(), 2, "{}", classes.tell());
    let unknown = bench.dmover(&format!("errors --class input {id}")).expect_code(2);
    assert!(unknown.stderr.contains("vanished, changed, denied"), "{}", unknown.tell());
    bench.dmover(&format!("retry {id}")).expect_code(3);
    handle.set_rules(&[]).unwrap();
    bench.dmover(&format!("retry {id}")).expect_code(0);
    assert_eq!(bench.rsync("backing", "b"), "");
    bench.dmover(&format!("retry {id}")).expect_code(2);
    let history = bench.dmover(&format!("history --json {id}")).expect_code(0).text();
    let codes: Vec<i64> = history
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["exit_code"].as_i64().unwrap()
        })
        .collect();
    assert_eq!(codes, [0, 3, 3]);
}

#[test]
fn a_pass_that_was_interrupted_is_gone_on_with_before_anything_is_retried() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/{1..200}; chmod 0 a/1; mkdir b b/1; touch b/1/in_the_way");
    bench.sync("--label move --max-errors 1 -j1 a b", 5);
    let retried = bench.dmover("retry move").expect_code(2);
    assert!(retried.stderr.contains("did not finish"), "{}", retried.tell());
    bench.sh("rm -r b/1");
    bench.dmover("resume move").expect_code(0);
    assert_eq!(bench.rsync("a", "b"), "");
    // What is run again by 'resume' is the job, whatever 'retry' was run last.
    bench.sh("rm b/2; mkdir -p b/2/in_the_way; touch a/2");
    bench.sync("--label move a b", 3);
    bench.sh("rm -r b/2");
    bench.dmover("retry move").expect_code(0);
    bench.sh("touch a/new");
    bench.dmover("resume move").expect_code(0);
    assert!(bench.exists("b/new"));
}

/// `status` and `wait` say how the process has ended, and not how the copying did.
#[test]
fn a_job_ends_when_its_result_is_proven() {
    let test = "a_job_ends_when_its_result_is_proven";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir a; seq 100 > a/f; touch a/g");
    // What cannot be read back is not proven, and nothing but reading back reads there.
    handle.set_rules(&[Rule::new(Op::Read, Action::Errno(5)).count(0)]).unwrap();
    let code = bench.dmover("sync --label one --verify=read-back a faulty").code().unwrap();
    assert_ne!(code, 0);
    bench.dmover("wait one").expect_code(code);
    assert_eq!(bench.status()["exit_code"], code);
    handle.set_rules(&[]).unwrap();
    bench.sync("--label one a faulty", 0);
    bench.dmover("wait one").expect_code(0);
    // A power cut may leave nothing of what was written last.
    let status = bench.sh(&format!("ls {}/jobs/*/status.json", bench.state()));
    bench.sh(&format!("> {}", status.trim()));
    bench.dmover("wait one").expect_code(3);
    assert_eq!(bench.status()["state"], "died");
    bench.sh("touch a/new");
    bench.dmover("resume one").expect_code(0);
    assert!(bench.exists("backing/new"));
    bench.dmover("cleanup").expect_code(2);
    assert_eq!(bench.dmover.run(["cleanup", ""]).unwrap().code(), Some(2));
}

#[test]
fn what_could_not_be_deleted_or_is_gone_is_not_brought_over_again() {
    let test = "what_could_not_be_deleted_or_is_gone_is_not_brought_over_again";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir a; touch a/{1..9}; cp -a a/. backing; touch backing/extra; echo x > a/new; echo y > a/left");
    let rules = [
        Rule::new(Op::Unlink, Action::Errno(5)).name("extra").count(0),
        Rule::new(Op::Create, Action::Errno(5)).count(0),
    ];
    handle.set_rules(&rules).unwrap();
    bench.sync("--delete a faulty", 3);
    handle.set_rules(&[]).unwrap();
    let id = bench.status()["job"].as_str().unwrap().to_owned();
    let failed = bench.dmover(&format!("errors -0 {id}")).expect_code(0).text();
    assert_eq!(failed.split_terminator('\0').count(), 3, "{failed:?}");
    bench.sh("rm a/new");
    let retried = bench.dmover(&format!("retry {id}")).expect_code(0);
    assert!(retried.stderr.contains("retry does not repeat failed deletes"), "{}", retried.tell());
    assert!(bench.exists("backing/left") && bench.exists("backing/extra"));
    bench.sync("--delete a faulty", 0);
    assert_eq!(bench.rsync("a", "backing"), "");
    // Nothing but a delete.
    handle.set_rules(&rules[..1]).unwrap();
    bench.sh("touch backing/extra");
    bench.sync("--delete a faulty", 3);
    let refused = bench.dmover(&format!("retry {id}")).expect_code(2);
    assert!(refused.stderr.contains("nothing but deletes failed"), "{}", refused.tell());
}

#[test]
fn a_job_in_the_background_says_its_id_and_tells_its_end() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/{1..100}");
    let words = [
        "sync",
        "--detach",
        "--notify",
        "echo $DMOVER_JOB $DMOVER_JOB_STATE $DMOVER_JOB_EXIT > told",
        "a",
        "b",
    ];
    let run = bench.dmover.run(words).unwrap().expect_code(0);
    let id = run.text().trim().to_owned();
    bench.dmover(&format!("wait {id}")).expect_code(0);
    assert_eq!(bench.rsync("a", "b"), "");
    let deadline = Instant::now() + Duration::from_mins(1);
    while !bench.exists("told") || bench.read("told").is_empty() {
        assert!(Instant::now() < deadline, "nobody was told");
        std::thread::yield_now();
    }
    assert_eq!(bench.read("told").trim(), format!("{id} finished 0"));
    // What is refused is refused here and now.
    let run = bench.dmover("sync --detach nowhere b").expect_code(2);
    assert!(run.stderr.contains("does not exist"), "{}", run.tell());
    // The command is known, and runs where it was typed.
    bench.sh("touch a/more; mkdir elsewhere");
    bench.dmover(&format!("resume {id}")).expect_code(0);
    assert_eq!(bench.rsync("a", "b"), "");
}

#[test]
fn another_source_deletes_nothing_until_the_old_one_is_forgotten() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/1 a/2");
    bench.sync("--delete a b", 0);
    bench.sh("mv a old; mkdir a; touch a/3");
    for when in ["delay", "during", "after", "delay -n"] {
        let pass = bench.sync(&format!("--delete={when} a b"), 3);
        let reason = pass.withheld().unwrap_or_else(|| panic!("{}", pass.0.tell()));
        assert!(
            reason.contains("not the directory or file system of the last"),
            "{when}: {reason}"
        );
        assert_eq!(bench.sh("ls b"), "1\n2\n3\n", "{when}");
    }
    let id = bench.status()["job"].as_str().unwrap().to_owned();
    bench.dmover(&format!("cleanup {id}")).expect_code(0);
    bench.sync("--delete a b", 0);
    assert_eq!(bench.sh("ls b"), "3\n");
}

#[test]
fn what_cannot_be_right_is_refused_with_the_way_out() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/1; touch file");
    bench.sync("a b", 0);
    let refused = |words: &str| {
        let run = bench.dmover("sync a b").expect_code(2);
        assert!(run.stderr.contains(words) && run.stderr.contains("hint:"), "{}", run.tell());
    };
    // Emptied, without anything to be deleted.
    bench.sh("rm a/1");
    refused("had entries in the last pass");
    // One that only withholds deletes does not make an empty source right.
    bench.sync("--delete a b", 3);
    refused("had entries in the last pass");
    let foretold = bench.dmover("sync -n a b").expect_code(2);
    assert!(foretold.stderr.contains("had entries in the last pass"), "{}", foretold.tell());
    bench.sync("--allow-empty-source a b", 0);
    bench.sh("touch a/1");
    bench.sync("a b", 0);
    // A clock that was set back.
    bench.tell("UPDATE pass SET ended_ms = ended_ms + 3600000");
    refused("the clock was set back");
    bench.tell("UPDATE pass SET ended_ms = ended_ms - 3600000");
    bench.sync("a b", 0);
    // A journal of a later program, and one that is none.
    bench.tell("PRAGMA user_version = 99");
    refused("has version 99");
    let journal = bench.journal();
    bench.sh(&format!(
        "rm {0}-* 2>/dev/null || :; head -c 5000 /dev/urandom > {0}",
        journal.display()
    ));
    refused("is damaged");
    bench.sh(&format!("rm {}*", journal.display()));
    bench.sync("a b", 0);
    // What is not there, is no directory, or lies inside.
    for words in ["nowhere b", "file b", "a file", "a a/b", "a/b a", "a a", "a b c", "a"] {
        bench.dmover(&format!("sync {words}")).expect_code(2);
    }
    // As from a variable of a script that is not set: never the root of all directories.
    for words in [["a", ""], ["", "b"]] {
        let run = bench.dmover.run(["sync", "-n", words[0], words[1]]).unwrap().expect_code(2);
        assert!(run.stderr.contains("a path is empty"), "{}", run.tell());
    }
}

#[test]
fn a_state_directory_on_a_shared_file_system_has_no_log_beside_the_journal() {
    let test = "a_state_directory_on_a_shared_file_system_has_no_log_beside_the_journal";
    let Some((_handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir a; touch a/1");
    for _ in 0..2 {
        bench.dmover("sync --state-dir faulty/state a b").expect_code(0);
    }
    assert_eq!(bench.sh("ls faulty/state/jobs/*/ | grep -c wal || :").trim(), "0");
    let journal = bench.sh("ls backing/state/jobs/*/journal.sqlite");
    let journal = Connection::open(bench.at(journal.trim())).unwrap();
    let mode: String = journal.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_ne!(mode, "wal");
    let run = bench.dmover("status --json --state-dir faulty/state").expect_code(0);
    assert!(run.text().contains("\"finished\""), "{}", run.tell());
}

/// A run that goes on with an interrupted pass does not know how much that has found.
#[test]
fn a_resumed_pass_shows_no_total_that_is_less_than_what_it_has_copied() {
    let bench = Bench::new();
    bench.write("a/large", pattern(20_000_000));
    let line = "sync --bwlimit=3M --split-size=1M --bytes --progress=always --stats=100ms a b";
    let running = bench.dmover.start(line.split(' ')).unwrap();
    let on_record = format!(
        "cat '{}'/jobs/*/large-files | grep -c flushed || true",
        bench.dmover.state_directory().display()
    );
    eventually("some parts", || bench.sh(&on_record).trim() > "1");
    running.kill().unwrap();
    let running = bench.dmover.start(line.split(' ')).unwrap();
    assert!(running.wait_for_stderr("dmover: copying", 5), "{}", running.stderr_so_far());
    let run = running.finish().unwrap().expect_code(0);
    let number = |text: &str| -> u64 {
        text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
    };
    let shown = run.stderr.lines().filter_map(|line| line.strip_prefix("dmover: copying, "));
    for line in shown {
        // The bytes come first: '4000000 B of >=20000000 B, …'.
        let (copied, total) = line.split(',').next().unwrap().split_once(" of ").unwrap();
        assert!(number(total) >= number(copied), "{line}");
    }
    bench.assert_same("a", "b");
}

/// After an interrupted pass, the size of equal files that end in zeroes is set again, which would take these away, and write
/// into a file that has a name elsewhere.
#[test]
fn set_id_bits_and_capabilities_outlive_a_comparison_after_an_interruption() {
    let bench = Bench::new();
    bench.sh("mkdir a; for n in plain setid capable linked; do head -c 10000 /dev/zero > a/$n; done; chmod 6755 a/setid");
    let capability = "0x0100000200200000000000000000000000000000";
    let set = format!("setfattr -n security.capability -v {capability} a/capable");
    if bench.sh(&format!("{set} 2>/dev/null && echo set || true")).trim() != "set" {
        return skip::skipped("set_id_bits_and_capabilities", "no capabilities here");
    }
    // Where the file system has such flags.
    bench.sh("chattr +i a/plain 2>/dev/null || true");
    bench.sync("a b", 0);
    bench.sh("ln b/linked elsewhere");
    let locked = "stat -c %i b/plain; lsattr b/plain 2>/dev/null || true";
    let locked_before = bench.sh(locked);
    let look = "stat -c '%n %a %s %Y' b/*; getfattr -d -m security.capability -e hex b/*";
    let before = bench.sh(look);
    assert!(before.contains(capability), "{before}");
    bench.as_if_killed();
    assert_eq!(bench.sync("a b", 0).number("files_compared"), 4);
    assert_eq!(bench.sh("stat -c %h elsewhere").trim(), "1", "DEST has a file of its own");
    assert_eq!(bench.sh(look), before);
    assert_eq!(bench.sh(locked), locked_before);
    bench.assert_same("a", "b");
    bench.sh("chattr -i a/plain b/plain 2>/dev/null || true");
}

/// A run that ends in order has flushed what it wrote, so the next one need not read it, also if a second signal has dropped
/// a file in the middle; one that was killed shows nothing.
#[test]
fn only_after_a_kill_are_the_files_of_an_interrupted_pass_compared() {
    use rustix::process::Signal;
    for (signals, is_killed) in [
        (vec![Signal::TERM], false),
        (vec![Signal::INT, Signal::TERM], false),
        (vec![Signal::KILL], true),
    ] {
        let bench = Bench::new();
        for number in 0..40 {
            bench.write(&format!("a/{number}"), pattern(100_000));
        }
        let ends_by_term = signals == [Signal::TERM];
        if signals.len() > 1 {
            bench.write("a/d/large", pattern(30_000_000));
        }
        let line = "sync -j4 --bwlimit=2M --progress=never a b";
        let running = bench.dmover.start(line.split(' ')).unwrap();
        let copied = || std::fs::read_dir(bench.at("b")).map_or(0, Iterator::count);
        eventually("some files", || copied() > 5);
        for signal in signals {
            running.signal(signal);
        }
        running.finish().unwrap();
        assert!((5..40).contains(&copied()), "{}", copied());
        if ends_by_term {
            let history = bench.dmover("history --json").expect_code(0).text();
            assert!(history.contains("\"exit_code\":143"), "{history}");
        }
        let run = bench.dmover("sync --json a b").expect_code(0);
        let summary = run.said().unwrap().summary.unwrap();
        let compared = summary.number("files_compared").unwrap_or_default();
        assert_eq!(compared > 0, is_killed, "{}", run.tell());
        bench.assert_same("a", "b");
    }
}

#[test]
fn errors_says_if_none_are_listed() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/f");
    bench.sync("a b", 0);
    let said = |line: &str| {
        let run = bench.dmover(line).expect_code(0);
        assert_eq!(run.text(), "");
        run.stderr
    };
    assert!(said("errors").contains("no errors are listed"));
    assert!(said("errors --class io").contains("no errors of this class are listed"));
    assert!(!said("errors --json").contains("are listed"), "for programs");
}
