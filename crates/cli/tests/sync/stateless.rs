//! Passes without a state directory: the destination carries the lock.
use super::Bench;
use crate::bench::PROGRAM;

/// Nothing names a directory for state. Who is root has one in any case.
const STATELESS: &str = "env -u HOME -u XDG_STATE_HOME -u DMOVER_STATE_DIR setpriv --reuid=65534 --regid=65534 --clear-groups";

#[test]
fn two_passes_without_state_do_not_meet() {
    let bench = Bench::new();
    bench.sh("mkdir a; head -c 3M /dev/urandom > a/f; chown -R 65534:65534 .; chmod 755 .");
    // A first pass that takes seconds, and a second one as soon as it has begun.
    let said = bench.sh(&format!(
        "{STATELESS} {PROGRAM} sync -q -j1 --bwlimit=1M --label=x a b 2> first & first=$!
         n=0; while ! [ -e b/f ] && kill -0 $first && [ $n -lt 6000 ]; do n=$((n + 1)); sleep 0.01; done
         {STATELESS} {PROGRAM} sync -q a b 2> second && echo 0 || echo $?
         wait $first && echo 0 || echo $?; ls -A b"
    ));
    assert_eq!(said, "6\n0\nf\n", "{}", bench.read("second"));
    bench.sh("cmp a/f b/f");
    let first = bench.read("first");
    assert_eq!(first.lines().count(), 1, "{first}");
    for words in ["neither HOME nor XDG_STATE_HOME is set", "no journal", "--label", "--state-dir"]
    {
        assert!(first.contains(words), "{first}");
    }
    // The lock goes with its holder, and a destination that is there already has one as well.
    bench.sh(&format!("{STATELESS} {PROGRAM} sync -q a b; exec 9< b; flock -n 9; {STATELESS} {PROGRAM} sync -q a b 9<&- || [ $? = 6 ]"));
}
