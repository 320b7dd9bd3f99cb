//! `--log-file`: everything about a run, in one file.
use super::Bench;
use super::bench::pattern;
use serde_json::Value;

#[test]
fn a_log_has_the_command_progress_and_the_summary() {
    let bench = Bench::new();
    bench.write("from here/big", pattern(3 << 20));
    // The bound makes it last a while.
    let words = [
        "copy",
        "-q",
        "--bwlimit=1M",
        "--stats=100ms",
        "--log-file",
        "log",
        "-T",
        "from here",
        "to",
    ];
    let run = bench.dmover.run(words).unwrap().expect_code(0);
    assert_eq!(run.stderr, "");
    let log = bench.read("log");
    let host = bench.sh("hostname");
    for part in [
        "copy -q --bwlimit=1M --stats=100ms --log-file log -T 'from here' to".to_owned(),
        format!("host={}", host.trim()),
        concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"").to_owned(),
        "source='from here'".to_owned(),
        "destination=to".to_owned(),
        " progress ".to_owned(),
        "bytes_found=3145728".to_owned(),
    ] {
        assert!(log.contains(&part), "no {part}: {log}");
    }
    let lines: Vec<&str> = log.lines().collect();
    let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
    assert!(lines[0].contains("command="), "{log}");
    assert!(at("dmover: done") > at("progress"), "{log}");
    assert!(lines[lines.len() - 5..].iter().any(|line| line.contains("1 file,")), "{log}");
    // Scripts have the same, and no line of progress where none is wanted.
    let words = "copy --json --stats=0 --log-format json --log-file log.json -T nothing to";
    bench.dmover(words).expect_code(2);
    bench.sh("mkdir nothing");
    bench.dmover(words).expect_code(0);
    let text = bench.read("log.json");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |part: &str| lines.iter().any(|line| line["fields"].to_string().contains(part));
    assert!(
        has("the job cannot continue") && has("dmover: done") && has("--log-file log.json"),
        "{text}"
    );
    assert!(!has("progress"), "{text}");
}

#[test]
fn comparisons_and_digests_have_such_a_log_as_well() {
    let bench = Bench::new();
    bench.sh("mkdir a b; touch a/f b/f");
    for (words, summary) in [("verify a b", "no difference"), ("sum a", "hashed 1 file")] {
        bench.sh("rm -f log");
        bench.dmover(&format!("{words} -q --log-file log")).expect_code(0);
        let log = bench.read("log");
        assert!(log.contains("command=") && log.contains(summary), "{log}");
    }
}
