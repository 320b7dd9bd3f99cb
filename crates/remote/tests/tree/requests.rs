//! Requests that no job would send.
use dmover_model::{
    ByteRange, HashType, Identity, MountId, Name, Shape, Timestamp, TreePath, Version,
};
use dmover_net::connection::Broken;
use dmover_remote::Line;
use dmover_tree::RemoteTree;
use dmover_wire::agent::{DirectoryAt, FileAt, Request, UNKNOWN_REQUEST};
use dmover_wire::encode;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::near::{Near, plain, scratch};

/// Sends bytes, and receives all that comes back.
fn send(near: &Near, bytes: &[u8]) -> Result<usize, Broken> {
    let channel = near.request(bytes)?;
    channel.finish()?;
    let mut answers = 0;
    while channel.receive()?.is_some() {
        answers += 1;
    }
    Ok(answers)
}

fn random_request(random: &mut ChaCha8Rng, top: Identity) -> Request {
    let identity = if random.random() {
        top
    } else {
        Identity { mount: MountId(random.random()), inode: random.next_u64() }
    };
    let names: Vec<Name> =
        [&b"f"[..], b"d", b"none", b"\xff\n"].map(|name| Name::new(name).unwrap()).into();
    let name = names.choose(random).unwrap().clone();
    let paths = [&b""[..], b"d", b"none", b"f"];
    let path = TreePath::new(*paths.choose(random).unwrap()).unwrap();
    let follows = random.random();
    let directory = DirectoryAt { path: path.clone(), follows: random.random(), identity };
    let time = Timestamp { seconds: -1, nanoseconds: u32::MAX };
    let version = Version { identity, size: random.next_u64(), mtime: time, ctime: time };
    let file = FileAt { directory: directory.clone(), name: name.clone(), follows, version };
    let number = |random: &mut ChaCha8Rng| random.next_u64() >> random.random_range(0..64);
    let range = ByteRange { start: number(random), end: number(random) };
    match random.random_range(0..10) {
        0 => Request::Open { at: path, follows },
        1 => Request::Enter { directory, name, follows },
        2 => Request::List { directory, looks: random.random(), follows },
        3 => Request::Look { directory, names, follows },
        4 => Request::Attributes {
            directory,
            name: random.random::<bool>().then_some(name),
            follows,
        },
        5 => Request::Heads { directory, names, follows },
        6 => Request::Content { file, range },
        7 => Request::NextData { file, at: number(random) },
        8 => Request::Now { file },
        _ => {
            let (length, piece) = (number(random) >> 2, number(random));
            let shape = Shape::plain(*HashType::ALL.choose(random).unwrap(), length, piece);
            let shapes = vec![shape; random.random_range(0..12)];
            Request::Digests { file, shapes, start: number(random), range }
        }
    }
}

#[test]
fn whatever_is_asked_the_agent_answers_and_stays() {
    let seed = 20_261_127;
    println!("seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let root = scratch();
    std::fs::write(root.path().join("f"), b"hello").unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let identity = top.metadata().identity;
    let allowed = |sent: &Result<usize, Broken>| match sent {
        Ok(answers) => *answers > 0,
        Err(Broken::Cancelled(why)) => {
            why == UNKNOWN_REQUEST || why == "this host serves one other host"
        }
        Err(_) => false,
    };
    for round in 0..3000 {
        let request = encode(&random_request(&mut random, identity)).to_vec();
        let sent = send(&near, &request);
        assert!(allowed(&sent), "{round}: {sent:?} to {request:?}");
        // The same with a byte changed, or cut.
        let mut damaged = request;
        let at = random.random_range(0..damaged.len());
        damaged[at] = random.random();
        damaged.truncate(random.random_range(0..=damaged.len()));
        let sent = send(&near, &damaged);
        assert!(allowed(&sent), "{round}: {sent:?} to {damaged:?}");
        let mut bytes = vec![0; random.random_range(0..40)];
        random.fill_bytes(&mut bytes);
        if let Some(first) = bytes.first_mut() {
            *first %= 2;
        }
        let sent = send(&near, &bytes);
        assert!(allowed(&sent), "{round}: {sent:?} to {bytes:?}");
    }
    assert_eq!(top.look(b"f", false).unwrap().0.size, 5);
    let file = top.open_file(b"f", false).unwrap();
    assert_eq!(super::reading::all(&*file, 0, 9), b"hello");
}

#[test]
fn nothing_is_served_before_the_tree_is_open() {
    let root = scratch();
    let near = Near::to(root.path());
    let request = Request::Open { at: TreePath::root(), follows: false };
    let refused = send(&near, &encode(&request));
    assert_eq!(refused, Err(Broken::Cancelled("no tree was opened".into())));
    assert_eq!(send(&near, &encode(&Request::Inspect)), Ok(1));
}
