//! Connections that are cut.
use dmover_model::{ByteRange, ErrorClass, HashType, Shape, TreePath};
use dmover_tree::{NextData, RemoteTree};

use super::near::{plain, scratch};

#[test]
fn after_a_cut_everything_fails_at_once_and_the_tree_is_lost() {
    let root = scratch();
    std::fs::write(root.path().join("large"), vec![1; 30_000_000]).unwrap();
    std::fs::write(root.path().join("small"), b"hello").unwrap();
    std::fs::File::create_new(root.path().join("sparse")).unwrap().set_len(1 << 20).unwrap();
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let large = top.open_file(b"large", false).unwrap();
    let small = top.open_file(b"small", false).unwrap();
    let sparse = top.open_file(b"sparse", false).unwrap();
    top.announce(&[b"small", b"large"], false);
    let mut buffer = vec![0; 1 << 20];
    let mut at = large.read(0, &mut buffer).unwrap() as u64;
    assert!(tree.lost().is_none());
    near.cut();
    let error = loop {
        match large.read(at, &mut buffer) {
            Ok(0) => panic!("the content has ended at {at}"),
            Ok(read) => at += read as u64,
            Err(error) => break error,
        }
    };
    assert!(at < 30_000_000);
    let range = ByteRange { start: 0, end: 1024 };
    let shape = Shape::plain(HashType::Blake3, 1024, 1024);
    for error in [
        error,
        large.now().unwrap_err(),
        sparse.next_data(0).unwrap_err(),
        large.digests(&[shape], 0, range, &mut |_| Ok(())).unwrap_err(),
        top.look(b"small", false).unwrap_err(),
        top.enter(b"d", false).unwrap_err(),
        top.list(&mut |_, _, _| true).unwrap_err(),
        top.attributes(b"", false).unwrap_err(),
        tree.open(&TreePath::root(), false).unwrap_err(),
    ] {
        assert_eq!(error.class, ErrorClass::Cancelled);
        assert!(error.to_string().starts_with("lost: "), "{error}");
    }
    assert!(tree.lost().unwrap().to_string().starts_with("lost: "));
    top.announce(&[b"small", b"large"], false);
    // What has come is there, and that a file has no holes is known from its metadata.
    let whole = ByteRange { start: 0, end: 30_000_000 };
    assert_eq!(large.next_data(0).unwrap(), NextData::Data(whole));
    assert_eq!(small.read(0, &mut buffer).unwrap(), 5);
}

#[test]
fn a_cut_ends_those_who_wait() {
    let root = scratch();
    let sparse = std::fs::File::create_new(root.path().join("f")).unwrap();
    // It takes longer to hash than any test takes.
    sparse.set_len(1 << 50).unwrap();
    let (tree, near) = plain(root.path());
    let top = tree.open(&TreePath::root(), false).unwrap();
    let file = top.open_file(b"f", false).unwrap();
    let shape = Shape::plain(HashType::Md5, 1 << 50, 1);
    let range = ByteRange { start: 0, end: 1 << 50 };
    let mut told = 0;
    let error = file.digests(&[shape], 0, range, &mut |bytes| {
        told += bytes;
        near.cut();
        Ok(())
    });
    assert_eq!(error.unwrap_err().class, ErrorClass::Cancelled);
    assert!(told > 0 && tree.lost().is_some());
}
