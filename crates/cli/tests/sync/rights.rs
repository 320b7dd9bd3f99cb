//! Rights: what somebody else has put at the destination is never given an owner, set-id bits or capabilities.
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use super::Bench;
use super::bench::{NOBODY, is_root};
use dmover_testkit::skip;

/// A source of root's, and a destination in which the directory belongs to somebody else, who has put a file there that looks
/// like the one of the source.
fn planted(bench: &Bench, dress: &str) {
    bench.sh(
        "mkdir -p a/bin b/bin; head -c 5000 /dev/zero | tr '\\0' s > a/bin/x; head -c 5000 /dev/zero | tr '\\0' m > b/bin/x
         touch -d 2020-01-01T00:00:00.123456789 a/bin/x b/bin/x; chmod 755 a/bin/x b/bin/x; chown -R 4000:4000 b/bin",
    );
    bench.sh(dress);
}

/// Who may do what: owner, mode and capability.
fn rights(bench: &Bench, path: &str) -> String {
    bench.sh(&format!(
        "stat -c '%u:%g %a' {path}; getfattr --absolute-names -e hex -n security.capability --only-values {path} 2>/dev/null | od -An -tx1 || true"
    ))
}

const DRESSES: [&str; 5] = [
    "chmod 4755 a/bin/x",
    "chmod 644 a/bin/x b/bin/x",
    "chown 4000:5000 a/bin/x; chmod 2755 a/bin/x",
    "chown 4000:4000 a/bin/x; setcap cap_setuid+ep a/bin/x",
    "chown 5000 a/bin/x",
];

#[test]
fn what_somebody_else_has_planted_gets_no_rights() {
    if !is_root() {
        return skip::skipped("what_somebody_else_has_planted_gets_no_rights", "needs root");
    }
    for dress in DRESSES {
        for line in ["sync", "sync --inplace", "sync --delete --no-renames", "copy --inplace -T"] {
            let bench = Bench::new();
            planted(&bench, dress);
            if line.starts_with("copy") {
                // A copy takes what looks equal for equal, and gives it nothing.
                bench.sh("touch -d 2021-01-01 b/bin/x");
            }
            // Whoever has it open may write whatever is compared or written there.
            let file = OpenOptions::new().write(true).open(bench.at("b/bin/x")).unwrap();
            bench.dmover(&format!("{line} a b")).expect_code(0);
            file.write_all_at(b"evil", 0).unwrap();
            assert_eq!(bench.sh("cmp a/bin/x b/bin/x && echo same"), "same\n", "{line}: {dress}");
            assert_eq!(rights(&bench, "b/bin/x"), rights(&bench, "a/bin/x"), "{line}: {dress}");
        }
    }
}

#[test]
fn a_repair_of_attributes_gives_no_rights_to_what_was_planted() {
    if !is_root() {
        return skip::skipped(
            "a_repair_of_attributes_gives_no_rights_to_what_was_planted",
            "needs root",
        );
    }
    for level in ["mtime", "digest"] {
        let bench = Bench::new();
        planted(&bench, "chmod 4755 a/bin/x");
        bench.dmover(&format!("verify --repair --level={level} a b")).expect_code(0);
        assert_eq!(bench.sh("cmp a/bin/x b/bin/x && echo same"), "same\n", "{level}");
        assert_eq!(rights(&bench, "b/bin/x"), rights(&bench, "a/bin/x"), "{level}");
    }
}

/// The owner of a directory gives a name, size and time of their own file to a secret of root.
#[test]
fn a_secret_under_another_name_does_not_change_hands() {
    if !is_root() {
        return skip::skipped("a_secret_under_another_name_does_not_change_hands", "needs root");
    }
    for change in [format!("chown {NOBODY} a/u/x"), "chmod 644 a/u/x".to_owned()] {
        let bench = Bench::new();
        bench.sh(&format!(
            "chmod 755 .; mkdir -p a/u; echo secret > a/u/secret; echo public > a/u/x; chmod 600 a/u/secret a/u/x
             chown {NOBODY} a/u; touch -d 2020-01-01 a/u/x a/u/secret"
        ));
        bench.sync("a b", 0);
        bench.sh(&format!(
            "setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups mv b/u/secret b/u/x
             {change}; touch -d 2020-01-01 a/u/x; touch -r a/u b/u"
        ));
        bench.sync("a b", 0);
        assert_eq!(bench.read("b/u/x"), "public\n", "{change}");
        bench.assert_same("a", "b");
    }
}

