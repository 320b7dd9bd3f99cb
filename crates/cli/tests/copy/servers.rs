//! File servers that are slow, or tell half of the truth.

use std::path::Path;

use dmover_testkit::faultfs::{Action, Config, FaultFs, FaultFsHandle, Latency, Op, Rule, When};
use dmover_testkit::skip::skipped;

use super::Bench;
use super::bench::pattern;

fn serve(test: &str, backing: &Path, mountpoint: &Path, config: Config) -> Option<FaultFsHandle> {
    match FaultFs::mount(backing, mountpoint, config) {
        Ok(mounted) => Some(mounted),
        Err(error) => {
            skipped(test, &format!("{error:#}"));
            None
        }
    }
}

/// To open a directory takes longer than a task may last: each must do something all the same.
#[test]
fn a_tree_on_a_very_slow_server_arrives() {
    let bench = Bench::new();
    bench.sh("mkdir -p b/s/a/{1,2,3} m && for d in 1 2 3; do echo $d > b/s/a/$d/f; done");
    let config = Config { latency: Latency::of_us(150_000), ..Config::default() };
    let served = serve("slow server", &bench.at("b"), &bench.at("m"), config);
    let Some(served) = served else { return };
    let wrapped = bench.with(|dmover| dmover.wrapped(["timeout", "60"]));
    wrapped.copy("-j2 -T m/s d").expect_code(0);
    served.set_latency(Latency::of_us(0));
    wrapped.assert_same("b/s", "d");
}

/// The kernel says of these files that they have no bytes, and makes some up for whoever reads them.
#[test]
fn a_file_of_unknown_size_does_not_arrive_empty() {
    let bench = Bench::new();
    bench.sh("mkdir m");
    let backing = Path::new("/proc/sys/kernel");
    let served = serve("unknown sizes", backing, &bench.at("m"), Config::default());
    let Some(_served) = served else { return };
    let run = bench.copy("-T m/ostype d").expect_code(3);
    assert!(run.text().contains("the file has content"), "{}", run.tell());
    assert!(!bench.exists("d"));
    bench.write("d", "what another tool has copied");
    bench.copy("--inplace --overwrite=always -T m/ostype d").expect_code(3);
    assert_eq!(bench.read("d"), "what another tool has copied");
}

/// A server that was asked for direct I/O may answer with fewer bytes than there are. The kernel's own copy reads
/// through the page cache all the same, and fills the rest with zeroes where two reads meet.
#[test]
fn short_answers_of_a_server_leave_no_zeroes() {
    let bench = Bench::new();
    bench.sh("mkdir -p b/s to m n");
    for number in 0..8 {
        bench.write(&format!("b/s/f{number}"), pattern(4_000_000));
    }
    let served = serve("short answers", &bench.at("b"), &bench.at("m"), Config::default());
    let Some(served) = served else { return };
    // Only between files of one type does the kernel copy by itself.
    let other = serve("short answers", &bench.at("to"), &bench.at("n"), Config::default());
    let Some(_other) = other else { return };
    served.set_rules(&[Rule::new(Op::Read, Action::ShortRead(2160)).when(When::Always)]).unwrap();
    for round in 0..4 {
        let run = bench.copy(&format!("-j2 --split-size=1M -T m/s n/d{round}")).expect_code(0);
        let summary = run.said().unwrap().summary.unwrap();
        assert_eq!(summary.number("bytes_in_kernel"), Some(0));
        bench.sh(&format!("diff -r b/s to/d{round}"));
    }
}
