//! What cannot work is named, changes nothing, and takes no longer than was allowed.
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dmover_testkit::clock::{self, WrongClock};
use dmover_testkit::cluster::{NatsServer, Piece, nats_request, needs};
use dmover_testkit::skip;

use super::Fleet;
use crate::bench::{Bench, PROGRAM, is_root};

#[test]
fn a_broker_that_is_not_there_or_lets_nobody_in_is_named() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let bench = Bench::new();
    bench.sh("mkdir source");
    let run = bench.dmover("copy source far --insecure --broker nats://127.0.0.1:1").expect_code(6);
    assert!(run.stderr.contains("cannot reach the broker nats://127.0.0.1:1"), "{}", run.tell());
    let run = bench
        .dmover("mover --broker-wait 0s --insecure --broker nats://127.0.0.1:1")
        .expect_code(6);
    assert!(run.stderr.contains("cannot reach the broker"), "{}", run.tell());
    let run = bench.dmover("copy source far --broker nowhere.json").expect_code(2);
    assert!(run.stderr.contains("nowhere.json"), "{}", run.tell());
    let locked = NatsServer::start_local("authorization { token: \"s3cret\" }").unwrap();
    let url = locked.url();
    for verb in ["copy source far", "mover"] {
        let run = bench.dmover(&format!("{verb} --insecure --broker {url}")).expect_code(2);
        assert!(run.stderr.contains("refuses the credentials"), "{}", run.tell());
        bench.sh("umask 077; echo another > wrong");
        let run = bench.dmover(&format!("{verb} --insecure --broker {url} --credentials wrong"));
        assert!(run.expect_code(2).stderr.contains("refuses the credentials"));
    }
    assert!(!bench.exists("far"));
}

#[test]
fn a_job_that_nobody_works_for_ends_and_can_be_gone_on_with() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    fleet.bench.sh("mkdir source; seq 9 | (cd source; xargs touch)");
    let run = fleet.dmover("sync source far --mover-wait 2s").expect_code(6);
    assert!(run.stderr.contains("no mover connected to"), "{}", run.tell());
    fleet.call_mover("");
    fleet.dmover("sync source far --mover-wait 1m").expect_code(0);
    fleet.bench.assert_same("source", "far");
}

#[test]
fn a_second_coordinator_is_refused_and_told_where_the_first_one_is() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    fleet.bench.sh("mkdir source; seq 9 | (cd source; xargs touch)");
    // Without state there is no lock of the job; both have one id.
    let line = format!(
        "copy --no-state --mover-wait 1m -T source far --insecure --broker {}",
        fleet.broker.url()
    );
    let elsewhere = fleet.without_locks();
    let first = elsewhere.start(line.split(' ')).unwrap();
    // Whoever misses movers has offered the job.
    assert!(first.wait_for_stderr("no mover is connected", 1), "{}", first.stderr_so_far());
    let second = elsewhere.run(line.split(' ')).unwrap().expect_code(6);
    let words = format!("already runs in process {}", first.pid().as_raw_nonzero());
    assert!(second.stderr.contains(&words), "{words}: {}", second.tell());
    fleet.call_mover("");
    first.finish().unwrap().expect_code(0);
    fleet.bench.assert_same("source", "far");
}

#[test]
fn a_mover_with_another_file_system_under_the_same_path_gets_no_tasks() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("mount namespaces need root");
    }
    let fleet = Fleet::new(0);
    fleet.bench.sh("mkdir source there other; seq 9 | (cd source; xargs touch)");
    let url = fleet.broker.url();
    let there = fleet.bench.at("there").display().to_string();
    let mounts = [
        ("mount -t tmpfs none \"$1\"", "is on another file system here"),
        (
            "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\"",
            "is read-only on this host",
        ),
        ("mount --bind \"$1/../other\" \"$1\"", "is another directory here"),
    ];
    for (mount, why) in mounts {
        let script = format!(
            "mount --make-rprivate / && {mount} && exec \"$2\" mover --insecure --broker \"$3\""
        );
        let mover = Command::new("unshare")
            .env("DMOVER_STATE_DIR", fleet.bench.dmover.state_directory())
            .args(["--mount", "sh", "-c", &script, "sh", &there, PROGRAM, &url])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Ending)
            .unwrap();
        let run = fleet.dmover("copy -T source there --mover-wait 3s").expect_code(6);
        drop(mover);
        assert!(run.stderr.contains(why) && run.stderr.contains("no movers on"), "{}", run.tell());
        assert_eq!(fleet.bench.sh("ls there"), "", "{mount}");
    }
}

