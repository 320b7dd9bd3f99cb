//! Attributes in later passes: what changed at the source arrives, what is gone there goes, and nothing is lost on the way.
use super::Bench;
use super::bench::{NOBODY, append, is_root};
use dmover_testkit::image::{FileSystem, Image, ImageOptions, Mounted};
use dmover_testkit::skip;

/// Mounts of the file systems that a test runs on.
fn images(test: &str, file_systems: &[FileSystem]) -> Vec<Mounted> {
    let create = |kind: &FileSystem| Image::create_or_skip(test, *kind, 300 << 20);
    file_systems.iter().filter_map(create).collect()
}

impl Bench {
    /// Every extended attribute and ACL of a tree, as getfattr prints them.
    #[track_caller]
    fn attributes(&self, path: &str) -> String {
        self.sh(&format!("cd {path}; getfattr -R -h -d -m- . | grep -v SGI_ACL || true"))
    }

    /// What `verify` answers.
    #[track_caller]
    fn verify(&self, line: &str, code: i32) {
        self.dmover(&format!("verify {line}")).expect_code(code);
    }
}

#[test]
fn attributes_that_a_directory_lost_go_from_its_copy() {
    if !is_root() {
        skip!("needs root");
    }
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs];
    for image in images("attributes_that_a_directory_lost_go_from_its_copy", &all) {
        let bench = Bench::inside(image.path());
        bench.sh("mkdir -p a/d/e; touch a/d/e/f
             for at in a a/d a/d/e; do
                 setfattr -n user.q -v 1 $at; setfattr -n trusted.q -v 1 $at
                 setfattr -n security.q -v 1 $at; setfacl -m u:5:rx -d -m u:6:rx $at
             done");
        bench.sync("a b", 0);
        bench.sh("for at in a a/d a/d/e; do
                 setfattr -x user.q $at; setfattr -x trusted.q $at; setfattr -x security.q $at
                 setfacl -b $at
             done");
        bench.verify("a b", 1);
        bench.sync("a b", 0);
        assert_eq!(bench.attributes("b"), bench.attributes("a"), "{}", image.file_system());
        bench.assert_same("a", "b");
        bench.verify("a b", 0);
        bench.sync("--check a b", 0);
        // A copy only adds, as cp does.
        bench.sh("setfattr -n user.old -v 1 b/d");
        bench.copy("-T a b").expect_code(0);
        assert_eq!(bench.sh("getfattr --only-values -n user.old b/d"), "1");
    }
}

#[test]
fn a_file_that_is_updated_in_place_keeps_no_attribute_that_its_source_lost() {
    if !is_root() {
        skip!("needs root");
    }
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Tmpfs];
    let test = "a_file_that_is_updated_in_place_keeps_no_attribute_that_its_source_lost";
    for image in images(test, &all) {
        let bench = Bench::inside(image.path());
        let add = "setfattr -n user.q -v 1 a/f; setfattr -n trusted.q -v 1 a/f
                   setfattr -n security.q -v 1 a/f; setfacl -m u:5:r a/f";
        bench.sh(&format!("mkdir a; echo one > a/f; {add}"));
        bench.sync("--inplace a b", 0);
        let inode = bench.inode("b/f");
        let lose = "for n in user trusted security; do setfattr -x $n.q a/f; done; setfacl -b a/f";
        bench.sh(lose);
        append(&bench.at("a/f"), "more");
        bench.sync("--inplace a b", 0);
        assert_eq!((bench.inode("b/f"), bench.attributes("b")), (inode, String::new()));
        bench.assert_same("a", "b");
        bench.sh(add);
        bench.copy("--inplace --overwrite=always -T a b").expect_code(0);
        bench.assert_same("a", "b");
        bench.sh(lose);
        bench.copy("--inplace --overwrite=always -T a b").expect_code(0);
        assert_eq!((bench.inode("b/f"), bench.attributes("b")), (inode, String::new()));
        bench.assert_same("a", "b");
    }
}

