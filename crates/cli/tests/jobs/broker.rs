//! The same through a broker: errors arrive at the coordinator, which lists them.
use super::{Bench, command, count};
use dmover_testkit::cluster::{NatsServer, Piece, needs};
use dmover_testkit::skip;

#[test]
fn errors_of_movers_elsewhere_are_cut_and_listed_alike() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let broker = NatsServer::start_local("").unwrap();
    let url = broker.url();
    let bench = Bench::new();
    // Directories stand where files should be, whoever the movers are.
    bench.sh("mkdir s; cd s; for n in $(seq 10000); do echo $n > f$n; done; cd ..; for d in copy sync; do mkdir $d; (cd $d; seq -f f%.0f 10000 | xargs mkdir; seq -f f%.0f/x 10000 | xargs touch); done");
    let movers = [(); 2].map(|()| {
        let mover = bench.dmover.start(["mover", "--insecure", "--broker", &url]).unwrap();
        assert!(mover.wait_for_stderr("waiting for jobs", 1), "{}", mover.stderr_so_far());
        mover
    });
    for words in ["copy -T s copy", "sync s sync"] {
        let run = bench
            .dmover(&format!("{words} --errors-to e --insecure --broker {url}"))
            .expect_code(3);
        assert_eq!(count(&run, "dmover: error:"), 20, "{}", run.tell());
        assert_eq!(count(&run, "further type_conflict errors are not shown"), 1, "{}", run.tell());
        let listing = command(&run, "full list: dmover");
        let listed = bench.dmover(&format!("{listing} -0")).expect_code(0).stdout;
        let mut paths: Vec<&[u8]> = listed.split(|byte| *byte == 0).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), 10_001, "and nothing behind the last");
        assert_eq!(bench.read("e").lines().count(), 10_000);
    }
    drop(movers);
}
