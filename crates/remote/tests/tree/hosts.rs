//! Several hosts that have one tree.
use dmover_model::{
    ByteRange, Digest, ErrorClass, Fatal, FollowLinks, HashType, PathBytes, Shape, TreePath,
};
use dmover_net::Notice;
use dmover_net::connection::{Broken, Channel};
use dmover_remote::{Connect, Line, RemoteSource};
use dmover_tree::{Needs, RemoteDirectory, RemoteTree};
use dmover_wire::agent::Request;
use dmover_wire::decode;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::near::{Near, opening, scratch};
use super::reading::all;

/// How long what happens on other threads may take.
const SOON: Duration = Duration::from_secs(30);

/// A host.
struct At {
    /// The connections that were made with it.
    made: Vec<Arc<Near>>,
    /// More can be made.
    is_up: bool,
    /// Its login ends after the host of this number has been reached.
    after: Option<usize>,
}

/// Hosts that have a tree, and what the user is told of them.
#[derive(Default)]
struct Site {
    roots: Vec<PathBuf>,
    hosts: Arc<Mutex<Vec<At>>>,
    told: Arc<Mutex<Vec<String>>>,
    /// Each connection ends when something is asked on it.
    ends: Arc<AtomicBool>,
    /// How many walks were asked for.
    walks: Arc<AtomicUsize>,
}

/// A connection that may end when something is asked on it.
#[derive(Debug)]
struct Ended {
    near: Arc<Near>,
    ends: Arc<AtomicBool>,
    /// How many walks were asked for.
    walks: Arc<AtomicUsize>,
}

impl Line for Ended {
    fn request(&self, message: &[u8]) -> Result<Channel, Broken> {
        // To begin is not enough, or there would be no connections.
        let begins = matches!(decode(message), Ok(Request::BeginShared(_)));
        if self.ends.load(SeqCst) && !begins {
            self.near.cut();
        }
        self.near.request(message)
    }

    fn request_ahead(&self, message: &[u8]) -> Result<Option<Channel>, Broken> {
        if matches!(decode(message), Ok(Request::Walk { .. })) {
            self.walks.fetch_add(1, SeqCst);
        }
        self.near.request_ahead(message)
    }

    fn is_over(&self) -> Option<Broken> {
        self.near.is_over()
    }

    fn fatal(&self, why: &Broken) -> Fatal {
        self.near.fatal(why)
    }
}

impl Site {
    fn of(roots: &[&Path]) -> Self {
        let host = |_: &&Path| At { made: Vec::new(), is_up: true, after: None };
        Self {
            roots: roots.iter().map(|root| root.to_path_buf()).collect(),
            hosts: Arc::new(Mutex::new(roots.iter().map(host).collect())),
            told: Arc::default(),
            ends: Arc::default(),
            walks: Arc::default(),
        }
    }

    fn open(&self, patience: Duration) -> Result<RemoteSource, Fatal> {
        let connect = |(number, root): (usize, &PathBuf)| {
            let (hosts, root) = (Arc::clone(&self.hosts), root.clone());
            let (ends, walks) = (Arc::clone(&self.ends), Arc::clone(&self.walks));
            let connect: Connect = Box::new(move || {
                let after = hosts.lock().unwrap()[number].after;
                wait_until(|| {
                    after.is_none_or(|other| !hosts.lock().unwrap()[other].made.is_empty())
                });
                let mut hosts = hosts.lock().unwrap();
                if !hosts[number].is_up {
                    return Err(Fatal::unavailable(format!("h{number} is down"), "wait"));
                }
                let near = Near::to(&root);
                hosts[number].made.push(Arc::clone(&near));
                let (ends, walks) = (Arc::clone(&ends), Arc::clone(&walks));
                Ok(Arc::new(Ended { near, ends, walks }) as Arc<dyn Line>)
            });
            (PathBytes(format!("h{number}:/tree").into_bytes()), connect)
        };
        let hosts = self.roots.iter().enumerate().map(connect).collect();
        let told = Arc::clone(&self.told);
        let notice = Notice(Arc::new(move |text| told.lock().unwrap().push(text.to_owned())));
        // All of them name one root.
        let opening = opening(Path::new("/tree"), FollowLinks::Never);
        RemoteSource::of_several(hosts, opening, (patience, notice))
    }

