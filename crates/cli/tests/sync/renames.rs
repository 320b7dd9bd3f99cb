//! What was renamed at the source is renamed at the destination.
use super::Bench;
use dmover_testkit::image::{FileSystem, Image};
use rusqlite::Connection;
use std::fs;
use std::os::unix::fs::symlink;

/// On every file system that keeps times of birth.
fn grounds(test: &str) -> impl Iterator<Item = (FileSystem, Bench, impl Drop)> + use<'_> {
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Tmpfs];
    all.into_iter().filter_map(move |file_system| {
        let image = Image::create_or_skip(test, file_system, 400 << 20)?;
        Some((file_system, Bench::inside(image.path()), image))
    })
}

const TREE: &str = "mkdir -p a/d/e a/f; head -c 300000 /dev/urandom > a/d/e/big; seq 100 > a/d/one; seq 9 > a/f/two;
    setfattr -n user.x -v 1 a/d/e; ln -s one a/d/link; mkfifo a/f/pipe; seq 5 > a/f/linked; ln a/f/linked a/d/linked";

#[test]
fn a_renamed_directory_is_renamed_and_nothing_in_it_is_sent() {
    let test = "a_renamed_directory_is_renamed_and_nothing_in_it_is_sent";
    for (file_system, bench, _image) in grounds(test) {
        bench.sh(TREE);
        bench.sync("a b", 0);
        let (directory, file) = (bench.inode("b/d"), bench.inode("b/d/e/big"));
        bench.sh("mkdir -p a/new/deep; mv a/d a/new/deep/d2");
        let pass = bench.sync("a b", 0);
        assert_eq!(pass.number("bytes_copied"), 0, "{file_system}");
        assert_eq!(
            pass.done(),
            ["created a/new", "created a/new/deep", "renamed b/d"]
                .into_iter()
                .filter(|line| pass.done().contains(&(*line).to_owned()))
                .collect::<Vec<_>>()
        );
        assert_eq!(pass.number("entries_renamed"), 1, "{file_system}");
        assert_eq!(bench.inode("b/new/deep/d2"), directory, "{file_system}");
        assert_eq!(bench.inode("b/new/deep/d2/e/big"), file, "{file_system}");
        assert_eq!(bench.rsync("a", "b"), "", "{file_system}");
        bench.assert_same("a", "b");
        let quiet = bench.sync("--delete a b", 0);
        assert_eq!(quiet.done(), [""; 0], "{file_system}");
    }
}

/// A job with a rule never sees everything, so nothing but a look at the very entry ends what is doubtful about it.
#[test]
fn what_was_doubtful_is_so_until_it_was_looked_into() {
    let test = "what_was_doubtful_is_so_until_it_was_looked_into";
    for (file_system, bench, _image) in grounds(test) {
        bench.sh(TREE);
        let doubts = |file: &str| {
            let file = bench.journal().with_file_name(file);
            let count = |known: Connection| {
                known.query_row("SELECT count(*) FROM doubt", [], |row| row.get::<_, i64>(0))
            };
            Connection::open(file).and_then(count).unwrap()
        };
        // Whoever has a file open for writing may write to it through a mapping.
        let writer = fs::File::options().append(true).open(bench.at("a/d/one")).unwrap();
        bench.sync("--exclude=no a b", 0);
        drop(writer);
        assert_eq!(doubts("journal.sqlite"), 1, "{file_system}");
        for round in 0..3 {
            bench.sh(&format!("mv a/f a/f{round}; mv a/f{round}/two a/d/two{round}"));
            let pass = bench.sync("--exclude=no a b", 0);
            assert_eq!(pass.number("entries_renamed"), 2, "{file_system}");
            assert_eq!(bench.rsync("a", "b"), "", "{file_system}");
            bench.sh(&format!("mv a/d/two{round} a/f{round}/two; mv a/f{round} a/f"));
            bench.sync("--exclude=no a b", 0);
            assert_eq!(doubts("catalog.sqlite"), 0, "{file_system}");
            assert_eq!(doubts("journal.sqlite"), 0, "{file_system}");
        }
        assert_eq!(bench.rsync("a", "b"), "", "{file_system}");
    }
}

