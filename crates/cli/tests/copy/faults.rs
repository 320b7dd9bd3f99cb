//! A source that changes while it is read, and errors in single operations; made to happen at the right moment.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dmover_testkit::compare::{CompareOptions, compare};
use dmover_testkit::faultfs::{Action, Config, FaultFs, FaultFsHandle, Op, Rule, When};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::lanes::lines::ReportItem;
use dmover_testkit::lanes::run::Run;
use dmover_testkit::skip::skipped;

use super::Bench;
use super::bench::{append, is_root, pattern};

const LONG: Action = Action::Hang { duration_ms: 60_000 };

/// A bench whose `backing` is seen as `faulty` with faults; the trees are `s` and `d` below it.
struct Faulty {
    // Unmounted before the directory is removed.
    handle: FaultFsHandle,
    bench: Bench,
}

impl Faulty {
    fn new() -> Option<Self> {
        if !is_root() || !Path::new("/dev/fuse").exists() {
            let test = std::thread::current().name().unwrap_or("test").to_owned();
            skipped(&test, "needs root and /dev/fuse");
            return None;
        }
        let bench = Bench::new();
        bench.sh("mkdir -p backing/s faulty");
        let config = Config { threads: 8, ..Config::default() };
        let handle = FaultFs::mount(&bench.at("backing"), &bench.at("faulty"), config).unwrap();
        Some(Self { handle, bench })
    }

    fn rule(&self, rule: Rule) {
        self.handle.set_rules(&[rule]).unwrap();
    }

    /// How often rules have fired.
    fn faults(&self) -> u64 {
        self.handle.counters().rules_fired.iter().sum()
    }

    /// Waits until a rule has fired.
    #[track_caller]
    fn wait_for_fault(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.faults() == 0 {
            assert!(Instant::now() < deadline, "no request came");
            std::thread::yield_now();
        }
    }

    /// Copies while a request for `victim` waits, with the source changed meanwhile.
    #[track_caller]
    fn copy_while(&self, hang: Rule, flags: &[&str], change: impl FnOnce(&Path)) -> Run {
        self.rule(hang);
        let words = flags.iter().chain(&["faulty/s", "d"]);
        let running = self.bench.dmover.start_copy(words).unwrap();
        self.wait_for_fault();
        change(&self.bench.at("backing/s/victim"));
        self.handle.set_rules(&[]).unwrap();
        self.handle.release_hangs();
        running.finish().unwrap()
    }

    /// Copies `s` to the faulty destination `faulty/d` under one rule.
    #[track_caller]
    fn copy_to(&self, rule: Rule, flags: &str) -> Run {
        self.rule(rule);
        let run = self.bench.copy(&format!("{flags} -T s faulty/d"));
        self.handle.set_rules(&[]).unwrap();
        run
    }

    #[track_caller]
    fn copy_from(&self, rule: Rule, flags: &str) -> Run {
        self.rule(rule);
        let run = self.bench.copy(&format!("{flags} -T faulty/s d"));
        self.handle.set_rules(&[]).unwrap();
        run
    }

    #[track_caller]
    fn assert_arrived(&self, source: &str, destination: &str) {
        // Who changes a directory while it is copied changes its time.
        let options = CompareOptions::default().ignoring("mtime@top");
        let found = compare(&self.bench.at(source), &self.bench.at(destination), &options).unwrap();
        assert!(found.is_empty(), "{found:?}");
    }
}

fn victim_hangs(op: Op) -> Rule {
    Rule::new(op, LONG).name("victim")
}

/// The class of the only error, which has to be about `victim`.
#[track_caller]
fn only_error(run: &Run) -> (String, ReportItem) {
    let said = run.said().unwrap();
    assert_eq!(said.errors.len(), 1, "{}", run.tell());
    assert!(said.errors[0].path().ends_with("victim"), "{}", run.tell());
    (said.errors[0].text("class").to_owned(), said)
}

#[test]
fn a_file_that_vanishes_is_told_and_nothing_else_is_wrong() {
    for op in [Op::Lookup, Op::Open] {
        let Some(faulty) = Faulty::new() else { return };
        faulty.bench.write("backing/s/victim", "soon gone");
        faulty.bench.write("backing/s/other", "stays");
        let run =
            faulty.copy_while(victim_hangs(op), &[], |victim| fs::remove_file(victim).unwrap());
        // A request that waited in the file system may still find what it looked up before.
        if run.code() == Some(0) {
            assert_eq!(op, Op::Open, "{}", run.tell());
            continue;
        }
        assert_eq!(run.code(), Some(4), "{op}: {}", run.tell());
        assert_eq!(only_error(&run).0, "vanished");
        assert_eq!(faulty.bench.read("d/other"), "stays");
        assert!(!faulty.bench.exists("d/victim"));
    }
}

