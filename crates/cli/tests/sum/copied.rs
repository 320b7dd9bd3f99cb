//! Digests that are made while files are copied, and manifests.
use super::{Bench, has, is_root, lines, pattern, words};
use dmover_testkit::skip;
use std::collections::BTreeMap;

/// Files of many kinds: empty, small, large enough for several chunks, with holes, linked, odd names.
fn tree(bench: &Bench) {
    for (name, length) in
        [("empty", 0), ("small", 10), ("sub/middle", 300_000), ("large", 5_000_001)]
    {
        bench.write(&format!("s/{name}"), pattern(length));
    }
    bench.sh(r"cd s; truncate -s 6M hole; printf x | dd of=hole bs=1 seek=3000000 conv=notrunc status=none
        ln small linked; ln -s nowhere link; mkfifo pipe; mkdir none; printf n > $'new\nline'; chmod 2711 sub/middle
        touch -d '2001-12-31 23:59:59.123456789 UTC' small; touch -d '2026-01-01' sub");
}

/// Lines of `sha256sum` for all regular files of a tree, by name.
fn oracle(bench: &Bench, directory: &str) -> BTreeMap<String, String> {
    let out = bench.sh(&format!("cd {directory}; find . -type f -printf '%P\\0' | xargs -0 sha256sum -z | tr '\\n\\0' '_\\n'"));
    out.lines().map(|line| (line[66..].to_owned(), line[..64].to_owned())).collect()
}

#[test]
fn digests_of_what_passes_are_those_of_what_arrives() {
    let bench = Bench::new();
    tree(&bench);
    let ways = [
        "",
        "-j1",
        "-j4 --split-size=1M",
        "--reflink=never",
        "--sparse=always",
        "--sparse=never",
        "--engine=uring",
        "--direct-write",
        "--buffer-size=64K",
        "--inplace --overwrite=always",
        "--bwlimit=1G",
    ];
    for (number, way) in ways.into_iter().enumerate() {
        for hash in ["sha256", "blake3", "crc32c"] {
            let copy = format!("d{number}{hash}");
            if way.contains("inplace") {
                bench.sh(&format!("cp -r s/. {copy}; printf junk > {copy}/large"));
            }
            let run = bench
                .dmover(&format!("copy -q --print-hash --hash-type {hash} {way} -T s {copy}"))
                .expect_code(0);
            let checked =
                bench.dmover_with(&format!("sum -c -a {hash}"), run.stdout.clone()).expect_code(0);
            // One of the two linked names has been copied.
            assert_eq!(checked.text().lines().count(), 6, "{way}: {}", run.tell());
            if hash == "sha256" {
                let list = run.text();
                bench.write("list", &list);
                bench.sh("sha256sum -c --quiet list");
            }
            if way != "--sparse=never" {
                bench.assert_same("s", &copy);
            }
        }
    }
}

#[test]
fn names_are_those_of_the_side_that_was_asked_for() {
    let bench = Bench::new();
    bench.write("s/f", pattern(100_000));
    bench.sh("mkdir into");
    let run = bench.dmover("copy -q --print-hash --hash-type md5 s into").expect_code(0);
    assert_eq!(run.text(), bench.sh("md5sum into/s/f"));
    let run =
        bench.dmover("copy -q --print-hash --print-src --hash-type md5 -T s other").expect_code(0);
    assert_eq!(run.text(), bench.sh("md5sum s/f"));
    // What is equal is not copied, and has no line.
    let run =
        bench.dmover("copy -q --print-hash --print-src --hash-type md5 -T s other").expect_code(0);
    assert_eq!(run.text(), "");
    let run = bench
        .dmover("copy -q --print-hash --offset 1000 --length 500 --dst-offset 20 s/f part")
        .expect_code(0);
    let digest = bench.sh("tail -c +1001 s/f | head -c 500 | b3sum");
    assert_eq!(run.text().trim(), format!("#dmover#blake3,range=20-520#{}  part", &digest[..64]));
    bench.dmover_with("sum -c --status", run.stdout.clone()).expect_code(0);
}

#[test]
fn a_copy_by_pieces_is_checked_by_pieces() {
    let bench = Bench::new();
    bench.write("f", pattern(7_000_000));
    for hash in ["blake3", "md5"] {
        let line = format!(
            "copy -q --split-size=2M -j3 --print-hash --check-tree --hash-type {hash} --hash-leaf-size=1M f {hash}"
        );
        let run = bench.dmover(&line).expect_code(0);
        assert_eq!(lines(&run).len(), 2);
        bench.dmover_with("sum -c --status", run.stdout.clone()).expect_code(0);
        bench.sh(&format!("printf X | dd of={hash} bs=1 seek=6500000 conv=notrunc status=none"));
        let checked = bench.dmover_with("sum -c", run.stdout.clone()).expect_code(1);
        assert!(checked.text().contains("FAILED,6291456-7000000"), "{}", checked.tell());
    }
}

/// What a manifest says, by path, as JSON.
fn entries(bench: &Bench, manifest: &str) -> BTreeMap<String, serde_json::Value> {
    let out = bench.out(&format!("manifest print --format=json {manifest}"));
    let lines = out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines
        .filter(|line| line["type"] == "entry")
        .map(|line| (line["path"].as_str().unwrap().to_owned(), line))
        .collect()
}

#[test]
fn a_manifest_has_every_entry_as_it_is() {
    let bench = Bench::new();
    tree(&bench);
    bench.out("copy -q --manifest m --hash-type sha256 -j3 --split-size=1M -T s d");
    let check = |manifest: &str| {
        let entries = entries(&bench, manifest);
        let found =
            bench.sh("find d -printf '%P\\t%y\\t%m\\t%U\\t%G\\t%s\\t%T@\\0' | tr '\\n\\0' '_\\n'");
        assert_eq!(found.lines().count(), entries.len());
        let digests = oracle(&bench, "d");
        for line in found.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let entry = entries.iter().find(|(path, _)| path.replace('\n', "_") == fields[0]);
            let (_, entry) = entry.unwrap_or_else(|| panic!("{line}"));
            let kind = match fields[1] {
                "f" => "file",
                "d" => "directory",
                "l" => "symlink",
                "p" => "fifo",
                other => panic!("{other}"),
            };
            assert_eq!(entry["kind"], kind, "{line}");
            if kind != "symlink" {
                assert_eq!(
                    entry["mode"].as_str().unwrap().trim_start_matches('0'),
                    fields[2],
                    "{line}"
                );
            }
            assert_eq!(entry["uid"].to_string(), fields[3]);
            assert_eq!(entry["gid"].to_string(), fields[4]);
            if kind == "file" {
                assert_eq!(entry["bytes"].to_string(), fields[5], "{line}");
                let (seconds, nanoseconds) = (
                    entry["mtime"]["seconds"].as_i64().unwrap(),
                    entry["mtime"]["nanoseconds"].as_i64().unwrap(),
                );
                let time: f64 = fields[6].parse().unwrap();
                assert!((seconds as f64 + nanoseconds as f64 / 1e9 - time).abs() < 1e-6, "{line}");
                match entry["digest"].as_str() {
                    Some(digest) => assert_eq!(digest, digests[fields[0]], "{line}"),
                    None => panic!("{line}"),
                }
            }
        }
        assert_eq!(entries["linked"]["link"], entries["small"]["link"]);
        assert_eq!(entries["link"]["target"]["path"], "nowhere");
    };
    check("m");
    // Everything is there already, and has its digest all the same.
    bench.out("copy -q --manifest again --hash-type sha256 -T s d");
    check("again");
    bench.dmover("manifest diff m again").expect_code(0);
    assert_eq!(bench.sh("stat -c %a m; ls | grep part || true").trim(), "644");
    bench.out("copy -q --manifest m --hash-type sha256 -T s d");
    check("m");
}

