//! Times are shown as people here read them, and to programs as RFC 3339.
use super::Bench;
use super::bench::PROGRAM;

/// Half an hour and some off UTC, so that no other form looks the same.
const ZONE: &str = "TZ=HERE-5:30";

#[test]
fn times_are_local_dates_with_their_offset() {
    let bench = Bench::new();
    bench.sh("mkdir a b; echo 1 | tee a/f > b/f; echo 1 | tee a/g > b/g; touch -r a b
        touch -d '2001-02-03 04:05:06.123456789Z' a/f; touch -d '2001-02-03 04:05:06Z' b/f
        touch -d '1960-01-01 00:00:00Z' a/g; touch -d '2040-01-01 00:00:00.5Z' b/g; touch -r a b");
    let stat = |file: &str| {
        let time = bench.sh(&format!("{ZONE} stat -c %y {file}"));
        // Digits that say nothing are left out.
        let (second, offset) = time.trim().rsplit_once(' ').unwrap();
        let second = second.trim_end_matches('0').trim_end_matches('.');
        format!("{second} {offset}")
    };
    let seen = bench.sh(&format!("{ZONE} {PROGRAM} verify a b || true"));
    let mut seen: Vec<&str> = seen.lines().collect();
    seen.sort_unstable();
    let expected = ["f", "g"].map(|file| {
        let (is, should) = (stat(&format!("b/{file}")), stat(&format!("a/{file}")));
        assert!(is.ends_with(" +0530"), "{is}");
        format!("b/{file}: mtime {is} instead of {should}")
    });
    assert_eq!(seen, expected);
    let run = bench.dmover("verify --json a b").expect_code(1);
    let details: Vec<_> = run.lines().unwrap();
    let details: Vec<_> = details.iter().filter_map(|line| line.0["detail"].as_str()).collect();
    let utc = "mtime 2001-02-03T04:05:06Z instead of 2001-02-03T04:05:06.123456789Z";
    assert!(details.contains(&utc), "{details:?}");
}

#[test]
fn manifests_and_jobs_have_local_dates() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo 1 > a/f; touch -d '2001-02-03 04:05:06.123456789Z' a/f");
    bench.copy("--manifest=m -T a b").expect_code(0);
    let seen = bench.sh(&format!("{ZONE} {PROGRAM} manifest print m"));
    let time = bench.sh(&format!("{ZONE} date -r a/f +%Y-%m-%dT%H:%M:%S.%N%:z"));
    assert!(seen.lines().any(|line| line.contains(&format!(" {} ", time.trim()))), "{seen}");
    bench.sh("mkdir state");
    bench.dmover("sync --state-dir state a c").expect_code(0);
    let zone = "started 20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9:]{8} \\+0530,";
    bench.sh(&format!("{ZONE} {PROGRAM} status --state-dir state | grep -qE '{zone}'"));
    bench.sh(&format!("{ZONE} {PROGRAM} history --state-dir state | grep -qF ' +0530 '"));
}