#[test]
fn a_directory_that_vanishes_is_told() {
    let Some(faulty) = Faulty::new() else { return };
    faulty.bench.write("backing/s/victim/inside", "soon gone");
    faulty.bench.write("backing/s/other", "stays");
    let run = faulty.copy_while(victim_hangs(Op::Lookup), &[], |victim| {
        fs::remove_dir_all(victim).unwrap();
    });
    assert_eq!(run.code(), Some(4), "{}", run.tell());
    assert_eq!(only_error(&run).0, "vanished");
    assert_eq!(faulty.bench.read("d/other"), "stays");
}

#[test]
fn a_file_that_changes_once_is_taken_again() {
    let changes: [(&str, fn(&Path)); 3] = [
        ("grows", |victim| append(victim, "more")),
        ("shrinks", |victim| fs::write(victim, "short").unwrap()),
        ("is replaced", |victim| {
            fs::write(victim.with_file_name("new"), "new").unwrap();
            fs::rename(victim.with_file_name("new"), victim).unwrap();
        }),
    ];
    for flags in [&["-j1"][..], &["-j2", "--split-size=64K"]] {
        for (name, change) in changes {
            let Some(faulty) = Faulty::new() else { return };
            faulty.bench.write("backing/s/victim", pattern(300_000));
            let run = faulty.copy_while(victim_hangs(Op::Read), flags, change);
            assert_eq!(run.code(), Some(0), "{name} {flags:?}: {}", run.tell());
            faulty.assert_arrived("backing/s", "d");
            let summary = run.said().unwrap().summary.unwrap();
            assert!(summary.number("retries").unwrap() >= 1, "{name} {flags:?}: {}", run.tell());
        }
    }
}

#[test]
fn a_file_that_changes_all_the_time_is_told_and_leaves_nothing_half() {
    for flags in ["-j1", "-j2 --split-size=64K"] {
        let Some(faulty) = Faulty::new() else { return };
        let bench = &faulty.bench;
        let victim = bench.write("backing/s/victim", pattern(300_000));
        bench.write("backing/s/other", "stays");
        bench.write("d/victim", "old version");
        faulty.rule(victim_hangs(Op::Read).count(0));
        let words = flags.split(' ').chain(["-T", "faulty/s", "d"]);
        let mut running = bench.dmover.start_copy(words).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut seen = 0;
        while !running.has_ended().unwrap() {
            assert!(Instant::now() < deadline);
            // Each read waits until the file has changed since it was asked for.
            if faulty.faults() > seen {
                seen = faulty.faults();
                append(&victim, "and more");
                faulty.handle.release_hangs();
            }
            std::thread::yield_now();
        }
        let run = running.finish().unwrap();
        assert_eq!(run.code(), Some(4), "{flags}: {}", run.tell());
        let (class, said) = only_error(&run);
        assert_eq!(class, "changed");
        assert!(said.errors[0].number("attempt").unwrap() > 1);
        assert_eq!(bench.read("d/victim"), "old version", "{flags}");
        assert_eq!(leftovers(&bench.at("d")).unwrap(), Vec::<PathBuf>::new());
        faulty.handle.set_rules(&[]).unwrap();
        bench.copy("-T faulty/s d").expect_code(0);
        faulty.assert_arrived("backing/s", "d");
    }
}

#[test]
fn a_file_that_becomes_something_else_is_not_followed() {
    let changes: [(&str, fn(&Path)); 3] = [
        ("symlink", |victim| symlink("/etc/hostname", victim).unwrap()),
        ("directory", |victim| fs::create_dir(victim).unwrap()),
        ("fifo", |victim| {
            let made = std::process::Command::new("mkfifo").arg(victim).status().unwrap();
            assert!(made.success());
        }),
    ];
    // Into a directory that is just being made, a file is opened as soon as its name is known; into one
    // that existed, it is looked at before.
    for ((name, change), lookup) in changes.iter().flat_map(|c| [(c, 1), (c, 2)]) {
        let Some(faulty) = Faulty::new() else { return };
        faulty.bench.write("backing/s/victim", "was a file");
        if lookup == 2 {
            faulty.bench.sh("mkdir d");
        }
        let rule = victim_hangs(Op::Lookup).when(When::Nth(lookup));
        let run = faulty.copy_while(rule, &["-T"], |victim| {
            fs::remove_file(victim).unwrap();
            change(victim);
        });
        assert!(matches!(run.code(), Some(0 | 4)), "{name}: {}", run.tell());
        let copied = fs::symlink_metadata(faulty.bench.at("d/victim"));
        assert!(copied.is_err() || !copied.unwrap().is_file(), "{name}: {}", run.tell());
        faulty.bench.copy("-T faulty/s d").expect_code(0);
        faulty.assert_arrived("backing/s", "d");
    }
}

