//! What is kept, what is lost by name, and what stays of the source as it was.

use std::os::unix::fs::MetadataExt;

use dmover_testkit::compare::{CompareOptions, compare, snapshot_atimes};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::skip;
use dmover_testkit::tree::{self, HardTree, TreeOptions};

use super::bench::{is_root, pattern};
use super::{Bench, snapshot};

#[test]
fn the_hard_case_tree_arrives_and_the_source_keeps_its_access_times() {
    let bench = Bench::new();
    let options = TreeOptions::probe(bench.root(), 200).unwrap();
    HardTree::generate(&bench.at("s"), 42, &options).unwrap();
    let before = snapshot_atimes(&bench.at("s")).unwrap();
    bench.copy("s d").expect_code(0);
    before.assert_same(&snapshot_atimes(&bench.at("s")).unwrap());
    bench.assert_same("s", "d");
    tree::cleanup(bench.root()).unwrap();
}

#[test]
fn hard_links_are_kept_over_the_whole_copy_and_over_several_sources() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/deep b out; echo x > a/deep/1; ln a/deep/1 a/2; ln a/deep/1 b/3; mkfifo a/p; ln a/p b/p");
    bench.copy("a b out").expect_code(0);
    let inodes = ["out/a/deep/1", "out/a/2", "out/b/3"].map(|path| bench.inode(path));
    assert!(inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
    assert_eq!(bench.inode("out/a/p"), bench.inode("out/b/p"));
    bench.copy("a b out").expect_code(0);
    assert_eq!(bench.inode("out/b/3"), inodes[0]);
}

#[test]
fn a_group_of_hard_links_is_replaced_as_a_whole() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo one > s/a; ln s/a s/b; ln s/a s/c");
    bench.copy("s d").expect_code(0);
    bench.sh("echo changed-longer > s/a");
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
    bench.sh("rm s/b; echo alone > s/b");
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
    bench.sh("rm s/b; ln s/a s/b");
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn hard_links_can_be_given_up() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo one > s/a; ln s/a s/b");
    bench.copy("--no-preserve=links s d").expect_code(0);
    assert_ne!(bench.inode("d/a"), bench.inode("d/b"));
}

#[test]
fn attributes_can_be_chosen_and_dropped() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/f; chmod 4751 s/f; touch -d '2001-02-03 04:05:06.789' s/f
        setfattr -n user.a -v 1 s/f; setfacl -m u:99:rw s/f");
    let owner = is_root();
    if owner {
        bench.sh("chown 12:34 s/f; chmod 4751 s/f");
    }
    let old = bench.at("s/f").metadata().unwrap();
    bench.copy("--no-preserve=mode,times,xattr,acl,owner s bare").expect_code(0);
    let new = bench.at("bare/f").metadata().unwrap();
    assert_eq!(new.mode() & 0o7000, 0, "set-id bits without the owner would be a hole");
    assert_ne!(new.mtime(), old.mtime());
    assert_eq!(bench.sh("getfattr -d bare/f; getfacl -cs bare/f"), "");
    if owner {
        assert_eq!((new.uid(), new.gid()), (0, 0));
    }
    bench.copy("--preserve=times s times").expect_code(0);
    let new = bench.at("times/f").metadata().unwrap();
    assert_eq!((new.mtime(), new.mtime_nsec()), (old.mtime(), old.mtime_nsec()));
    assert_eq!(bench.sh("getfattr -d times/f"), "");
    bench.copy("--preserve=mode,xattr s xattr").expect_code(0);
    assert!(bench.sh("getfattr -d xattr/f").contains("user.a"));
}

#[test]
fn an_acl_that_the_destination_hands_down_is_not_inherited() {
    let bench = Bench::new();
    bench.sh("mkdir -p s/sub d; echo 1 > s/f; mkfifo s/p; setfacl -d -m u:99:rwx d");
    bench.copy("-T s d").expect_code(0);
    assert_eq!(bench.sh("getfacl -cs d/f d/sub d/p"), "", "no ACL beyond the mode");
    bench.assert_same("s", "d");
}

