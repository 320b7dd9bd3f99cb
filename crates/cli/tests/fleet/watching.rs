//! Whoever watches a job sees what it and its movers do.
use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::faultfs::{Action, Config, FaultFs, Op, Rule, errno_by_name};
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Fleet;

/// Where a process says that it has metrics.
fn endpoint(process: &Running) -> String {
    assert!(process.wait_for_stderr("/metrics", 1), "{}", process.stderr_so_far());
    let said = process.stderr_so_far();
    let line = said.lines().find_map(|line| line.strip_prefix("dmover: metrics at http://"));
    line.unwrap().trim_end_matches("/metrics").to_owned()
}

/// The metrics of a process, as HTTP has them.
fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

/// The value of the first sample whose line begins so.
fn value(text: &str, beginning: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(beginning))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn promtool() -> Option<Command> {
    let known = Command::new("promtool").arg("--version").output().is_ok();
    known.then(|| Command::new("promtool"))
}

/// Has promtool look at metrics; anything that it finds is a failure.
fn check(text: &str) {
    let Some(mut promtool) = promtool() else {
        skip!("no promtool here");
    };
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn metrics_and_status_show_the_job_and_its_movers_and_one_that_is_slow() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::with(0, "");
    for _ in 0..3 {
        fleet.call_mover("--bwlimit 8M --label rack=a");
    }
    fleet.call_mover("--bwlimit 800K --metrics 0");
    fleet.bench.sh("mkdir source; for i in 1 2 3 4; do head -c 160M /dev/zero > source/$i; done");
    let url = fleet.broker.url();
    let line = "copy -T source far --metrics 0 --insecure --broker";
    let job = fleet.bench.dmover.start(line.split(' ').chain([url.as_str()])).unwrap();
    let (own, mover) = (endpoint(&job), endpoint(&fleet.movers[3]));
    let words = "times slower than the other movers with large files; it spends the time waiting";
    assert!(job.wait_for_stderr(words, 1), "{}", job.stderr_so_far());
    let until = Instant::now() + Duration::from_mins(1);
    let (text, theirs) = loop {
        let (text, theirs) = (scrape(&own), scrape(&mover));
        let moved = value(&theirs, "dmover_mover_bytes_copied_total").is_some_and(|n| n > 0.0);
        let is_slow = text
            .lines()
            .any(|line| line.starts_with("dmover_job_mover_slow{") && line.ends_with(" 1"));
        if moved && is_slow && value(&text, "dmover_job_bytes_copied_total").unwrap_or(0.0) > 0.0 {
            break (text, theirs);
        }
        assert!(Instant::now() < until, "{text}\n{theirs}");
        // A poll: what is shown is half a second old.
        std::thread::sleep(Duration::from_millis(100));
    };
    check(&text);
    check(&theirs);
    assert_eq!(value(&text, "dmover_job_movers{"), Some(4.0), "{text}");
    assert_eq!(text.matches("\ndmover_job_mover_bytes_total{").count(), 4, "{text}");
    assert_eq!(value(&theirs, "dmover_mover_jobs"), Some(1.0), "{theirs}");
    for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"] {
        assert!(value(&text, &format!("{name} ")).unwrap() > 0.0, "{name}");
    }
    // The status file has the same, two seconds old at most.
    let status = loop {
        let run = fleet.bench.dmover("status --json").expect_code(0);
        let status: Value = serde_json::from_str(&run.text()).unwrap();
        if status["movers"].as_array().is_some_and(|all| all.iter().any(|m| !m["slow"].is_null())) {
            break status;
        }
        assert!(Instant::now() < until, "{status}");
        // A poll of a file.
        std::thread::sleep(Duration::from_millis(100));
    };
    let movers = status["movers"].as_array().unwrap();
    assert_eq!(movers.len(), 4, "{status}");
    assert_eq!(movers.iter().filter(|mover| mover["labels"][0][1] == "a").count(), 3, "{status}");
    let said = fleet.bench.dmover("status").expect_code(0).text();
    assert_eq!(said.matches("  mover: ").count(), 4, "{said}");
    job.finish().unwrap().expect_code(0);
    fleet.bench.assert_same("source", "far");
}

