//! Passes: what differs is touched, and nothing else.
use super::Bench;
use super::bench::{append, is_root, pattern, snapshot};
use dmover_testkit::faultfs::{Action, Config, FaultFs, Op, Rule};
use dmover_testkit::image::{FileSystem, Image, ImageOptions};
use dmover_testkit::skip;

/// A tree with one of everything.
fn tree(bench: &Bench) {
    bench.write("a/d/one", pattern(3_000_000));
    bench.write("a/d/two", "two");
    bench.sh(
        "cd a; mkdir -p d/e empty; touch none d/e/deep; ln -s d/two link; mkfifo pipe; ln d/two hard
         truncate -s 1M hole; setfattr -n user.a -v 1 d/two; setfattr -n user.d -v 1 d
         setfacl -m u:1:r d/one; setfacl -d -m u:2:rx empty; chmod 2750 d/e; touch -d 2001-02-03 d/one d/e d .",
    );
}

#[test]
fn a_second_pass_touches_nothing() {
    for file_system in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs] {
        let test = "a_second_pass_touches_nothing";
        let Some(image) = Image::create_or_skip(test, file_system, 400 << 20) else { continue };
        let bench = Bench::inside(image.path());
        tree(&bench);
        bench.sync("a b", 0);
        assert_eq!(bench.rsync("a", "b"), "");
        bench.assert_same("a", "b");
        let (source, before) = (snapshot(&bench.at("a")), snapshot(&bench.at("b")));
        // What only reads moves no time but that of the last access.
        bench.sh("cat a/d/one a/d/two > /dev/null; ls -R a > /dev/null");
        for line in ["a b", "--delete a b", "--checksum a b", "--ctime --delete=after a b/", "a/ b"]
        {
            let pass = bench.sync(line, 0);
            assert_eq!(pass.done(), [""; 0], "{line}");
            assert_eq!(before.changes(&snapshot(&bench.at("b"))), [""; 0], "{line}");
        }
        assert_eq!(source.changes(&snapshot(&bench.at("a"))), [""; 0]);
    }
}

/// A link to a disk that is not mounted: nothing takes its place, and nothing fills the file system below.
#[test]
fn a_dangling_link_named_as_the_destination_is_refused() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/f; ln -s disk/tree b");
    for line in [
        "sync a b",
        "sync -n a b/",
        "sync --delete a/ b",
        "sync --watch a b",
        "copy -T a b/",
        "copy -T a b",
    ] {
        let run = bench.dmover(line).expect_code(2);
        let words = ["is a dangling symbolic link", "is a symbolic link; a directory cannot"];
        assert!(words.iter().any(|w| run.stderr.contains(w)), "{line}: {}", run.tell());
        assert_eq!(bench.sh("readlink b"), "disk/tree\n", "{line}");
    }
    assert!(!bench.exists("disk"));
    // Mounted, it is entered.
    bench.sh("mkdir -p disk/tree");
    bench.sync("a b", 0);
    assert!(bench.exists("disk/tree/f"));
    assert_eq!(bench.sh("readlink b"), "disk/tree\n");
    // Unmounted again, it is refused by the next pass.
    bench.sh("mv disk away");
    bench.sync("a b", 2);
    assert_eq!(bench.sh("readlink b"), "disk/tree\n");
}

#[test]
fn only_what_changed_is_touched() {
    let bench = Bench::new();
    tree(&bench);
    bench.sync("a b", 0);
    append(&bench.at("a/none"), "more");
    bench
        .sh("chmod 600 a/d/e/deep; setfattr -n user.n -v 2 a/d/one; mkdir a/new; touch a/new/file");
    let before = snapshot(&bench.at("b"));
    let pass = bench.sync("a b", 0);
    let done = [
        "created a/new",
        "created a/new/file",
        "metadata_updated a/d/e/deep",
        "metadata_updated a/d/one",
    ];
    assert_eq!(pass.done(), [&done[..], &["replaced a/none"]].concat());
    assert_eq!(pass.number("bytes_copied"), 4);
    assert_eq!(bench.rsync("a", "b"), "");
    let changes = before.changes(&snapshot(&bench.at("b")));
    let names: Vec<&str> = changes.iter().map(|line| line.split(' ').next().unwrap()).collect();
    // The root has a new name in it.
    assert_eq!(names, ["", "d/e/deep", "d/one", "new", "new/file", "none"]);
}