#[test]
fn owners_are_mapped_by_a_table_and_the_others_by_a_last_rule() {
    if !is_root() {
        skip!("needs root to give files away");
    }
    let bench = Bench::new();
    bench.sh("mkdir s; for id in 1001 1002 1003 70000; do touch s/$id; chown $id:$id s/$id; done
        setfacl -m u:1002:r,g:9:r s/1001
        printf '1001:5001   # ann\\n\\n# ben\\n1002 5002\\n70000 6000 10\\n' > users");
    bench.copy("--usermap @users,*:65534 --groupmap @users s d").expect_code(0);
    let owners = bench.sh("cd d; stat -c '%n %u %g' 1001 1002 1003 70000");
    assert_eq!(owners, "1001 5001 5001\n1002 5002 5002\n1003 65534 1003\n70000 6000 6000\n");
    let acl = bench.sh("getfacl -n d/1001 2>/dev/null");
    assert!(acl.contains("user:5002:r--") && acl.contains("group:9:r--"), "{acl}");
    // Two users of an ACL become one: it has one entry, which setfacl(1) can change, and the next pass finds it equal.
    bench.sh("setfacl -m u:1001:w,u:1002:r s/1003");
    let same = "--usermap 1001:5001,1002:5001";
    bench.dmover(&format!("sync -q {same} s one")).expect_code(0);
    let acl = bench.sh("getfacl -cn one/1003");
    assert!(acl.contains("user:5001:rw-") && acl.matches("user:5").count() == 1, "{acl}");
    let run = bench.dmover(&format!("sync -i {same} s one")).expect_code(0);
    assert!(run.stdout.is_empty(), "{}", String::from_utf8_lossy(&run.stdout));
    bench.sh("setfacl -m u:5003:r one/1003");
    // A line that is no rule is named, and nothing is copied.
    bench.sh("echo 'ann ben carl' >> users");
    let run = bench.dmover("copy --usermap @users s e").expect_code(2);
    assert!(run.stderr.contains("'users', line 6: 'ann ben carl' is no rule"), "{}", run.stderr);
    assert!(!bench.at("e").exists());
}

#[test]
fn identities_can_be_mapped() {
    if !is_root() {
        skip!("needs root to give files away");
    }
    let bench = Bench::new();
    bench.sh("mkdir s; touch s/a s/b s/c; chown 1000:2000 s/a; chown 1005:2000 s/b; chown 7:8 s/c");
    bench.copy("--usermap 1000:5000:10 --groupmap 2000:3 s d").expect_code(0);
    assert_eq!(bench.sh("stat -c %u:%g d/a d/b d/c"), "5000:3\n5005:3\n7:8\n");
}

#[test]
fn holes_stay_holes_and_zeros_become_holes_on_demand() {
    let bench = Bench::new();
    let data = pattern(200_000);
    bench.sh("mkdir s; truncate -s 50M s/holes");
    bench.write("s/zeros", vec![0; 3_000_000]);
    bench.write("s/mixed", [data.clone(), vec![0; 2_000_000], data.clone()].concat());
    let blocks = |path: &str| bench.at(path).metadata().unwrap().blocks() * 512;
    bench.copy("s auto").expect_code(0);
    bench.assert_same("s", "auto");
    assert!(blocks("auto/holes") < 1 << 20, "{}", blocks("auto/holes"));
    assert!(blocks("auto/zeros") >= 3_000_000, "written zeros stay");
    bench.copy("--sparse=always s always").expect_code(0);
    bench.assert_same("s", "always");
    assert!(blocks("always/zeros") < 100_000, "{}", blocks("always/zeros"));
    assert!(blocks("always/mixed") < 1_000_000, "{}", blocks("always/mixed"));
    bench.copy("--sparse=never s never").expect_code(0);
    assert!(blocks("never/holes") >= 50 << 20, "{}", blocks("never/holes"));
    let contents = CompareOptions::default().ignoring("allocation");
    assert!(compare(&bench.at("s"), &bench.at("never"), &contents).unwrap().is_empty());
}

#[test]
fn blocks_are_shared_where_it_is_demanded_and_possible() {
    let Some(image) = Image::create_or_skip("reflink", FileSystem::Btrfs, 256 << 20) else {
        return;
    };
    let bench = Bench::inside(image.path());
    bench.write("s/f", pattern(1_000_000));
    let shared = |run: dmover_testkit::lanes::run::Run| {
        run.said().unwrap().summary.unwrap().number("bytes_shared").unwrap()
    };
    assert_eq!(shared(bench.copy("--reflink=always s always").expect_code(0)), 1_000_000);
    assert_eq!(shared(bench.copy("--reflink=never s never").expect_code(0)), 0);
    bench.assert_same("s", "always");
    bench.assert_same("s", "never");

    let bench = Bench::new();
    bench.write("s/f", "tmpfs cannot");
    let run = bench.copy("--reflink=always s d");
    assert_ne!(run.code(), Some(0));
    assert!(run.tell().contains("shared"), "{}", run.tell());
}

#[test]
fn restrictive_modes_arrive_and_are_filled() {
    let bench = Bench::new();
    bench.sh("mkdir -p s/closed/in s/read; echo 1 > s/closed/in/f; echo 2 > s/read/f; echo 3 > s/none
        chmod 0 s/none s/closed/in/f; chmod 500 s/closed/in s/read; chmod 000 s/closed; chmod 555 s");
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
    let before = snapshot(&bench.at("d"));
    bench.copy("s d").expect_code(0);
    assert_eq!(before.changes(&snapshot(&bench.at("d"))), Vec::<String>::new());
}

#[test]
fn special_files_are_made_and_never_read() {
    let bench = Bench::new();
    bench.sh("mkdir s; mkfifo -m 604 s/fifo; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s/sock')\"");
    if is_root() {
        bench.sh("mknod s/char c 1 5; mknod s/block b 7 99; chown 3:4 s/char");
    }
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
    bench.copy("s/fifo single").expect_code(0);
    assert_eq!(bench.sh("stat -c '%F %a' single"), "fifo 604\n");
}

#[test]
fn every_loss_is_named_and_can_be_accepted() {
    let Some(zfs) = Image::create_or_skip("losses", FileSystem::ZfsFuse, 64 << 20) else { return };
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/f; chattr +d s/f; touch -d '2001-02-03 04:05:06.789' s/f; touch -a -d 2001-01-01 s/f; touch -d 2001-01-01 s");
    let to = |name: &str| zfs.path().join(name).into_os_string();
    let run = bench.copy_words(&["s".into(), to("new")]).expect_code(3);
    let said = run.said().unwrap();
    let mut kinds: Vec<_> = said.losses.iter().map(|line| line.text("kind")).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["flags", "times"], "{}", run.tell());
    assert!(said.losses.iter().all(|line| line.path().ends_with("new/f") && !line.flag("allowed")));
    assert_eq!(said.summary.unwrap().number("losses"), Some(2));
    let words = ["--allow-loss=times,flags".into(), "s".into(), to("other")];
    let said = bench.copy_words(&words).expect_code(0).said().unwrap();
    assert!(said.losses.iter().all(|line| line.flag("allowed")));
    assert_eq!(said.summary.unwrap().number("losses_allowed"), Some(2));
    let words =
        ["--no-preserve=flags".into(), "--allow-loss=times".into(), "s".into(), to("third")];
    let said = bench.copy_words(&words).expect_code(0).said().unwrap();
    assert_eq!(said.losses.len(), 1);
}

#[test]
fn permissions_are_never_wider_than_at_the_end() {
    let bench = Bench::new();
    bench.write("s/secret/key", pattern(3_000_000));
    bench.sh("chmod 600 s/secret/key; chmod 700 s/secret; umask 0; mkdir d");
    let running = bench.dmover.start_copy(["--bwlimit", "2M", "-T", "s", "d"]).unwrap();
    assert!(running.wait_for_stdout("secret", 1));
    let mut seen = 0;
    // Bounded by the run, which takes a second at that rate.
    while seen < 20 {
        let found = bench.sh("find d -mindepth 1 -printf '%m %p\\n'");
        for line in found.lines() {
            let mode = u32::from_str_radix(line.split(' ').next().unwrap(), 8).unwrap();
            assert_eq!(mode & 0o077, 0, "{line}");
        }
        seen += 1;
    }
    running.finish().unwrap().expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn leftovers_of_an_interrupted_run_are_removed_and_others_files_are_not() {
    let bench = Bench::new();
    let data = pattern(6_000_000);
    bench.write("s/large", &data);
    bench.write("d/.dmover-notes", "somebody's own");
    bench.write("d/.dmover-0123456789ab-0123456789abcdef-0000000000000001", "another job's");
    let flags = ["--split-size=1M", "--bwlimit=4M", "-T", "s", "d"];
    let running = bench.dmover.start_copy(flags).unwrap();
    let temporaries =
        || bench.sh("ls -A d | grep -c dmover || true").trim().parse::<u32>().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while temporaries() < 3 && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    running.kill().unwrap();
    assert_eq!(temporaries(), 3, "the large file has a temporary");
    let said = bench.copy("--split-size=1M -T s d").expect_code(0).said().unwrap();
    assert_eq!(said.summary.unwrap().number("leftovers_removed"), Some(1));
    assert_eq!(bench.read("d/.dmover-notes"), "somebody's own");
    assert_eq!(temporaries(), 2);
    assert!(std::fs::read(bench.at("d/large")).unwrap() == data);
}

#[test]
fn temporaries_in_the_source_are_not_copied() {
    let bench = Bench::new();
    bench.write("s/.dmover-0123456789ab-0123456789abcdef-0000000000000001", "half");
    bench.write("s/.dmover-notes", "whole");
    let said = bench.copy("s d").expect_code(0).said().unwrap();
    assert_eq!(bench.sh("ls -A d"), ".dmover-notes\n");
    assert_eq!(said.notes.len(), 1);
    assert_eq!(said.notes[0].text("note"), "temporary_skipped");
}

#[test]
fn an_acl_does_not_bring_the_mode_that_is_not_wanted() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/f; setfacl -m u:5:rw,g::rw,m::rw s/f");
    let careful = bench.with(|dmover| dmover.wrapped(["sh", "-c", "umask 022; exec \"$@\"", "sh"]));
    careful.copy("--no-preserve=mode -T s d").expect_code(0);
    assert_eq!(careful.mode("d/f"), 0o644);
}

#[test]
fn without_its_acl_a_mask_does_not_let_the_group_in() {
    let bench = Bench::new();
    bench.sh(
        "mkdir s; echo secret > s/file; chmod 600 s/file; setfacl -m u:5:rw,g::---,m::rw s/file
        mkdir s/dir; chmod 700 s/dir; setfacl -m u:5:rwx,g::r-x,m::rwx s/dir",
    );
    assert_eq!((bench.mode("s/file"), bench.mode("s/dir")), (0o660, 0o770), "the mask shows");
    bench.copy("--no-preserve=acl s without").expect_code(0);
    assert_eq!((bench.mode("without/file"), bench.mode("without/dir")), (0o600, 0o750));
    bench.copy("s with").expect_code(0);
    bench.assert_same("s", "with");
}