#[test]
fn short_reads_and_writes_and_interrupts_are_no_errors() {
    let rules = [
        Rule::new(Op::Read, Action::ShortRead(1000)),
        Rule::new(Op::Write, Action::ShortWrite(777)),
        Rule::new(Op::CopyFileRange, Action::ShortWrite(4096)),
        Rule::new(Op::Read, Action::Errno(libc_errno("EINTR"))).when(When::Every(3)),
        Rule::new(Op::Write, Action::Errno(libc_errno("EINTR"))).when(When::Every(3)),
    ];
    for rule in rules {
        let Some(faulty) = Faulty::new() else { return };
        faulty.bench.write("backing/s/victim", pattern(100_000));
        faulty.bench.write("s/victim", pattern(100_000));
        faulty.copy_from(rule.clone().count(40), "").expect_code(0);
        faulty.assert_arrived("backing/s", "d");
        faulty.copy_to(rule.count(40), "").expect_code(0);
        faulty.assert_arrived("s", "backing/d");
    }
}

fn libc_errno(name: &str) -> i32 {
    dmover_testkit::faultfs::errno_by_name(name).unwrap()
}

#[test]
fn a_read_error_is_retried_and_then_told() {
    let Some(faulty) = Faulty::new() else { return };
    faulty.bench.write("backing/s/victim", pattern(100_000));
    faulty.bench.write("backing/s/other", "stays");
    let broken = Rule::new(Op::Read, Action::Errno(libc_errno("EIO"))).name("victim");
    faulty.copy_from(broken.clone(), "").expect_code(0);
    faulty.assert_arrived("backing/s", "d");
    faulty.bench.sh("rm d/victim");
    let run = faulty.copy_from(broken.count(0), "").expect_code(3);
    let (class, said) = only_error(&run);
    assert_eq!(class, "io");
    let error = &said.errors[0];
    assert_eq!((error.text("side"), error.text("operation")), ("source", "read"), "{error:?}");
    assert_eq!(error.number("errno"), Some(5));
    assert!(error.number("attempt").unwrap() > 1, "{error:?}");
    assert!(!faulty.bench.exists("d/victim"));
    assert_eq!(faulty.bench.read("d/other"), "stays");
}

#[test]
fn a_large_file_is_begun_again_after_an_error_that_passes() {
    let Some(faulty) = Faulty::new() else { return };
    faulty.bench.write("s/victim", pattern(200_000));
    let create = Rule::new(Op::Create, Action::Errno(libc_errno("EIO"))).name(".dmover-*");
    faulty.copy_to(create, "--split-size=64K").expect_code(0);
    faulty.assert_arrived("s", "backing/d");
}

#[test]
fn errors_at_the_destination_keep_the_old_version_and_leave_nothing() {
    let table = [
        (Op::Write, "ENOSPC", "no_space"),
        (Op::Write, "EDQUOT", "quota"),
        (Op::Create, "EROFS", "read_only"),
        (Op::Fsync, "EIO", "io"),
        (Op::Flush, "EDQUOT", "quota"),
        (Op::Rename, "EACCES", "denied"),
        (Op::Setattr, "EIO", "io"),
        (Op::Write, "EFBIG", "too_large"),
        (Op::Write, "ESTALE", "stale"),
    ];
    for (op, errno, class) in table {
        for flags in ["--split-size=0 --reflink=never", "--split-size=64K"] {
            let Some(faulty) = Faulty::new() else { return };
            let bench = &faulty.bench;
            bench.write("s/victim", pattern(200_000));
            bench.write("backing/d/victim", "old version");
            let rule = Rule::new(op, Action::Errno(libc_errno(errno))).count(0);
            let rule = if op == Op::Setattr { rule.name(".dmover-*") } else { rule };
            let run = faulty.copy_to(rule, flags);
            assert_eq!(run.code(), Some(3), "{op} {errno} {flags}: {}", run.tell());
            let said = run.said().unwrap();
            let named = said.errors.iter().filter(|line| line.path().ends_with("victim"));
            let classes: Vec<_> = named.map(|line| line.text("class")).collect();
            assert_eq!(classes, [class], "{op} {errno} {flags}: {}", run.tell());
            assert_eq!(bench.read("backing/d/victim"), "old version", "{op} {errno} {flags}");
            let left = leftovers(&bench.at("backing/d")).unwrap();
            assert_eq!(left, Vec::<PathBuf>::new(), "{op} {errno} {flags}");
            bench.copy("-T s faulty/d").expect_code(0);
            faulty.assert_arrived("s", "backing/d");
        }
    }
}

