//! A tree that is copied over a line between two hosts.
use dmover_testkit::cluster::FarHost;
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::lanes::run::{Run, Running};
use std::ffi::OsString;
use std::path::PathBuf;

use super::bench::Bench;

/// Which side is at the other end of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Far {
    Source,
    Destination,
}

impl Far {
    pub const BOTH: [Self; 2] = [Self::Source, Self::Destination];
}

/// A host at the other end of a line, and a directory that both hosts see.
pub struct Rig {
    pub far: FarHost,
    pub bench: Bench,
}

impl Rig {
    /// Gives what no tree lacks to a directory `s` with files `1/1` to `6/6`.
    pub fn complete(&self) {
        self.bench.sh("cd s; mkdir empty; ln 3/3 4/link; ln -s nowhere dangling; chmod 2750 5; touch -d 2001-02-03 6/6");
    }

    /// A job from `s` to `d`.
    pub fn start(&self, far: Far, line: &str) -> Running {
        let mut words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        words.extend(["--json".into(), "--ssh-command".into(), self.far.ssh_command().into()]);
        if far == Far::Destination {
            words.extend(["--state-dir".into(), self.far.state().into()]);
        }
        let name = |path: &str, is_far: bool| {
            let mut name = OsString::from(if is_far { "far:" } else { "" });
            name.push(self.bench.at(path));
            name
        };
        words.push(name("s", far == Far::Source));
        words.push(name("d", far == Far::Destination));
        self.bench.dmover.start(words).unwrap()
    }

    pub fn run(&self, far: Far, line: &str) -> Run {
        self.start(far, line).finish().unwrap()
    }

    /// By other programs than those of dmover's own tests.
    #[track_caller]
    pub fn assert_same(&self) {
        self.bench.sh("diff -r --no-dereference s d");
        let listed = self.bench.sh("rsync -naHAXi --checksum --delete s/ d/");
        assert_eq!(listed, "", "rsync finds differences");
        assert_eq!(leftovers(&self.bench.at("d")).unwrap(), Vec::<PathBuf>::new());
    }
}
