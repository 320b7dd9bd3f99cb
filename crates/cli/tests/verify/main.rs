//! `dmover verify` as a black box: what differs is made by a shell, and what is right in the end is judged by rsync,
//! cmp and stat.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

#[path = "../bench/mod.rs"]
mod bench;
mod flushes;
mod holes;
mod manifests;
mod privilege;
mod read_back;
mod repairs;
mod times;

use bench::{Bench, is_root, pattern};
use dmover_testkit::lanes::run::Run;
use dmover_testkit::skip;
use std::collections::BTreeSet;

impl Bench {
    /// Runs `verify`, which has to end with this code, and answers what it found.
    #[track_caller]
    fn verify(&self, line: &str, code: i32) -> Vec<Found> {
        let run = self.dmover(&format!("verify --json {line}")).expect_code(code);
        found(&run)
    }

    /// The same as sorted `path: kinds` lines.
    #[track_caller]
    fn differences(&self, line: &str, code: i32) -> Vec<String> {
        let mut lines: Vec<String> =
            self.verify(line, code).iter().map(|f| format!("{}: {}", f.path, f.kinds)).collect();
        lines.sort();
        lines
    }

    /// What rsync would still do, with content compared.
    fn rsync(&self, source: &str, destination: &str) -> String {
        self.sh(&format!("rsync -nrlptgoDHAXic --delete {source}/ {destination}/"))
    }
}

/// An entry that differs.
#[derive(Debug, Clone, PartialEq)]
struct Found {
    path: String,
    kinds: String,
    ranges: Vec<(u64, u64)>,
    repaired: Option<bool>,
}

fn found(run: &Run) -> Vec<Found> {
    let lines = run.lines().unwrap();
    let lines = lines.iter().filter(|line| line.is("difference"));
    lines
        .map(|line| {
            let value = &line.0;
            let kinds = value["kinds"].as_array().unwrap();
            let ranges = value["ranges"].as_array().unwrap();
            let range =
                |r: &serde_json::Value| (r["start"].as_u64().unwrap(), r["end"].as_u64().unwrap());
            Found {
                path: line.path().display().to_string(),
                kinds: kinds.iter().map(|k| k.as_str().unwrap()).collect::<Vec<_>>().join(","),
                ranges: ranges.iter().map(range).collect(),
                repaired: value["repaired"].as_bool(),
            }
        })
        .collect()
}

