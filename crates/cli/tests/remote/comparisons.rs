//! `verify` between hosts finds and mends what it does on one host.
use super::bench::{Bench, pattern, snapshot};
use super::ends::{LOCAL, WAYS, assert_lines, ends};
use dmover_testkit::lanes::run::Run;

/// A tree of many kinds of entries and an exact copy, which was not made by dmover.
fn two_trees(bench: &Bench) {
    bench.write("a/d/one", pattern(9_000_000));
    bench.write("a/d/two", pattern(200_000));
    bench.write("a/d/e/three", pattern(5_000));
    bench.write("a/empty", "");
    bench.sh(r"cd a; ln -s d/one link; mkfifo pipe; ln d/two hard; mkdir none; truncate -s 3M hole
          printf n > $'new\nline'; printf l > $'latin\xe9'; chmod 750 d/e; touch -d 2001-02-03 d/one
          touch -d 2002-03-04 d; setfattr -n user.a -v 1 d/two; setfattr -n user.d -v 1 d
          # Then no read moves the access time (relatime), that of cp included.
          find . -type f -exec touch -a -d tomorrow {} +; cd ..; cp -a a b");
}

/// Changes a byte and leaves size and times as they were.
fn damage(bench: &Bench, path: &str, at: u64) {
    bench.sh(&format!(
        r"touch -r {path} times; byte=$(od -An -tu1 -j{at} -N1 {path})
          printf $(printf '\\x%02x' $((byte ^ 1))) | dd of={path} bs=1 seek={at} conv=notrunc status=none
          touch -r times {path}; rm times"
    ));
}

/// What was found: path below the trees, kinds, ranges, whether it was mended; sorted.
fn found(run: &Run, bench: &Bench) -> Vec<String> {
    let root = format!("{}/", bench.root().display());
    let lines = run.lines().unwrap();
    let lines = lines.iter().filter(|line| line.is("difference"));
    let mut found: Vec<String> = lines
        .map(|line| {
            let path = line.path().to_string_lossy().into_owned();
            let path = path.rsplit_once(&root).map_or(path.as_str(), |(_, below)| below);
            let path = path.trim_end_matches('/');
            let value = &line.0;
            format!("{path:?} {} {} {}", value["kinds"], value["ranges"], value["repaired"])
        })
        .collect();
    found.sort();
    found
}

#[test]
fn equal_trees_have_no_difference_at_any_level_and_stay_as_they_are() {
    let ends = ends!();
    let bench = &ends.bench;
    two_trees(bench);
    let before = (snapshot(&bench.at("a")), snapshot(&bench.at("b")));
    for way in WAYS {
        for options in ["", "--level=exists", "--level=size", "--level=bytes", "--split-size=1M"] {
            let run = ends.job(way, &format!("verify --json {options}"), ("a", "b"));
            assert_eq!(found(&run.expect_code(0), bench), Vec::<String>::new(), "{way:?}");
        }
    }
    assert_eq!(before.0.changes(&snapshot(&bench.at("a"))), Vec::<String>::new());
    assert_eq!(before.1.changes(&snapshot(&bench.at("b"))), Vec::<String>::new());
}

#[test]
fn a_flipped_byte_is_found_at_its_place() {
    let ends = ends!();
    let bench = &ends.bench;
    two_trees(bench);
    damage(bench, "b/d/one", 7_654_321);
    let place = bench.sh("cmp a/d/one b/d/one || true");
    assert!(place.contains(" 7654322,"), "{place}");
    for way in WAYS {
        ends.job(way, "verify --level=mtime", ("a", "b")).expect_code(0);
        for level in ["--level=bytes", "--level=digest", ""] {
            let run = ends.job(way, &format!("verify --json {level}"), ("a", "b")).expect_code(1);
            let found = found(&run, bench);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with("\"b/d/one\" [\"content\"]"), "{way:?} {found:?}");
            let lines = run.lines().unwrap();
            let line = lines.iter().find(|line| line.is("difference")).unwrap();
            let range = &line.0["ranges"][0];
            let [start, end] = ["start", "end"].map(|field| range[field].as_u64().unwrap());
            assert!((start..end).contains(&7_654_321), "{way:?} {level} {range}");
            if level == "--level=bytes" {
                assert_eq!((start, end), (7_654_321, 7_654_322), "{way:?}");
            }
        }
    }
}

