//! Holes and digests.
use dmover_model::{ByteRange, HashType, Shape, TreePath};
use dmover_tree::{NextData, RemoteTree};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::fs::{SeekFrom, seek};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use super::near::{plain, scratch};
use super::reading::all;

/// What lseek(2) says.
fn found(file: &File, at: u64) -> NextData {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => {
            NextData::Data(ByteRange { start, end: seek(file, SeekFrom::Hole(start)).unwrap() })
        }
        Err(rustix::io::Errno::NXIO) => NextData::End,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn holes_read_as_zeroes_and_are_where_lseek_finds_them() {
    let seed = 7;
    println!("seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let root = scratch();
    for number in 0..12 {
        let name = format!("{number}");
        let path = root.path().join(&name);
        let file = File::create_new(&path).unwrap();
        let size = random.random_range(0..3_000_000);
        file.set_len(size).unwrap();
        for _ in 0..random.random_range(0..4) {
            let at = random.random_range(0..size.max(1));
            let bytes: Vec<u8> =
                (0..random.random_range(0..100_000)).map(|_| random.random()).collect();
            let fits = bytes.len().min((size - at.min(size)) as usize);
            file.write_all_at(&bytes[..fits], at).unwrap();
        }
        let file = File::open(&path).unwrap();
        let (tree, _near) = plain(root.path());
        let top = tree.open(&TreePath::root(), false).unwrap();
        let open = top.open_file(name.as_bytes(), false).unwrap();
        assert!(all(&*open, 0, 70_000) == std::fs::read(&path).unwrap(), "{name}");
        for _ in 0..20 {
            let at = random.random_range(0..size + 10);
            assert_eq!(open.next_data(at).unwrap(), found(&file, at), "{name} at {at} of {size}");
            let mut buffer = vec![1; random.random_range(1..5000)];
            let read = open.read(at, &mut buffer).unwrap();
            let mut expected = vec![2; read];
            file.read_exact_at(&mut expected, at).unwrap();
            assert!(buffer[..read] == expected && (read > 0 || at >= size));
        }
    }
}

#[test]
fn several_threads_read_one_file() {
    let root = scratch();
    let content: Vec<u8> = (0..2_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(root.path().join("f"), &content).unwrap();
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let file = top.open_file(b"f", false).unwrap();
    near.requests();
    std::thread::scope(|scope| {
        for part in content.chunks(1_000_000).enumerate() {
            let file = &file;
            scope.spawn(move || {
                let (number, part) = part;
                let (mut at, mut buffer) = (0, vec![0; 30_000]);
                while at < part.len() {
                    let wanted = buffer.len().min(part.len() - at);
                    let offset = (number * 1_000_000 + at) as u64;
                    let read = file.read(offset, &mut buffer[..wanted]).unwrap();
                    assert!(read > 0 && buffer[..read] == part[at..at + read]);
                    at += read;
                }
            });
        }
    });
    // One stream for each.
    assert_eq!(near.requests(), 8);
}

#[test]
fn more_files_are_read_at_a_time_than_streams_may_be_open() {
    let root = scratch();
    let content = |number: usize| vec![number as u8 + 1; 600_000];
    for number in 0..150 {
        std::fs::write(root.path().join(number.to_string()), content(number)).unwrap();
    }
    let (tree, _near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let names: Vec<_> = (0..150).map(|number| number.to_string()).collect();
    let files: Vec<_> =
        names.iter().map(|name| top.open_file(name.as_bytes(), false).unwrap()).collect();
    let mut at = vec![0; files.len()];
    let mut buffer = vec![0; 100_000];
    for _ in 0..8 {
        for (number, file) in files.iter().enumerate() {
            let read = file.read(at[number], &mut buffer).unwrap();
            assert!(buffer[..read] == content(number)[..read]);
            at[number] += read as u64;
        }
    }
    assert!(at.iter().all(|at| *at == 600_000), "{at:?}");
}

/// The digest that a program of the system prints.
fn printed(program: &str, path: &std::path::Path) -> String {
    let output = Command::new(program).arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn digests_are_those_of_other_programs() {
    let root = scratch();
    let large: Vec<u8> = (0..10_000_000u32).flat_map(u32::to_le_bytes).collect();
    let (tree, _near) = plain(root.path());
    for (name, content) in [("large", &large[..]), ("small", b"hello"), ("empty", b"")] {
        let path = root.path().join(name);
        std::fs::write(&path, content).unwrap();
        let top = tree.open(&TreePath::root(), false).unwrap();
        let file = top.open_file(name.as_bytes(), false).unwrap();
        let length = content.len() as u64;
        let shapes = [HashType::Sha256, HashType::Md5, HashType::Sha1]
            .map(|hash| Shape::plain(hash, length, 1 << 20));
        let mut hashed = 0;
        let range = ByteRange { start: 0, end: length };
        let mut step = |bytes| {
            hashed += bytes;
            Ok(())
        };
        let digests = file.digests(&shapes, 0, range, &mut step).unwrap();
        for (digests, program) in digests.iter().zip(["sha256sum", "md5sum", "sha1sum"]) {
            assert_eq!(digests.len(), 1);
            assert_eq!(digests[0].to_string(), printed(program, &path), "{name}");
        }
        // The content is read once for two of them, and again for the third.
        assert!(hashed >= length, "{hashed}");
        // Whoever hashes can end it.
        let mut stop = |_| Err(top.look(b"none", false).unwrap_err());
        assert!(length == 0 || file.digests(&shapes, 0, range, &mut stop).is_err());
        // What cannot be hashed is an error.
        let longer = Shape::plain(HashType::Blake3, length + 5000, 1024);
        for (start, from, to) in
            [(0, 1, 2), (0, 0, length + 6000), (u64::MAX, 0, 1), (0, 0, length + 1)]
        {
            let range = ByteRange { start: from, end: to };
            assert!(file.digests(&[longer], start, range, &mut |_| Ok(())).is_err(), "{from} {to}");
        }
    }
    // A part from an odd offset on, as the same content in a file of its own.
    std::fs::write(root.path().join("part"), &large[777..1_000_777]).unwrap();
    let top = tree.open(&TreePath::root(), false).unwrap();
    let file = top.open_file(b"large", false).unwrap();
    let shape = Shape::plain(HashType::Sha256, 1_000_000, 1024);
    let range = ByteRange { start: 0, end: 1_000_000 };
    let made = file.digests(&[shape], 777, range, &mut |_| Ok(())).unwrap();
    assert_eq!(made[0][0].to_string(), printed("sha256sum", &root.path().join("part")));
}
