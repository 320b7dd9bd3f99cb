//! Jobs whose ends are on other hosts: two hosts with a server for ssh each, and the ways to place SOURCE and DEST.
use super::Far;
use super::bench::{Bench, PROGRAM, eventually};
use dmover_testkit::cluster::{Cluster, Sshd};
use dmover_testkit::image::{FileSystem, Image, Mounted};
use dmover_testkit::lanes::lines::Line;
use dmover_testkit::lanes::run::{Run, Running};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::command_line;

/// What stands in front of a path at each end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    pub source: &'static str,
    pub destination: &'static str,
}

/// SOURCE far, DEST far, both on one host, both on two hosts.
pub const WAYS: [Way; 4] = [
    Way { source: "far:", destination: "" },
    Way { source: "", destination: "far:" },
    Way { source: "far:", destination: "far:" },
    Way { source: "far:", destination: "other:" },
];

/// Both ends here, to compare with.
pub const LOCAL: Way = Way { source: "", destination: "" };

/// Two hosts, `far` and `other`. Hosts share files, so the trees of the bench are at each of them.
pub struct Ends {
    // Dropped in this order: processes there have files of the image open.
    servers: Vec<Sshd>,
    pub cluster: Cluster,
    pub bench: Bench,
    _image: Option<Mounted>,
}

impl Ends {
    pub fn start() -> Self {
        Self::around(Cluster::new, &["far", "other"], |_| Bench::new(), None)
    }

    /// With the command on a host of its own, `near`, and another host with a server for ssh, `gate`.
    pub fn with_near_host() -> Self {
        Self::around(Cluster::new, &["far", "other", "gate"], Self::at_near_host, None)
    }

    /// The same without `gate`; all hosts have two network cards.
    pub fn with_two_cards() -> Self {
        Self::around(Cluster::multi_homed, &["far", "other"], Self::at_near_host, None)
    }

    fn at_near_host(cluster: &Cluster) -> Bench {
        Bench::new().with(|dmover| dmover.wrapped(cluster.host("near").words()))
    }

    /// With trees on ext4, which has every attribute. `None`: there are no loop devices here, which is told.
    pub fn on_disk(test: &str) -> Option<Self> {
        let image = Image::create_or_skip(test, FileSystem::Ext4, 900 << 20)?;
        let bench = Bench::inside(image.path());
        Some(Self::around(Cluster::new, &["far", "other"], |_| bench, Some(image)))
    }

    fn around(
        cluster: impl FnOnce(&[&str]) -> anyhow::Result<Cluster>,
        names: &[&str],
        bench: impl FnOnce(&Cluster) -> Bench,
        image: Option<Mounted>,
    ) -> Self {
        let cluster = cluster(&[names, &["near"]].concat()).unwrap();
        let bench = bench(&cluster);
        let force = "ForceCommand cd \"$HOME\"; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n";
        let start = |name: &&str| Sshd::start_with(cluster.host(name), force).unwrap();
        let servers = names.iter().map(start).collect();
        let ends = Self { servers, cluster, bench, _image: image };
        for host in names {
            ends.link(host, ".local/bin/dmover", Path::new(PROGRAM));
        }
        ends
    }

    /// A path below the home directory of a host.
    pub fn home(&self, host: &str, path: &str) -> PathBuf {
        self.servers[0].client_config_path().parent().unwrap().join(host).join(path)
    }

