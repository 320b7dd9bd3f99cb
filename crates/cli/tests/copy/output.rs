//! What is printed where: summaries, itemize, JSON, templates, progress, job files, help.

use dmover_testkit::lanes::lines::parse_lines;

use super::bench::pattern;
use super::{Bench, snapshot};

fn bench() -> Bench {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p s/sub; echo 1 > s/a; echo 22 > s/sub/b; ln s/a s/sub/a2; ln -s a s/l; mkfifo s/p",
    );
    bench
}

#[test]
fn standard_output_is_for_data_and_the_summary_is_on_standard_error() {
    let bench = bench();
    let run = bench.dmover("copy s d").expect_code(0);
    assert_eq!(run.text(), "");
    assert!(run.stderr.contains("done"), "{}", run.stderr);
    assert!(run.stderr.contains("2 files"), "{}", run.stderr);
    let run = bench.dmover("copy s d").expect_code(0);
    assert!(run.stderr.contains("  skipped     "), "{}", run.stderr);
    let run = bench.dmover("copy -q s other").expect_code(0);
    assert_eq!((run.text().as_str(), run.stderr.as_str()), ("", ""));
}

#[test]
fn quiet_twice_leaves_only_the_exit_code() {
    let bench = bench();
    bench.sh("mkdir -p d/a");
    let run = bench.dmover("copy -q -T s d").expect_code(3);
    assert!(run.stderr.contains("d/a"), "errors are no chatter: {}", run.stderr);
    let run = bench.dmover("copy -qq -T s d").expect_code(3);
    assert_eq!((run.text().as_str(), run.stderr.as_str()), ("", ""));
}

#[test]
fn itemize_has_rsyncs_columns() {
    let bench = bench();
    let run = bench.dmover("copy -i s d").expect_code(0);
    let text = run.text();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let links = lines.iter().filter(|line| line.starts_with("hf")).count();
    let files = lines.iter().filter(|line| line.starts_with(">f+++++++++ s/")).count();
    assert_eq!((lines.len(), files, links), (7, 2, 1), "{lines:?}");
    assert!(
        lines.contains(&"cL+++++++++ s/l") && lines.contains(&"cd+++++++++ s/sub"),
        "{lines:?}"
    );
    bench.sh("echo longer >> s/sub/b; chmod 600 s/sub/b");
    let run = bench.dmover("copy -i s d").expect_code(0);
    let changed: Vec<String> =
        run.text().lines().filter(|line| !line.starts_with('.')).map(str::to_owned).collect();
    assert_eq!(changed, [">f.stp..... s/sub/b"]);
}

#[test]
fn every_line_of_json_parses_and_the_last_is_the_summary() {
    let bench = bench();
    bench.sh("touch s/$'odd\\n\\xff'; mkdir -p d/a");
    let run = bench.copy("-T s d").expect_code(3);
    let lines = run.lines().unwrap();
    assert!(lines[0].is("start"));
    for line in &lines {
        assert_eq!(line.number("schema"), Some(1), "{line:?}");
        let time = line.text("time");
        assert!(time.len() > 19 && time.ends_with('Z') && time.contains('T'), "{time}");
    }
    let summary = lines.last().unwrap();
    assert!(summary.is("summary"));
    assert_eq!(summary.number("exit_code"), Some(3));
    assert_eq!(summary.number("errors"), Some(1), "{}", run.tell());
    assert_eq!(lines.iter().filter(|line| line.is("summary")).count(), 1);
    let odd =
        lines.iter().find(|line| line.path().as_os_str().as_encoded_bytes().ends_with(b"\n\xff"));
    assert!(odd.is_some_and(|line| line.text("path").ends_with("\n\u{fffd}")), "{}", run.text());
    let error = lines.iter().find(|line| line.is("error")).unwrap();
    for field in ["class", "operation", "side", "message"] {
        assert_ne!(error.text(field), "", "{field} of {error:?}");
    }
    assert!(error.number("errno").is_some() && error.number("attempt").is_some());
}

#[test]
fn a_refusal_in_json_ends_with_a_line_that_says_so() {
    let bench = bench();
    let run = bench.copy("nowhere d").expect_code(2);
    let lines = run.lines().unwrap();
    let last = lines.last().unwrap();
    assert!(last.is("fatal"), "{last:?}");
    assert_eq!(last.number("exit_code"), Some(2));
    assert!(last.text("message").contains("nowhere"));
}