#[test]
fn a_temporary_that_cannot_be_removed_goes_with_the_next_run() {
    let Some(faulty) = Faulty::new() else { return };
    let bench = &faulty.bench;
    bench.write("s/victim", pattern(200_000));
    bench.write("backing/d/victim", "old version");
    let fails = Rule::new(Op::Write, Action::Errno(libc_errno("EFBIG"))).count(0);
    let stays = Rule::new(Op::Unlink, Action::Errno(libc_errno("EACCES"))).count(0);
    faulty.handle.set_rules(&[fails, stays]).unwrap();
    bench.copy("-T s faulty/d").expect_code(3);
    assert_eq!(leftovers(&bench.at("backing/d")).unwrap().len(), 1);
    faulty.handle.set_rules(&[]).unwrap();
    bench.copy("-T s faulty/d").expect_code(0);
    faulty.assert_arrived("s", "backing/d");
}

#[test]
fn a_directory_that_cannot_be_read_is_told_and_its_neighbours_arrive() {
    let Some(faulty) = Faulty::new() else { return };
    faulty.bench.write("backing/s/victim/inside", "unreachable");
    faulty.bench.write("backing/s/beside/inside", "fine");
    let rule = Rule::new(Op::Readdir, Action::Errno(libc_errno("EIO"))).name("victim").count(0);
    let run = faulty.copy_from(rule, "").expect_code(3);
    let (class, said) = only_error(&run);
    assert_eq!((class.as_str(), said.errors[0].text("operation")), ("io", "read_directory"));
    assert_eq!(faulty.bench.read("d/beside/inside"), "fine");
    faulty.bench.copy("-T faulty/s d").expect_code(0);
    faulty.assert_arrived("backing/s", "d");
}