    fn link(&self, host: &str, path: &str, to: &Path) {
        let path = self.home(host, path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
    }

    pub fn ssh(&self) -> String {
        format!("ssh -F {}", self.servers[0].client_config_path().display())
    }

    /// A path of the bench, behind what names its host.
    pub fn at(&self, side: &str, path: &str) -> OsString {
        let mut name = OsString::from(side);
        name.push(self.bench.at(path));
        name
    }

    /// The arguments of a verb with options, separated by blanks, and further words.
    pub fn words(&self, line: &str, more: &[OsString]) -> Vec<OsString> {
        let mut words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        words.splice(1..1, ["--ssh-command".into(), self.ssh().into()]);
        words.extend(more.iter().cloned());
        words
    }

    /// Runs a verb with options, separated by blanks, and further words.
    #[track_caller]
    pub fn run(&self, line: &str, more: &[OsString]) -> Run {
        self.start_run(line, more).finish().unwrap()
    }

    #[track_caller]
    pub fn start_run(&self, line: &str, more: &[OsString]) -> Running {
        self.bench.dmover.start(self.words(line, more)).unwrap()
    }

    /// Runs a verb from one tree of the bench to another one.
    #[track_caller]
    pub fn job(&self, way: Way, line: &str, (source, destination): (&str, &str)) -> Run {
        self.start_job(way, line, (source, destination)).finish().unwrap()
    }

    #[track_caller]
    pub fn start_job(&self, way: Way, line: &str, (source, destination): (&str, &str)) -> Running {
        let ends = [self.at(way.source, source), self.at(way.destination, destination)];
        self.start_run(line, &ends)
    }

    /// Waits until the last change of each entry is longer ago than the clocks of two hosts may differ, so that whatever is copied now
    /// was certainly not changed afterwards.
    pub fn let_age(&self, tree: &str) {
        eventually("the tree to age", || {
            self.bench.sh(&format!("find {tree} -newerct '1.5 seconds ago' | head -n 1")).is_empty()
        });
    }

    /// The agents that run on any host.
    pub fn agents(&self) -> Vec<u32> {
        let pids = self.cluster.pids().unwrap();
        pids.into_iter().filter(|pid| command_line(*pid).ends_with("\0agent\0--stdio\0")).collect()
    }
}

/// Why there are no hosts here.
pub fn missing() -> Option<String> {
    Far::missing()
}

/// What was done with each entry: action, rsync's letters, path below the ends; sorted.
#[track_caller]
pub fn done(run: &Run, root: &Path) -> Vec<String> {
    let lines = run.lines().unwrap();
    let root = format!("{}/", root.display());
    let below = |line: &Line| {
        let path = line.path();
        let path = path.to_string_lossy();
        let (_, below) = path.rsplit_once(&root).unwrap_or(("", &path));
        // The first name is that of the tree, which may be another one.
        below.split_once('/').map_or("", |(_, below)| below).to_owned()
    };
    let items = lines.iter().filter(|line| line.is("item"));
    let mut done: Vec<String> = items
        .map(|line| format!("{} {} {:?}", line.text("action"), line.text("itemized"), below(line)))
        .collect();
    done.sort();
    done
}

/// The same lines; otherwise tells those of one side only.
#[track_caller]
pub fn assert_lines(ours: &[String], wanted: &[String], about: &str) {
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|line| !those.contains(line)).cloned().collect()
    };
    let (extra, missing) = (only(ours, wanted), only(wanted, ours));
    assert!(ours == wanted, "{about}\nonly here: {extra:#?}\nonly wanted: {missing:#?}");
}

/// A number of the summary.
#[track_caller]
pub fn count(run: &Run, counter: &str) -> u64 {
    let summary = run.said().unwrap().summary.unwrap_or_else(|| panic!("{}", run.tell()));
    summary.number(counter).unwrap_or_else(|| panic!("no {counter}: {}", run.tell()))
}

/// Nothing was done with any entry.
#[track_caller]
pub fn assert_idle(run: &Run) {
    for counter in [
        "files_copied",
        "bytes_copied",
        "symlinks_copied",
        "specials_copied",
        "hard_links_created",
        "directories_created",
        "directories_updated",
        "entries_replaced",
        "entries_deleted",
        "metadata_updated",
        "errors",
        "losses",
    ] {
        assert_eq!(count(run, counter), 0, "{counter}: {}", run.tell());
    }
}

macro_rules! ends {
    () => {{
        if let Some(why) = $crate::ends::missing() {
            dmover_testkit::skip!("{why}");
        }
        $crate::ends::Ends::start()
    }};
    (with near host) => {{
        if let Some(why) = $crate::ends::missing() {
            dmover_testkit::skip!("{why}");
        }
        $crate::ends::Ends::with_near_host()
    }};
    (with two cards) => {{
        if let Some(why) = $crate::ends::missing() {
            dmover_testkit::skip!("{why}");
        }
        $crate::ends::Ends::with_two_cards()
    }};
    ($test:expr) => {{
        if let Some(why) = $crate::ends::missing() {
            dmover_testkit::skip!("{why}");
        }
        let Some(ends) = $crate::ends::Ends::on_disk($test) else { return };
        ends
    }};
}
pub(crate) use ends;
