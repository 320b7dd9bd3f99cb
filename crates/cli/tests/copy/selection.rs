//! Which entries take part: rules, sizes, ages, lists, ranges, links and mounts.

use dmover_testkit::compare::{CompareOptions, compare};
use dmover_testkit::skip;

use super::bench::{is_root, pattern};
use super::{Bench, snapshot};

/// All paths of regular files and directories below `path`, sorted, in one line.
fn listing(bench: &Bench, path: &str) -> String {
    bench.sh(&format!("cd {path} && find . -mindepth 1 -printf '%P\\n' | sort | tr '\\n' ' '"))
}

#[test]
fn the_first_rule_that_matches_decides() {
    let bench = Bench::new();
    bench.sh("mkdir -p t/sub t/cache; touch t/a.tmp t/a.dat t/keep.tmp t/sub/b.tmp t/cache/x");
    bench.copy("--include keep.tmp --exclude *.tmp --exclude cache/ t one").expect_code(0);
    assert_eq!(listing(&bench, "one"), "a.dat keep.tmp sub ");
    bench.copy("--exclude *.tmp --include keep.tmp t two").expect_code(0);
    assert_eq!(listing(&bench, "two"), "a.dat cache cache/x sub ");
}

#[test]
fn a_leading_slash_anchors_and_excluded_entries_are_told() {
    let bench = Bench::new();
    bench.sh("mkdir -p t/sub; touch t/x t/sub/x t/y");
    let said = bench.copy("--exclude /x t new").expect_code(0).said().unwrap();
    assert_eq!(listing(&bench, "new"), "sub sub/x y ");
    let excluded: Vec<_> = said.items.iter().filter(|i| i.text("action") == "excluded").collect();
    assert_eq!(excluded.len(), 1);
    assert!(excluded[0].path().ends_with("t/x"));
    assert_eq!(said.summary.unwrap().number("entries_excluded"), Some(1));
}

#[test]
fn rules_are_read_from_files() {
    let bench = Bench::new();
    bench.sh("mkdir t; touch t/a t/b t/c; printf '# all but c\\na\\n\\nb\\n' > rules");
    bench.copy("--exclude-from rules t new").expect_code(0);
    assert_eq!(listing(&bench, "new"), "c ");
}

#[test]
fn sizes_choose_files_only() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p t/empty; truncate -s 10 t/10; truncate -s 1K t/1024; truncate -s 5000 t/5000",
    );
    bench.copy("--min-size 11 --max-size 1K t new").expect_code(0);
    assert_eq!(listing(&bench, "new"), "1024 empty ");
}

#[test]
fn ages_choose_files() {
    let bench = Bench::new();
    bench.sh("mkdir t; touch -d '2020-01-01 00:00:00 UTC' t/old; touch -d '2024-01-01 00:00:00 UTC' t/mid; touch t/now");
    bench.copy("--newer 2023-01-01 --older 1d t new").expect_code(0);
    assert_eq!(listing(&bench, "new"), "mid ");
    bench.copy("--older 2024-01-01T00:00:00Z t edge").expect_code(0);
    assert_eq!(listing(&bench, "edge"), "old ", "the bound itself is not older");
}