/// An ACL, or a mode, that denies its owner writing denies setting attributes as well.
#[test]
fn without_privilege_a_read_only_file_keeps_its_own_attributes() {
    if !is_root() {
        skip!("needs root to become another user");
    }
    let bench = Bench::new().unprivileged();
    bench.sh("mkdir -p a/d; echo x > a/f; echo y > a/g
         for at in a/f a/g a/d; do setfattr -n user.q -v 1 $at; done
         setfacl -m u::r--,u:5:r a/f; setfacl -m u::r-x,u:5:r a/d; chmod 444 a/g
         chown -R 65534:65534 a");
    let plain = |pass: &super::Pass| assert_eq!(pass.number("privileged_attributes"), 0);
    plain(&bench.sync("a b", 0));
    bench.assert_same("a", "b");
    bench.verify("a b", 0);
    // Later passes set, change and remove attributes of what may not be written to.
    bench.sh(
        "for at in a/f a/g a/d; do setfattr -n user.q -v 2 $at; setfattr -n user.r -v 3 $at; done",
    );
    bench.verify("a b", 1);
    plain(&bench.sync("a b", 0));
    bench.assert_same("a", "b");
    bench.sh("for at in a/f a/g a/d; do setfattr -x user.q $at; done");
    plain(&bench.sync("a b", 0));
    bench.assert_same("a", "b");
    // A repair as well.
    for change in ["-n user.r -v wrong", "-x user.r", "-n user.more -v 1"] {
        bench.sh(&format!("for at in b/f b/g b/d; do setfattr {change} $at; done"));
        bench.verify("a b", 1);
        bench.verify("--repair a b", 0);
        bench.verify("a b", 0);
        bench.assert_same("a", "b");
    }
}

const PROJECT: &str = include_str!("../../../testkit/python/set_project.py");

#[test]
fn projects_are_mapped() {
    let test = "projects_are_mapped";
    for image in images(test, &[FileSystem::Ext4, FileSystem::Xfs]) {
        let bench = Bench::inside(image.path());
        bench.write("project.py", PROJECT);
        bench.sh("mkdir -p a/d/e a/n; for f in a/f a/d/g a/d/e/h a/n/k; do echo 1 > $f; done");
        let set = "python3 project.py 7 a/f a/d a/d/g && python3 project.py 500 a/d/e a/d/e/h";
        if bench.sh(&format!("{set} 2>/dev/null && echo kept || true")).is_empty() {
            let why = format!("no projects on {}", image.file_system());
            skip::skipped(test, &why);
            continue;
        }
        let project = |path: &str| {
            let shown = bench.sh(&format!("lsattr -pd {path} | awk '{{print $1}}'"));
            shown.trim().parse::<u32>().unwrap()
        };
        let all = |side: &str| {
            ["f", "d", "d/g", "d/e", "d/e/h", "n/k"].map(|path| project(&format!("{side}/{path}")))
        };
        assert_eq!(all("a"), [7, 7, 7, 500, 500, 0]);
        bench.sync("--projectmap 7:70,*:9 a b", 0);
        assert_eq!(all("b"), [70, 70, 70, 9, 9, 0], "no project stays none");
        bench.verify("--projectmap 7:70,*:9 a b", 0);
        bench.verify("a b", 1);
        let quiet = bench.sync("--projectmap 7:70,*:9 a b", 0);
        assert_eq!(quiet.done(), [""; 0]);
        // A project that both sides have is mapped as well.
        bench.sync("a c", 0);
        assert_eq!(all("c"), all("a"));
        // The last pass has ended after all changes, so that no time shows one.
        assert_eq!(bench.sync("a c", 0).done(), [""; 0]);
        bench.sync("--projectmap 500:8:10 a c", 0);
        assert_eq!(all("c"), [7, 7, 7, 8, 8, 0]);
        bench.verify("--projectmap 500:8:10 a c", 0);
        // A manifest has what the copy must have.
        bench.dmover("copy -T --manifest=m --projectmap 7:70,*:9 a e").expect_code(0);
        assert_eq!(all("e"), all("b"));
        bench.verify("--manifest=m e", 0);
    }
}

#[test]
fn a_project_that_an_entry_left_is_left_by_its_copy() {
    let test = "a_project_that_an_entry_left_is_left_by_its_copy";
    for image in images(test, &[FileSystem::Ext4, FileSystem::Xfs]) {
        let bench = Bench::inside(image.path());
        bench.write("project.py", PROJECT);
        bench.write("none.py", PROJECT.replace("fields[0] |= XFLAG", "fields[0] &= ~XFLAG"));
        bench.sh("mkdir -p a/d/below a/own; echo x > a/f; echo y > a/d/g; echo z > a/own/h; echo 1 > a/own/k");
        let set = "python3 project.py 7 a/f a/d a/d/below a/d/g";
        if bench.sh(&format!("{set} 2>/dev/null && echo kept || true")).is_empty() {
            let why = format!("no projects on {}", image.file_system());
            skip::skipped(test, &why);
            continue;
        }
        bench.sync("a b", 0);
        bench.assert_same("a", "b");
        bench.sh("python3 none.py 0 a/f a/d a/d/below a/d/g");
        bench.verify("a b", 1);
        bench.sync("a b", 0);
        bench.assert_same("a", "b");
        bench.verify("a b", 0);
        // One that the source's directory hands down, and the entry itself does not have.
        bench.sh("python3 project.py 8 a/own; python3 none.py 8 a/own/h a/own/k");
        bench.sync("a b", 0);
        bench.assert_same("a", "b");
        bench.sh("python3 none.py 0 a/own/h; echo new > a/own/i; python3 none.py 0 a/own/i; echo more >> a/own/k");
        bench.sh("python3 none.py 0 a/own/k");
        bench.verify("a b", 1);
        bench.sync("a b", 0);
        bench.assert_same("a", "b");
        // Names of one file in directories of other projects.
        bench.sh(
            "mkdir l l/one l/two; echo x > l/one/f; ln l/one/f l/two/g; ln l/one/f l/h
             python3 project.py 5 l/one l/two; python3 none.py 4 l/one/f; python3 project.py 6 l/two",
        );
        bench.sync("l m", 0);
        bench.assert_same("l", "m");
        bench.verify("l m", 0);
        // The top as well, unless it hands one down.
        bench.sh("mkdir top; echo 1 > top/f; python3 none.py 44 top");
        bench.sync("top there", 0);
        bench.sh("python3 none.py 0 top");
        bench.sync("top there", 0);
        assert!(bench.sh("lsattr -pd there").trim_start().starts_with("0 "));
        // The destination's own, which its directory hands down, stays.
        bench.sh("mkdir c; python3 project.py 9 c");
        bench.sync("a c", 0);
        bench.verify("a c", 0);
        let project = |path: &str| bench.sh(&format!("lsattr -pd {path} | awk '{{print $1}}'"));
        assert_eq!((project("c/f"), project("c/own/h")), ("9\n".into(), "0\n".into()));
        bench.sh("chmod 600 a/f; chmod 700 a/d");
        bench.sync("a c", 0);
        assert_eq!((project("c/f"), project("c/d")), ("9\n".into(), "9\n".into()));
    }
}

#[test]
fn every_flag_that_a_user_sets_is_carried() {
    let Some(image) =
        Image::create_or_skip("every_flag_that_a_user_sets_is_carried", FileSystem::Ext4, 64 << 20)
    else {
        return;
    };
    let bench = Bench::inside(image.path());
    bench.sh("mkdir -p a/d; touch a/f a/g; chattr +su a/f; chattr +su a/d");
    bench.sync("a b", 0);
    bench.assert_same("a", "b");
    bench.sh("chattr -s a/f; chattr +u a/g; chattr -u a/d");
    bench.verify("a b", 1);
    bench.sync("a b", 0);
    let flags = |path: &str| bench.sh(&format!("cd {path}; lsattr -R . | sort"));
    assert_eq!(flags("b"), flags("a"));
    bench.assert_same("a", "b");
    bench.verify("a b", 0);
    bench.sh("rm -rf a/* b/*");
}

#[test]
fn an_acl_that_arrived_is_not_told_as_left_out() {
    let test = "an_acl_that_arrived_is_not_told_as_left_out";
    for image in images(test, &[FileSystem::Xfs, FileSystem::Ext4]) {
        let bench = Bench::inside(image.path());
        bench.sh("mkdir -p a/d; touch a/f; setfacl -m u:5:r a/f; setfacl -d -m u:6:rx a/d");
        let pass = bench.sync("-v a b", 0);
        assert_eq!(pass.number("system_attributes"), 0, "{}", pass.0.tell());
        assert!(!pass.0.tell().contains("system_attribute\""), "{}", pass.0.tell());
        bench.assert_same("a", "b");
    }
}

#[test]
fn without_privilege_an_own_read_only_file_is_written_in_place() {
    if !is_root() {
        skip!("needs root to become another user");
    }
    let bench = Bench::new().unprivileged();
    let own = format!("chown -R {NOBODY}:{NOBODY} a; chmod 444 a/f");
    bench.sh(&format!("mkdir a; echo one > a/f; {own}"));
    bench.sync("--inplace a b", 0);
    let inode = bench.inode("b/f");
    bench.sh(&format!("rm a/f; echo other > a/f; {own}"));
    bench.sync("--inplace a b", 0);
    assert_eq!((bench.read("b/f"), bench.inode("b/f")), ("other\n".into(), inode));
    bench.assert_same("a", "b");
    bench.sh(&format!("rm a/f; echo third > a/f; {own}"));
    bench.copy("--inplace --overwrite=always -T a b").expect_code(0);
    assert_eq!((bench.read("b/f"), bench.inode("b/f")), ("third\n".into(), inode));
    bench.assert_same("a", "b");
    // Ranges leave its mode alone.
    bench.copy("--offset=1 --length=2 --dst-offset=1 --overwrite=always a/f b/f").expect_code(0);
    assert_eq!((bench.mode("b/f"), bench.inode("b/f")), (0o444, inode));
}

#[test]
fn zeroes_become_holes_in_files_that_are_updated_in_place() {
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs];
    for image in images("zeroes_become_holes_in_files_that_are_updated_in_place", &all) {
        let bench = Bench::inside(image.path());
        bench.sh("mkdir a; head -c 2M /dev/urandom > a/f; head -c 2M /dev/urandom > a/g");
        bench.sync("a b", 0);
        // The source has its zeroes in blocks.
        let zero = "dd if=/dev/zero bs=64k conv=notrunc status=none";
        bench.sh(&format!("{zero} of=a/f count=32; {zero} of=a/g count=20 seek=8; sync -f a"));
        bench.sync("--sparse=always --inplace a b", 0);
        bench.sh("cmp a/f b/f; cmp a/g b/g; sync -f b");
        let kib = |path: &str| bench.sh(&format!("du -k {path} | cut -f1")).trim().parse().unwrap();
        let (all, some): (u64, u64) = (kib("b/f"), kib("b/g"));
        assert!(all < 64 && some < 900, "{}: {all} KiB, {some} KiB", image.file_system());
        // Blocks of zeroes that are there already become holes too once the file is written.
        bench.sh(&format!("{zero} of=b/f count=32; {zero} of=a/g count=4; printf x >> a/f"));
        bench.sync("--sparse=always --inplace a b", 0);
        bench.sync("--sparse=always a b", 0);
        bench.sh("cmp a/f b/f; cmp a/g b/g; sync -f b");
        let (all, some): (u64, u64) = (kib("b/f"), kib("b/g"));
        assert!(all < 64 && some < 640, "{}: {all} KiB, {some} KiB", image.file_system());
    }
}