    fn shut(&self, number: usize) {
        self.hosts.lock().unwrap()[number].is_up = false;
    }

    fn is_later_than(&self, number: usize, other: usize) {
        self.hosts.lock().unwrap()[number].after = Some(other);
    }

    fn cut(&self, number: usize) {
        self.hosts.lock().unwrap()[number].made.last().unwrap().cut();
    }

    /// Requests to a host are not answered from now on, and its connection stays.
    fn hang(&self, number: usize) {
        self.hosts.lock().unwrap()[number].made.last().unwrap().hang();
    }

    fn connections(&self, number: usize) -> usize {
        self.hosts.lock().unwrap()[number].made.len()
    }

    /// Requests to a host since the last call.
    fn requests(&self, number: usize) -> usize {
        let hosts = self.hosts.lock().unwrap();
        hosts[number].made.iter().map(|near| near.requests()).sum()
    }

    fn wait_until_told(&self, words: &str) {
        wait_until(|| self.told.lock().unwrap().iter().any(|text| text.contains(words)));
    }

    fn wait_until_all_are_there(&self) {
        for number in 0..self.roots.len() {
            wait_until(|| self.requests(number) > 0);
        }
    }
}

/// Waits for what threads of the tree do.
fn wait_until(what: impl Fn() -> bool) {
    let until = Instant::now() + SOON;
    while !what() {
        assert!(Instant::now() < until, "it does not come");
        // Other threads decide when: poll.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A tree that so many hosts have, all of which are connected.
fn shared(root: &Path, hosts: usize) -> (Site, RemoteSource) {
    let site = Site::of(&vec![root; hosts]);
    let tree = site.open(SOON).unwrap();
    site.wait_until_all_are_there();
    (site, tree)
}

fn names_in(directory: &dyn RemoteDirectory) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    directory
        .list(&mut |name, _, _| {
            names.push(name.to_vec());
            true
        })
        .unwrap();
    names.sort();
    names
}

fn large(root: &Path, megabytes: usize) -> Vec<u8> {
    let bytes: Vec<u8> =
        (0..megabytes << 17).flat_map(|word| u64::to_le_bytes(word as u64)).collect();
    std::fs::write(root.join("large"), &bytes).unwrap();
    bytes
}

#[test]
fn all_hosts_send_parts_of_one_file() {
    let root = scratch();
    let bytes = large(root.path(), 64);
    let (site, tree) = shared(root.path(), 3);
    let file = tree.open(&TreePath::root(), false).unwrap().open_file(b"large", false).unwrap();
    std::thread::scope(|scope| {
        for part in bytes.chunks(16 << 20).enumerate() {
            let file = &file;
            scope.spawn(move || {
                let (number, expected) = part;
                let (mut at, mut buffer) = (0, vec![0; 1 << 20]);
                while at < expected.len() {
                    let read = file.read((number * (16 << 20) + at) as u64, &mut buffer).unwrap();
                    assert!(buffer[..read] == expected[at..at + read], "at {at} of part {number}");
                    at += read;
                }
            });
        }
    });
    let asked: Vec<_> = (0..3).map(|number| site.requests(number)).collect();
    assert!(asked.iter().all(|asked| *asked > 0), "{asked:?}");
}

#[test]
fn what_a_lost_host_owes_comes_from_another_one() {
    let root = scratch();
    let bytes = large(root.path(), 40);
    for number in 0..3000 {
        std::fs::create_dir(root.path().join(format!("d{number}"))).unwrap();
    }
    for cut in 0..2 {
        let (site, tree) = shared(root.path(), 2);
        let top = tree.open(&TreePath::root(), false).unwrap();
        let file = top.open_file(b"large", false).unwrap();
        let (mut at, mut buffer) = (0, vec![0; 1 << 20]);
        let mut was_cut = false;
        while at < bytes.len() {
            let read = file.read(at as u64, &mut buffer).unwrap();
            assert!(read > 0 && buffer[..read] == bytes[at..at + read], "at {at}");
            at += read;
            if at > 3 << 20 && !was_cut {
                was_cut = true;
                site.shut(cut);
                site.cut(cut);
            }
        }
        let mut listed = 0;
        top.list(&mut |_, _, _| {
            listed += 1;
            true
        })
        .unwrap();
        assert_eq!(listed, 3001);
        let whole = ByteRange { start: 0, end: bytes.len() as u64 };
        let shape = Shape::plain(HashType::Sha256, bytes.len() as u64, bytes.len() as u64);
        let digests = file.digests(&[shape], 0, whole, &mut |_| Ok(())).unwrap();
        assert_eq!(digests, [vec![sha256sum(&root.path().join("large"))]]);
        assert!(tree.lost().is_none());
        let told = site.told.lock().unwrap().join("\n");
        assert!(told.contains("the others continue"), "{told}");
    }
}

fn sha256sum(path: &Path) -> Digest {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    let hex = String::from_utf8(output.stdout).unwrap();
    let hex = hex.split_whitespace().next().unwrap();
    Digest::from_hex(hex.as_bytes()).unwrap()
}

#[test]
fn a_list_that_another_host_continues_has_each_name_once() {
    let root = scratch();
    // Longer than what is sent before anything is taken.
    for number in 0..200_000 {
        std::fs::write(root.path().join(format!("{number}")), b"").unwrap();
    }
    let (site, tree) = shared(root.path(), 2);
    let top = tree.open(&TreePath::root(), false).unwrap();
    let mut names = Vec::new();
    top.list(&mut |name, _, _| {
        if names.is_empty() {
            site.shut(0);
            site.cut(0);
        }
        names.push(name.to_vec());
        true
    })
    .unwrap();
    names.sort();
    let all = names.len();
    names.dedup();
    assert_eq!((names.len(), all), (200_000, 200_000));
    assert!(site.requests(1) > 0, "the list has come before the cut");
}

#[test]
fn files_that_were_announced_to_a_lost_host_are_asked_for_again() {
    let root = scratch();
    for number in 0..200 {
        std::fs::write(root.path().join(format!("f{number:03}")), format!("{number}")).unwrap();
    }
    let (site, tree) = shared(root.path(), 2);
    let top = tree.open(&TreePath::root(), false).unwrap();
    let names = names_in(&*top);
    let announced: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    top.announce(&announced, false);
    for (number, name) in announced.iter().enumerate() {
        if number == 20 {
            site.shut(0);
            site.cut(0);
        }
        let file = top.open_file(name, false).unwrap();
        assert_eq!(all(&*file, 0, 100), format!("{number}").as_bytes());
    }
}

#[test]
fn a_host_that_comes_back_is_used_again() {
    let root = scratch();
    std::fs::write(root.path().join("f"), b"x").unwrap();
    let (site, tree) = shared(root.path(), 2);
    site.cut(0);
    // Whoever looks at the connections finds that one is over.
    wait_until(|| tree.lost().is_none() && site.connections(0) == 2);
    site.wait_until_told("from now on");
    site.shut(1);
    site.cut(1);
    let top = tree.open(&TreePath::root(), false).unwrap();
    assert_eq!(names_in(&*top), [b"f"]);
}

#[test]
fn without_any_host_requests_wait_and_then_the_tree_is_lost() {
    let root = scratch();
    std::fs::write(root.path().join("f"), b"x").unwrap();
    let site = Site::of(&[root.path(); 2]);
    let tree = site.open(Duration::from_mins(1)).unwrap();
    site.wait_until_all_are_there();
    site.cut(0);
    site.cut(1);
    // New connections are made meanwhile.
    let top = tree.open(&TreePath::root(), false).unwrap();
    assert_eq!(names_in(&*top), [b"f"]);

    let site = Site::of(&[root.path(); 2]);
    let tree = site.open(Duration::from_millis(300)).unwrap();
    site.wait_until_all_are_there();
    for number in 0..2 {
        site.shut(number);
        site.cut(number);
    }
    let error = tree.open_anew(&TreePath::root(), false).unwrap_err();
    assert_eq!(error.class, ErrorClass::Cancelled);
    let lost = tree.lost().unwrap().to_string();
    assert!(lost.contains("no host of the source can be reached any more: lost: "), "{lost}");
}

#[test]
fn the_first_host_decides_what_the_tree_is() {
    let (root, other) = (scratch(), scratch());
    std::fs::write(root.path().join("f"), b"x").unwrap();
    std::fs::write(other.path().join("other"), b"x").unwrap();
    for order in [[&root, &other], [&other, &root]] {
        let site = Site::of(&order.map(tempfile::TempDir::path));
        // The second one is reached before the first one.
        site.is_later_than(0, 1);
        let tree = site.open(SOON).unwrap();
        let top = tree.open(&TreePath::root(), false).unwrap();
        let expected = if order[0].path() == root.path() { &b"f"[..] } else { b"other" };
        assert_eq!(names_in(&*top), [expected]);
        site.wait_until_told("'h1:/tree' is not used: its tree is not that of the first host");
    }
}

#[test]
fn a_file_that_changes_between_its_pieces_is_not_taken_for_one_version() {
    let root = scratch();
    let bytes = large(root.path(), 12);
    let (_site, tree) = shared(root.path(), 2);
    let file = tree.open(&TreePath::root(), false).unwrap().open_file(b"large", false).unwrap();
    let before = file.metadata().version();
    file.will_read(ByteRange { start: 0, end: bytes.len() as u64 });
    let mut buffer = vec![0; 1 << 20];
    // The next piece is asked for with this, and may come before the change or after it.
    let mut at = file.read(0, &mut buffer).unwrap();
    let changed = std::fs::File::options().write(true).open(root.path().join("large")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&changed, b"new", 3 << 20).unwrap();
    let failed = loop {
        match file.read(at as u64, &mut buffer) {
            Ok(0) => break false,
            Ok(read) => at += read,
            Err(error) => {
                assert_eq!(error.class, ErrorClass::Changed, "{error}");
                break true;
            }
        }
    };
    assert!(failed || file.now().unwrap().version() != before);
}

#[test]
fn nothing_is_used_of_what_a_host_sends_of_another_version() {
    let root = scratch();
    let bytes = large(root.path(), 24);
    let (site, tree) = shared(root.path(), 2);
    let file = tree.open(&TreePath::root(), false).unwrap().open_file(b"large", false).unwrap();
    let mut older = file.metadata().clone();
    older.mtime.seconds -= 1;
    site.hosts.lock().unwrap()[1].made.last().unwrap().be_stale(older);
    site.requests(1);
    file.will_read(ByteRange { start: 0, end: bytes.len() as u64 });
    assert!(all(&*file, 0, 1 << 20) == bytes);
    assert!(site.requests(1) > 0, "the other host was not asked");
}

#[test]
fn digests_of_another_version_are_refused() {
    let root = scratch();
    let bytes = large(root.path(), 4);
    let (_site, tree) = shared(root.path(), 2);
    let file = tree.open(&TreePath::root(), false).unwrap().open_file(b"large", false).unwrap();
    let length = bytes.len() as u64;
    let shape = Shape::plain(HashType::Sha256, length, length);
    let whole = ByteRange { start: 0, end: length };
    assert!(file.digests(&[shape], 0, whole, &mut |_| Ok(())).is_ok());
    std::fs::write(root.path().join("large"), &bytes).unwrap();
    let error = file.digests(&[shape], 0, whole, &mut |_| Ok(())).unwrap_err();
    assert_eq!(error.class, ErrorClass::Changed);
}

#[test]
fn one_reader_is_sent_pieces_by_all_hosts() {
    let root = scratch();
    let bytes = large(root.path(), 64);
    let (site, tree) = shared(root.path(), 3);
    let file = tree.open(&TreePath::root(), false).unwrap().open_file(b"large", false).unwrap();
    for number in 0..3 {
        site.requests(number);
    }
    file.will_read(ByteRange { start: 0, end: bytes.len() as u64 });
    assert!(all(&*file, 0, 1 << 20) == bytes);
    let asked: Vec<_> = (0..3).map(|number| site.requests(number)).collect();
    assert!(asked.iter().all(|asked| *asked > 1), "{asked:?}");
    // Nothing is asked for twice: 16 pieces.
    assert!(asked.iter().sum::<usize>() < 20, "{asked:?}");
}

#[test]
fn a_host_that_hangs_is_not_waited_for() {
    let root = scratch();
    let bytes = large(root.path(), 24);
    let (site, tree) = shared(root.path(), 2);
    let top = tree.open(&TreePath::root(), false).unwrap();
    let file = top.open_file(b"large", false).unwrap();
    site.hang(1);
    file.will_read(ByteRange { start: 0, end: bytes.len() as u64 });
    assert!(all(&*file, 0, 1 << 20) == bytes);
    site.wait_until_told("'h1:/tree' does not answer; the others are asked instead");
    assert!(tree.lost().is_none());
}

#[test]
fn a_request_that_ends_every_agent_is_given_up() {
    let root = scratch();
    std::fs::write(root.path().join("f"), b"x").unwrap();
    let site = Site::of(&[root.path(); 2]);
    let tree = site.open(Duration::from_mins(5)).unwrap();
    site.wait_until_all_are_there();
    site.ends.store(true, SeqCst);
    let error = tree.open_anew(&TreePath::root(), false).unwrap_err();
    assert_eq!(error.class, ErrorClass::Io);
    assert!(site.connections(0) < 9);
}

#[test]
fn hosts_that_are_down_are_skipped_unless_all_are() {
    let root = scratch();
    std::fs::write(root.path().join("f"), b"x").unwrap();
    let site = Site::of(&[root.path(); 3]);
    site.shut(0);
    site.shut(2);
    let tree = site.open(SOON).unwrap();
    let top = tree.open(&TreePath::root(), false).unwrap();
    assert_eq!(names_in(&*top), [b"f"]);
    site.shut(1);
    let refused = site.open(SOON).unwrap_err().to_string();
    assert_eq!(refused, "h0 is down");
}

#[test]
fn walks_of_a_lost_host_cost_nothing_but_time() {
    let root = scratch();
    for directory in 0..400 {
        let directory = root.path().join(format!("d{directory:03}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..3 {
            std::fs::write(directory.join(format!("f{file}")), [7; 3000]).unwrap();
        }
    }
    let (site, tree) = shared(root.path(), 2);
    let top = tree.open(&TreePath::root(), false).unwrap();
    let names = names_in(&*top);
    let ahead: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let needs = Needs { goes_below: true, opens_files: true };
    for (number, name) in names.iter().enumerate() {
        top.enter_ahead(&ahead[number..], needs);
        if number == 3 {
            site.shut(0);
            site.cut(0);
            site.walks.store(0, SeqCst);
        }
        let below = top.enter(name, false).unwrap();
        for file in names_in(&*below) {
            let file = below.open_file(&file, false).unwrap();
            assert_eq!(all(&*file, 0, 4000), [7; 3000]);
        }
    }
    assert!(site.walks.load(SeqCst) > 0, "no walks after the loss");
}
