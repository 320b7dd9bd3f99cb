//! Where deleted entries go if they are kept, and what marks that place.
use super::Bench;
use super::bench::{is_root, snapshot};
use super::deletes::trees;
use dmover_testkit::faultfs::{Action, Op, Rule, When};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::skip;

#[test]
fn trash_keeps_what_would_be_deleted() {
    let bench = Bench::new();
    trees(&bench);
    bench.sh("echo keep > b/x/1; chmod 750 b/x/y; touch -d 2001-02-03 b/x/y; cp -a b saved");
    bench.sync("--delete --trash b/.trash a b", 0);
    assert_eq!(bench.sh("rsync -nrlptgoDHAXic --exclude .trash --delete a/ b/"), "");
    bench.sh("cd b/.trash/20??-??-??T??-??-??Z-*/; diff -r --no-dereference x ../../../saved/x; test -p p");
    assert_eq!(bench.mode(bench.sh("echo b/.trash/*/x/y").trim()), 0o750);
    assert_eq!(bench.sh("stat -c %Y b/.trash/*/x/y saved/x/y | uniq | wc -l").trim(), "1");
    // Whatever comes later leaves it alone.
    let before = snapshot(&bench.at("b"));
    bench.sync("--delete a b", 0);
    bench.sync("--delete --trash b/.trash a b", 0);
    assert_eq!(before.changes(&snapshot(&bench.at("b"))), [""; 0]);
    bench.sh("mkdir elsewhere; mount -t tmpfs none elsewhere");
    let _undo = bench.undo("umount elsewhere");
    bench.dmover("sync --yes --delete --trash elsewhere/t a b").expect_code(2);
}

/// A directory that could not be looked into was taken for no trash, and emptied.
#[test]
fn a_trash_that_cannot_be_looked_into_is_not_emptied() {
    for when in ["--delete", "--delete=during"] {
        for (operation, name) in [(Op::Opendir, ".trash"), (Op::Getattr, ".dmover-trash")] {
            let Some((served, bench)) = Bench::faulty() else { skip!("no faultfs") };
            bench.sh("mkdir -p a/gone; echo 1 > a/gone/p; echo 2 > a/stays");
            bench.sync("a faulty/b", 0);
            bench.sh("rm -r a/gone");
            bench.sync("--delete --trash faulty/b/.trash a faulty/b", 0);
            let trash = || bench.sh("find backing/b/.trash | sort");
            let before = trash();
            let mut failed = 0;
            for nth in 1..=4 {
                let rule = Rule::new(operation, Action::Errno(5)).name(name).when(When::Nth(nth));
                served.set_rules(&[rule]).unwrap();
                let run = bench.dmover(&format!("sync --yes {when} a faulty/b"));
                let shown = format!("{operation:?} {nth}: {}", run.tell());
                assert_eq!(trash(), before, "{shown}");
                assert!(matches!(run.code(), Some(0 | 3)), "{shown}");
                failed += u32::from(run.code() == Some(3));
            }
            assert!(failed > 0, "{when} {operation:?}");
        }
    }
}

/// A tree of 5,000 levels took minutes: each directory was reached level by level.
#[test]
fn a_deep_tree_goes_into_the_trash_with_few_calls() {
    const DEPTH: usize = 300;
    let bench = Bench::new();
    bench.sh(&format!(
        "mkdir a b; echo 1 | tee a/f > b/f; cd b; d=x; for i in $(seq {DEPTH}); do d=$d/d; done
        mkdir -p $d; find x -type d -exec touch {{}}/f \\;; cp -a x ../saved"
    ));
    let log = bench.at("log").to_str().unwrap().to_owned();
    let bench = bench.with(|dmover| dmover.wrapped(["strace", "-f", "-c", "-o", &log]));
    bench.sync("--delete --trash trash a b", 0);
    bench.sh("diff -r saved trash/*/x; test ! -e b/x");
    let text = bench.read("log");
    for name in ["mkdirat", "openat2"] {
        let line = text.lines().find(|line| line.trim_end().ends_with(&format!(" {name}")));
        let calls: usize = line.unwrap().split_whitespace().nth(3).unwrap().parse().unwrap();
        assert!(calls < 20 * DEPTH, "{name}: {text}");
    }
}