/// A shell's words for a mount that nobody else sees, and what runs with it.
fn with_mount(at: &str) -> String {
    format!("mount --make-rprivate / && mount -t tmpfs none '{at}' && exec \"$@\"")
}

#[test]
fn a_mover_with_other_mounts_below_the_roots_gets_no_tasks() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("mount namespaces need root");
    }
    let fleet = Fleet::new(0);
    fleet.bench.sh("mkdir -p source/sub/deep far/sub; seq 9 | (cd source/sub; xargs touch)");
    let url = fleet.broker.url();
    let call = |at: &str| {
        let script = with_mount(&fleet.bench.at(at).display().to_string());
        let words = [
            "--mount",
            "sh",
            "-c",
            &script,
            "sh",
            PROGRAM,
            "mover",
            "--insecure",
            "--broker",
            &url,
        ];
        let state = fleet.bench.dmover.state_directory();
        let mut mover = Command::new("unshare")
            .env("DMOVER_STATE_DIR", state)
            .args(words)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(mover.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("waiting for jobs")));
        mover
    };
    let dismiss = |mut mover: std::process::Child| {
        mover.kill().unwrap();
        mover.wait().unwrap();
    };
    // Each sees another tree below one name.
    for at in ["source/sub", "source/sub/deep", "far/sub"] {
        let mover = call(at);
        let run = fleet.dmover("sync --yes --delete source far --mover-wait 3s").expect_code(6);
        let why = format!(
            "{at}' has a file system mounted that the coordinator's host does not have there"
        );
        assert!(run.stderr.contains(&why), "{}", run.tell());
        dismiss(mover);
        assert_eq!(fleet.bench.sh("find far -type f"), "", "{at}");
    }
    // What does not take part may be anything.
    let mover = call("source/sub/deep");
    fleet.dmover("copy -T source else --exclude deep --mover-wait 1m").expect_code(0);
    // What lies on another file system is a matter of where mounts are, so they have to be the same.
    let run = fleet.dmover("copy -x -T source one --mover-wait 3s").expect_code(6);
    assert!(
        run.stderr.contains("has a file system mounted that the coordinator's host does not have"),
        "{}",
        run.tell()
    );
    dismiss(mover);
    // The coordinator has a mount that movers have not.
    let mut plain = Fleet::new(0);
    plain.bench.sh("mkdir -p source/sub; touch source/sub/f");
    plain.call_mover("");
    let script = with_mount(&plain.bench.at("source/sub").display().to_string());
    let mut command = Command::new("unshare");
    command.env("DMOVER_STATE_DIR", plain.bench.dmover.state_directory());
    command.args(["--mount", "sh", "-c", &script, "sh", PROGRAM, "copy", "-T", "source", "far"]);
    command.args(["--mover-wait", "3s", "--insecure", "--broker", &plain.broker.url()]);
    let output = command.current_dir(plain.bench.at("")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let why =
        "source/sub' does not have the file system that the coordinator's host has mounted there";
    assert!(output.status.code() == Some(6) && said.contains(why), "{said}");
    assert_eq!(plain.bench.sh("find . -path './far*' -type f"), "");
}

