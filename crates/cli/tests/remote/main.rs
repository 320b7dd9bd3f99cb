//! Agents on other hosts as a black box: real servers for ssh, real logins, and what users see of them.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

#[path = "../bench/mod.rs"]
mod bench;
mod changing;
mod comparisons;
mod cut;
mod ends;
mod install;
mod line;
mod listening;
mod lost;
mod measured;
mod movers;
mod refusals;
mod refused;
mod renamed;
mod resumed;
mod rig;
mod said;
mod same_tree;
mod shared;
mod shells;
mod streams;
mod sums;
mod synced;
mod targets;
mod third;
mod traffic;
mod trees;

use bench::{Bench, PROGRAM};
use dmover_testkit::cluster::{Cluster, Piece, Sshd, needs};
use dmover_testkit::lanes::run::Run;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A host with a server for ssh, whose users have a home directory of their own there.
pub struct Far {
    pub cluster: Cluster,
    pub server: Sshd,
    pub bench: Bench,
}

impl Far {
    /// Says why it cannot be had here.
    pub fn missing() -> Option<String> {
        needs(&[Piece::Network, Piece::Sshd]).err()
    }

    pub fn start() -> Self {
        Self::with_shell("exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"")
    }

    /// `script`: what the login does instead of the command, which is in `$SSH_ORIGINAL_COMMAND`.
    pub fn with_shell(script: &str) -> Self {
        let cluster = Cluster::new(&["far"]).unwrap();
        let force = format!("ForceCommand cd \"$HOME\"; {script}\n");
        let server = Sshd::start_with(cluster.host("far"), &force).unwrap();
        Self { cluster, server, bench: Bench::new() }
    }

    /// A path below the home directory there.
    pub fn home(&self, path: &str) -> PathBuf {
        let config = self.server.client_config_path();
        config.parent().unwrap().join("far").join(path)
    }

    /// A program there.
    pub fn place(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.home(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// The program under test, where an installation would put it.
    pub fn link_program(&self) {
        let path = self.home(".local/bin/dmover");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(PROGRAM, path).unwrap();
    }

    pub fn ssh(&self, options: &str) -> String {
        format!("ssh -F {} {options}", self.server.client_config_path().display())
    }

    /// `dmover agent` with these words.
    #[track_caller]
    pub fn agent<S: AsRef<OsStr>>(&self, words: &[S]) -> Run {
        self.agent_by(&self.ssh(""), words)
    }

    /// The same with another ssh command.
    #[track_caller]
    pub fn agent_by<S: AsRef<OsStr>>(&self, ssh: &str, words: &[S]) -> Run {
        let mut all: Vec<OsString> = ["agent", "--ssh-command", ssh].map(OsString::from).into();
        all.extend(words.iter().map(|word| word.as_ref().to_owned()));
        self.bench.dmover.run(all).unwrap()
    }

    /// The agents that run there.
    pub fn agents(&self) -> Vec<u32> {
        let pids = self.cluster.host("far").pids().unwrap();
        pids.into_iter().filter(|pid| command_line(*pid).ends_with("\0agent\0--stdio\0")).collect()
    }
}

pub fn command_line(pid: u32) -> String {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// A greeting of a program that speaks only protocols 8 and 9, as printf(1) writes it.
pub const FUTURE: &str = "#!/bin/sh\nprintf '\\211dmover\\n\\011\\000\\010\\000\\011\\000\\000\\000\\001\\000\\003\\000\\000\\0009.9'\n";

macro_rules! far {
    ($($script:expr)?) => {{
        if let Some(why) = $crate::Far::missing() {
            dmover_testkit::skip!("{why}");
        }
        $crate::far!(@make $($script)?)
    }};
    (@make) => { $crate::Far::start() };
    (@make $script:expr) => { $crate::Far::with_shell($script) };
}
pub(crate) use far;