/// Who owns a directory can exchange the names of files that are not theirs.
#[test]
fn set_id_bits_go_to_the_content_that_has_them_at_the_source() {
    if !is_root() {
        return skip::skipped(
            "set_id_bits_go_to_the_content_that_has_them_at_the_source",
            "needs root",
        );
    }
    let exchange = format!(
        "setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sh -c 'mv b/u/x b/u/z; mv b/u/y b/u/x; mv b/u/z b/u/y'"
    );
    for dress in ["chmod 4755 a/u/x", "chmod 755 a/u/x b/u/x b/u/y; setcap cap_setuid+ep a/u/x"] {
        for line in ["sync", "sync --no-state", "sync --inplace", "verify --repair --level=mtime"] {
            if line.contains("mtime") && dress.contains("setcap") {
                continue; // that level looks at no capability
            }
            let bench = Bench::new();
            bench.sh(&format!(
                "chmod 755 .; mkdir -p a/u; echo one > a/u/x; echo two > a/u/y; chmod 755 a/u/y; chown {NOBODY} a/u
                 touch -d 2020-01-01 a/u/x a/u/y"
            ));
            bench.sync("a b", 0);
            bench.sh(&format!("{exchange}; {dress}; touch -d 2020-01-01 a/u/x; touch -r a/u b/u"));
            bench.dmover(&format!("{line} a b")).expect_code(0);
            assert_eq!(bench.read("b/u/x"), "one\n", "{line}: {dress}");
            assert_eq!(rights(&bench, "b/u/x"), rights(&bench, "a/u/x"), "{line}: {dress}");
        }
        // Also long after the directory has become root's.
        let bench = Bench::new();
        bench.sh(&format!(
            "chmod 755 .; mkdir -p a/u; echo one > a/u/x; echo two > a/u/y; chmod 755 a/u/y; chown {NOBODY} a/u
             touch -d 2020-01-01 a/u/x a/u/y"
        ));
        bench.sync("a b", 0);
        bench.sh(&format!("{exchange}; chown 0 a/u"));
        bench.sync("a b", 0);
        bench.sync("a b", 0);
        bench.sh(dress);
        bench.sync("a b", 0);
        assert_eq!(bench.read("b/u/x"), "one\n", "{dress}");
        assert_eq!(rights(&bench, "b/u/x"), rights(&bench, "a/u/x"), "{dress}");
    }
}

/// Nobody else can rename entries of a directory of root: nothing is read or written again.
#[test]
fn files_of_root_get_another_owner_in_place() {
    if !is_root() {
        return skip::skipped("files_of_root_get_another_owner_in_place", "needs root");
    }
    let bench = Bench::new();
    bench.sh("mkdir a; seq 1000 > a/x; seq 2000 > a/y; touch -d 2020-01-01 a/*; cp -a a b");
    bench.sh("chown 4000:4000 a/x; chmod 4755 a/y");
    let inodes = (bench.inode("b/x"), bench.inode("b/y"));
    let pass = bench.sync("a b", 0);
    assert_eq!(pass.done(), ["metadata_updated a/x", "metadata_updated a/y"]);
    // What gets set-id bits is compared.
    assert_eq!((pass.number("bytes_copied"), pass.number("files_compared")), (0, 1));
    assert_eq!((bench.inode("b/x"), bench.inode("b/y")), inodes);
    bench.assert_same("a", "b");
    // A mode without rights is set in place whoever has the file.
    bench.sh("chmod 600 a/x");
    assert_eq!(bench.sync("a b", 0).done(), ["metadata_updated a/x"]);
    // The owner's content may be another by now.
    bench.sh("chown 5000 a/x");
    assert_eq!(bench.sync("-n a b", 0).done(), ["replaced a/x"]);
    assert_eq!(bench.sync("a b", 0).done(), ["replaced a/x"]);
    bench.assert_same("a", "b");
    assert_eq!(bench.sync("a b", 0).done(), [""; 0]);
}