#[test]
fn attributes_are_left_out_by_their_whole_name() {
    if !is_root() {
        skip!("needs root");
    }
    for image in images("attributes_are_left_out_by_their_whole_name", &[FileSystem::Ext4]) {
        let bench = Bench::inside(image.path());
        bench.sh("mkdir -p a/d; touch a/f
             for at in a/f a/d; do
                 for name in trusted.something trusted.version2 trusted.linked trusted.hsmx \
                         trusted.SGI_ACL_FILES security.imaginary security.evmx security.selinux2 \
                         trusted.overlay.opaque trusted.overlay.own trusted.overlays security.apparmors security.SMACK64X; do
                     setfattr -n $name -v 1 $at
                 done
                 # What is a file system's own is made anew.
                 setfattr -n trusted.lov -v 1 $at
             done");
        let pass = bench.sync("a b", 0);
        assert_eq!(pass.number("system_attributes"), 2, "{}", pass.0.tell());
        bench.sh("for at in a/f a/d; do setfattr -x trusted.lov $at; done");
        bench.assert_same("a", "b");
        bench.sh("for at in a/f a/d; do setfattr -x trusted.something $at; setfattr -n security.imaginary -v 2 $at; done");
        bench.verify("a b", 1);
        bench.sync("a b", 0);
        bench.assert_same("a", "b");
    }
}

/// A change in the second in which a pass looks is told from none by no time of such a file system.
#[test]
fn what_changes_within_the_second_of_a_pass_is_not_missed_where_times_are_whole_seconds() {
    let test =
        "what_changes_within_the_second_of_a_pass_is_not_missed_where_times_are_whole_seconds";
    let options = ImageOptions {
        size_bytes: 64 << 20,
        mkfs_arguments: ["-I", "128"].map(str::to_owned).to_vec(),
        ..ImageOptions::default()
    };
    let coarse = match Image::create_with(FileSystem::Ext4, &options) {
        Ok(coarse) => coarse,
        Err(why) => skip!("{test}: {why}"),
    };
    let bench = Bench::new();
    let source = coarse.path().join("a");
    bench.sh(&format!("mkdir {0}; ln -s {0} a", source.display()));
    // Whether the second turns between the pass and the change is nobody's to choose.
    for round in 0..6 {
        bench.sh(&format!("mkdir a/d{round}; touch a/f{round}; mkfifo a/p{round}"));
        bench.sync("a/ b", 0);
        bench.sh(&format!(
            "setfacl -d -m u:5:rx a/d{round}; setfattr -n user.q -v 1 a/f{round}
             setfacl -m u:5:r a/p{round}"
        ));
        bench.sync("a/ b", 0);
        bench.assert_same("a/", "b");
    }
}

#[test]
fn a_check_sees_directories_that_differ_in_attributes_alone() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/d/e; touch a/d/f");
    bench.sync("a b", 0);
    bench.sync("--check a b", 0);
    let mut changes = vec![
        "chmod 700 a/d",
        "touch -d 2001-01-01 a/d/e",
        "setfacl -m u:5:rx a/d",
        "setfacl -d -m u:5:rx a/d",
        "setfattr -n user.q -v 1 a/d/e",
        "setfattr -x user.q a/d/e",
        "setfacl -k a/d",
        "chmod 750 a",
    ];
    if is_root() {
        changes.push("chown 5 a/d");
        changes.push("chgrp 6 a");
    }
    for change in changes {
        bench.sh(change);
        let before = super::bench::snapshot(&bench.at("b"));
        let pass = bench.sync("--check a b", 1);
        assert_eq!(pass.number("exit_code"), 1, "{}", pass.0.tell());
        assert_eq!(pass.number("directories_updated"), 1, "{change}: {}", pass.0.tell());
        assert_eq!(before.changes(&super::bench::snapshot(&bench.at("b"))), [""; 0], "{change}");
        let pass = bench.sync("a b", 0);
        assert_eq!(pass.number("directories_updated"), 1, "{change}: {}", pass.0.tell());
        bench.sync("--check a b", 0);
        bench.assert_same("a", "b");
    }
    // The text says it as well.
    bench.sh("chmod 701 a/d");
    let run = bench.dmover("sync --check -i a b").expect_code(1);
    assert!(String::from_utf8_lossy(&run.stdout).contains(".d...p..... a/d"), "{}", run.tell());
}