#[test]
fn counters_add_up() {
    let bench = bench();
    let summary = bench.copy("s d").expect_code(0).said().unwrap().summary.unwrap();
    let counted = [
        ("entries_found", 7),
        ("files_copied", 2),
        ("hard_links_created", 1),
        ("directories_created", 2),
        ("symlinks_copied", 1),
        ("specials_copied", 1),
        ("entries_skipped", 0),
        ("errors", 0),
        ("losses", 0),
        ("bytes_copied", 5),
    ];
    for (name, value) in counted {
        assert_eq!(summary.number(name), Some(value), "{name} of {summary:?}");
    }
    assert!(summary.number("peak_memory_bytes").unwrap() < 96 << 20);
    let summary = bench.copy("s d").expect_code(0).said().unwrap().summary.unwrap();
    assert_eq!(summary.number("files_copied"), Some(0));
    assert_eq!(summary.number("entries_skipped"), Some(5), "{summary:?}");
}

#[test]
fn a_template_prints_what_it_names() {
    let bench = bench();
    let run = bench.dmover.run(["copy", "--format", "%a|%t|%l|%n", "s", "d"]).unwrap();
    let text = run.expect_code(0).text();
    assert!(text.lines().any(|line| line == "created|file|3|s/sub/b"), "{text}");
    let run = bench.dmover.run(["copy", "--format", "%n%0", "s", "d2"]).unwrap();
    assert_eq!(run.stdout.iter().filter(|byte| **byte == 0).count(), 7);
    assert!(!run.stdout.contains(&b'\n'));
}

#[test]
fn print_job_shows_the_job_and_does_nothing() {
    let bench = bench();
    let before = snapshot(bench.root());
    let run = bench.dmover("copy --print-job --exclude *.tmp --bwlimit 1M s d").expect_code(0);
    assert_eq!(before.changes(&snapshot(bench.root())), Vec::<String>::new());
    let one_line: String = run.text().lines().map(str::trim).collect();
    assert!(one_line.starts_with('{') && one_line.ends_with('}'));
    let parsed =
        parse_lines(format!("{{\"type\":\"job\",\"job\":{one_line}}}\n").as_bytes()).unwrap();
    let job = &parsed[0].0["job"];
    assert_eq!(job["verb"], "copy");
    assert_eq!(job["limits"]["bytes_per_s"], 1 << 20);
    assert_eq!(
        job["selection"]["rules"][0]["pattern"], "%2A.tmp",
        "rules are bytes, written as paths are"
    );
}

#[test]
fn progress_lines_come_on_standard_error_on_demand() {
    let bench = bench();
    bench.write("s/large", pattern(600_000));
    let run = bench.dmover("copy --progress=always --stats=1s --bwlimit 500K s d").expect_code(0);
    assert_eq!(run.text(), "");
    assert!(run.stderr.lines().count() > 2, "{}", run.stderr);
    let run = bench.dmover("copy --progress=never --bwlimit 1M s d2").expect_code(0);
    assert!(!run.stderr.contains('\r') && !run.stderr.contains('\u{1b}'), "{}", run.stderr);
}

/// The numbers before some words in the lines of progress.
fn numbers_before(lines: &str, words: &str) -> Vec<u64> {
    let number = |before: &str| {
        let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok())
    };
    lines.lines().filter_map(|line| number(line.split_once(words)?.0)).collect()
}

#[test]
fn progress_tells_what_is_copied_from_what_is_compared_and_read_back() {
    let bench = Bench::new();
    let size = 1_500_000;
    bench.write("s/large", pattern(size));
    let options = "--progress=always --stats=100ms --bytes --split-size=200K -T s d";
    let line = format!("copy --bwlimit 1M --verify=read-back {options}");
    let run = bench.dmover(&line).expect_code(0);
    let read = numbers_before(&run.stderr, " of 1500000 B,");
    assert!(run.stderr.contains("dmover: reading back"), "{}", run.stderr);
    assert!(read.iter().any(|bytes| *bytes > 0), "{}", run.stderr);
    assert!(read.iter().all(|bytes| *bytes <= size as u64), "{}", run.stderr);
    let line = line.replace("--progress=always", "--progress=json").replace("-T s d", "-T s e");
    let run = bench.dmover(&line).expect_code(0);
    let lines = run.stderr.lines().filter_map(|line| serde_json::from_str(line).ok());
    let lines: Vec<serde_json::Value> = lines.collect();
    let of = |phase: &str| {
        let lines = lines.iter().filter(|line| line["phase"] == phase);
        lines.filter_map(|line| line["bytes_compared"].as_u64()).max()
    };
    assert_eq!(of("job"), Some(0), "{}", run.stderr);
    assert!(of("read_back").is_some_and(|bytes| bytes > 0), "{}", run.stderr);
    // Nothing is copied now, each byte counts once though both sides are read, and no more is found than is there.
    let line = format!("sync --checksum --bwlimit 2M {}", options.replace("-T ", ""));
    let run = bench.dmover(&line).expect_code(0);
    let lines = run.stderr.lines().filter(|line| line.contains(" elapsed")).collect::<Vec<_>>();
    assert!(lines.len() > 1, "{}", run.stderr);
    assert!(lines.iter().any(|line| line.contains("comparing")), "{}", run.stderr);
    assert!(!lines.iter().any(|line| line.contains("copying")), "{}", run.stderr);
    let done = lines.iter().filter_map(|line| line.split_once(", ")?.1.split_once(" of "));
    let numbers = done.flat_map(|(done, total)| [done, total.split(',').next().unwrap()]);
    let bytes = |text: &str| text.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
    let numbers: Vec<u64> = numbers.map(bytes).collect();
    assert!(numbers.len() > 3, "{}", run.stderr);
    assert!(numbers.iter().all(|bytes| *bytes <= size as u64), "{}", run.stderr);
    let run = bench.dmover("sync --json --checksum s d").expect_code(0);
    let summary = run.said().unwrap().summary.unwrap();
    assert_eq!(summary.number("bytes_compared"), Some(size as u64));
    assert_eq!(summary.number("bytes_copied"), Some(0));
}