/// A process that ends with its test.
struct Ending(std::process::Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_mover_whose_mounts_change_leaves() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("mount namespaces need root");
    }
    let places = [
        ("source/sub", "has a file system mounted that the coordinator's host does not have there"),
        ("far", "is on another file system here than on the coordinator's host"),
    ];
    for (place, why) in places {
        let mut fleet = Fleet::new(0);
        fleet.bench.sh("mkdir -p source/sub; head -c 24M /dev/urandom > source/large");
        let url = fleet.broker.url();
        let words = ["--mount", PROGRAM, "mover", "--insecure", "--broker", &url];
        let mut command = Command::new("unshare");
        command.env("DMOVER_STATE_DIR", fleet.bench.dmover.state_directory());
        let quiet = command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
        let mover = Ending(quiet.spawn().unwrap());
        let line = "copy -T source far --bwlimit 3M --lease 2s --mover-wait 1m --insecure --broker";
        let job = fleet.bench.dmover.start(line.split(' ').chain([url.as_str()])).unwrap();
        let until = Instant::now() + Duration::from_mins(1);
        // It has begun: poll.
        while fleet.bench.sh("find . -path './far/*'").is_empty() {
            assert!(Instant::now() < until, "{}", job.stderr_so_far());
        }
        let place = fleet.bench.at(place).display().to_string();
        let target = format!("--target={}", mover.0.id());
        let mount = ["--mount", &target, "mount", "-t", "tmpfs", "none", &place];
        assert!(Command::new("nsenter").args(mount).status().unwrap().success());
        assert!(job.wait_for_stderr(why, 1), "{}", job.stderr_so_far());
        // Somebody else goes on; what was done meanwhile is in doubt, and the job does not end as if it was not.
        fleet.call_mover("");
        let run = job.finish().unwrap().expect_code(3);
        assert!(
            run.stderr.contains("data written in that time may be on another file system"),
            "{}",
            run.tell()
        );
        fleet.bench.assert_same("source", "far");
    }
}

/// Files would be its own, or be refused, and nobody would know why some are.
#[test]
fn a_mover_that_may_do_less_than_its_coordinator_gets_no_tasks() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("nobody else has anything to give up");
    }
    let mut fleet = Fleet::new(0);
    fleet.bench.sh("mkdir source; seq 99 | (cd source; xargs touch; chown 1234 *)");
    let url = fleet.broker.url();
    let front = ["setpriv", "--bounding-set=-chown,-mknod", "--inh-caps=-chown,-mknod"];
    let front: Vec<_> = front.map(Into::into).to_vec();
    let weak =
        fleet.bench.dmover.start_behind(&front, ["mover", "--insecure", "--broker", &url]).unwrap();
    let line = format!("copy -T source far --insecure --broker {url}");
    let job = fleet.bench.dmover.start(line.split(' ')).unwrap();
    let words = "this mover lacks privileges that the coordinator has: CAP_CHOWN, CAP_MKNOD";
    assert!(job.wait_for_stderr(words, 1), "{}", job.stderr_so_far());
    fleet.call_mover("");
    job.finish().unwrap().expect_code(0);
    fleet.bench.assert_same("source", "far");
    weak.kill().unwrap();
}

#[test]
fn another_version_of_the_protocol_is_refused_with_both_versions() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(1);
    fleet.bench.sh("mkdir source");
    // Makes the bucket of jobs.
    fleet.dmover("copy source far").expect_code(0);
    let offer = r#"{"protocol":99,"version":"9.9.9","job":"ffffffffffff","run":1,"host":"elsewhere",
        "pid":1,"lease_ms":1000,"offer":{}}"#;
    let offer = offer.replace('\n', " ");
    let answer = nats_request(fleet.broker.address(), "$KV.dmover_jobs.ffffffffffff", &offer);
    assert!(answer.unwrap().contains("KV_dmover_jobs"));
    let mover = &fleet.movers[0];
    assert!(mover.wait_for_stderr("9.9.9", 1), "{}", mover.stderr_so_far());
    let said = mover.stderr_so_far();
    let line = said.lines().find(|line| line.contains("9.9.9")).unwrap();
    assert!(line.contains("(protocol 99)") && line.contains(env!("CARGO_PKG_VERSION")), "{line}");
    fleet.call_mover("");
}

