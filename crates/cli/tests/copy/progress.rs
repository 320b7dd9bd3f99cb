//! Progress as a person sees it in a terminal, and as scripts read it.
use super::Bench;
use super::bench::{PROGRAM, eventually};
use dmover_testkit::faultfs::{Action, Op, Rule};
use dmover_testkit::skip::skipped;
use std::process::Command;

/// A tmux server of its own, so that no other session is touched.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs a shell command in a window of so many columns. `None`: there is no tmux here.
    fn run(bench: &Bench, columns: u16, command: &str) -> Option<Self> {
        let socket = format!("dmover-{}-{columns}", std::process::id());
        let terminal = Self { socket };
        let size = ["-x", &columns.to_string(), "-y", "12"].map(str::to_owned);
        let started = terminal
            .tmux()
            .args(["-f", "/dev/null", "new-session", "-d"])
            .args(size)
            .args(["sh", "-c", command])
            .current_dir(bench.root())
            .env("LC_ALL", "C.UTF-8")
            .status();
        started.is_ok_and(|status| status.success()).then_some(terminal)
    }

    fn tmux(&self) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.socket]);
        command
    }

    /// The lines that are not empty.
    fn screen(&self) -> Vec<String> {
        let output = self.tmux().args(["capture-pane", "-p"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
    }

    fn title(&self) -> String {
        let words = ["display-message", "-p", "#{pane_title}"];
        String::from_utf8_lossy(&self.tmux().args(words).output().unwrap().stdout).into_owned()
    }

    fn interrupt(&self) {
        assert!(self.tmux().args(["send-keys", "C-c"]).status().unwrap().success());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux().arg("kill-server").status();
    }
}

/// A tree that takes some 40 seconds at 2 MiB/s.
fn tree(bench: &Bench) {
    bench.sh("mkdir -p a/d; for n in $(seq 80); do head -c 1M /dev/urandom > a/d/file$n; done");
}

#[test]
fn a_terminal_of_any_width_shows_how_far_a_copy_is() {
    let bench = Bench::new();
    tree(&bench);
    for columns in [30_u16, 80, 200] {
        // The shell stays, so that the screen can be looked at afterwards.
        let command = format!(
            "trap : INT; {PROGRAM} copy --no-state -j 2 --bwlimit=2MiB a b{columns}; echo ended $? > end{columns}; exec sleep 1000"
        );
        let Some(terminal) = Terminal::run(&bench, columns, &command) else {
            return skipped("copy::progress", "tmux is missing");
        };
        let shows_all = |lines: &[String]| {
            let all = lines.join("\n");
            all.contains(" %") && all.contains("ETA ") && (columns < 80 || all.contains("MiB/s"))
        };
        eventually("a percentage, a rate and an ETA", || {
            let lines = terminal.screen();
            assert!(lines.len() <= 2, "{columns} columns: {lines:?}");
            assert!(lines.iter().all(|line| line.chars().count() < columns.into()), "{lines:?}");
            shows_all(&lines)
        });
        let lines = terminal.screen();
        assert!(lines.join(" ").contains("80.0 MiB") || columns == 30, "{lines:?}");
        assert!(terminal.title().contains(" % copying - dmover"), "{}", terminal.title());
        terminal.interrupt();
        // The shell creates the file before it writes into it.
        let end = format!("end{columns}");
        eventually("the end", || bench.exists(&end) && bench.read(&end).ends_with('\n'));
        assert_eq!(bench.read(&end), "ended 130\n");
        let lines = terminal.screen();
        let rest = lines.iter().find(|line| line.contains("ETA") || line.contains('['));
        assert_eq!(rest, None, "{lines:?}");
        assert!(!terminal.title().contains("dmover"), "{}", terminal.title());
    }
}

#[test]
fn lines_for_scripts_have_a_total_that_du_agrees_with() {
    let bench = Bench::new();
    tree(&bench);
    bench.sh("ln a/d/file1 a/d/again; ln -s file1 a/d/link; mkfifo a/d/fifo; mkdir a/left; head -c 9M /dev/zero > a/left/out");
    let entries: u64 =
        bench.sh("find a -path a/left -prune -o -print | wc -l").trim().parse().unwrap();
    let bytes: u64 = bench.sh("cat a/d/file* | wc -c").trim().parse().unwrap();
    let line =
        "copy --no-state -j 2 --bwlimit=16MiB --progress=json --stats=100ms --exclude=/left a b";
    let run = bench.dmover(line);
    assert_eq!(run.code(), Some(0));
    let lines: Vec<serde_json::Value> = run
        .stderr
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let known: Vec<_> = lines.iter().filter(|line| line["total"] == "about").collect();
    let last = known.last().unwrap();
    assert_eq!(last["entries_total"], entries);
    assert_eq!(last["bytes_total"], bytes);
    let percents: Vec<f64> = known.iter().filter_map(|line| line["percent"].as_f64()).collect();
    assert!(percents.is_sorted(), "{percents:?}");
    assert!(percents.last().is_some_and(|last| *last > 50.0), "{percents:?}");
    assert_eq!(lines[0]["stage"], "transfer");
}

#[test]
fn a_second_pass_knows_its_total_from_the_first_one() {
    let bench = Bench::new();
    bench.sh("mkdir a; seq 300 | xargs -I@ sh -c 'echo @ > a/@'");
    bench.dmover("sync -q --state-dir state a b");
    bench.sh("head -c 6M /dev/urandom > a/300");
    let run =
        bench.dmover("sync --state-dir state --bwlimit=4MiB --progress=json --stats=100ms a b");
    assert_eq!(run.code(), Some(0));
    let first = run.stderr.lines().find(|line| line.starts_with('{')).unwrap();
    let first: serde_json::Value = serde_json::from_str(first).unwrap();
    assert_eq!((&first["total"], &first["entries_total"]), (&"about".into(), &301.into()));
}

#[test]
fn a_file_that_hangs_is_named() {
    let Some((handle, bench)) = Bench::faulty() else {
        return skipped("copy::progress", "FUSE is missing");
    };
    bench.sh("mkdir a; seq 40 | xargs -I@ cp /etc/passwd a/@");
    bench.sh("cp -r a backing/a");
    handle
        .set_rules(&[Rule::new(Op::Read, Action::Hang { duration_ms: 12_000 }).name("17")])
        .unwrap();
    let run = bench.dmover("copy --no-state --progress=json --stats=200ms faulty/a b");
    assert_eq!(run.code(), Some(0));
    let named = run.stderr.lines().filter(|line| line.starts_with('{')).any(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["oldest"]["path"] == "faulty/a/17" && line["oldest"]["age_s"].as_f64() >= Some(5.0)
    });
    assert!(named);
    bench.sh("cmp backing/a/17 b/17");
}

