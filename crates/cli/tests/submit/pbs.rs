//! Jobs of PBS, which stand-ins play: there is none to be had.
use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::skip;

use super::{Bench, bench, eventually, processes_in};

/// Runs the script as PBS does: from the home directory, with a node file, detached from whoever has submitted it.
const QSUB: &str = r#"#!/bin/bash
cat > "$FAKE/script"
[ $# = 0 ] || { echo "qsub: usage" >&2; exit 1; }
printf '%s\n' node1 node2 > "$FAKE/nodes"
export PBS_JOBID=7.server PBS_NODEFILE="$FAKE/nodes" PBS_O_WORKDIR="$PWD"
(cd /; setsid -w bash "$FAKE/script" > "$FAKE/said" 2>&1 < /dev/null; echo $? > "$FAKE/code") > /dev/null 2>&1 &
echo 7.server
"#;

/// Runs a program once for each line of the node file, and hands a signal on.
const PBSDSH: &str = r#"#!/bin/bash
[ "$1" = -- ] || { echo "pbsdsh: usage" >&2; exit 1; }
shift
while read -r node; do "$@" & done < "$PBS_NODEFILE"
trap 'kill $(jobs -p)' TERM
wait; wait
"#;

fn place() -> Bench {
    let bench = bench();
    bench.write("bin/qsub", QSUB);
    bench.write("bin/pbsdsh", PBSDSH);
    bench.sh("chmod 755 bin/*");
    bench
}

/// Submits as a user whose PATH has the stand-ins.
fn submit(bench: &Bench, words: &str) -> String {
    let (program, root) = (bench.dmover.program().display(), bench.root().display());
    bench.sh(&format!("export FAKE='{root}' PATH='{root}/bin':$PATH; '{program}' {words}"))
}

#[track_caller]
fn assert_complete(bench: &Bench) {
    eventually("the end of the job", || bench.exists("code") && !bench.read("code").is_empty());
    assert_eq!(bench.read("code").trim(), "0", "{}", bench.read("said"));
    bench.assert_same("s", "d");
    eventually("all processes to be gone", || processes_in(bench.root()).is_empty());
}

macro_rules! need_a_broker {
    () => {
        if let Err(why) = needs(&[Piece::Nats]) {
            skip!("{why}");
        }
    };
}

#[test]
fn a_job_is_handed_in_and_its_movers_are_started_by_pbsdsh() {
    need_a_broker!();
    let bench = place();
    let id = submit(
        &bench,
        "submit --pbs --movers 2 --state-dir state --listen 127.0.0.1 -- copy --bwlimit=2M s d",
    );
    assert_eq!(id.trim(), "7.server");
    assert_complete(&bench);
    let script = bench.read("script");
    assert!(script.contains("#PBS -l select=2:ncpus=1:mpiprocs=1\n"), "{script}");
    assert!(script.contains("#PBS -r y\n"), "{script}");
}

#[test]
fn the_template_expands_wildcards_where_it_runs() {
    need_a_broker!();
    let bench = place();
    bench.sh("mkdir d; mkdir t; mv s t/run1; cp -a t/run1 t/run2; mkdir t/other");
    let root = bench.root().display();
    let template = submit(&bench, "submit --template pbs");
    let script = template
        .replace("SRC=/path/of/the/source/root", &format!("SRC={root}/t"))
        .replace("calibration/2026-*", "")
        .replace("DST=/path/of/the/destination", &format!("DST={root}/d"))
        .replace("STATE=/path/that/all/nodes/see", &format!("STATE={root}/state"))
        .replace(
            "dmover submit --allocation",
            &format!("{} submit --allocation --listen 127.0.0.1", bench.dmover.program().display()),
        );
    bench.write("edited", &script);
    bench.sh(&format!("export FAKE='{root}' PATH='{root}/bin':$PATH; qsub < edited"));
    eventually("the end of the job", || bench.exists("code") && !bench.read("code").is_empty());
    assert_eq!(bench.read("code").trim(), "0", "{}", bench.read("said"));
    bench.assert_same("t/run1", "d/run1");
    bench.assert_same("t/run2", "d/run2");
    assert!(!bench.exists("d/other"));
}