#[test]
fn a_user_is_not_told_again_of_what_that_user_may_not_set() {
    if !is_root() {
        skip!("needs root to become somebody else");
    }
    let bench = Bench::new().unprivileged();
    bench.sh(
        "mkdir -p s/sub/locked; echo 1 > s/theirs; echo 2 > s/sub/mine; ln -s nowhere s/link; mkfifo s/pipe; echo 3 > s/setid
        echo 4 > s/ping; ln s/theirs s/twin; chmod 644 s/theirs s/sub/mine s/ping s/pipe; chmod 755 s s/sub s/sub/locked
        chown 65534:65534 s/sub/mine; chmod 6755 s/setid; setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 s/ping",
    );
    // No file system in memory has flags.
    let locked = bench.sh("chattr +i s/setid s/sub/locked 2>/dev/null && echo yes || true");
    bench.dmover("sync s t").expect_code(0);
    for line in ["sync -n -i s t", "sync -n -i --state-dir other s t", "sync -n -i --checksum s t"]
    {
        let run = bench.dmover(line).expect_code(0);
        assert!(run.stdout.is_empty(), "{line}: {}", run.tell());
        // The two names of one inode count once.
        assert!(run.stderr.contains("owners      8 "), "{line}: {}", run.tell());
    }
    bench.dmover("sync --check s t").expect_code(0);
    let run = bench.dmover("sync -i s t").expect_code(0);
    assert!(run.stdout.is_empty(), "{}", run.tell());
    // rsync by the same user agrees, but for set-id bits, which it tries to set each time.
    let rsync = "setpriv --reuid 65534 --regid 65534 --clear-groups rsync -aHAXin s/ t/";
    assert_eq!(bench.sh(rsync).trim(), ".f...p..... setid");
    if !locked.is_empty() {
        bench.sh("chattr -i s/setid s/sub/locked");
    }
}

#[test]
fn a_group_that_a_user_may_set_is_carried_over() {
    if !is_root() {
        skip!("needs root to become somebody else");
    }
    let bench = Bench::new().unprivileged();
    bench.sh("mkdir -p s/d; echo 1 > s/d/mine; echo 2 > s/theirs; chown -R 65534:65534 s; chown 0:65534 s/theirs; chmod -R a+rX s");
    bench.dmover("sync s t").expect_code(0);
    bench.sh("chgrp 0 t/d t/d/mine t/theirs");
    let listed = String::from_utf8(bench.dmover("sync -n -i s t").expect_code(0).stdout).unwrap();
    for line in [".d.....g... s/d", ".f.....g... s/d/mine", ".f.....g... s/theirs"] {
        assert!(listed.lines().any(|listed| listed == line), "{line}: {listed}");
    }
    bench.dmover("sync s t").expect_code(0);
    assert_eq!(bench.sh("find t -gid 0"), "");
    let run = bench.dmover("sync -n -i s t").expect_code(0);
    assert!(run.stdout.is_empty(), "{}", run.tell());
}

/// /home and /scratch are often such directories: users may search them, but not list them.
#[test]
fn trees_in_a_directory_that_may_only_be_searched_are_copied() {
    if !is_root() {
        return skip::skipped(
            "trees_in_a_directory_that_may_only_be_searched_are_copied",
            "needs root",
        );
    }
    let bench = Bench::new().unprivileged();
    bench.sh(&format!(
        "mkdir -p p/u q/from/d; seq 9 > q/from/d/f; ln q/from/d/f q/from/d/g; seq 3 > q/single
         chown -R {NOBODY}:{NOBODY} p/u q/from q/single; chmod 711 p q; chmod 755 ."
    ));
    bench.dmover("sync q/from p/u").expect_code(0);
    bench.assert_same("q/from", "p/u");
    bench.sh(&format!(
        "rm q/from/d/g; seq 4 > q/from/new; chown {NOBODY}:{NOBODY} q/from/new; rm -rf p/u/*"
    ));
    bench.dmover("copy -T q/from p/u").expect_code(0);
    bench.dmover("sync --delete --yes q/from/ p/u/").expect_code(0);
    bench.assert_same("q/from", "p/u");
    bench.dmover("copy q/from q/single p/u").expect_code(0);
    bench.assert_same("q/from", "p/u/from");
    bench.dmover("verify q/from p/u/from").expect_code(0);
    bench.dmover("verify q/single p/u").expect_code(0);
    bench.dmover("sum q/from q/single").expect_code(0);
    bench.dmover("sync -n --delete --yes q/from p/u/from").expect_code(0);
    // What has no place to be made is still an error.
    bench.dmover("sync q/from p/other").expect_code(2);
    bench.dmover("sync q/missing p/u").expect_code(2);
}