#[test]
fn files_that_change_places_are_told_by_their_inodes_alone() {
    let test = "files_that_change_places_are_told_by_their_inodes_alone";
    for (file_system, bench, _image) in grounds(test) {
        // Same size, same time: a quick check sees no difference.
        bench.sh("mkdir -p a/x a/y a/z; for f in x/1 y/1 z/1 x/2 x/3 x/4; do echo $f > a/$f; done; touch -d @1000000000 a/*/*");
        bench.sync("a b", 0);
        let before = bench.sh("cd b; stat -c %i x/1 y/1 z/1 x/2 x/3 x/4");
        // A cycle of three directories, a cycle of two files and a chain onto a name that goes.
        bench.sh("cd a; mv x t; mv y x; mv z y; mv t z; mv z/1 t; mv z/2 z/1; mv t z/2; mv z/4 t; mv z/3 z/4; rm t");
        let pass = bench.sync("--delete a b", 0);
        assert_eq!(pass.number("bytes_copied"), 0, "{file_system}");
        assert_eq!(bench.sh("diff -r a b"), "", "{file_system}");
        assert_eq!(bench.rsync("a", "b"), "", "{file_system}");
        let after = bench.sh("cd b; stat -c %i z/2 x/1 y/1 z/1 z/4");
        let before: Vec<&str> = before.lines().take(5).collect();
        assert_eq!(after.lines().collect::<Vec<_>>(), before, "{file_system}");
    }
}

#[test]
fn names_that_go_with_their_directory_are_found_elsewhere() {
    let bench = Bench::new();
    bench.sh(TREE);
    bench.sync("a b", 0);
    let file = bench.inode("b/d/e/big");
    bench.sh("mkdir a/kept; mv a/d/e/big a/kept/big; rm -r a/d");
    let pass = bench.sync("--delete a b", 0);
    assert_eq!(pass.number("bytes_copied"), 0);
    assert_eq!(bench.inode("b/kept/big"), file);
    assert_eq!(bench.rsync("a", "b"), "");
}

#[test]
fn a_directory_that_takes_the_place_of_another_leaves_that_aside() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/old a/new; echo 1 > a/old/1; echo 2 > a/new/2");
    bench.sync("a b", 0);
    let new = bench.inode("b/new");
    bench.sh("rm -r a/old; mv a/new a/old");
    // Nothing is deleted: what stood there has changed places with what came.
    let pass = bench.sync("a b", 0);
    assert_eq!((pass.number("bytes_copied"), bench.inode("b/old")), (0, new));
    assert_eq!(bench.sh("ls b/old b/new"), "b/new:\n1\n\nb/old:\n2\n");
    bench.sync("--delete a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
}

/// The destination was changed by somebody: then the name there is not what the catalog knows.
#[test]
fn only_the_very_copy_is_renamed() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/d; echo 1 > a/one; echo 2 > a/two; echo 3 > a/d/three");
    bench.sync("a b", 0);
    bench.sh("rm b/one; echo 9 > b/one; touch -r a/one b/one; mv b/d b/other; mkdir b/d; echo 8 > b/d/theirs");
    bench.sh("mv a/one a/uno; mv a/d a/e");
    let pass = bench.sync("a b", 0);
    assert_eq!(pass.number("entries_renamed"), 0);
    assert_eq!(bench.sh("cat b/uno b/e/three b/one b/d/theirs b/other/three"), "1\n3\n9\n8\n3\n");
}

#[test]
fn a_new_object_with_an_old_number_is_no_rename() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo old > a/old; touch -d @1000000000 a/old");
    bench.sync("a b", 0);
    // ext4 gives the number to the next file that is made.
    bench.sh("rm a/old; echo new > a/new; touch -d @1000000000 a/new");
    let pass = bench.sync("a b", 0);
    assert_eq!(pass.number("entries_renamed"), 0);
    assert_eq!(bench.sh("cat b/new b/old"), "new\nold\n");
}