/// What the policy keeps is not what the manifest would say.
#[test]
fn what_is_kept_is_not_in_the_manifest() {
    let bench = Bench::new();
    bench.write("s/f", "new");
    bench.write("s/g", "same");
    bench.sh("cp -a s d; echo quite different > d/f");
    bench.out("copy -q --overwrite=never --manifest m -T s d");
    let run = bench.dmover("manifest print m").expect_code(0);
    assert!(!run.text().contains(" f"), "{}", run.tell());
    assert!(words(&run).contains("is incomplete"), "{}", run.tell());
    let list = bench.out("manifest print --format=sums --prefix d m");
    assert_eq!(list.lines().count(), 1);
    bench.dmover_with("sum -c", list).expect_code(0);
}

#[test]
fn manifests_become_check_lists() {
    let bench = Bench::new();
    tree(&bench);
    bench.out("copy -q --manifest m --hash-type sha256 s/ d");
    bench.write("list", bench.out("manifest print --format=sums --prefix d m"));
    bench.sh("sha256sum -c --quiet list");
    let some =
        bench.out("manifest print --format=sums --exclude sub/ --include large --exclude * m");
    assert_eq!(some.lines().count(), 1, "{some}");
    bench.out("manifest filter -o few --exclude sub/ m");
    assert!(!entries(&bench, "few").contains_key("sub/middle"));
    let run = bench.dmover("manifest diff m few").expect_code(1);
    assert_eq!(lines(&run), ["missing  sub", "missing  sub/middle"]);
    bench.dmover("manifest filter -o few m").expect_code(2);
    bench.sh("echo more >> s/small; rm -r s/none; touch s/added");
    bench.out("copy -q --manifest later --hash-type sha256 s/ d2");
    let run = bench.dmover("manifest diff m later").expect_code(1);
    let mut said = lines(&run);
    said.sort();
    let known = |word: &str| said.iter().any(|line| line.starts_with(word));
    assert!(
        known("missing  none") && known("new      added") && known("changed  small: size, mtime"),
        "{said:?}"
    );
}