/// A tree of many kinds of entries and an exact copy, which was not made by dmover.
fn two_trees(bench: &Bench) {
    bench.write("a/d/one", pattern(3_000_000));
    bench.write("a/d/two", pattern(200_000));
    bench.write("a/d/e/three", pattern(5_000));
    bench.write("a/empty", "");
    bench.sh(r"cd a; ln -s d/one link; mkfifo pipe; ln d/two hard; mkdir none; truncate -s 3M hole
          printf n > $'new\nline'; chmod 750 d/e; touch -d 2001-02-03 d/one; touch -d 2002-03-04 d
          setfattr -n user.a -v 1 d/two; setfattr -n user.d -v 1 d; cd ..; cp -a a b");
}

/// Changes a byte and leaves everything else as it was.
fn damage(bench: &Bench, path: &str, at: u64) {
    bench.sh(&format!(
        r"old=$(stat -c %y {path}); byte=$(od -An -tu1 -j{at} -N1 {path})
          printf $(printf '\\x%02x' $((byte ^ 1))) | dd of={path} bs=1 seek={at} conv=notrunc status=none
          touch -d {quoted} {path}",
        quoted = "\"$old\""
    ));
}

#[test]
fn equal_trees_have_no_difference_at_any_level_or_split() {
    let bench = Bench::new();
    two_trees(&bench);
    let before = (bench::snapshot(&bench.at("a")), bench::snapshot(&bench.at("b")));
    for level in ["exists", "size", "mtime", "digest", "bytes"] {
        for more in ["", "-j1", "--split-size=1M", "--direct-read", "--buffer-size=64K"] {
            assert_eq!(bench.verify(&format!("--level={level} {more} a b"), 0), []);
        }
    }
    // It only looks.
    assert_eq!(before.0, bench::snapshot(&bench.at("a")));
    assert_eq!(before.1, bench::snapshot(&bench.at("b")));
    let run = bench.dmover("verify a b").expect_code(0);
    assert_eq!(run.text(), "");
    assert!(run.stderr.contains("no difference in 13 entries"), "{}", run.tell());
}

/// With -v as with that of a copy: what is done is named as it is done.
#[test]
fn v_names_what_is_compared() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/d; echo 1 > a/f; echo 2 > a/d/g; ln -s f a/l; cp -a a b; echo 3 > b/d/g");
    let named = |run: &Run| {
        let named = run.stderr.lines().filter_map(|line| line.strip_prefix("dmover: compared "));
        let mut named: Vec<String> = named.map(str::to_owned).collect();
        named.sort();
        named
    };
    let run = bench.dmover("verify -v a b").expect_code(1);
    let equal: Vec<&str> = vec!["b", "b/d", "b/f", "b/l"];
    assert!(named(&run).iter().all(|name| equal.contains(&&**name)), "{}", run.tell());
    assert!(["b/f", "b/l"].iter().all(|name| named(&run).contains(&(*name).into())));
    assert!(run.text().starts_with("b/d/g: "), "{}", run.tell());
    assert_eq!(run.text().lines().count(), 1, "names are no data");
    for line in ["verify a b", "verify -qv a b"] {
        assert!(named(&bench.dmover(line).expect_code(1)).is_empty(), "{line}");
    }
    // Scripts that read JSON get differences only.
    let run = bench.dmover("verify --json a b").expect_code(1);
    assert!(run.lines().unwrap().iter().all(|line| !line.is("item")), "{}", run.tell());
}

#[test]
fn every_kind_of_difference_is_named_at_its_level() {
    let bench = Bench::new();
    two_trees(&bench);
    damage(&bench, "b/d/one", 2_500_000);
    bench.sh(
        r"cd b; rm pipe empty; mkdir empty; mkdir -p more/below; touch more/below/x; rmdir none; ln -sfn d/two link
          old=$(stat -c %y d/e/three); printf + >> d/e/three; touch -d 2003-01-01 d/e/three
          chmod 700 d/e; rm hard; cp -a d/two hard; setfattr -n user.d -v 2 d; touch -d 2001-02-03 hole",
    );
    let exists = ["b/empty: type", "b/more/below/x: extra", "b/more/below: extra", "b/more: extra"];
    let exists = [&exists[..], &["b/none: missing", "b/pipe: missing"]].concat();
    assert_eq!(bench.differences("--level=exists a b", 1), exists);
    let of = |level: &str, ours: &[(&str, &str)]| {
        let found = bench.differences(&format!("--level={level} --no-preserve=owner a b"), 1);
        let kinds = |path: &str| {
            let found = found.iter().find_map(|line| line.strip_prefix(&format!("b/{path}: ")));
            found.unwrap_or_default().to_owned()
        };
        for (path, expected) in ours {
            assert_eq!(kinds(path), *expected, "{level} {path}: {found:?}");
        }
    };
    of("size", &[("link", "target"), ("d/e/three", "size"), ("d/one", ""), ("hole", "")]);
    let mtime = [
        ("d/e/three", "size,mtime"),
        ("d/e", "mode"),
        ("hole", "mtime"),
        ("d/two", "links"),
        ("d", ""),
    ];
    of("mtime", &mtime);
    of(
        "digest",
        &[("d/one", "content"), ("d", "xattr"), ("hole", "mtime"), ("d/e/three", "size,mtime")],
    );
    // One's own choice of attributes.
    of("digest", &[("d/one", "content")]);
    let less = bench.differences("--no-preserve=xattr,times,links,mode a b", 1);
    assert!(!less.iter().any(|line| line.contains("xattr") || line.contains("links")), "{less:?}");
    let ours = bench.differences("--ignore-extra --level=exists a b", 1);
    assert!(!ours.iter().any(|line| line.contains("extra")), "{ours:?}");
}