#[test]
fn renames_are_not_followed_where_they_are_not_wanted() {
    let bench = Bench::new();
    bench.sh(TREE);
    bench.sync("a b", 0);
    bench.sh("mv a/d a/d2");
    let pass = bench.sync("--no-renames a b", 0);
    assert_eq!(pass.number("entries_renamed"), 0);
    assert!(bench.exists("b/d/one") && bench.exists("b/d2/one"));
    // The pass without a catalog has left it behind; the next one looks at everything.
    bench.sh("mv a/d2 a/d3");
    bench.sync("--delete a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
    bench.sh("mv a/d3 a/d4");
    let pass = bench.sync("--delete a b", 0);
    assert_eq!((pass.number("entries_renamed"), pass.number("bytes_copied")), (1, 0));
}

/// A rule may keep the old name, or the new one, out of the job.
#[test]
fn what_is_left_out_is_not_renamed() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo 1 > a/one; echo 2 > a/two");
    bench.sync("--exclude *.tmp a b", 0);
    bench.sh("mv a/one a/one.tmp; mv a/two a/zwei");
    let pass = bench.sync("--exclude *.tmp --delete a b", 0);
    assert_eq!(pass.done(), ["deleted b/one", "excluded a/one.tmp", "renamed b/two"]);
    assert_eq!(bench.sh("ls b"), "zwei\n");
}

/// A directory of the destination becomes a link that leads away: nothing is renamed through it.
#[test]
fn renames_lead_nowhere_else() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/d a/e outside; echo 1 > a/d/one");
    bench.sync("a b", 0);
    bench.sh("rmdir b/e");
    symlink("../outside", bench.at("b/e")).unwrap();
    bench.sh("mv a/d/one a/e/one");
    bench.sync("--delete a b", 0);
    assert_eq!(fs::read_dir(bench.at("outside")).unwrap().count(), 0);
    assert_eq!(bench.sh("diff -r a b"), "");
}

#[test]
fn a_catalog_of_another_job_or_a_damaged_one_is_refused() {
    let bench = Bench::new();
    bench.sh("mkdir a c; echo 1 > a/one; echo 2 > c/two");
    let state = bench.at("state");
    let state = state.display();
    bench.sync(&format!("--state-dir {state} a b"), 0);
    bench.sync(&format!("--state-dir {state} c d"), 0);
    let jobs = bench.sh("ls -d state/jobs/*");
    let jobs: Vec<&str> = jobs.lines().collect();
    bench.sh(&format!("cp {}/catalog.sqlite* {}", jobs[0], jobs[1]));
    for line in ["a b", "c d"] {
        let run = bench.dmover(&format!("sync --state-dir {state} {line}"));
        let refused = run.code() == Some(2);
        let told = run.tell();
        assert!(
            !refused || (told.contains("belongs to another job") && told.contains("remove it")),
            "{told}"
        );
    }
    let refused = ["a b", "c d"]
        .iter()
        .filter(|line| bench.dmover(&format!("sync --state-dir {state} {line}")).code() == Some(2));
    assert_eq!(refused.count(), 1);
    bench.sh(&format!(
        "rm {}/catalog.sqlite*; head -c 9999 /dev/urandom > {}/catalog.sqlite",
        jobs[1], jobs[1]
    ));
    let told: Vec<String> = ["a b", "c d"]
        .iter()
        .map(|line| bench.dmover(&format!("sync --state-dir {state} {line}")))
        .filter(|run| run.code() == Some(2))
        .map(|run| run.tell())
        .collect();
    assert!(told.len() == 1 && told[0].contains("is damaged"), "{told:?}");
    bench.sh(&format!("rm {}/catalog.sqlite*", jobs[1]));
    bench.sync(&format!("--state-dir {state} a b"), 0);
    bench.sync(&format!("--state-dir {state} c d"), 0);
    let catalog = Connection::open(bench.at(jobs[0]).join("catalog.sqlite")).unwrap();
    catalog.pragma_update(None, "user_version", 9).unwrap();
    let told =
        ["a b", "c d"].map(|line| bench.dmover(&format!("sync --state-dir {state} {line}")).tell());
    assert!(told.iter().any(|told| told.contains("has version 9")), "{told:?}");
    catalog.pragma_update(None, "user_version", 1).unwrap();
    bench.sync(&format!("--state-dir {state} a b"), 0);
    bench.sync(&format!("--state-dir {state} c d"), 0);
}