/// What no look at size and time shows is found by the time of the last change.
#[test]
fn attributes_that_alone_differ_are_set() {
    let bench = Bench::new();
    tree(&bench);
    bench.sync("a b", 0);
    bench.sh(
        "cd a; setfattr -x user.a d/two; setfacl -b d/one; setfacl -m u:7:rw none; chmod 711 empty
         setfattr -n user.z -v z d/e; setfacl -k empty; chmod 640 pipe",
    );
    if is_root() {
        bench.sh("cd a; chown 5:6 d/e/deep; chown -h 7:8 link; chown 9:9 d/e");
    }
    let inode = bench.inode("b/d/one");
    let pass = bench.sync("a b", 0);
    assert_eq!(pass.number("bytes_copied"), 0);
    assert_eq!(bench.inode("b/d/one"), inode);
    assert_eq!(bench.rsync("a", "b"), "");
    bench.assert_same("a", "b");
}

/// Names outside the tree keep what they have: those of an older snapshot of it, for example.
#[test]
fn attributes_of_a_file_with_other_names_are_not_changed_in_place() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo x > a/f; echo y > a/g; ln a/g a/h; chmod 644 a/*");
    bench.sync("a b", 0);
    bench.sh("ln b/f old-f; ln b/g old-g; chmod 600 a/f a/g");
    bench.sync("a b", 0);
    assert_eq!((bench.mode("old-f"), bench.mode("old-g")), (0o644, 0o644));
    assert_eq!(bench.rsync("a", "b"), "");
    let inode = bench.inode("b/g");
    // All names are the job's own.
    bench.sh("chmod 640 a/g");
    bench.sync("a b", 0);
    assert_eq!((bench.inode("b/g"), bench.inode("b/h")), (inode, inode));
    assert_eq!(bench.rsync("a", "b"), "");
}

#[test]
fn an_entry_of_another_type_takes_its_place() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p a b/file; ln -s /etc b/dir; mkdir -p a/dir/below; touch a/dir/x; echo f > a/file",
    );
    bench.sh(
        "echo old > b/other; mkdir a/other; mkfifo b/fifo; ln -s x a/fifo; touch b/file/inside",
    );
    let pass = bench.sync("a b", 3);
    let errors = pass.0.said().unwrap().errors.len();
    assert_eq!(errors, 1, "only a directory that is not empty stays: {}", pass.0.tell());
    assert!(bench.exists("b/file/inside"));
    assert_eq!(
        bench.sh("find b/dir b/other b/fifo -printf '%p %y\\n' | sort"),
        "b/dir d\nb/dir/below d\nb/dir/x f\nb/fifo l\nb/other d\n"
    );
    bench.sync("--delete a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
}

#[test]
fn checksum_finds_what_size_and_time_hide() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo one > a/f; echo two > a/g");
    bench.sync("a b", 0);
    // The destination was spoilt, and looks right.
    bench.sh("touch -r b/f t; printf 'onE\\n' > b/f; touch -r t b/f");
    bench.sync("a b", 0);
    assert_eq!(bench.read("b/f"), "onE\n", "a quick check cannot see this");
    let pass = bench.sync("--checksum a b", 0);
    assert_eq!(pass.done(), ["replaced a/f"]);
    assert_eq!(pass.number("files_compared"), 2);
    assert_eq!(bench.read("b/f"), "one\n");
    // The source was changed and its time set back.
    bench.sh("touch -r a/g t; printf 'twO\\n' > a/g; touch -r t a/g");
    let pass = bench.sync("--ctime a b", 0);
    assert_eq!(pass.done(), ["replaced a/g"]);
    assert_eq!(pass.number("files_compared"), 1);
    assert_eq!(bench.read("b/g"), "twO\n");
}

#[test]
fn contents_go_to_contents_whatever_slashes_and_links_there_are() {
    let bench = Bench::new();
    bench.sh("mkdir -p real/d place; touch real/d/f; ln -s real source; ln -s place destination");
    for line in ["source destination", "source/ destination/", "real// place", "./source place/."] {
        bench.sync(line, 0);
        assert_eq!(bench.rsync("real", "place"), "", "{line}");
        assert_eq!(bench.sh("ls place"), "d\n", "{line}");
        bench.sh("rm -r place/d");
    }
    let told = bench.dmover("sync real/ new").expect_code(0);
    assert!(told.stderr.contains("a trailing slash has no effect"), "{}", told.tell());
    assert_eq!(bench.rsync("real", "new"), "");
}

#[test]
fn check_says_whether_anything_would_be_done() {
    let bench = Bench::new();
    tree(&bench);
    bench.sync("a b", 0);
    bench.sync("--check --delete a b", 0);
    let before = snapshot(&bench.at("b"));
    for change in
        ["touch b/more", "chmod 600 a/none", "touch a/x", "setfattr -n user.q -v 1 a/d/one"]
    {
        bench.sh(change);
        bench.sync("--check --delete a b", 1);
        bench.sh("rm -f b/more");
    }
    let after = before.changes(&snapshot(&bench.at("b")));
    assert!(after.len() <= 1, "nothing but the times of the root: {after:?}");
}

#[test]
fn without_privilege_a_pass_over_own_files_is_the_same() {
    if !is_root() {
        return skip::skipped("without_privilege_a_pass_over_own_files_is_the_same", "needs root");
    }
    let bench = Bench::new().unprivileged();
    bench.sh(
        "mkdir -p a/d; echo x > a/f; echo y > a/d/g; ln a/f a/h; chown -R 65534:65534 a; chmod 500 a/d
         chmod 400 a/f",
    );
    bench.sync("a b", 0);
    let before = snapshot(&bench.at("b"));
    bench.sync("--delete a b", 0);
    assert_eq!(before.changes(&snapshot(&bench.at("b"))), [""; 0]);
    bench.sh("chmod 440 a/f; echo z > a/d/n; chown 65534:65534 a/d/n");
    bench.sync("--delete a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
    bench.sh("rm a/d/n");
    bench.sync("--delete a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
}

/// Changes about one hundredth of a file in places that are spread over it, its length and its time.
fn change(bench: &Bench, path: &str) -> u64 {
    let mut bytes = std::fs::read(bench.at(path)).unwrap();
    let pieces = bytes.len() / 4096;
    let changed: Vec<usize> = (0..pieces).step_by(97).collect();
    for piece in &changed {
        bytes[piece * 4096 + piece % 4096] ^= 0x55;
    }
    bytes.extend_from_slice(b"and a tail");
    std::fs::write(bench.at(path), bytes).unwrap();
    changed.len() as u64 * 4096 + 4096
}

#[test]
fn of_a_large_file_only_what_changed_is_written() {
    let sizes = [("small", 700_000), ("large", 30_000_000)];
    for (file_system, options, clones) in [
        (FileSystem::Xfs, "--split-size=4M", true),
        (FileSystem::Btrfs, "--split-size=4M", true),
        (FileSystem::Ext4, "--inplace", false),
        (FileSystem::Xfs, "--inplace", false),
    ] {
        let test = "of_a_large_file_only_what_changed_is_written";
        let Some(image) = Image::create_or_skip(test, file_system, 600 << 20) else { continue };
        // The source lies elsewhere, so that blocks can only be those of the old version.
        let (bench, place) = (Bench::new(), Bench::inside(image.path()));
        let b = place.at("b").display().to_string();
        let line = format!("-j2 {options} a {b}");
        for (name, size) in sizes {
            bench.write(&format!("a/{name}"), pattern(size));
        }
        bench.sync(&line, 0);
        let inode = place.inode("b/large");
        bench.sh(&format!("ln {b}/small {b}/../other"));
        let most: u64 = sizes.iter().map(|(name, _)| change(&bench, &format!("a/{name}"))).sum();
        let pass = bench.sync(&line, 0);
        let written = pass.number("bytes_copied");
        // What has another name is replaced as a whole where nothing can be shared.
        let whole = if clones { 0 } else { 700_010 };
        assert!(written <= most + whole, "{file_system:?} {options}: {written} of {most}");
        assert!(pass.number("bytes_kept") > 29_000_000, "{file_system:?} {options}");
        assert_eq!(place.inode("b/large") == inode, !clones, "{file_system:?} {options}");
        assert_eq!(bench.rsync("a", &b), "");
        assert_eq!(place.sh("stat -c %s other").trim(), "700000", "another name keeps what it has");
        // Shorter, and with a hole in it.
        bench.sh("truncate -s 9000000 a/large; fallocate -p -o 1M -l 2M a/large; truncate -s 300000 a/small");
        bench.sync(&line, 0);
        assert_eq!(bench.rsync("a", &b), "");
        let blocks =
            |path: String| bench.sh(&format!("stat -c %b {path}")).trim().parse::<u64>().unwrap();
        assert!(blocks(format!("{b}/large")) * 512 < 8_000_000, "the hole is one there as well");
        assert_eq!(bench.sync(&line, 0).done(), [""; 0]);
    }
}

/// Equal in size and time, found by its bytes: until it is mended its time must not say that it is right.
#[test]
fn what_is_patched_in_place_does_not_look_right_before_it_is() {
    let bench = Bench::new();
    bench.sh("mkdir backing faulty");
    let config = Config { threads: 8, keep_records: true, ..Config::default() };
    let Ok(handle) = FaultFs::mount(&bench.at("backing"), &bench.at("faulty"), config) else {
        let test = "what_is_patched_in_place_does_not_look_right_before_it_is";
        return skip::skipped(test, "no FUSE");
    };
    bench.write("a/f", pattern(3_000_000));
    bench.sync("a faulty", 0);
    bench.sh("cp -p backing/f t; for at in 5000 2500000; do printf X | dd of=backing/f bs=1 seek=$at conv=notrunc 2>/dev/null; done; touch -r t backing/f");
    let rule = Rule::new(Op::Write, Action::Errno(28)).from_offset(2 << 20).count(0);
    handle.set_rules(&[rule]).unwrap();
    handle.reset();
    bench.sync("--checksum --inplace a faulty", 3);
    let records = handle.records();
    let first = |op: Op| records.iter().find(|one| one.op == op && one.name == "f").unwrap();
    assert!(first(Op::Fsync).end < first(Op::Write).begin, "also after a power cut");
    handle.set_rules(&[]).unwrap();
    bench.sync("a faulty", 0);
    bench.sh("cmp a/f backing/f");
}

/// Names that come or go move the change time of the copy, so that it says nothing about when the others were looked at.
#[test]
fn attributes_are_seen_that_were_changed_before_another_name_went() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/first a/last; echo x >a/last/file; ln a/last/file a/first/file");
    bench.sync("a b", 0);
    bench.sh("setfattr -n user.a -v b a/last/file; rm a/first/file");
    // By somebody else, or by a pass that had looked at the other name before the attribute was set.
    bench.sh("rm b/first/file");
    bench.sync("-j1 --delete a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
}

/// What another tool has brought over has all sizes and times, and need not have anything else.
#[test]
fn the_first_pass_compares_all_attributes_and_so_does_one_that_keeps_others() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo text > a/f; setfattr -n user.x -v one a/f; rsync -a a/ b/");
    bench.sync("--no-preserve=xattr a b", 0);
    assert_eq!(bench.sh("getfattr b/f"), "");
    let pass = bench.sync("a b", 0);
    assert_eq!(pass.number("metadata_updated"), 1, "{}", pass.0.tell());
    assert_eq!(pass.number("entries_dressed"), 1, "the earlier name stays for one version");
    assert_eq!(bench.rsync("a", "b"), "");
    assert_eq!(bench.sync("a b", 0).number("metadata_updated"), 0);
    bench.sh("rsync -a a/ c/");
    bench.sync("a c", 0);
    assert_eq!(bench.rsync("a", "c"), "");
}

/// The destination keeps whole seconds, and the source was written again within one.
#[test]
fn what_is_equal_in_coarse_steps_alone_is_compared() {
    let test = "what_is_equal_in_coarse_steps_alone_is_compared";
    let options = ImageOptions {
        size_bytes: 64 << 20,
        mkfs_arguments: ["-O", "^project", "-I", "128"].map(String::from).to_vec(),
        ..ImageOptions::default()
    };
    let image = match Image::create_with(FileSystem::Ext4, &options) {
        Ok(image) => image,
        Err(why) => return skip::skipped(test, &why.to_string()),
    };
    let bench = Bench::new();
    let copy = image.path().join("copy").display().to_string();
    // All of it within one second, or another round.
    for _ in 0..20 {
        bench.sh("mkdir -p a; echo aaaa > a/f");
        bench.dmover(&format!("sync -q --allow-loss=times a {copy}")).expect_code(0);
        bench.sh("echo bbbb > a/f");
        bench.dmover(&format!("sync -q --allow-loss=times a {copy}")).expect_code(0);
        assert_eq!(bench.sh(&format!("cmp a/f {copy}/f || :")), "");
    }
}
