//! What happens to entries that are there already.

use std::fs;
use std::io::Write;

use dmover_testkit::lanes::run::Run;

use super::bench::{is_root, pattern};
use super::{Bench, snapshot};

fn count(run: &Run, counter: &str) -> u64 {
    run.said().unwrap().summary.unwrap().number(counter).unwrap()
}

/// `s` at the source; `d` at the destination holds an older, an equal, a newer and an extra file.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.sh("mkdir s d
        for f in older equal newer resized absent; do echo new-$f > s/$f; touch -d '2020-06-01' s/$f; done
        echo old-older > d/older; touch -d '2019-01-01' d/older
        echo OLD-equal > d/equal; touch -d '2020-06-01' d/equal
        echo old-newer > d/newer; touch -d '2021-01-01' d/newer
        echo resized > d/resized; touch -d '2020-06-01' d/resized
        echo extra > d/extra");
    bench
}

fn content(bench: &Bench) -> String {
    bench.sh("cd d && for f in older equal newer resized absent extra; do cat $f; done")
}

#[test]
fn by_default_what_differs_in_size_or_time_is_replaced() {
    let bench = bench();
    bench.copy("-T s d").expect_code(0);
    assert_eq!(
        content(&bench),
        "new-older\nOLD-equal\nnew-newer\nnew-resized\nnew-absent\nextra\n"
    );
}

#[test]
fn always_replaces_what_looks_equal() {
    let bench = bench();
    bench.copy("-T --overwrite=always s d").expect_code(0);
    assert_eq!(
        content(&bench),
        "new-older\nnew-equal\nnew-newer\nnew-resized\nnew-absent\nextra\n"
    );
}

#[test]
fn update_replaces_what_is_older() {
    for flag in ["--update", "-u", "--overwrite=older"] {
        let bench = bench();
        bench.copy(&format!("-T {flag} s d")).expect_code(0);
        let wanted = "new-older\nOLD-equal\nold-newer\nresized\nnew-absent\nextra\n";
        assert_eq!(content(&bench), wanted, "{flag}");
    }
}

#[test]
fn no_clobber_adds_only() {
    for flag in ["--no-clobber", "--overwrite=never"] {
        let bench = bench();
        bench.copy(&format!("-T {flag} s d")).expect_code(0);
        let wanted = "old-older\nOLD-equal\nold-newer\nresized\nnew-absent\nextra\n";
        assert_eq!(content(&bench), wanted, "{flag}");
    }
}

#[test]
fn a_backup_keeps_the_version_that_is_replaced() {
    let bench = bench();
    bench.copy("-T --backup s d").expect_code(0);
    assert_eq!(bench.read("d/older~"), "old-older\n");
    assert_eq!(bench.read("d/older"), "new-older\n");
    assert!(!bench.exists("d/equal~"), "what is skipped needs no backup");
    assert!(!bench.exists("d/absent~"));
}

const TIMELESS: &str = "--no-preserve=times --overwrite=always";

