//! Movers elsewhere: every verb does through a broker what it does in one process, and what cannot work is named.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

#[path = "../bench/mod.rs"]
mod bench;
mod broker;
mod choice;
mod encryption;
mod forged;
mod large;
mod opinions;
mod refusals;
mod security;
mod standby;
mod topologies;
mod units;
mod verbs;
mod waiting;
mod watching;

use bench::Bench;
use dmover_testkit::cluster::NatsServer;
use dmover_testkit::lanes::run::{Dmover, Run, Running};

/// A scratch directory, a broker, and movers.
struct Fleet {
    bench: Bench,
    broker: NatsServer,
    movers: Vec<Running>,
}

impl Fleet {
    /// A broker and so many movers, with this configuration of the server.
    fn with(movers: usize, config: &str) -> Self {
        let broker = NatsServer::start_local(config).unwrap();
        let mut fleet = Self { bench: Bench::new(), broker, movers: Vec::new() };
        (0..movers).for_each(|_| fleet.call_mover(""));
        fleet
    }

    fn new(movers: usize) -> Self {
        Self::with(movers, "")
    }

    /// Starts another mover with further words.
    fn call_mover(&mut self, words: &str) {
        self.call_mover_by(&self.broker.url(), words);
    }

    /// The same, with another way to the broker.
    fn call_mover_by(&mut self, url: &str, words: &str) {
        let words =
            ["mover", "--insecure", "--broker", url].into_iter().chain(words.split_whitespace());
        let mover = self.bench.dmover.start(words).unwrap();
        assert!(mover.wait_for_stderr("waiting for jobs", 1), "{}", mover.stderr_so_far());
        self.movers.push(mover);
    }

    /// The program as on another host: the locks of directories hold on one, and this one has none.
    fn without_locks(&self) -> Dmover {
        const ENOLCK: i32 = 37;
        let dmover = Dmover::new(bench::PROGRAM).unwrap().in_directory(self.bench.root());
        let dmover = dmover.with_state(self.bench.dmover.state_directory());
        dmover.denied(&["flock", "f_ofd_setlk", "f_ofd_getlk"], ENOLCK)
    }

    /// Runs a line through the broker.
    #[track_caller]
    fn dmover(&self, line: &str) -> Run {
        self.bench.dmover(&format!("{line} --insecure --broker {}", self.broker.url()))
    }
}