#[test]
fn trash_in_a_destination_that_the_first_pass_makes() {
    let bench = Bench::new();
    trees(&bench);
    bench.sync("--delete --trash new/.trash a new", 0);
    assert_eq!(bench.rsync("a", "new"), "");
    bench.sh("echo extra > new/extra");
    bench.sync("--delete --trash new/.trash a new", 0);
    assert_eq!(bench.sh("cat new/.trash/*/extra"), "extra\n");
    let refused = bench.dmover("sync --yes --delete --trash nowhere/.trash a other").expect_code(2);
    assert!(refused.stderr.contains("nowhere/.trash"), "{}", refused.tell());
    assert!(!bench.exists("other"));
}

/// A trash may have the name of a directory that the source has as well.
#[test]
fn trash_stays_where_the_source_has_its_name() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/t b/t; touch a/t/own a/f; echo gone > b/extra");
    for line in ["--delete --trash b/t a b", "--delete --trash b/t a b", "--delete a b"] {
        bench.sync(line, 0);
        assert_eq!(bench.sh("cat b/t/*/extra"), "gone\n", "{line}");
    }
    assert!(bench.exists("b/t/own"));
}

#[test]
fn trash_on_another_file_system_is_refused_and_not_made() {
    let bench = Bench::new();
    trees(&bench);
    let refused = bench.dmover("sync --yes --delete --trash /proc/trash a b").expect_code(2);
    assert!(refused.stderr.contains("another file system"), "{}", refused.tell());
    bench.sh("mkdir elsewhere; mount -t tmpfs none elsewhere || touch unsupported");
    if bench.exists("unsupported") {
        return skip::skipped("trash_on_another_file_system", "needs root");
    }
    let _undo = bench.undo("umount elsewhere");
    bench.dmover("sync --yes --delete --trash elsewhere/trash a b").expect_code(2);
    assert!(!bench.exists("elsewhere/trash"));
}

/// A copy of a trash is a directory like any other, and a trash keeps its own mark.
#[test]
fn copies_of_a_trash_are_no_trash() {
    let bench = Bench::new();
    bench.sh("mkdir -p a b; touch a/f b/1 b/2");
    bench.sync("--delete --trash b/t a b", 0);
    bench.sh("touch b/t/mine");
    bench.sync("b c", 0);
    assert_eq!(bench.rsync("b", "c"), "");
    bench.sh("rm b/t/mine b/t/*/1");
    bench.sync("--delete b c", 0);
    assert_eq!(bench.rsync("b", "c"), "");
    // Trash beside trash.
    bench.sh("mkdir d; touch d/gone");
    bench.sync("--delete --trash d/t b d", 0);
    for line in ["--delete b d", "--delete --trash d/t b d", "--delete b d"] {
        bench.sync(line, 0);
        assert!(bench.sh("ls d/t/*").contains("gone"), "{line}");
    }
}

#[test]
fn what_holds_a_trash_stays_and_is_not_listed() {
    for when in ["delay", "after", "during"] {
        let bench = Bench::new();
        bench.sh("mkdir -p a b/x/y b/z; touch a/f b/1 b/x/y/2 b/z/3");
        bench.sync(&format!("--delete={when} --trash b/x/y/t a b"), 3);
        bench.sh("touch b/x/y/4 b/z");
        let listed = bench.sync(&format!("-n --delete={when} a b"), 3);
        let pass = bench.sync(&format!("--delete={when} a b"), 3);
        assert_eq!(listed.done(), pass.done(), "{when}: a dry run lists exactly what goes");
        assert!(!bench.exists("b/x/y/4") && bench.exists("b/x/y/t/.dmover-trash"), "{when}");
        let errors = pass.0.said().unwrap().errors;
        assert_eq!(errors.len(), 1, "{when}: {}", pass.0.tell());
    }
}