#[test]
fn content_is_located_to_the_byte_and_however_it_is_split() {
    let bench = Bench::new();
    two_trees(&bench);
    damage(&bench, "b/d/one", 0);
    damage(&bench, "b/d/one", 1_048_576);
    damage(&bench, "b/d/one", 2_999_999);
    let expected = [(0, 1), (1_048_576, 1_048_577), (2_999_999, 3_000_000)];
    for more in
        ["", "--level=bytes", "--split-size=100K", "-j8 --split-size=1M", "--buffer-size=64K"]
    {
        let found = bench.verify(&format!("{more} a b"), 1);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].ranges, expected, "{more}");
    }
    let text = bench.dmover("verify a b").expect_code(1).text();
    assert_eq!(text, "b/d/one: content in bytes 0-0, 1048576-1048576, 2999999-2999999\n");
}

#[test]
fn random_damage_is_found_and_nothing_else() {
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};
    for seed in 1..=6 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let bench = Bench::new();
        // More names than one task takes, so that directories are cut into shards.
        bench.sh("mkdir -p a/many a/deep/er/still; cd a; seq 5000 | (cd many; xargs touch)
            for n in $(seq 60); do head -c $((n * 997)) /dev/urandom > deep/er/f$n; done
            cp deep/er/f* deep/er/still; find . -exec touch -hd 2020-01-01 {} +; cd ..; cp -a a b");
        let mut files: Vec<String> =
            bench.sh("cd b; find . -type f -printf '%P\\n'").lines().map(str::to_owned).collect();
        files.shuffle(&mut rng);
        let mut expected = BTreeSet::new();
        for name in &files[..40] {
            let script = match rng.random_range(0..5) {
                0 => format!("rm b/{name}"),
                1 => format!("chmod 600 b/{name}"),
                2 => format!("printf x >> b/{name}; touch -d 2020-01-01 b/{name}"),
                3 => format!("touch -d 2021-01-01 b/{name}"),
                _ => format!("touch b/{name}.extra"),
            };
            let extra = if script.starts_with("touch b/") { ".extra" } else { "" };
            bench.sh(&script);
            expected.insert(format!("b/{name}{extra}"));
        }
        bench.sh("find b -type d -exec touch -d 2020-01-01 {} +");
        let found: BTreeSet<String> =
            bench.verify("-j4 a b", 1).into_iter().map(|found| found.path).collect();
        assert_eq!(found, expected, "seed {seed}");
    }
}

#[test]
fn rules_choose_what_is_compared_on_both_sides() {
    let bench = Bench::new();
    two_trees(&bench);
    bench.sh("rm b/d/one; touch b/x.tmp a/y.tmp; touch -r a b; mkdir b/skipped; touch b/skipped/x; touch -r a b");
    let found = bench
        .differences("--exclude=*.tmp --exclude=skipped/ --exclude=/d/one --level=size a b", 0);
    assert_eq!(found, Vec::<String>::new());
    let found = bench.differences("--exclude=*.tmp --level=size a b", 1);
    assert_eq!(found, ["b/d/one: missing", "b/skipped/x: extra", "b/skipped: extra"]);
}

#[test]
fn since_leaves_out_what_was_not_changed() {
    let bench = Bench::new();
    two_trees(&bench);
    damage(&bench, "b/d/one", 7);
    let now = bench.sh("date -u +%Y-%m-%dT%H:%M:%S.%NZ");
    // ctime decides, which nobody can set.
    assert_eq!(bench.verify(&format!("--since {} a b", now.trim()), 0), []);
    damage(&bench, "b/d/two", 7);
    let found = bench.differences(&format!("--since {} --no-preserve=links a b", now.trim()), 1);
    assert_eq!(found, ["b/d/two: content", "b/hard: content"]);
}