/// A name that could not be linked stays or becomes a file of its own. The run that links it must not take that file for
/// an old version: its backup would replace the backup of the real one.
#[test]
fn a_link_made_good_costs_no_backup() {
    let both = |bench: &Bench, backup: &str| {
        let old = if backup == "numbered" { ".~1~" } else { "~" };
        bench.sh(&format!("cat d/1 d/2 d/1{old} d/2{old}; ls d | wc -l; test d/1 -ef d/2"))
    };
    let cases = [("simple", 1), ("simple", 3), ("numbered", 1), ("numbered", 3)];
    for ((backup, call), keeps) in cases.into_iter().flat_map(|case| [(case, ""), (case, TIMELESS)])
    {
        let bench = Bench::new();
        bench.sh("mkdir s d; echo new > s/1; ln s/1 s/2; setfattr -n user.a -v b s/1
            echo old-1 > d/1; echo old-2 > d/2");
        let options = format!("-j1 -T --backup={backup} {keeps} s d");
        let (log, inject) = (bench.at("log"), format!("inject=linkat:error=ENOSPC:when={call}"));
        let trace = ["strace", "-f", "-qq", "-o", log.to_str().unwrap(), "-e", "trace=linkat"];
        let words = trace.into_iter().chain(["-e", &inject]);
        let bench = bench.with(|dmover| dmover.wrapped(words));
        let run = bench.copy(&options);
        assert!(run.code() == Some(3), "{backup} {call}: {}", run.tell());
        assert!(bench.read("log").contains("(INJECTED)"), "{backup} {call}: {}", run.tell());
        let bench = bench.with(|dmover| dmover.wrapped([""; 0]));
        bench.copy(&options).expect_code(0);
        let wanted = "new\nnew\nold-1\nold-2\n4\n";
        // What is always replaced is always backed up: the first name, which is no link.
        let first_again = !keeps.is_empty();
        let found = both(&bench, backup);
        assert!(
            found == wanted || first_again && found.contains("old-2"),
            "{backup} {call} {found}"
        );
    }
}

/// Nothing says what another program will still write.
#[test]
fn a_file_that_is_open_for_writing_is_backed_up_before_a_link_replaces_it() {
    let bench = Bench::new();
    bench.sh("mkdir s d; echo new > s/1; ln s/1 s/2; cp -p s/1 d/1; cp -p s/2 d/2");
    let mut writer = fs::OpenOptions::new().append(true).open(bench.at("d/2")).unwrap();
    bench.copy("-T --backup s d").expect_code(0);
    bench.sh("test d/1 -ef d/2");
    writer.write_all(b"more\n").unwrap();
    assert_eq!(bench.read("d/2~"), "new\nmore\n");
}

/// Only what is equal in everything needs no backup before it becomes a link.
#[test]
fn what_differs_from_the_link_that_replaces_it_is_backed_up() {
    let changes = [
        ("content", "printf 'naw\\n' > d/2; touch -r s/2 d/2"),
        ("time", "touch -d 2001-01-01 d/2"),
        ("mode", "chmod 600 d/2"),
        ("attribute", "setfattr -n user.a -v other d/2"),
        ("type", "rm d/2; ln -s new d/2"),
    ];
    for (what, change) in changes {
        let bench = Bench::new();
        bench.sh("mkdir s d; echo new > s/1; ln s/1 s/2; cp -p s/1 d/1; cp -p s/2 d/2");
        bench.sh(&format!("{change}; mkdir kept; cp -a d/2 kept/"));
        bench.copy("-T --backup --overwrite=always s d").expect_code(0);
        bench.sh("test d/1 -ef d/2");
        let state = |path: &str| {
            bench.sh(&format!(
                "stat -c '%a %Y %F' {path}; getfattr -h -d --only-values {path}
                test -L {path} || cat {path}"
            ))
        };
        assert_eq!(state("d/2~"), state("kept/2"), "{what}");
    }
}

#[test]
fn numbered_backups_keep_all_versions() {
    let bench = bench();
    bench.copy("-T --backup=numbered s d").expect_code(0);
    bench.sh("echo third > s/older");
    bench.copy("-T --backup=numbered s d").expect_code(0);
    assert_eq!(bench.read("d/older.~1~"), "old-older\n");
    assert_eq!(bench.read("d/older.~2~"), "new-older\n");
    assert_eq!(bench.read("d/older"), "third\n");
}

/// What lies beside a single source is not a source; another source may be.
#[test]
fn a_backup_may_have_the_name_of_what_lies_beside_its_source() {
    let bench = Bench::new();
    bench.sh("mkdir s d; echo new > s/x; echo other > s/y~; echo old > d/y; echo older > d/y~");
    bench.copy("--backup --overwrite=always -T s/x d/y").expect_code(0);
    assert_eq!(bench.sh("cat d/y d/y~"), "new\nold\n");
    bench.sh("echo y > s/y; echo y > d/y; echo older > d/y~");
    let run = bench.copy("--backup --overwrite=always s/y s/y~ d").expect_code(3);
    assert!(run.text().contains("name_clash"), "{}", run.tell());
}

#[test]
fn a_suffix_alone_means_backups() {
    let bench = bench();
    bench.copy("--suffix=.old -T s d").expect_code(0);
    assert_eq!(bench.read("d/older.old"), "old-older\n");
    bench.copy("--suffix=.old --no-clobber -T s d").expect_code(2);
}

/// Options from a file mean what they mean on the command line.
#[test]
fn a_suffix_from_a_file_means_backups_as_well() {
    let bench = bench();
    bench.write("suffix.toml", "[copy]\nsuffix = \".old\"\n");
    bench.write("backup.toml", "[copy]\nbackup = \"numbered\"\n");
    for file in ["suffix.toml", "backup.toml"] {
        for option in ["--inplace", "--no-clobber"] {
            let run = bench.copy(&format!("--config {file} {option} -T s d")).expect_code(2);
            let said = run.stderr.contains("make backups") && run.stderr.contains("--no-config");
            assert!(said, "{}", run.tell());
            assert_eq!(bench.read("d/older"), "old-older\n", "{file} {option}");
        }
    }
    bench.copy("--config suffix.toml -T s d").expect_code(0);
    assert_eq!(bench.read("d/older.old"), "old-older\n");
}

#[test]
fn the_suffix_of_backups_can_be_chosen() {
    let bench = bench();
    bench.copy("-T --backup --suffix .orig s d").expect_code(0);
    assert_eq!(bench.read("d/newer.orig"), "old-newer\n");
}

#[test]
fn a_replaced_file_is_a_new_inode_and_in_place_is_the_old_one() {
    let bench = bench();
    let (older, newer) = (bench.inode("d/older"), bench.inode("d/newer"));
    let open = fs::File::open(bench.at("d/older")).unwrap();
    bench.copy("-T s d").expect_code(0);
    assert_ne!(bench.inode("d/older"), older);
    assert_eq!(std::io::read_to_string(open).unwrap(), "old-older\n", "readers keep their version");
    bench.sh("echo longer-than-before > s/newer");
    let newer_now = bench.inode("d/newer");
    assert_ne!(newer_now, newer);
    bench.copy("-T --inplace s d").expect_code(0);
    assert_eq!(bench.inode("d/newer"), newer_now);
    assert_eq!(bench.read("d/newer"), "longer-than-before\n");
    bench.sh("echo x > s/newer");
    bench.copy("-T --inplace s d").expect_code(0);
    assert_eq!(bench.read("d/newer"), "x\n");
    bench.sh("rm d/extra");
    bench.copy("-T --overwrite=always s d").expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn in_place_never_writes_through_another_name() {
    let bench = bench();
    bench.sh("ln d/older elsewhere");
    bench.copy("-T --inplace s d").expect_code(0);
    assert_eq!(bench.read("elsewhere"), "old-older\n");
    assert_eq!(bench.read("d/older"), "new-older\n");
}

#[test]
fn a_destination_file_with_other_names_is_replaced_not_changed() {
    let bench = bench();
    bench.sh("ln d/older elsewhere; chmod 640 elsewhere");
    let before =
        snapshot(&bench.at("elsewhere").canonicalize().unwrap().parent().unwrap().join("s"));
    bench.copy("-T s d").expect_code(0);
    assert_eq!(bench.read("elsewhere"), "old-older\n");
    assert_eq!(bench.mode("elsewhere"), 0o640);
    assert_eq!(before.changes(&snapshot(&bench.at("s"))), Vec::<String>::new());
}

#[test]
fn symlinks_and_other_types_at_the_destination_are_replaced_never_followed() {
    let bench = bench();
    bench.sh("echo precious > outside; rm d/older d/equal d/newer; ln -s ../outside d/older
        mkfifo d/equal; ln -s nowhere d/newer");
    bench.copy("-T s d").expect_code(0);
    assert_eq!(bench.read("outside"), "precious\n");
    assert_eq!(
        content(&bench),
        "new-older\nnew-equal\nnew-newer\nnew-resized\nnew-absent\nextra\n"
    );
    assert_eq!(bench.sh("find d -type l -o -type p"), "");
}

#[test]
fn a_directory_is_never_replaced_by_a_file_or_the_other_way_round() {
    let bench = bench();
    bench.sh("mkdir s/dir; echo in > s/dir/in; echo file > d/dir; rm d/older; mkdir d/older; touch d/older/x");
    let run = bench.copy("-T s d").expect_code(3);
    let said = run.said().unwrap();
    let mut named: Vec<_> = said
        .errors
        .iter()
        .map(|line| (line.path().file_name().unwrap().to_owned(), line.text("class").to_owned()))
        .collect();
    named.sort();
    let conflict = |name: &str| (name.into(), "type_conflict".to_owned());
    assert_eq!(named, [conflict("dir"), conflict("older")], "{}", run.tell());
    assert_eq!(bench.read("d/dir"), "file\n");
    assert!(bench.exists("d/older/x"));
    assert_eq!(bench.read("d/absent"), "new-absent\n", "the rest is copied");
}

#[test]
fn a_symlinked_directory_at_the_destination_is_not_entered() {
    let bench = Bench::new();
    bench.sh("mkdir -p s/sub d outside; echo 1 > s/sub/1; ln -s ../outside d/sub");
    let run = bench.copy("-T s d").expect_code(3);
    assert_eq!(bench.sh("ls -A outside"), "");
    let said = run.said().unwrap();
    assert_eq!(said.errors.len(), 1, "{}", run.tell());
    assert!(said.errors[0].path().ends_with("d/sub"), "{}", run.tell());
}

#[test]
fn chunked_files_are_whole_and_replaced_as_a_whole() {
    let bench = Bench::new();
    let data = pattern(5_000_001);
    bench.write("s/large", &data);
    bench.write("d/large", "old");
    bench.sh("touch -d '2020-06-01' s/large; ln s/large s/twin");
    let said = bench.copy("-T --split-size 1M -j 4 s d").expect_code(0).said().unwrap();
    assert_eq!(said.summary.unwrap().number("chunks_copied"), Some(5));
    bench.assert_same("s", "d");
    assert!(fs::read(bench.at("d/large")).unwrap() == data);
    let before = snapshot(&bench.at("d"));
    bench.copy("-T --split-size 1M -j 4 s d").expect_code(0);
    assert_eq!(before.changes(&snapshot(&bench.at("d"))), Vec::<String>::new());
}

#[test]
fn an_equal_entry_with_another_mode_or_owner_is_left_alone_and_counted() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/mode; echo 2 > s/owner; echo 3 > s/calm; chmod 4750 s/mode");
    bench.copy("s d").expect_code(0);
    bench.sh("chmod 600 d/mode");
    let root = is_root();
    if root {
        bench.sh("chown 7:8 d/owner");
    }
    let before = snapshot(&bench.at("d"));
    let run = bench.copy("-T s d").expect_code(0);
    assert_eq!(count(&run, "entries_unlike"), if root { 2 } else { 1 });
    assert!(before.changes(&snapshot(&bench.at("d"))).is_empty());
    let narrow = bench.copy("-T --preserve=times s d").expect_code(0);
    assert_eq!(count(&narrow, "entries_unlike"), 0, "what is not kept may differ");
    let again = bench.copy("-T --overwrite=always s d").expect_code(0);
    assert_eq!(count(&again, "entries_unlike"), 0);
    bench.assert_same("s", "d");
}

/// As cp does not overwrite what it has just made. Which of the two is left must not depend on the moment.
#[test]
fn two_sources_do_not_fight_for_a_name() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/x/deep a/only b/x/deep d; echo from-a > a/f; echo longer-from-b > f;
         echo from-a > a/x/deep/g; echo longer-from-b > b/x/deep/g; ln a/f a/linked; echo a > a/x/a;
         ln -s from-a a/x/link; echo b > b/x/link; echo 1 > linked");
    // One mover works in order, so that each is the first once to make the directories.
    let orders = ["a/. f linked b/x", "f b/x linked a/."];
    let one_mover = orders.map(|sources| format!("-j1 {sources} d"));
    for line in one_mover.into_iter().chain(orders.map(|sources| format!("{sources} d"))) {
        bench.sh("rm -rf d && mkdir d");
        bench.copy(&format!("-n {line}")).expect_code(3);
        let run = bench.copy(&line).expect_code(3);
        let text = run.text();
        let told: Vec<&str> =
            text.lines().filter(|l| l.contains("another source maps to")).collect();
        for place in ["d/f", "d/linked", "d/x/deep/g", "d/x/link"] {
            let path = format!(r#""path":"{place}""#);
            assert!(told.iter().any(|line| line.contains(&path)), "{path}: {text}");
        }
        assert_eq!(told.len(), 4, "{text}");
        bench
            .sh("cmp f d/f; cmp linked d/linked; cmp b/x/deep/g d/x/deep/g; cmp b/x/link d/x/link");
        assert!(bench.exists("d/x/a") && bench.exists("d/only"), "the rest arrives");
    }
    bench.copy("--exclude=/deep/g --exclude=/f --exclude=link* a/. b/x d").expect_code(0);
}
