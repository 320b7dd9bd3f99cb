//! Where copies go if DEST, SOURCE or both are on other hosts: the rules of cp.
use super::ends::{Ends, LOCAL, WAYS, Way, ends};
use std::ffi::OsString;

/// Runs a copy whose SOURCEs and DEST are below the bench and those of a local one below another directory, and
/// compares all that is there then.
#[track_caller]
fn as_local(ends: &Ends, way: Way, options: &str, paths: &[&str]) {
    let bench = &ends.bench;
    let names = |way: Way| {
        let (destination, sources) = paths.split_last().unwrap();
        let mut names: Vec<OsString> =
            sources.iter().map(|path| ends.at(way.source, path)).collect();
        names.push(ends.at(way.destination, destination));
        names
    };
    let copy = |way: Way| {
        bench.sh("rm -rf out; mkdir out; echo old > out/old; touch -d 2005-05-05 out/old");
        let run = ends.run(&format!("copy {options}"), &names(way));
        (run.code(), run.stderr.clone())
    };
    let (wanted, _) = copy(LOCAL);
    bench.sh("rm -rf wanted; mv out wanted");
    let (code, said) = copy(way);
    assert_eq!(code, wanted, "{way:?} {options} {paths:?}\n{said}");
    let listed = "(find . -mindepth 1 -printf '%P %y %m %s %T@ %l\\n'; find . -type f -exec sha256sum {} +) | sort";
    // The directory itself was made by this test.
    let tree = |at: &str| bench.sh(&format!("cd {at}; {listed}"));
    assert_eq!(tree("out"), tree("wanted"), "{way:?} {options} {paths:?}");
}

fn sources(ends: &Ends) {
    ends.bench.sh(
        "mkdir -p in/d/e; echo a > in/a; echo f > in/f; echo x > in/d/x; echo y > in/d/e/y
        ln -s f in/link; ln -s d in/to_d; ln -s none in/dangling; mkfifo in/pipe
        touch -d 2001-02-03 in/a in/d/x",
    );
}

#[test]
fn trees_and_files_go_where_cp_puts_them() {
    let ends = ends!();
    sources(&ends);
    for way in WAYS {
        for paths in [
            // Into a directory that is there, and as a new name.
            &["in/d", "out"][..],
            &["in/d", "out/new"],
            &["in/d/", "out/new"],
            &["in/a", "out"],
            &["in/a", "out/new"],
            &["in/a", "out/old"],
            &["in/a", "out/"],
            &["in/a", "out/none/"],
            &["in/d/.", "out"],
            &["in/d/..", "out/new"],
            // Several.
            &["in/a", "in/f", "in/d", "out"],
            &["in/a", "in/f", "out/new"],
            &["in/a", "in/f", "out/old"],
            // What is no directory and no regular file.
            &["in/link", "out/new"],
            &["in/dangling", "out/new"],
            &["in/to_d", "out/new"],
            &["in/to_d/", "out/new"],
            &["in/pipe", "out/new"],
            // What is there is of another kind.
            &["in/d", "out/old"],
            &["in/none", "out"],
            &["in/a", "out/none/new"],
        ] {
            as_local(&ends, way, "", paths);
        }
        for paths in [&["in/d", "out"][..], &["in/d", "out/new"], &["in/a", "out/new"]] {
            as_local(&ends, way, "-T", paths);
        }
    }
}

#[test]
fn the_target_directory_can_come_first() {
    let ends = ends!();
    sources(&ends);
    let bench = &ends.bench;
    for way in WAYS {
        bench.sh("mkdir out");
        let mut words = vec![OsString::from("-t"), ends.at(way.destination, "out")];
        words.extend(["in/a", "in/d"].map(|path| ends.at(way.source, path)));
        ends.run("copy", &words).expect_code(0);
        bench.sh("diff in/a out/a; diff -r in/d out/d; rm -r out");
    }
}

#[test]
fn relative_paths_are_below_the_home_directory_there() {
    let ends = ends!();
    let bench = &ends.bench;
    sources(&ends);
    let home = ends.home("far", "");
    bench.sh(&format!("cp -a in {}data; mkdir {0}in", home.display()));
    for (source, copied) in [
        ("far:data", "data"),
        ("far:./data", "data"),
        ("far:~/data", "data"),
        ("far:data/d/..", "data"),
        ("far:data/d", "data/d"),
        ("far:data/a", "data/a"),
    ] {
        ends.run("copy -T", &[source.into(), "got".into()]).expect_code(0);
        bench.sh(&format!(
            "diff -r -x pipe --no-dereference {}{copied} got; rm -r got",
            home.display()
        ));
    }
    for (destination, there) in [
        ("far:new", "new"),
        ("far:./new", "new"),
        ("far:~/new", "new"),
        ("far:in", "in/d"),
        ("far:.", "d"),
    ] {
        ends.run("copy", &["in/d".into(), destination.into()]).expect_code(0);
        bench.sh(&format!("diff -r in/d {0}{there}; rm -r {0}{there}", home.display()));
    }
    // The home directory itself, without what this test needs there.
    ends.run("copy -T --exclude=.local", &["far:.".into(), "all".into()]).expect_code(0);
    bench.sh("diff -r -x pipe --no-dereference in all/data");
}

#[test]
fn a_colon_behind_a_slash_is_of_this_host() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir far:x; echo 1 > far:x/f");
    ends.run("copy", &["./far:x".into(), "./far:y".into()]).expect_code(0);
    bench.sh("diff -r far:x far:y");
    ends.run("copy", &[bench.at("far:x").into(), "far:z".into()]).expect_code(0);
    bench.sh(&format!("diff -r far:x {}; test ! -e far:z", ends.home("far", "z").display()));
}

#[test]
fn names_of_any_bytes_reach_the_host() {
    use std::os::unix::ffi::OsStringExt;
    let ends = ends!();
    let bench = &ends.bench;
    for way in WAYS {
        for name in
            [&b"a b"[..], b"$HOME*'\"`id`", b"new\nline", b"latin\xe9", b"-rf", b"c:d", b"\\n"]
        {
            let name = OsString::from_vec(name.to_vec());
            let [source, destination] = ["s", "d"].map(|side| bench.at(side).join(&name));
            std::fs::create_dir_all(source.join("sub")).unwrap();
            std::fs::write(source.join("sub/f"), "content").unwrap();
            std::fs::create_dir_all(bench.at("d")).unwrap();
            let named = |host: &str, path: &std::path::Path| {
                let mut named = OsString::from(host);
                named.push(path);
                named
            };
            let words = [named(way.source, &source), named(way.destination, &destination)];
            ends.run("copy -T", &words).expect_code(0);
            bench.sh("diff -r s d; rm -r s d");
        }
    }
}