#[test]
fn a_lost_answer_to_a_rename_or_link_is_no_lost_file() {
    for op in [Op::Rename, Op::Link, Op::Create, Op::Mkdir, Op::Symlink, Op::Mknod] {
        let Some(faulty) = Faulty::new() else { return };
        let bench = &faulty.bench;
        bench.sh("mkdir -p s/dir backing/d; echo new > s/victim; echo old > backing/d/victim; ln s/victim s/twin
            ln -s x s/link; mkfifo s/pipe; echo f > s/dir/f");
        let rule = Rule::new(op, Action::ErrnoAfter(libc_errno("EIO"))).count(1);
        let run = faulty.copy_to(rule, "");
        assert!(matches!(run.code(), Some(0 | 3)), "{op}: {}", run.tell());
        let content = bench.read("backing/d/victim");
        assert!(content == "new\n" || content == "old\n", "{op}: {content}");
        bench.copy("-T s faulty/d").expect_code(0);
        faulty.assert_arrived("s", "backing/d");
    }
}

fn lost_answer(op: Op) -> Rule {
    Rule::new(op, Action::ErrnoAfter(libc_errno("EIO"))).count(1)
}

#[test]
fn a_lost_answer_never_costs_a_backup() {
    for op in [Op::Rename, Op::Link, Op::Create] {
        let Some(faulty) = Faulty::new() else { return };
        let bench = &faulty.bench;
        bench.sh("mkdir -p s backing/d; echo new > s/victim; echo old > backing/d/victim
            echo new > s/absent; echo precious > backing/d/absent~");
        faulty.copy_to(lost_answer(op), "--backup --overwrite=always").expect_code(0);
        let read = |name: &str| bench.read(&format!("backing/d/{name}"));
        assert_eq!((read("victim"), read("victim~")), ("new\n".into(), "old\n".into()), "{op}");
        assert_eq!(
            (read("absent"), read("absent~")),
            ("new\n".into(), "precious\n".into()),
            "{op}"
        );
        assert_eq!(leftovers(&bench.at("backing/d")).unwrap(), Vec::<PathBuf>::new(), "{op}");
    }
}

#[test]
fn a_lost_answer_is_made_good_in_the_same_run() {
    for op in [Op::Link, Op::Mkdir, Op::Create, Op::Symlink] {
        let Some(faulty) = Faulty::new() else { return };
        let bench = &faulty.bench;
        bench.sh("mkdir -p s/dir/sub; echo 1 > s/dir/a; ln s/dir/a s/dir/sub/b; ln -s x s/dir/l
            chmod 750 s/dir s/dir/sub; touch -d 2001-01-01 s/dir s/dir/sub");
        faulty.copy_to(lost_answer(op), "").expect_code(0);
        faulty.assert_arrived("s", "backing/d");
        let run = faulty.copy_to(lost_answer(op), "--no-preserve=mode --overwrite=always");
        assert_eq!(run.code(), Some(0), "{op}: {}", run.tell());
        bench.sh("rm -rf backing/d");
        faulty.copy_to(lost_answer(op), "--no-preserve=mode").expect_code(0);
        assert_ne!(bench.mode("backing/d/dir/sub"), 0o700, "{op}: made and left closed");
    }
}

#[test]
fn what_was_lost_is_said_again_until_it_is_there_or_accepted() {
    let Some(faulty) = Faulty::new() else { return };
    let bench = &faulty.bench;
    bench.sh("mkdir s; echo 1 > s/victim; setfattr -n user.origin -v here s/victim");
    let refuse = Rule::new(Op::Setxattr, Action::Errno(libc_errno("EOPNOTSUPP"))).count(0);
    faulty.copy_to(refuse, "").expect_code(3);
    let again = bench.copy("-T s faulty/d").expect_code(3);
    let summary = again.said().unwrap().summary.unwrap();
    assert_eq!(summary.0["earlier_losses_by_kind"]["xattr"], 1, "{}", again.tell());
    assert_eq!((summary.number("losses"), summary.number("entries_skipped")), (Some(0), Some(1)));
    bench.copy("-T --allow-loss=xattr s faulty/d").expect_code(0);
    // What one run accepts the next may not.
    bench.copy("-T s faulty/d").expect_code(3);
    bench.copy("-T --overwrite=always s faulty/d").expect_code(0);
    faulty.assert_arrived("s", "backing/d");
    bench.copy("-T s faulty/d").expect_code(0);
}

/// The file looks complete by then, so another attempt would find it equal and say nothing.
#[test]
fn an_error_after_the_final_rename_is_told() {
    let Some(faulty) = Faulty::new() else { return };
    faulty.bench.sh("mkdir s backing/d; echo new > s/victim; echo old > backing/d/victim");
    // The server goes on calling it by its first name; the first flush is the one before the rename.
    let flush = Rule::new(Op::Flush, Action::Errno(libc_errno("EIO"))).name(".dmover-*");
    let said = faulty
        .copy_to(Rule { when: When::Nth(2), ..flush }, "--overwrite=always")
        .expect_code(3)
        .said()
        .unwrap();
    assert_eq!(said.errors.len(), 1);
    assert_eq!(faulty.bench.read("backing/d/victim"), "new\n");
}

/// Entries without content are opened after they were made, under their temporary names.
#[test]
fn what_cannot_be_opened_after_it_was_made_leaves_nothing_behind() {
    let mut last = 0;
    for nth in 1..=200 {
        let bench = Bench::new();
        bench.sh("mkdir s d; mkfifo s/a; ln -s new s/b; echo old | tee d/a > d/b");
        let (log, inject) = (bench.at("log"), format!("inject=openat:error=EIO:when={nth}"));
        let (to, log_name) = (bench.at("d"), log.to_str().unwrap());
        let trace = ["strace", "-f", "-qq", "-o", log_name, "-e", "trace=openat"];
        let words = trace.into_iter().chain(["-P", to.to_str().unwrap(), "-e", &inject]);
        let faulty = bench.with(|dmover| dmover.wrapped(words));
        let run = faulty.copy("-j1 -T s d");
        let bench = faulty.with(|dmover| dmover.wrapped([""; 0]));
        if !bench.read("log").contains("(INJECTED)") {
            break;
        }
        last = nth;
        let left = leftovers(&bench.at("d")).unwrap();
        assert!(left.is_empty(), "{nth}: {left:?}: {}", run.tell());
    }
    assert!(last > 0, "no call was made to fail");
}
