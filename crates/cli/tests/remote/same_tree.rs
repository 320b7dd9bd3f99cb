//! One tree under two names: a file system that two hosts have mounted, or this host by another name.
use super::ends::{Ends, WAYS};

/// Runs jobs whose ends overlap each way, and checks that they are refused and that nothing has changed.
#[test]
fn a_destination_that_is_the_source_inside_it_or_above_it_is_refused() {
    let ends = Ends::start();
    ends.bench.sh("mkdir -p u/a; echo 1 > u/a/f; echo 2 > u/g; cp -a u before");
    let overlaps = [
        ("sync --delete --yes", "u/a", "u"),
        ("sync --delete --yes", "u", "u/a"),
        ("sync", "u", "u"),
        ("copy -T", "u", "u/a/new"),
        ("copy", "u/a", "u"),
        ("copy -T", "u/a", "u"),
        ("copy", "u/g", "u"),
        ("copy -T", "u/g", "u/g"),
    ];
    for way in WAYS {
        for (line, source, destination) in overlaps {
            let run = ends.job(way, line, (source, destination));
            run.expect_code(2);
            ends.bench.sh("diff -r u before");
        }
    }
}

/// The control: the same jobs beside each other run.
#[test]
fn trees_beside_each_other_on_one_file_system_are_copied() {
    let ends = Ends::start();
    ends.bench.sh("mkdir -p u/a v; echo 1 > u/a/f");
    for way in WAYS {
        ends.job(way, "sync --delete --yes", ("u/a", "v")).expect_code(0);
        ends.bench.sh("diff -r u/a v; rm -r v; mkdir v");
    }
}
