//! `sum` of trees and files at another host, beside the tools of coreutils.
use super::bench::pattern;
use super::ends::{Ends, ends};
use std::ffi::OsString;

/// Files of sizes around the borders of blocks, with names that have to be escaped.
fn files(ends: &Ends) {
    let bench = &ends.bench;
    let all = [("empty", 0), ("one", 1), ("a b", 4096), ("d/large", 3_000_001), ("d/e/-x", 65_537)];
    for (name, length) in all {
        bench.write(&format!("s/{name}"), pattern(length));
    }
    bench.sh(r"cd s; printf x > $'new\nline'; printf y > 'back\slash'; printf z > $'latin\xe9'
        printf s > ' lead'; printf c > a:b; ln one d/hard; ln -s one link; mkfifo pipe; truncate -s 1M hole");
}

#[test]
fn digests_are_those_of_the_tools_there_and_names_are_as_typed() {
    let ends = ends!();
    let bench = &ends.bench;
    files(&ends);
    let root = bench.at("s").display().to_string();
    for (hash, tool) in [("sha256", "sha256sum"), ("md5", "md5sum"), ("sha512", "sha512sum")] {
        let run = ends.run(&format!("sum -v -a {hash}"), &[ends.at("far:", "s")]).expect_code(0);
        assert!(run.stderr.contains("\n  connection  far:"), "{}", run.tell());
        std::fs::write(bench.at("ours"), &run.stdout).unwrap();
        // As one who stands there writes it, with the host in front.
        bench.sh(&format!(
            r"find {root} -type f -exec {tool} -- {{}} + | LC_ALL=C sort > theirs
            sed -i -E 's,^(\\?[0-9a-f]+  )/,\1far:/,' theirs; LC_ALL=C sort ours | diff - theirs"
        ));
        assert_eq!(bench.sh("wc -l < theirs").trim(), "12");
    }
}

#[test]
fn single_files_and_relative_paths_are_named_as_typed() {
    let ends = ends!();
    let bench = &ends.bench;
    files(&ends);
    std::fs::create_dir(ends.home("far", "data")).unwrap();
    std::fs::write(ends.home("far", "data/x y"), pattern(100_000)).unwrap();
    let names = ["far:data/x y", "far:./data/x y", "far:~/data/x y"].map(OsString::from);
    for name in names {
        let run = ends.run("sum -a sha256", std::slice::from_ref(&name)).expect_code(0);
        let path = ends.home("far", "data/x y");
        let digest = bench.sh(&format!("sha256sum < '{}' | cut -d' ' -f1", path.display()));
        assert_eq!(run.text(), format!("{}  {}\n", digest.trim(), name.display()));
    }
    let several = [ends.at("far:", "s/one"), ends.at("other:", "s/d/large")];
    let run = ends.run("sum -a sha256", &several).expect_code(0);
    let digests = bench.sh("sha256sum s/one s/d/large | cut -d' ' -f1");
    let digests: Vec<&str> = digests.lines().collect();
    let line = |at: usize| format!("{}  {}", digests[at], several[at].display());
    let text = run.text();
    let mut lines: Vec<&str> = text.lines().collect();
    // Each comes when it is ready.
    lines.sort_unstable();
    let mut wanted = [line(0), line(1)];
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
}

#[test]
fn a_missing_tree_is_refused_by_name() {
    let ends = ends!();
    files(&ends);
    let run = ends.run("sum -a sha256", &[ends.at("far:", "s/none")]).expect_code(2);
    assert!(run.stderr.contains("s/none' does not exist"), "{}", run.tell());
    assert_eq!(run.text(), "");
}