#[test]
fn a_damaged_manifest_is_told_and_never_passes() {
    let bench = Bench::new();
    tree(&bench);
    bench.out("copy -q --manifest m -T s d");
    let whole = bench.out("manifest print m").lines().count();
    bench.sh("cp m cut; truncate -s -10 cut; cp m flip; printf '\\377' | dd of=flip bs=1 seek=300 conv=notrunc status=none");
    let run = bench.dmover("manifest print cut").expect_code(7);
    assert_eq!(lines(&run).len(), whole);
    assert!(words(&run).contains("truncated after"), "{}", run.tell());
    let run = bench.dmover("manifest print flip").expect_code(7);
    assert!(words(&run).contains("damaged at byte"), "{}", run.tell());
    bench.dmover("manifest diff m flip").expect_code(7);
    // What could be read is kept, but never looks like all.
    bench.dmover("manifest filter -o out cut").expect_code(7);
    bench.dmover("verify --manifest out d").expect_code(7);
    let run = bench.dmover("manifest print out").expect_code(7);
    assert_eq!(lines(&run).len(), whole);
    let run = bench.dmover("verify --manifest flip d").expect_code(7);
    assert!(words(&run).contains("nothing could be compared"), "{}", run.tell());
    let run = bench.dmover("manifest print --format json m").expect_code(0);
    assert!(lines(&run).last().unwrap().contains("\"complete\":true"));
    bench.write("text", "not a dmover manifest");
    for missing in ["text", "nowhere"] {
        bench.dmover(&format!("manifest print {missing}")).expect_code(2);
    }
}

#[test]
fn what_only_one_manifest_knows_is_no_difference() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/f; setfattr -n user.a -v 1 s/f; setfacl -m u:99:r s/f");
    bench.out("copy -q -T --manifest all s d");
    bench.out("copy -q -T --manifest less --no-preserve=xattr,acl,flags,project s e");
    bench.out("copy -q -T --manifest md5 --hash-type=md5 s f");
    let run = bench.dmover("manifest diff all less").expect_code(0);
    assert_eq!(run.text(), "", "{}", run.tell());
    let run = bench.dmover("manifest diff all md5").expect_code(3);
    assert!(
        run.text().is_empty() && words(&run).contains("hash types or leaf sizes differ"),
        "{}",
        run.tell()
    );
}

#[test]
fn a_manifest_that_cannot_be_written_ends_the_job() {
    let bench = Bench::new();
    if !is_root() {
        skip!("needs root to mount a small file system");
    }
    for number in 0..2000 {
        bench.write(&format!("s/a-name-that-takes-some-space-{number}"), "1");
    }
    bench.sh("mkdir full && mount -t tmpfs -o size=16k none full");
    let _undo = bench.undo("umount full");
    let run = bench.dmover("copy --json --manifest full/m -T s d").expect_code(8);
    assert!(words(&run).contains("the manifest"), "{}", run.tell());
    assert_eq!(run.lines().unwrap().last().unwrap().number("exit_code"), Some(8));
    bench.sh("mkdir directory");
    bench.dmover("copy --manifest directory -T s d3").expect_code(2);
    assert!(!bench.exists("d3"));
    let run = bench.dmover("copy --manifest nowhere/m -T s d2").expect_code(2);
    assert!(words(&run).contains("nowhere/m") && !bench.exists("d2"), "{}", run.tell());
    // A refused job leaves the old one alone.
    bench.out("copy -q --manifest m -T s d4");
    let old = bench.sh("sha256sum m");
    bench.dmover("copy --manifest m missing d3").expect_code(2);
    assert_eq!(bench.sh("sha256sum m"), old);
    // Nor is anything else written over: a source, a copy, what a link leads to.
    bench.sh("echo precious > file; ln -s file link");
    for line in ["copy --manifest file file d5", "copy --manifest link file d5"] {
        bench.dmover(line).expect_code(2);
        assert!(!bench.exists("d5"));
    }
    bench.dmover("copy --manifest d6 file d6").expect_code(8);
    assert_eq!(
        (bench.read("file").as_str(), bench.read("d6").as_str()),
        ("precious\n", "precious\n")
    );
    bench.sh("rm -f d6.*.part");
    assert_eq!(bench.sh("ls | grep part || true"), "");
}

#[test]
fn a_manifest_of_a_killed_job_is_read_up_to_the_kill() {
    let bench = Bench::new();
    for number in 0..3000 {
        bench.write(&format!("s/{}/f{number}", number % 10), pattern(number));
    }
    if !has("b3sum") || !is_root() {
        skip!("needs b3sum and root");
    }
    let program = super::bench::PROGRAM;
    bench.sh(&format!(
        "\"{program}\" copy -q --ops-limit 4000 --manifest m -T s d & sleep 0.3; kill -9 $!; wait || true"
    ));
    assert!(!bench.exists("m"), "only a job that ended gives it its name");
    let part = bench.sh("ls m.*.part");
    let run = bench
        .dmover(&format!("manifest print --format=sums --prefix d/ {}", part.trim()))
        .expect_code(7);
    bench.write("list", &run.stdout);
    if !run.stdout.is_empty() {
        bench.sh("b3sum -c list > /dev/null");
    }
    bench.out("copy -q --manifest m -T s d");
    let list = bench.out("manifest print --format=sums --prefix d m");
    assert_eq!(list.lines().count(), 3000);
    bench.write("list", list);
    bench.sh("b3sum -c list > /dev/null");
}