#[test]
fn a_list_names_what_is_copied() {
    let bench = Bench::new();
    bench.sh("mkdir -p t/a/b t/c; echo 1 > t/a/b/1; echo 2 > t/a/2; echo 3 > t/c/3; echo 4 > t/4
        chmod 750 t/a; touch -d '2001-02-03 04:05:06.7' t/a; printf 'a/b/1\\n./c//\\n4\\n' > list");
    bench.copy("--files-from list t new").expect_code(0);
    assert_eq!(listing(&bench, "new"), "4 a a/b a/b/1 c c/3 ");
    assert_eq!(bench.mode("new/a"), 0o750, "directories on the way get their metadata");
    let differences =
        compare(&bench.at("t"), &bench.at("new"), &CompareOptions::default()).unwrap();
    let missing: Vec<_> = differences.iter().map(|d| (d.kind.as_str(), d.path.clone())).collect();
    assert_eq!(missing, [("missing", "a/2".into())], "{differences:?}");
}

#[test]
fn a_list_from_standard_input_may_end_names_with_nul() {
    let bench = Bench::new();
    bench.sh("mkdir t; touch t/plain; touch t/$'new\\nline'");
    let run = bench.dmover_with("copy --json --files-from - -0 t new", "new\nline\0");
    run.expect_code(0);
    assert_eq!(bench.sh("ls new | wc -l"), "2\n");
    assert!(bench.exists("new/new\nline") && !bench.exists("new/plain"));
}

#[test]
fn a_listed_name_that_is_missing_is_told_and_the_rest_is_copied() {
    let bench = Bench::new();
    bench.sh("mkdir t; touch t/a; printf 'a\\nnowhere\\nno/where\\n' > list");
    let run = bench.copy("--files-from list t new").expect_code(3);
    let said = run.said().unwrap();
    assert_eq!(said.errors.len(), 2);
    for (error, path) in said.errors.iter().zip(["t/nowhere", "t/no/where"]) {
        assert_eq!(error.text("class"), "other", "it has never been there");
        assert!(error.path().ends_with(path));
    }
    assert!(bench.exists("new/a"));
}

#[test]
fn a_list_may_not_leave_the_source() {
    for line in ["../outside", "a/../../outside", "/etc/hostname"] {
        let bench = Bench::new();
        bench.sh("mkdir -p t/a; echo secret > outside");
        bench.write("list", line);
        let run = bench.copy("--files-from list t new").expect_code(2);
        assert!(run.stderr.contains(line), "{}", run.stderr);
        assert!(!bench.exists("new"), "{line}: something was copied");
    }
}

#[test]
fn a_bad_line_is_named_with_its_list() {
    let bench = Bench::new();
    bench.sh("mkdir t; touch t/a; printf 'a\n./a\n../x\n' > 'some list'");
    let words = ["copy", "--files-from", "some list", "t", "new"];
    let run = bench.dmover.run(words).unwrap().expect_code(2);
    assert!(run.stderr.contains("'some list', line 3: "), "{}", run.tell());
    let run = bench.dmover_with("copy --files-from - t new", "../x\n").expect_code(2);
    assert!(run.stderr.contains("standard input, line 1: "), "{}", run.tell());
    let run = bench.dmover_with("copy --read-stdin", "t/a new\nt/a\n").expect_code(2);
    assert!(run.stderr.contains("standard input, line 2: "), "{}", run.tell());
    assert!(!bench.exists("new"));
}

#[test]
fn a_list_does_not_lead_through_symlinks() {
    let bench = Bench::new();
    bench.sh(
        "mkdir t outside; echo secret > outside/key; ln -s ../outside t/way; echo way/key > list",
    );
    let run = bench.copy("--files-from list t new");
    assert_ne!(run.code(), Some(0), "{}", run.tell());
    assert!(!bench.exists("new/way/key"), "{}", run.tell());
}

#[test]
fn batch_lines_copy_pairs_with_odd_names() {
    let bench = Bench::new();
    bench.write("a b", "blank");
    bench.write("c\nd", "newline");
    bench.write("tree/x", "x");
    bench.sh("mkdir out");
    let lines = "a%20b out/a%20b\nc%0Ad out/%ff\ntree out/tree\n";
    bench.dmover_with("copy --json --read-stdin", lines).expect_code(0);
    assert_eq!(bench.read("out/a b"), "blank");
    assert_eq!(bench.sh("cat out/$'\\xff'"), "newline");
    bench.assert_same("tree", "out/tree");
}

#[test]
fn batch_lines_copy_ranges() {
    let bench = Bench::new();
    let data = pattern(100_000);
    bench.write("whole", &data);
    bench.write("part", vec![b'.'; 100_000]);
    let run = bench.dmover_with("copy --json --read-stdin", "whole part 10-20,50000-60001\n");
    run.expect_code(0);
    let mut wanted = vec![b'.'; 100_000];
    wanted[10..20].copy_from_slice(&data[10..20]);
    wanted[50_000..60_001].copy_from_slice(&data[50_000..60_001]);
    assert!(std::fs::read(bench.at("part")).unwrap() == wanted);
}

#[test]
fn a_bad_batch_line_stops_everything_before_it_begins() {
    let bench = Bench::new();
    bench.write("a", "a");
    for lines in ["a b\nonly-one\n", "a b 9-1\n", "a b x-y\n"] {
        let run = bench.dmover_with("copy --json --read-stdin", lines).expect_code(2);
        assert!(run.stderr.contains("line"), "{}", run.stderr);
        assert!(!bench.exists("b"));
    }
}

#[test]
fn a_pair_that_fails_is_named_and_the_others_are_copied() {
    let bench = Bench::new();
    bench.write("a", "a");
    let run = bench.dmover_with("copy --json --read-stdin", "nowhere x\na b\n");
    assert!(matches!(run.code(), Some(3 | 4)), "{}", run.tell());
    assert!(run.said().unwrap().errors[0].path().ends_with("nowhere"), "{}", run.tell());
    assert_eq!(bench.read("b"), "a");
}

#[test]
fn part_of_a_file_goes_into_an_existing_one() {
    let bench = Bench::new();
    let data = pattern(300_000);
    bench.write("in", &data);
    bench.write("out", vec![b'.'; 200_000]);
    let inode = bench.inode("out");
    bench.copy("--offset 100000 --length 1000 --dst-offset 50 in out").expect_code(0);
    let mut wanted = vec![b'.'; 200_000];
    wanted[50..1050].copy_from_slice(&data[100_000..101_000]);
    assert!(std::fs::read(bench.at("out")).unwrap() == wanted);
    assert_eq!(bench.inode("out"), inode, "it was written in place");

    bench.copy("--offset 199000 in out").expect_code(0);
    let got = std::fs::read(bench.at("out")).unwrap();
    assert_eq!(got.len(), 300_000);
    assert!(got[199_000..] == data[199_000..] && got[1050..199_000] == wanted[1050..199_000]);
}

#[test]
fn a_range_into_the_same_file_is_possible_and_a_directory_has_none() {
    let bench = Bench::new();
    bench.write("in", "0123456789");
    bench.copy("--offset 0 --length 5 --dst-offset 5 in new").expect_code(0);
    assert_eq!(std::fs::read(bench.at("new")).unwrap(), b"\0\0\0\0\x0001234");
    bench.sh("mkdir tree");
    let run = bench.copy("--offset 1 tree new2").expect_code(2);
    assert!(run.stderr.contains("tree"), "{}", run.stderr);
    assert!(!bench.exists("new2"));
}

#[test]
fn dereference_copies_what_links_point_to_and_ends_in_a_loop() {
    let bench = Bench::new();
    bench.sh("mkdir -p t/d; echo far > far; ln -s ../far t/file; ln -s ../../far t/d/deep; ln -s . t/d/loop
        mkdir else; echo e > else/e; ln -s ../else t/dir; ln -s nowhere t/dangling");
    let run = bench.copy("-L t new");
    assert_eq!(bench.read("new/file"), "far\n");
    assert_eq!(bench.read("new/d/deep"), "far\n");
    assert_eq!(bench.read("new/dir/e"), "e\n");
    assert_eq!(bench.sh("find new -type l"), "", "{}", run.tell());
    assert_eq!(run.code(), Some(3), "{}", run.tell());
    let said = run.said().unwrap();
    let about = |end: &str| said.errors.iter().any(|line| line.path().ends_with(end));
    assert!(about("d/loop") && about("dangling"), "{}", run.tell());
}

#[test]
fn one_file_system_stops_at_mounts() {
    if !is_root() {
        skip!("needs root to mount");
    }
    let bench = Bench::new();
    bench.sh(
        "mkdir -p t/mnt t/plain; echo p > t/plain/p; mount -t tmpfs none t/mnt; echo m > t/mnt/m",
    );
    let _undo = bench.undo("umount t/mnt");
    bench.copy("-x t with").expect_code(0);
    assert_eq!(listing(&bench, "with"), "mnt plain plain/p ");
    bench.copy("t without").expect_code(0);
    assert_eq!(listing(&bench, "without"), "mnt mnt/m plain plain/p ");
}

#[test]
fn a_dry_run_says_everything_and_writes_nothing() {
    let bench = Bench::new();
    bench.sh("mkdir -p t/sub old; echo 1 > t/1; echo 2 > t/sub/2; ln t/1 t/sub/1; mkfifo t/p; ln -s 1 t/l
        mkdir -p there/t; echo old > there/t/1");
    let before = snapshot(bench.root());
    let absent = bench.copy("-n t new").expect_code(0).said().unwrap();
    let present = bench.copy("-n t there").expect_code(0).said().unwrap();
    bench.dmover("copy -n -i t new").expect_code(0);
    assert_eq!(before.changes(&snapshot(bench.root())), Vec::<String>::new());
    assert_eq!(absent.items.len(), 7, "{:?}", absent.items);
    let count = |said: &dmover_testkit::lanes::lines::ReportItem, action: &str| {
        said.items.iter().filter(|item| item.text("action") == action).count()
    };
    assert_eq!((count(&absent, "created"), count(&absent, "linked")), (6, 1), "{:?}", absent.items);
    assert_eq!(count(&present, "replaced"), 1, "{:?}", present.items);
    bench.copy("t new").expect_code(0);
    bench.assert_same("t", "new");
}

#[test]
fn a_batch_of_directories_goes_to_the_same_places_again() {
    let bench = Bench::new();
    bench.sh("mkdir -p t/sub; echo 1 > t/sub/f; ln t/sub/f t/g; echo 2 > single; mkdir into");
    for _ in 0..2 {
        bench.dmover_with("copy --json --read-stdin", "t copy\nsingle into\n").expect_code(0);
        bench.assert_same("t", "copy");
        assert_eq!(
            bench.sh("find copy into | sort | tr '\\n' ' '"),
            "copy copy/g copy/sub copy/sub/f into into/single "
        );
    }
}

#[test]
fn followed_links_lead_to_anything() {
    let bench = Bench::new();
    bench.sh("mkdir t; mkfifo pipe; echo 1 > file; ln -s ../pipe t/p; ln -s ../file t/f");
    bench.copy("-L t new").expect_code(0);
    assert_eq!(bench.sh("stat -c %F new/p new/f"), "fifo\nregular file\n");
}
