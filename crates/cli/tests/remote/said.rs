//! What a job that runs at another host says here.
use super::bench::pattern;
use super::ends::{Ends, LOCAL, WAYS, Way, assert_lines, count, done, ends};

fn tree(ends: &Ends) {
    let bench = &ends.bench;
    bench.write("s/large", pattern(3_000_000));
    bench.sh(r"cd s; mkdir -p d/e; for n in 1 2 3 4 5 6 7 8; do echo $n > d/$n; done; ln d/1 hard; ln -s d link
        mkfifo pipe; printf x > $'new\nline'; printf y > $'latin\xe9'");
}

#[test]
fn lines_of_json_are_as_of_a_local_run() {
    let ends = ends!();
    tree(&ends);
    let bench = &ends.bench;
    let local = ends.job(LOCAL, "copy --json -T", ("s", "l")).expect_code(0);
    for way in WAYS {
        let run = ends.job(way, "copy --json -T", ("s", "d")).expect_code(0);
        assert_lines(&done(&run, bench.root()), &done(&local, bench.root()), "a copy");
        let lines = run.lines().unwrap();
        assert!(lines.first().unwrap().is("start") && lines.last().unwrap().is("summary"));
        for counter in [
            "files_copied",
            "bytes_copied",
            "directories_created",
            "symlinks_copied",
            "specials_copied",
            "hard_links_created",
            "entries_found",
            "bytes_found",
            "errors",
            "losses",
            "exit_code",
        ] {
            assert_eq!(count(&run, counter), count(&local, counter), "{way:?} {counter}");
        }
        assert!(run.stderr.is_empty(), "{}", run.stderr);
        bench.sh("rm -r d");
    }
}

#[test]
fn digests_and_names_are_printed_here() {
    let ends = ends!();
    tree(&ends);
    let bench = &ends.bench;
    for way in WAYS {
        let run =
            ends.job(way, "copy -T --print-hash --hash-type=sha256", ("s", "d")).expect_code(0);
        // The list fits the copies, for the tool of coreutils at the host of the copies.
        std::fs::write(bench.at("list"), &run.stdout).unwrap();
        assert_eq!(bench.sh("sha256sum --quiet -c list && wc -l < list").trim(), "11", "{way:?}");
        bench.sh("rm -r d");
        let run = ends.job(way, "copy -T -v", ("s", "d")).expect_code(0);
        assert!(run.stderr.contains("created") && run.stderr.contains("large"), "{}", run.tell());
        bench.sh("rm -r d");
    }
}

#[test]
fn long_output_arrives_whole() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir s; cd s; seq 20000 | xargs touch");
    let way = Way { source: "", destination: "far:" };
    let run = ends.job(way, "copy --json -T", ("s", "d")).expect_code(0);
    assert_eq!(run.said().unwrap().items.len(), 20_001);
    assert_eq!(bench.sh("ls d | wc -l").trim(), "20000");
}

#[test]
fn an_output_that_nobody_reads_any_more_stops_the_job() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir s; cd s; seq 3000 | xargs touch");
    let dmover = super::PROGRAM;
    let (ssh, s, d) = (ends.ssh(), bench.at("s"), bench.at("d"));
    let state = bench.dmover.state_directory();
    bench.sh(&format!(
        "export DMOVER_STATE_DIR={}; set +o pipefail
        {dmover} copy --json -T --ops-limit=500 --ssh-command '{ssh}' {} far:{} | head -n 3 > lines",
        state.display(),
        s.display(),
        d.display()
    ));
    assert_eq!(bench.sh("wc -l < lines").trim(), "3");
    super::bench::eventually("the agents to end", || ends.agents().is_empty());
    let run = ends.job(Way { source: "", destination: "far:" }, "copy -T", ("s", "d"));
    run.expect_code(0);
    bench.assert_same("s", "d");
}