#[test]
fn a_log_file_gets_the_log() {
    let bench = bench();
    bench.dmover("copy -vvv --log-file log --log-format json s d").expect_code(0);
    let log = bench.read("log");
    for line in log.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    let bench = bench();
    for (line, word) in [
        ("--help", "copy"),
        ("copy --help", "Examples"),
        ("copy -h", "--bwlimit"),
        ("copy --help", "--split-size"),
        ("--version", "dmover"),
        ("help copy", "--bwlimit"),
    ] {
        let run = bench.dmover(line).expect_code(0);
        assert!(run.text().contains(word) && run.stderr.is_empty(), "{line}: {}", run.tell());
    }
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    let bench = Bench::new();
    bench.sh("mkdir s; for i in $(seq 3000); do : > s/$i; done");
    let command = bench.dmover.command();
    let program = command.get_program().to_string_lossy().into_owned();
    let state = bench.dmover.state_directory();
    let script = format!(
        "export DMOVER_STATE_DIR='{}'; '{program}' copy -i s d 2> errors | head -n 1 > /dev/null; echo ${{PIPESTATUS[0]}}",
        state.display()
    );
    let code = bench.sh(&script);
    assert!(["0\n", "141\n"].contains(&code.as_str()), "{code}: {}", bench.read("errors"));
    assert!(!bench.read("errors").contains("panicked"), "{}", bench.read("errors"));
}

#[test]
fn defaults_come_from_the_environment_and_from_files_and_flags_win() {
    let bench = bench();
    bench.write("config.toml", "[copy]\noverwrite = \"never\"\nexclude = [\"*b\"]\n");
    bench.dmover("copy --config config.toml s c").expect_code(0);
    assert!(bench.exists("c/a") && !bench.exists("c/sub/b"));
    let shown = bench.dmover("config show --origin --config config.toml").expect_code(0).text();
    assert!(shown.contains("never") && shown.contains("config.toml"), "{shown}");
    bench.write("bad.toml", "[copy]\noverwrit = \"never\"\n");
    bench.write("sync.toml", "[sync]\nchecksum = true\nmax-delete = \"5%\"\n[copy]\nthreads = 3\n");
    let job = bench.dmover("sync --config sync.toml --print-job s d").expect_code(0).text();
    assert!(job.contains("\"checksum\": true") && job.contains("\"threads\": 0"), "{job}");
    let shown = bench.dmover("config show --config sync.toml").expect_code(0).text();
    let (copy, sync) = shown.split_once("[sync]").unwrap();
    assert!(copy.contains("threads = 3") && sync.contains("checksum = true"), "{shown}");
    assert!(sync.contains("max-delete = \"5%\""), "{shown}");

    let run = bench.dmover("copy --config bad.toml s d").expect_code(2);
    assert!(run.stderr.contains("overwrit"), "{}", run.stderr);
    assert!(!bench.exists("d"));
    bench.sh("mkdir d; echo old > d/a");
    let mut command = bench.dmover.command();
    let environment = command.env("DMOVER_OVERWRITE", "never").args(["copy", "-T", "s", "d"]);
    assert!(environment.output().unwrap().status.success());
    assert_eq!(bench.read("d/a"), "old\n");
    let mut command = bench.dmover.command();
    let flags = ["copy", "--overwrite=changed", "-T", "s", "d"];
    assert!(
        command.env("DMOVER_OVERWRITE", "never").args(flags).output().unwrap().status.success()
    );
    assert_eq!(bench.read("d/a"), "1\n");
}