#[test]
fn a_job_in_one_process_has_metrics_as_well_and_an_address_in_use_is_refused() {
    let fleet = match needs(&[Piece::Nats]) {
        Ok(()) => Fleet::new(0),
        Err(why) => skip!("{why}"),
    };
    fleet.bench.sh("mkdir source; head -c 8M /dev/zero > source/f");
    let line = "copy -T source far --bwlimit 2M --metrics 0";
    let job = fleet.bench.dmover.start(line.split(' ')).unwrap();
    let address = endpoint(&job);
    let refused = fleet.bench.dmover(&format!("copy -T source other --metrics {address}"));
    assert!(refused.expect_code(2).stderr.contains(&format!("--metrics {address}:")));
    assert!(!fleet.bench.exists("other"));
    let text = loop {
        let text = scrape(&address);
        if text.contains("dmover_job_info{") {
            break text;
        }
        std::thread::yield_now();
    };
    check(&text);
    assert!(text.contains("verb=\"copy\"") && !text.contains("dmover_job_movers"), "{text}");
    job.finish().unwrap().expect_code(0);
    for wrong in ["nowhere.invalid:1", "host:99999", "x"] {
        let run = fleet.bench.dmover(&format!("copy -T source other --metrics {wrong}"));
        assert!(run.expect_code(2).stderr.contains("--metrics"), "{wrong}");
    }
}

#[test]
fn histograms_have_each_file_once_where_it_belongs() {
    let mut fleet = match needs(&[Piece::Nats]) {
        Ok(()) => Fleet::new(0),
        Err(why) => skip!("{why}"),
    };
    fleet.call_mover("--metrics 0");
    fleet
        .bench
        .sh("mkdir source; for i in $(seq 40); do head -c 2000 /dev/zero > source/$i; done; \
         head -c 60M /dev/zero > source/large");
    let line = "copy -T source far --split-size 1M --bwlimit 3M --metrics 0";
    for broker in [None, Some(format!("--insecure --broker {}", fleet.broker.url()))] {
        fleet.bench.sh("rm -rf far");
        let words = format!("{line} {}", broker.as_deref().unwrap_or_default());
        let job = fleet.bench.dmover.start(words.split_whitespace()).unwrap();
        let mut asked = vec![("job", endpoint(&job))];
        if broker.is_some() {
            asked.push(("mover", endpoint(&fleet.movers[0])));
        }
        let until = Instant::now() + Duration::from_mins(1);
        while let Some((whose, address)) = asked.last() {
            let text = scrape(address);
            let find = |name: &str, label: &str| {
                let start = format!("dmover_{whose}_{name}{{");
                let line = text.lines().find(|l| l.starts_with(&start) && l.contains(label))?;
                line.rsplit_once(' ')?.1.parse::<f64>().ok()
            };
            let size =
                |le: &str| find("entry_size_bytes_bucket", &format!("le=\"{le}\"")).unwrap_or(0.0);
            let files = (size("4096") - size("1024")) as u64;
            assert!(files <= 40, "{text}");
            let large = find("task_duration_seconds_count", "class=\"large\"").unwrap_or(0.0);
            let took = find("task_duration_seconds_sum", "class=\"large\"").unwrap_or(0.0);
            // A megabyte at three megabytes a second is not read in no time.
            if files == 40 && large >= 1.0 && took > 0.1 {
                check(&text);
                let count = find("entry_duration_seconds_count", "").unwrap();
                let sum = find("entry_duration_seconds_sum", "").unwrap();
                assert!(count >= 40.0 && sum > 0.0, "{text}");
                asked.pop();
            }
            assert!(Instant::now() < until, "{text}");
            // A poll: what is shown is half a second old.
            std::thread::sleep(Duration::from_millis(50));
        }
        // It would take many seconds more.
        job.kill().unwrap();
    }
}