/// What lies in a trash is the last copy, whatever marks were copied there before.
#[test]
fn a_trash_that_was_a_copy_of_one_is_one() {
    for before in ["", ": >b/.trash/.dmover-trash; : >c/.trash/.dmover-trash"] {
        let bench = Bench::new();
        bench.sh("mkdir a b; touch a/x b/x b/old");
        bench.sync("--delete --trash b/.trash a b", 0);
        bench.sync("b c", 0);
        bench.sh(&format!("echo precious > c/precious; {before}"));
        for line in
            ["--delete --trash c/.trash b c", "--delete b c", "--delete --trash c/.trash b c"]
        {
            bench.sync(line, 0);
            assert_eq!(bench.sh("cat c/.trash/*/precious"), "precious\n", "{line}");
        }
    }
    // One that was moved is another directory than its mark says.
    let bench = Bench::new();
    bench.sh("mkdir a b; touch a/x b/x b/old");
    bench.sync("--delete --trash b/.trash a b", 0);
    bench.sync("--exclude .trash b c", 0);
    bench.sh("echo precious > c/precious");
    bench.sync("--delete --trash c/.trash --exclude /.trash b c", 0);
    bench.sh("cp -a c moved");
    for when in ["delay", "during", "after"] {
        bench.sync(&format!("--delete={when} b moved"), 0);
        assert_eq!(bench.sh("cat moved/.trash/*/precious"), "precious\n", "{when}");
    }
}

/// A directory like /tmp, which everybody may use.
#[test]
fn a_trash_that_somebody_else_has_marked_is_used() {
    if !is_root() {
        return skip::skipped("a_trash_that_somebody_else_has_marked_is_used", "needs root");
    }
    let bench = Bench::new().unprivileged();
    bench.sh("mkdir a b t; touch a/x b/x b/old; chmod 1777 t; : >t/.dmover-trash; chmod 600 t/.dmover-trash; chown nobody a b b/old");
    bench.sync("--delete --trash t a b", 0);
    assert_eq!(bench.sh("ls t/*/old | wc -l"), "1\n");
}

#[test]
fn trash_takes_no_flag_from_another_name() {
    let test = "trash_takes_no_flag_from_another_name";
    let Some(image) = Image::create_or_skip(test, FileSystem::Ext4, 64 << 20) else { return };
    let bench = Bench::inside(image.path());
    bench.sh("mkdir a; touch a/f; ln a/f a/g; chattr +i a/f");
    let _undo = bench.undo("chattr -R -i . 2>/dev/null || :");
    bench.sync("a b", 0);
    bench.sh("chattr -i a/f; rm a/g; chattr +i a/f");
    bench.sync("--delete --trash t a b", 0);
    assert_eq!(bench.sh("lsattr b/f t/*/g | cut -c5 | tr -d '\\n'"), "ii");
}

#[test]
fn a_trash_in_the_way_is_told() {
    for line in ["echo x > a/1; ln a/1 a/2", "echo x > a/2"] {
        let bench = Bench::new();
        bench.sh(&format!("mkdir -p a b/2; {line}; : > b/2/.dmover-trash; echo precious > b/2/p"));
        for dry in ["-n", ""] {
            let pass = bench.sync(&format!("{dry} --delete a b"), 3);
            let errors = pass.0.said().unwrap().errors;
            assert_eq!(errors.len(), 1, "{line}: {}", pass.0.tell());
            assert!(errors[0].0["path"].as_str().unwrap().ends_with("b/2"), "{}", pass.0.tell());
        }
        assert!(bench.exists("b/2/p"));
    }
}