#[test]
fn specials_with_two_names_stay_one_inode_where_directories_are_in_the_way() {
    let kinds = ["mkfifo a/1", "ln -s x a/1", "echo x > a/1"];
    let devices = ["mknod a/1 c 1 3", "mknod a/1 b 7 200"];
    let kinds = kinds.iter().chain(devices.iter().filter(|_| is_root()));
    for make in kinds {
        for renames in ["", "--no-renames"] {
            for (change, names) in [
                ("mv a/1 a/3; rm b/2; mkdir -p b/2/x", ["2", "3"]),
                ("mv a/2 a/3; rm b/1; mkdir -p b/1/x", ["1", "3"]),
                ("mv a/1 a/3; mkdir -p b/3/x", ["2", "3"]),
                ("mv a/2 a/0; mkdir -p b/0/x", ["0", "1"]),
            ] {
                let bench = Bench::new();
                bench.sh(&format!("mkdir a; {make}; ln a/1 a/2"));
                bench.sync("--delete a b", 0);
                bench.sh(change);
                bench.sync(&format!("--delete {renames} a b"), 0);
                let inodes = names.map(|name| bench.inode(&format!("b/{name}")));
                assert_eq!(inodes[0], inodes[1], "{make}; {change} {renames}");
                bench.assert_same("a", "b");
            }
        }
    }
}