#[test]
fn one_v_makes_a_mover_log_more() {
    let mut fleet = match needs(&[Piece::Nats]) {
        Ok(()) => Fleet::new(0),
        Err(why) => skip!("{why}"),
    };
    fleet.bench.sh("mkdir source; touch source/f");
    fleet.call_mover("--log-file plain --log-format text");
    fleet.call_mover("-v --log-file verbose");
    fleet.dmover("copy -T source far").expect_code(0);
    let logged = |file: &str| fleet.bench.read(file);
    assert!(logged("verbose").contains("DEBUG"), "{}", logged("verbose"));
    assert!(!logged("plain").contains("DEBUG"), "{}", logged("plain"));
}

#[test]
fn top_shows_jobs_on_a_terminal_and_nowhere_else() {
    let fleet = match needs(&[Piece::Nats]) {
        Ok(()) => Fleet::new(0),
        Err(why) => skip!("{why}"),
    };
    fleet.bench.sh("mkdir source; touch source/f");
    fleet.bench.dmover("copy -T source far").expect_code(0);
    let run = fleet.bench.dmover("top").expect_code(2);
    assert!(run.stderr.contains("not a terminal") && run.stderr.contains("status --json"));
    // script(1) gives it a terminal, and a key.
    let mut command = fleet.bench.dmover.command();
    let program = command.get_program().to_string_lossy().into_owned();
    let inner = format!("stty rows 40 cols 120; exec {program} top");
    let state = fleet.bench.dmover.state_directory();
    command = Command::new("script");
    command.args(["-q", "-e", "-c", &inner, "/dev/null"]).env("DMOVER_STATE_DIR", state);
    command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut top = command.spawn().unwrap();
    let mut keys = top.stdin.take().unwrap();
    let mut screen = top.stdout.take().unwrap();
    let mut shown = Vec::new();
    let mut block = [0; 4096];
    while !String::from_utf8_lossy(&shown).contains("finished") {
        let read = screen.read(&mut block).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&block[..read]);
    }
    // Without JOB it says which job it shows: before the screen, and on it.
    let text = String::from_utf8_lossy(&shown);
    let (said, drawn) = text.split_once("copy ").unwrap_or_default();
    assert!(said.contains("dmover: job "), "{text}");
    // Blanks are moves of the cursor.
    assert!(drawn.contains("job;") && drawn.contains("running"), "{text}");
    keys.write_all(b"q").unwrap();
    std::io::copy(&mut screen, &mut std::io::sink()).unwrap();
    assert_eq!(top.wait().unwrap().code(), Some(0));
}

/// What is shipped beside the program fits it: rules, their own tests, and the queries of the dashboard.
#[test]
fn rules_and_dashboard_ask_for_metrics_that_there_are() {
    if let Err(why) = needs(&[Piece::Nats, Piece::Prometheus]) {
        skip!("{why}");
    }
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    for words in [
        &["check", "rules", "dmover.rules.yml"][..],
        &["test", "rules", "dmover.rules.test.yml"],
        &["check", "config", "prometheus.yml"],
    ] {
        let Some(mut promtool) = promtool() else {
            skip!("no promtool here");
        };
        let output = promtool.args(words).current_dir(contrib.join("prometheus")).output().unwrap();
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&said));
    }
    let source = |path: &str| std::fs::read_to_string(contrib.join(path)).unwrap();
    let texts = [source("grafana/dmover.json"), source("prometheus/dmover.rules.yml")];
    let dashboard: Value = serde_json::from_str(&texts[0]).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 5);
    let mut fleet = Fleet::with(1, "");
    fleet.call_mover("--metrics 0");
    fleet.bench.sh("mkdir source; head -c 32M /dev/zero > source/f; touch source/g");
    let url = fleet.broker.url();
    let line = "copy -T source far --bwlimit 4M --metrics 0 --insecure --broker";
    let job = fleet.bench.dmover.start(line.split(' ').chain([url.as_str()])).unwrap();
    let (own, mover) = (endpoint(&job), endpoint(&fleet.movers[1]));
    let until = Instant::now() + Duration::from_mins(1);
    let known = loop {
        let known = scrape(&own) + &scrape(&mover);
        let all = ["dmover_job_mover_slow{", "dmover_job_limit{", "dmover_mover_held_tasks{"];
        if all.iter().all(|name| known.contains(name)) {
            break known;
        }
        assert!(Instant::now() < until, "{known}");
        // A poll: what is shown is half a second old.
        std::thread::sleep(Duration::from_millis(100));
    };
    job.finish().unwrap().expect_code(0);
    for text in texts {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        for name in words
            .filter(|word| word.starts_with("dmover_job_") || word.starts_with("dmover_mover_"))
        {
            let is_known =
                known.contains(&format!("\n{name}{{")) || known.contains(&format!("\n{name} "));
            assert!(is_known, "nothing exposes {name}");
        }
    }
}

