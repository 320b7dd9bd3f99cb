//! Several hosts that have one tree.
use dmover_model::{
    ByteRange, Digest, ErrorClass, Fatal, FollowLinks, HashType, PathBytes, Shape, TreePath,
};
use dmover_net::Notice;
use dmover_remote::{Connect, Line, RemoteSource};
use dmover_tree::{Needs, RemoteDirectory, RemoteTree};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::near::{Near, opening, scratch};
use super::reading::all;

/// How long what happens on other threads may take.
const SOON: Duration = Duration::from_secs(30);

/// The connections that were made with a host, and whether more can be made.
type Made = (Vec<Arc<Near>>, bool);

/// Hosts that have a tree, and what the user is told of them.
#[derive(Default)]
struct Site {
    roots: Vec<PathBuf>,
    made: Arc<Mutex<Vec<Made>>>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn of(roots: &[&Path]) -> Self {
        let made = roots.iter().map(|_| (Vec::new(), true)).collect();
        Self {
            roots: roots.iter().map(|root| root.to_path_buf()).collect(),
            made: Arc::new(Mutex::new(made)),
            told: Arc::default(),
        }
    }

    fn open(&self, patience: Duration) -> Result<RemoteSource, Fatal> {
        let connect = |(number, root): (usize, &PathBuf)| {
            let (made, root) = (Arc::clone(&self.made), root.clone());
            let connect: Connect = Box::new(move || {
                let mut made = made.lock().unwrap();
                if !made[number].1 {
                    return Err(Fatal::unavailable(format!("h{number} is down"), "wait"));
                }
                let near = Near::to(&root);
                made[number].0.push(Arc::clone(&near));
                Ok(near as Arc<dyn Line>)
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
        self.made.lock().unwrap()[number].1 = false;
    }

    fn cut(&self, number: usize) {
        self.made.lock().unwrap()[number].0.last().unwrap().cut();
    }

    fn connections(&self, number: usize) -> usize {
        self.made.lock().unwrap()[number].0.len()
    }

    /// Requests to a host since the last call.
    fn requests(&self, number: usize) -> usize {
        let made = self.made.lock().unwrap();
        made[number].0.iter().map(|near| near.requests()).sum()
    }

    fn wait_for(&self, what: impl Fn() -> bool) {
        let until = Instant::now() + SOON;
        while !what() {
            assert!(Instant::now() < until, "told: {:?}", self.told.lock().unwrap());
            // Threads of the tree make connections: poll.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_until_all_are_there(&self) {
        for number in 0..self.roots.len() {
            self.wait_for(|| self.requests(number) > 0);
        }
    }
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
    let site = Site::of(&[root.path(); 3]);
    let tree = site.open(SOON).unwrap();
    site.wait_until_all_are_there();
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
        let site = Site::of(&[root.path(); 2]);
        let tree = site.open(SOON).unwrap();
        site.wait_until_all_are_there();
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
    for number in 0..20_000 {
        std::fs::create_dir(root.path().join(format!("d{number}"))).unwrap();
    }
    let site = Site::of(&[root.path(); 2]);
    let tree = site.open(SOON).unwrap();
    site.wait_until_all_are_there();
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
    assert_eq!((names.len(), all), (20_000, 20_000));
}

#[test]
fn files_that_were_announced_to_a_lost_host_are_asked_for_again() {
    let root = scratch();
    for number in 0..200 {
        std::fs::write(root.path().join(format!("f{number:03}")), format!("{number}")).unwrap();
    }
    let site = Site::of(&[root.path(); 2]);
    let tree = site.open(SOON).unwrap();
    site.wait_until_all_are_there();
    let top = tree.open(&TreePath::root(), false).unwrap();
    let names = names_in(&*top);
    let announced: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    top.announce(&announced, false);
    for (number, name) in announced.iter().enumerate() {
        if number == 20 {
            site.shut(1);
            site.cut(1);
        }
        let file = top.open_file(name, false).unwrap();
        assert_eq!(all(&*file, 0, 100), format!("{number}").as_bytes());
    }
}

#[test]
fn a_host_that_comes_back_is_used_again() {
    let root = scratch();
    std::fs::write(root.path().join("f"), b"x").unwrap();
    let site = Site::of(&[root.path(); 2]);
    let tree = site.open(SOON).unwrap();
    site.wait_until_all_are_there();
    site.cut(0);
    // Whoever looks at the connections finds that one is over.
    site.wait_for(|| tree.lost().is_none() && site.connections(0) == 2);
    site.wait_for(|| site.told.lock().unwrap().iter().any(|text| text.contains("from now on")));
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
    let error = tree.open(&TreePath::root(), false).unwrap_err();
    assert_eq!(error.class, ErrorClass::Cancelled);
    let lost = tree.lost().unwrap().to_string();
    assert!(lost.contains("no host of the source can be reached any more: lost: "), "{lost}");
}

#[test]
fn a_host_with_another_tree_is_not_used() {
    let (root, other) = (scratch(), scratch());
    std::fs::write(root.path().join("f"), b"x").unwrap();
    let site = Site::of(&[root.path(), root.path()]);
    let tree = site.open(SOON).unwrap();
    site.wait_until_all_are_there();
    let site = Site { roots: vec![root.path().into(), other.path().into()], ..site };
    drop(tree);
    let tree = site.open(SOON).unwrap();
    site.wait_for(|| {
        site.told.lock().unwrap().iter().any(|text| text.contains("not the file or directory"))
    });
    let first = tree.root().metadata.identity;
    let inode =
        |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    let expected = if first.inode == inode(root.path()) { &b"f"[..] } else { b"" };
    let top = tree.open(&TreePath::root(), false).unwrap();
    assert_eq!(names_in(&*top).concat(), expected);
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
    for directory in 0..40 {
        let directory = root.path().join(format!("d{directory:02}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..20 {
            std::fs::write(directory.join(format!("f{file}")), [7; 3000]).unwrap();
        }
    }
    let site = Site::of(&[root.path(); 2]);
    let tree = site.open(SOON).unwrap();
    site.wait_until_all_are_there();
    let top = tree.open(&TreePath::root(), false).unwrap();
    let names = names_in(&*top);
    let ahead: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let needs = Needs { goes_below: true, opens_files: true };
    for (number, name) in names.iter().enumerate() {
        top.enter_ahead(&ahead[number..], needs);
        if number == 3 {
            site.shut(0);
            site.cut(0);
        }
        let below = top.enter(name, false).unwrap();
        for file in names_in(&*below) {
            let file = below.open_file(&file, false).unwrap();
            assert_eq!(all(&*file, 0, 4000), [7; 3000]);
        }
    }
    // Walks are still asked for after the loss.
    assert!(site.requests(1) > 0);
}