/// The status lines of a run, and what `dmover jobs` says while it runs.
fn totals(bench: &Bench, line: &str) -> Vec<serde_json::Value> {
    let words = format!("{line} --ops-limit=60 --progress=json --stats=100ms");
    let mut running = bench.dmover.start(words.split(' ')).unwrap();
    while !running.has_ended().unwrap() {
        let jobs = bench.dmover("jobs --json").text();
        let job: serde_json::Value = serde_json::from_str(jobs.lines().next().unwrap()).unwrap();
        let found = job["counters"]["entries_found"].as_u64();
        let is_known = job["entries_total"].as_u64() >= found || job["entries_total"].is_null();
        let outcome = job["outcome"].as_str().unwrap_or_default();
        assert!(is_known && !outcome.contains("99 %"), "{job}");
        bench.sh("sleep 0.2");
    }
    let run = running.finish().unwrap();
    let lines = run.stderr.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in lines.iter().filter(|line| line["total"] == "about") {
        for what in ["entries", "bytes"] {
            let total = line[format!("{what}_total")].as_u64().unwrap();
            assert!(total >= line[format!("{what}_found")].as_u64().unwrap(), "{line}");
        }
    }
    lines
}

/// A run that saw a part of the source says nothing about the next one, which counts by itself.
#[test]
fn the_total_of_another_selection_is_not_used() {
    let bench = Bench::new();
    bench.sh("mkdir s d; echo a > s/a; echo b > s/b; mkdir d/b; touch d/b/x");
    bench.dmover("sync s d").expect_code(3);
    bench.dmover("retry").expect_code(3);
    bench.sh("cd s; for n in $(seq 500); do echo $n > n$n; done");
    let lines = totals(&bench, "sync s d");
    let last = lines.iter().rfind(|line| line["total"] == "about").unwrap();
    assert_eq!(last["entries_total"], 503, "counted: {last}");

    bench.sh("mkdir -p t/big; echo a > t/a; cd t/big; for n in $(seq 500); do echo $n > n$n; done");
    bench.dmover("copy -T --exclude /big t e").expect_code(0);
    let lines = totals(&bench, "copy -T t e");
    let last = lines.iter().rfind(|line| line["total"] == "about").unwrap();
    assert_eq!(last["entries_total"], 503, "counted: {last}");
}

/// What was added since the last run is counted once there is more than that run found.
#[test]
fn a_total_that_is_exceeded_is_counted_again() {
    let bench = Bench::new();
    bench.sh("mkdir s; touch s/a");
    bench.dmover("copy -T s d").expect_code(0);
    bench.sh("cd s; for n in $(seq 600); do echo $n > n$n; done");
    let lines = totals(&bench, "copy -T s d");
    assert!(lines.iter().any(|line| line["total"] == "at_least"));
    let last = lines.iter().rfind(|line| line["total"] == "about").unwrap();
    assert_eq!(last["entries_total"], 602, "{last}");
}