#[test]
fn a_sample_reads_some_files_and_looks_at_all() {
    let bench = Bench::new();
    bench.sh(
        "mkdir a; for n in $(seq 400); do printf $n > a/$n; done; cp -a a b; rm b/7; chmod 600 b/8",
    );
    bench.sh("for n in $(seq 100 400); do old=$(stat -c %y b/$n); printf xyz > b/$n; touch -d \"$old\" b/$n; done");
    let found = bench.differences("--sample=10% --no-preserve=times a b", 1);
    let content = found.iter().filter(|line| line.ends_with("content")).count();
    assert!((5..90).contains(&content), "{content} of 301");
    assert!(found.contains(&"b/7: missing".to_owned()) && found.contains(&"b/8: mode".to_owned()));
}

#[test]
fn files_and_several_sources_are_compared_as_they_are_copied() {
    let bench = Bench::new();
    two_trees(&bench);
    bench.sh("mkdir into; cp -a a b/d/one into; touch -d 2001-02-03 b/d/one");
    bench.verify("a/d/one b/d/one", 0);
    bench.verify("a/d/one into", 0);
    bench.verify("-t into a b/d/one", 0);
    damage(&bench, "into/a/d/two", 9);
    let found = bench.differences("-t into a b/d/one", 1);
    assert_eq!(found, ["into/a/d/two: content", "into/a/hard: content"]);
    damage(&bench, "into/one", 9);
    assert_eq!(bench.differences("a/d/one into", 1), ["into/one: content"]);
    // A file against a directory, and the other way round.
    assert_eq!(bench.differences("-t into a/d", 1).len(), 5);
    assert_eq!(bench.differences("a b/d/one", 1), ["b/d/one: type"]);
}

#[test]
fn a_link_to_the_destination_is_followed_once() {
    let bench = Bench::new();
    two_trees(&bench);
    bench.sh("ln -s b to");
    bench.verify("a to", 0);
    bench.sh("rm b/pipe");
    assert_eq!(bench.differences("--level=exists a to", 1), ["to/pipe: missing"]);
}

#[test]
fn what_cannot_be_read_is_an_error_and_no_difference() {
    let bench = Bench::new().unprivileged();
    if !is_root() {
        skip!("needs root to run as somebody else");
    }
    bench.sh(
        "mkdir a; printf x > a/f; printf y > a/g; cp -a a b; chmod 000 b/f; chown -R 65534 a b",
    );
    let run = bench.dmover("verify --json --no-preserve=mode a b").expect_code(3);
    assert_eq!(found(&run), []);
    assert_eq!(run.said().unwrap().errors.len(), 1, "{}", run.tell());
}

#[test]
fn bad_arguments_change_nothing() {
    let bench = Bench::new();
    two_trees(&bench);
    bench.write("text", "not a dmover manifest");
    for line in [
        "a",
        "a nowhere",
        "nowhere b",
        "a b c",
        "--level=colour a b",
        "--sample=0 a b",
        "--sample=101 a b",
        "--since=soon a b",
        "--manifest text b",
        "--manifest nowhere b",
        "--from a a b",
        "--repair host: b",
    ] {
        bench.dmover(&format!("verify {line}")).expect_code(2);
    }
    assert_eq!(bench.rsync("a", "b"), "");
}

#[test]
fn links_that_are_not_kept_together_are_found_also_in_files_that_are_split() {
    let bench = Bench::new();
    bench.write("a/f", pattern(3_000_000));
    bench.sh("ln a/f a/g; cp -a a b; rm b/g; cp -a b/f b/g; touch -r a b");
    for more in ["", "--split-size=1M", "--level=mtime", "-j1"] {
        assert_eq!(bench.differences(&format!("{more} a b"), 1), ["b/g: links"], "{more}");
    }
    bench.verify("--no-preserve=links a b", 0);
}