#[test]
fn locked_directories_go_and_are_filled_as_the_source_wants_it() {
    let test = "locked_directories_go_and_are_filled_as_the_source_wants_it";
    for image in images(test, &[FileSystem::Ext4, FileSystem::Xfs]) {
        let (trash, unlock) = ("--trash=trash", "chattr -R -f -i -a a b trash");
        for delete in ["--delete", "--delete=during", &format!("--delete {trash}")] {
            let bench = Bench::inside(image.path());
            let _undo = bench.undo(unlock);
            bench.sh("mkdir -p a/i a/a a/full/i a/full/a; touch a/full/i/f a/stays
                 chattr +i a/i a/full/i; chattr +a a/a a/full/a");
            bench.sync(&format!("{delete} a b"), 0);
            bench.assert_same("a", "b");
            bench.sh("chattr -i a/i a/full/i; chattr -a a/a a/full/a; rm -r a/i a/a a/full");
            bench.sync(&format!("{delete} a b"), 0);
            bench.assert_same("a", "b");
            // Whatever could not be removed would still stand here.
            assert_eq!(bench.sh("ls -A b"), "stays\n", "{delete} on {}", image.file_system());
        }
        // Unlocked at the source, and changed in the same pass.
        for flag in ["i", "a"] {
            for inplace in ["", "--inplace"] {
                let bench = Bench::inside(image.path());
                let _undo = bench.undo(unlock);
                bench.sh(&format!(
                    "mkdir -p a/d/e; echo 1 > a/d/f; echo 2 > a/d/g; ln a/d/f a/h; echo 3 > a/k
                     chattr +{flag} a/d a/k"
                ));
                bench.sync("a b", 0);
                bench.sh(&format!(
                    "chattr -{flag} a/d a/k; echo new > a/d/n; echo other > a/d/f; rm a/d/g
                     mkdir a/d/m; mv a/d/e a/e; ln -s x a/d/l; echo more >> a/k"
                ));
                bench.sync(&format!("--delete {inplace} a b"), 0);
                bench.assert_same("a", "b");
            }
        }
    }
}

/// Neither size nor time nor owner nor mode shows it: the time of the change at the destination does.
#[test]
fn attributes_that_somebody_changed_at_the_destination_are_set_back() {
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs];
    for image in images("attributes_that_somebody_changed_at_the_destination_are_set_back", &all) {
        let bench = Bench::inside(image.path());
        bench.sh("mkdir -p a/d; echo x > a/f; mkfifo a/p; ln -s x a/l; setfattr -n user.q -v 1 a/f
             setfattr -n user.q -v 1 a/d; setfacl -m u:5:r a/p; setfacl -d -m u:6:rx a/d");
        bench.sync("a b", 0);
        let _undo = bench.undo("chattr -R -f -i -a b");
        let mut changes = vec![
            "setfattr -n user.q -v 2 b/f",
            "setfattr -x user.q b/d",
            "setfattr -n user.new -v 1 b/d",
            "setfacl -m u:7:rw b/f",
            "setfacl -b b/p",
            "setfacl -k b/d",
            "setfacl -d -m u:8:rx b",
        ];
        if is_root() {
            changes.push("setfattr -h -n trusted.q -v 1 b/l");
            changes.push("setfattr -n trusted.q -v 1 b/p");
        }
        for change in changes {
            bench.sh(change);
            bench.verify("a b", 1);
            bench.sync("--check a b", 1);
            bench.sync("a b", 0);
            bench.assert_same("a", "b");
            bench.verify("a b", 0);
        }
        // It is not looked at for ever.
        let before = super::bench::snapshot(&bench.at("b"));
        assert_eq!(bench.sync("a b", 0).done(), [""; 0]);
        assert_eq!(before.changes(&super::bench::snapshot(&bench.at("b"))), [""; 0]);
    }
}