#[test]
fn a_mover_whose_clock_is_an_hour_wrong_is_refused_and_one_that_is_minutes_wrong_is_named() {
    let wrong = |ahead_s| needs(&[Piece::Nats]).and_then(|()| WrongClock::new(ahead_s));
    let (far, near) = match (wrong(3600), wrong(-300)) {
        (Ok(far), Ok(near)) => (far, near),
        (Err(why), _) | (_, Err(why)) => skip!("{why}"),
    };
    let fleet = Fleet::new(0);
    let (bench, url) = (&fleet.bench, fleet.broker.url());
    let call = |clock: &WrongClock| {
        let words = ["mover", "--insecure", "--broker", &url];
        bench.dmover.start_behind(&clock.words(), words).unwrap()
    };
    bench.sh("mkdir source; seq 9 | (cd source; xargs touch)");
    let late = call(&far);
    let words = format!("sync source far --insecure --broker {url} --mover-wait 1m");
    let job = bench.dmover.start(words.split_whitespace()).unwrap();
    assert!(
        job.wait_for_stderr("60 min ahead of that of the coordinator; synchronise both clocks", 1)
    );
    assert!(late.wait_for_stderr("60 min ahead", 1), "{}", late.stderr_so_far());
    // Only this one can end the job.
    let early = call(&near);
    let run = job.finish().unwrap().expect_code(0);
    assert!(run.stderr.contains("is 5 min behind that of the coordinator"), "{}", run.tell());
    bench.assert_same("source", "far");
    for mover in [late, early] {
        let pid = mover.pid().as_raw_nonzero().get() as u32;
        mover.kill().unwrap();
        clock::clear_after(pid);
    }
}

/// It runs 400 times too fast: half an hour is over in less than five seconds.
#[test]
fn a_mover_whose_clock_goes_wrong_while_it_works_is_refused() {
    let racing = needs(&[Piece::Nats]).and_then(|()| WrongClock::racing(400));
    let racing = match racing {
        Ok(racing) => racing,
        Err(why) => skip!("{why}"),
    };
    let mut fleet = Fleet::new(0);
    fleet.bench.sh("mkdir source; head -c 40M /dev/urandom > source/f");
    let url = fleet.broker.url();
    let words = format!("copy -T --bwlimit 4M --lease 2s source far --insecure --broker {url}");
    let job = fleet.bench.dmover.start(words.split(' ')).unwrap();
    let wrong = ["mover", "--insecure", "--broker", &url];
    let wrong = fleet.bench.dmover.start_behind(&racing.words(), wrong).unwrap();
    assert!(wrong.wait_for_stderr("working for a job", 1), "{}", wrong.stderr_so_far());
    let words = "min ahead of that of the coordinator; synchronise both clocks";
    assert!(job.wait_for_stderr(words, 1), "{}", job.stderr_so_far());
    fleet.call_mover("");
    job.finish().unwrap().expect_code(0);
    fleet.bench.assert_same("source", "far");
    let pid = wrong.pid().as_raw_nonzero().get() as u32;
    wrong.kill().unwrap();
    clock::clear_after(pid);
}

#[test]
fn a_broker_that_is_full_ends_the_job_with_its_name() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    // Not even the record of the job has room.
    let config = "jetstream { max_file_store: 1KB, max_memory_store: 1MB }";
    let fleet = Fleet::with(1, config);
    let bench = &fleet.bench;
    bench.sh("mkdir source; cd source; for d in $(seq 300); do mkdir d$d; done");
    let run = fleet.dmover("copy --json -T source far --mover-wait 5s");
    assert!(run.code() == Some(6), "{}", run.tell());
    assert!(run.stderr.contains("the broker"), "{}", run.tell());
}

#[test]
fn a_task_that_is_too_large_for_the_broker_is_named() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::with(1, "max_payload: 4096");
    let bench = &fleet.bench;
    bench.sh(
        "mkdir source; for i in $(seq 900); do echo $(echo $i | sha256sum | cut -c1-60); done >list
              cd source; xargs touch <../list",
    );
    let run = fleet.dmover("copy --files-from list source far").expect_code(6);
    assert!(run.stderr.contains("max_payload"), "{}", run.tell());
    // Outcomes are cut into pieces: without a list all goes through.
    fleet.dmover("copy -T source far").expect_code(0);
    bench.assert_same("source", "far");
}