/// Many kinds of differences. The content of `one` has two, far apart.
fn spoil(bench: &Bench) {
    damage(bench, "b/d/one", 5);
    damage(bench, "b/d/one", 7_500_000);
    bench.sh(
        r"cd b; rm pipe hard; cp -a d/two hard; ln -sfn d/two link; rm -r d/e; chmod 600 empty
          setfattr -x user.a d/two; setfattr -n user.b -v 2 empty; setfattr -n user.d -v 2 d; rmdir none
          truncate -s 1M hole; touch -d 2001-02-03 hole d; printf x >> $'new\nline'; touch extra",
    );
}

#[test]
fn all_kinds_of_differences_are_told_as_locally() {
    let ends = ends!();
    let bench = &ends.bench;
    two_trees(bench);
    spoil(bench);
    // Nothing mends a file where a directory is.
    bench.sh(r"rm b/$'latin\xe9'; mkdir b/$'latin\xe9'");
    for options in ["", "--level=bytes", "--level=exists", "--level=size", "--ignore-extra"] {
        let line = format!("verify --json {options}");
        let local = ends.job(LOCAL, &line, ("a", "b"));
        let wanted = found(&local, bench);
        assert!(wanted.len() > 3, "{wanted:?}");
        for way in WAYS {
            let run = ends.job(way, &line, ("a", "b"));
            assert_eq!(run.code(), local.code(), "{way:?} {options}");
            assert_lines(&found(&run, bench), &wanted, &format!("{way:?} {options}"));
        }
    }
}

#[test]
fn what_differs_is_mended_and_extra_entries_stay() {
    let ends = ends!();
    let bench = &ends.bench;
    for way in WAYS {
        two_trees(bench);
        spoil(bench);
        let run = ends.job(way, "verify --repair --json", ("a", "b")).expect_code(1);
        let told = found(&run, bench);
        let left: Vec<_> = told.iter().filter(|line| !line.ends_with(" true")).collect();
        assert!(left.len() == 1 && left[0].starts_with("\"b/extra\""), "{way:?} {left:?}");
        bench.sh("rm b/extra; touch -r a b");
        // First: the other comparison reads the files, which may move their access times, one tree a second after the other.
        let rsync = dmover_testkit::compare::rsync_check(&bench.at("a"), &bench.at("b")).unwrap();
        assert_eq!(rsync, Vec::<String>::new());
        bench.assert_same("a", "b");
        let run = ends.job(way, "verify", ("a", "b")).expect_code(0);
        if way == WAYS[0] {
            assert!(run.tell().contains("\n  connection  far:"), "{}", run.tell());
        }
        bench.sh("rm -r a b");
    }
}

#[test]
fn a_dest_that_is_missing_is_refused_and_a_file_is_compared_with_its_namesake() {
    let ends = ends!();
    let bench = &ends.bench;
    two_trees(bench);
    for way in WAYS {
        let run = ends.job(way, "verify", ("a", "missing")).expect_code(2);
        let shown = ends.at(way.destination, "missing");
        let words = format!("cannot read '{}': No such file", shown.display());
        assert!(run.stderr.contains(&words), "{}", run.tell());
        ends.job(way, "verify", ("a/d/two", "b/d")).expect_code(0);
        let run = ends.job(way, "verify", ("a/d/two", "b/d/e")).expect_code(1);
        let name = ends.at(way.destination, "b/d/e/two");
        assert_eq!(run.text(), format!("{}: missing\n", name.display()));
    }
}