#[test]
fn the_log_of_a_job_has_what_the_logs_of_its_movers_say() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(2);
    let bench = &fleet.bench;
    // What is said in the last half second is not told: the sound one takes longer.
    bench.sh("mkdir backing source; head -c 3M /dev/zero > backing/sound; echo x > backing/broken");
    let fails = Action::Errno(errno_by_name("EIO").unwrap());
    let rules = vec![Rule::new(Op::Open, fails).name("broken").count(0)];
    let config = Config { rules, ..Config::default() };
    let _faulty = FaultFs::mount(&bench.at("backing"), &bench.at("source"), config).unwrap();
    fleet.dmover("copy -T --bwlimit 1M source far --log-file log --log-format json").expect_code(3);
    let log = std::fs::read_to_string(bench.at("log")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let pids: Vec<u64> =
        fleet.movers.iter().map(|mover| mover.pid().as_raw_nonzero().get() as u64).collect();
    let said = |pid: u64, level: &str, words: &str| {
        lines.iter().any(|line| {
            let fields = &line["fields"];
            line["target"] == "mover"
                && line["level"] == level
                && fields["pid"] == pid
                && fields["host"].as_str().is_some_and(|host| !host.is_empty())
                && fields["message"].as_str().unwrap().contains(words)
        })
    };
    assert!(pids.iter().any(|pid| said(*pid, "INFO", "working for a job")), "{log}");
    assert!(pids.iter().any(|pid| said(*pid, "WARN", "source/broken")), "{log}");
}

/// What only reads has no state of its own.
#[test]
fn what_only_reads_is_seen_while_it_runs_and_leaves_nothing_behind() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(1);
    let bench = &fleet.bench;
    bench.sh("mkdir source far; head -c 40M /dev/zero >source/f; cp -a source/f far");
    let url = fleet.broker.url();
    let jobs = || bench.dmover("jobs").expect_code(0).text();
    let seen = |verb: &str| {
        let until = Instant::now() + Duration::from_mins(1);
        loop {
            let status = bench.dmover("status --json");
            let status: Value = serde_json::from_str(&status.text()).unwrap_or_default();
            let is_known = status["verb"] == verb && status["state"] == "running";
            if is_known && status["movers"].as_array().is_some_and(|all| all.len() == 1) {
                return status;
            }
            assert!(Instant::now() < until, "{status}");
            // A poll of a file.
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    for (verb, words) in [
        ("verify", "verify --level digest --bwlimit 4M source far"),
        ("sum", "sum --bwlimit 4M source"),
    ] {
        let start = || {
            bench.dmover.start(words.split(' ').chain(["--insecure", "--broker", &url])).unwrap()
        };
        let job = start();
        let status = seen(verb);
        let mover = &status["movers"][0];
        assert!(mover["cores"].as_u64().unwrap() > 0, "{mover}");
        assert!(mover["memory_bytes"].as_u64().unwrap() > 0, "{mover}");
        assert_eq!(mover["version"], env!("CARGO_PKG_VERSION"), "{mover}");
        assert!(mover["nics"].is_array(), "{mover}");
        let mounts = mover["mounts"].as_array().unwrap();
        assert!(mounts.iter().any(|mount| mount["at"] == "/"), "{mover}");
        let shown = bench.dmover("status").expect_code(0).text();
        assert!(shown.contains(&format!("verb: {verb} ")), "{shown}");
        job.kill().unwrap();
        assert!(jobs().contains("died"), "{}", jobs());
        let job = start();
        seen(verb);
        assert!(!jobs().contains("died"), "{}", jobs());
        bench.dmover(&format!("cancel {}", seen(verb)["job"].as_str().unwrap())).expect_code(0);
        job.finish().unwrap();
        assert_eq!(jobs(), "");
    }
}