#[test]
fn a_dry_run_counts_what_the_run_then_does() {
    const COUNTERS: [&str; 9] = [
        "files_copied",
        "directories_created",
        "symlinks_copied",
        "hard_links_created",
        "specials_copied",
        "bytes_copied",
        "entries_skipped",
        "entries_replaced",
        "entries_unlike",
    ];
    let bench = Bench::new();
    bench.sh("mkdir -p s/a/b; echo 1 > s/f; ln s/f s/a/g; ln s/f s/a/b/h; ln -s f s/l; mkfifo s/p");
    bench.sh("head -c 100000 /dev/urandom > s/a/large; echo 2 > s/alone");
    let count = |line: &str| {
        let summary = bench.copy(line).expect_code(0).said().unwrap().summary.unwrap();
        COUNTERS.map(|counter| (counter, summary.number(counter)))
    };
    let changes = ["true", "true", "echo 22 > s/f; chmod 600 s/alone; ln s/alone s/other; rm s/l"];
    for change in changes {
        bench.sh(change);
        let said = count("--dry-run --reflink=never -T s d");
        assert_eq!(said, count("--reflink=never -T s d"), "after: {change}");
    }
}

/// Holes are no bytes to copy, neither in what is announced nor in what is done.
#[test]
fn a_dry_run_counts_the_bytes_that_the_run_copies() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p s/d; truncate -s 100M s/a; head -c 5M /dev/urandom | dd of=s/a bs=1M seek=50 conv=notrunc iflag=fullblock status=none
        echo hi > s/b; truncate -s 3M s/d/empty; ln s/d/empty s/twin; head -c 100000 /dev/zero > s/zeroes; printf x > s/d/end; truncate -s 1M s/d/end",
    );
    for line in [
        "copy --json s t",
        "sync --json s t",
        "copy --json --sparse=never s t",
        "copy --json --split-size=1M s t",
    ] {
        let bytes = |line: &str| {
            let lines = bench.dmover(line).expect_code(0).lines().unwrap();
            let summary = lines.iter().find(|line| line.is("summary")).unwrap();
            summary.number("bytes_copied").unwrap()
        };
        let announced = bytes(&format!("{line} -n"));
        assert_eq!(announced, bytes(line), "{line}");
        assert!(announced > 5 << 20, "{line}: {announced}");
        assert_eq!(announced < 6 << 20, !line.contains("never"), "{line}: {announced}");
        bench.sh("rm -r t");
    }
}

#[test]
fn summaries_leave_out_what_there_is_none_of() {
    let bench = Bench::new();
    bench.sh("mkdir -p s/sub; echo 1 > s/a; mkdir e");
    let zero = |text: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.windows(2).any(|pair| pair[0] == "0" && pair[1].starts_with(char::is_alphabetic))
    };
    for (line, copied) in [
        ("copy -T s d", "copied      1 file, 2 directories; 2 B in 0:0"),
        ("copy -T s d", "copied      nothing in 0:0"),
        ("copy -T e f", "copied      1 directory in 0:0"),
        ("copy -n -T s g", "to copy     1 file, 2 directories; 2 B in 0:0"),
        ("sync s h", "copied      1 file, 2 directories; 2 B in 0:0"),
        ("verify s d", "no difference in 3 entries"),
        ("verify --level=size s d", "no difference in 3 entries"),
        ("sum -v e", "hashed no files in 0:0"),
    ] {
        let run = bench.dmover(line).expect_code(0);
        assert!(run.stderr.contains(copied), "{line}: {}", run.tell());
        assert!(!zero(&run.stderr), "{line}: {}", run.tell());
    }
    bench.dmover("sync e i").expect_code(0);
    for line in ["status", "history"] {
        let run = bench.dmover(line).expect_code(0);
        assert!(line == "history" || !zero(&run.text()), "{}", run.tell());
    }
}

/// A name must not move the cursor of whoever looks at the output.
#[test]
fn names_in_a_format_are_escaped_on_a_terminal_only() {
    let bench = Bench::new();
    bench.sh(r"mkdir s; touch s/$(printf 'e\033[31mx')");
    let program = bench.dmover.program().display().to_string();
    for (number, line) in ["cp -rv s a", "copy -q --format %n s b"].into_iter().enumerate() {
        bench.sh(&format!("script -qec '{program} {line}' /dev/null > out < /dev/null"));
        let shown = bench.read("out");
        assert!(!shown.contains('\u{1b}') && shown.contains(r"e\033[31mx"), "{line}: {shown}");
        let piped = bench.dmover(&format!("{line}{number}")).expect_code(0);
        assert!(piped.text().contains("e\u{1b}[31mx"), "{line}: {}", piped.tell());
    }
}

#[test]
fn a_quiet_job_says_that_its_output_is_lost() {
    let bench = Bench::new();
    bench.sh("mkdir s; touch s/f");
    let program = bench.dmover.program().display().to_string();
    for line in ["sync -q -i s d --no-state", "copy -q --format %n s e --no-state"] {
        let said = bench.sh(&format!("{program} {line} 2>&1 > /dev/full || echo $?"));
        assert!(
            said.contains("cannot write to standard output") && said.ends_with("8\n"),
            "{said}"
        );
    }
}