/// The copy's change time is that of the rename, and must not hide what was changed at the source before it.
#[test]
fn what_was_changed_and_renamed_is_changed_and_renamed() {
    let test = "what_was_changed_and_renamed_is_changed_and_renamed";
    for (file_system, bench, _image) in grounds(test) {
        bench.sh("mkdir -p a/d/e; echo 1 > a/f; echo 2 > a/d/e/g; echo 5 > a/same; touch -d @1000000000 a/same");
        bench.sync("a b", 0);
        bench.sh("setfattr -n user.x -v 2 a/f; mv a/f a/h; setfattr -n user.y -v 3 a/d; mv a/d a/d2; chmod 600 a/d2/e/g");
        bench.sh("echo 6 > a/same; touch -d @1000000000 a/same; mv a/same a/other");
        let pass = bench.sync("--ctime --delete a b", 0);
        assert_eq!(pass.number("entries_renamed"), 3, "{file_system}");
        assert_eq!(bench.rsync("a", "b"), "", "{file_system}");
        assert_eq!(
            bench.sh("getfattr -n user.x --only-values b/h; getfattr -n user.y --only-values b/d2"),
            "23"
        );
    }
}

/// What only the destination has and a rule protects is neither moved, nor overwritten, nor let go.
#[test]
fn what_a_rule_protects_stays_where_it_is() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/d b; echo 1 > a/f; echo 2 > a/d/g");
    bench.sync("--delete --exclude cache/ --exclude /d/keep a b", 0);
    bench.sh("mkdir a/cache b/cache; echo precious > b/cache/f; mv a/f a/cache/f; echo mine > b/d/keep; mv a/d a/e");
    bench.sync("--delete --exclude cache/ --exclude /d/keep a b", 0);
    assert_eq!(bench.sh("cat b/cache/f b/d/keep b/e/g"), "precious\nmine\n2\n");
}

/// A pass without the catalog has brought over what the catalog does not know.
#[test]
fn a_newer_copy_is_not_replaced_by_an_older_one() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo 1 > a/s; touch -d @1000000000 a/s");
    bench.sync("a b", 0);
    bench.sh("echo 2 > a/s; touch -d @1000000000 a/s; mv a/s a/t");
    bench.sync("--no-renames --checksum a b", 0);
    assert_eq!(bench.sh("cat b/s b/t"), "1\n2\n");
    bench.sync("a b", 0);
    assert_eq!(bench.sh("cat b/s b/t"), "1\n2\n");
}

/// Two files with the same size and times that change names look equal under both. Only the catalog shows it, so a pass
/// that could not use it must not end with 0.
#[test]
fn a_call_that_fails_once_hides_no_exchanged_names() {
    let test = "a_call_that_fails_once_hides_no_exchanged_names";
    let ground = grounds(test).find(|(file_system, ..)| *file_system == FileSystem::Tmpfs);
    let Some((_, mut bench, _image)) = ground else { return };
    let differs = |bench: &Bench| bench.sh("diff -rq a b || true");
    // Of each thread, the n-th call. The source is read through a mount of its own, where its path is '/'.
    let calls = [(".", "statx", 1), ("/", "statx", 6), ("/", "getdents64", 3), ("/", "openat", 3)];
    for (place, call, last) in calls {
        for nth in 1..=last {
            bench = bench.with(|dmover| dmover.wrapped([""; 0]));
            bench.sh(
                "rm -rf a b; mkdir a; echo AAAA > a/1; echo BBBB > a/2; touch -d 2020-01-01 a/?",
            );
            bench.sync("-j1 a b", 0);
            bench.sh("mv a/1 a/t; mv a/2 a/1; mv a/t a/2");
            let (log, inject) = (bench.at("log"), format!("inject={call}:error=EIO:when={nth}"));
            let (log, trace) = (log.to_str().unwrap(), format!("trace={call}"));
            let words =
                ["strace", "-f", "-qq", "-o", log, "-P", place, "-e", &trace, "-e", &inject];
            bench = bench.with(|dmover| dmover.wrapped(words));
            let run = bench.dmover("sync -j1 a b");
            let shown = format!("{call} {nth} in {place}: {}", run.tell());
            assert!(run.code() != Some(0) || differs(&bench).is_empty(), "{shown}");
            assert!(nth > 1 || bench.read("log").contains("(INJECTED)"), "{shown}");
            bench = bench.with(|dmover| dmover.wrapped([""; 0]));
            bench.dmover("sync -j1 a b").expect_code(0);
            assert_eq!(differs(&bench), "", "the next pass after {shown}");
        }
    }
}
