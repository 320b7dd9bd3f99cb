//! Jobs between hosts that cannot run, or only in part: the exit code, and a line that says which end it is about.
use super::bench::{NOBODY, pattern};
use super::ends::{Ends, WAYS, Way, ends};
use super::{FUTURE, PROGRAM};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::lanes::run::Run;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const TO_FAR: Way = Way { source: "", destination: "far:" };

/// One line that says it, and one that says what to do.
#[track_caller]
fn assert_refused(run: &Run, words: &[&str]) {
    assert_eq!(run.code(), Some(2), "{}", run.tell());
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", run.stderr);
    assert!(lines[0].starts_with("dmover: error: ") && lines[1].starts_with("  hint: "));
    for word in words {
        assert!(lines[0].contains(word), "{word}: {}", run.stderr);
    }
}

#[test]
fn paths_that_are_not_there_are_named_and_nothing_is_made() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir s; echo 1 > s/f; echo 2 > file");
    for way in WAYS {
        assert_refused(&ends.job(way, "verify", ("none", "s")), &["none"]);
        for verb in ["copy", "sync"] {
            assert_refused(&ends.job(way, verb, ("none", "d")), &["none"]);
            assert!(!bench.exists("d"), "{way:?} {verb}");
        }
        for (verb, source) in [("copy", "s"), ("copy", "file"), ("sync", "s")] {
            assert_refused(&ends.job(way, verb, (source, "no/parent")), &["no/parent"]);
            assert!(!bench.exists("no"), "{way:?} {verb}");
        }
        assert_refused(&ends.job(way, "copy", ("s", "file")), &["file"]);
    }
}

#[test]
fn options_that_need_a_host_of_their_own_are_refused() {
    let ends = ends!();
    ends.bench.sh("mkdir s; echo 1 > s/f");
    for (line, option) in [
        ("copy --log-file=log", "--log-file"),
        ("copy --errors-to=errors", "--errors-to"),
        ("sync --watch", "--watch"),
    ] {
        assert_refused(&ends.job(TO_FAR, line, ("s", "d")), &[option]);
    }
    let from_far = Way { source: "far:", destination: "" };
    assert_refused(&ends.job(from_far, "sync --watch", ("s", "d")), &["--watch"]);
    for name in ["d", "log", "errors"] {
        assert!(!ends.bench.exists(name), "{name}");
    }
}

#[test]
fn sources_here_and_there_in_one_command_are_refused() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir a b d; echo 1 > a/f");
    for destination in ["", "far:", "other:"] {
        let words = [ends.at("", "a"), ends.at("far:", "b"), ends.at(destination, "d")];
        let said = ["some sources are on this host and some on others"];
        assert_refused(&ends.run("copy", &words), &said);
        assert_eq!(bench.sh("ls d"), "");
    }
}

#[test]
fn a_host_of_dest_without_a_dmover_that_works_is_named() {
    let ends = ends!();
    ends.bench.sh("mkdir s; echo 1 > s/f");
    let program = ends.home("far", ".local/bin/dmover");
    std::fs::remove_file(&program).unwrap();
    for way in [TO_FAR, WAYS[0], WAYS[2]] {
        let run = ends.job(way, "copy", ("s", "d"));
        assert_refused(&run, &["the host 'far' has no dmover in PATH or at ~/.local/bin/"]);
        assert!(run.stderr.contains("dmover agent --install far"), "{}", run.stderr);
    }
    std::fs::write(&program, FUTURE).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let run = ends.job(TO_FAR, "sync", ("s", "d"));
    assert_refused(&run, &["dmover 9.9 at the host 'far' does not work with dmover "]);
    let run = ends.run("copy --agent /no/agent", &[ends.at("", "s"), ends.at("far:", "d")]);
    assert_refused(&run, &["there is no '/no/agent' at the host 'far'"]);
    let words = [ends.at("", "s"), "no-such-host.invalid:d".into()];
    let run = ends.run("copy", &words).expect_code(6);
    assert!(run.stderr.contains("cannot find the address of the host 'no-such"), "{}", run.stderr);
    // The other program that is named works.
    let words = ["--agent".into(), PROGRAM.into(), ends.at("", "s"), ends.at("far:", "d")];
    ends.run("copy", &words).expect_code(0);
    ends.bench.assert_same("s", "d");
}

#[test]
fn a_full_file_system_there_is_an_error_and_the_same_command_goes_on() {
    let test = "a_full_file_system_there_is_an_error_and_the_same_command_goes_on";
    let Some(image) = Image::create_or_skip(test, FileSystem::Tmpfs, 8 << 20) else { return };
    let ends = ends!();
    let bench = &ends.bench;
    for number in 0..20 {
        bench.write(&format!("s/{number:02}"), pattern(1_000_000));
    }
    let place = image.path().join("d");
    let source = |way: Way| ends.at(way.source, "s");
    for way in WAYS {
        let mut there = OsString::from(way.destination);
        there.push(&place);
        let local = bench
            .dmover
            .run(["copy", "-T", "s"].map(OsString::from).into_iter().chain([place.clone().into()]));
        let local = local.unwrap();
        assert_eq!(
            bench
                .sh(&format!(
                    "rm -r {0}; df --output=pcent {1} | tail -n1",
                    place.display(),
                    image.path().display()
                ))
                .trim(),
            "0%"
        );
        let run = ends.run("copy -T", &[source(way), there.clone()]);
        assert_eq!(run.code(), local.code(), "{way:?} {}\n{}", run.tell(), local.tell());
        assert_ne!(run.code(), Some(0));
        assert!(run.stderr.contains("No space left"), "{}", run.tell());
        // Room is made, here by a source that is smaller.
        bench.sh("for n in s/*; do mv $n keep; head -c 300000 keep > $n; done; rm keep");
        ends.run("copy -T", &[source(way), there]).expect_code(0);
        bench.sh(&format!("diff -r s {}", place.display()));
        assert_eq!(leftovers(&place).unwrap(), Vec::<PathBuf>::new());
        bench.sh(&format!("rm -r {}", place.display()));
        for number in 0..20 {
            bench.write(&format!("s/{number:02}"), pattern(1_000_000));
        }
    }
    drop(ends);
    drop(image);
}

/// A program at both hosts that runs as a user without privilege.
fn as_nobody(ends: &Ends) -> PathBuf {
    let bench = &ends.bench;
    bench.sh(&format!(
        "chmod 755 .; mkdir nobody; chown {NOBODY}:{NOBODY} nobody; cp {PROGRAM} program; chmod 755 program"
    ));
    let [program, home] = ["program", "nobody"].map(|path| bench.at(path));
    let script = format!(
        "#!/bin/sh\nexport HOME={}\nexec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups -- {} \"$@\"\n",
        home.display(),
        program.display()
    );
    let agent = bench.write("agent", script);
    bench.sh("chmod 755 agent");
    agent
}

#[test]
fn what_a_user_there_may_not_read_is_told_and_the_rest_arrives() {
    let ends = ends!();
    let bench = &ends.bench;
    let agent = as_nobody(&ends);
    bench.sh("mkdir -p s/closed s/open; echo 1 > s/closed/f; echo 2 > s/secret; echo 3 > s/open/f
        chmod 700 s/closed; chmod 600 s/secret; chmod 755 s s/open");
    for verb in ["copy --json -T", "sync --json"] {
        let line = format!("{verb} --agent {}", agent.display());
        let run = ends.job(WAYS[0], &line, ("s", "d")).expect_code(3);
        let said = run.said().unwrap();
        let mut failed: Vec<String> =
            said.errors.iter().map(|line| line.path().to_string_lossy().into_owned()).collect();
        failed.sort();
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(failed[0].ends_with("/s/closed") && failed[1].ends_with("/s/secret"), "{failed:?}");
        assert!(said.errors.iter().all(|line| line.text("class") == "denied"), "{}", run.tell());
        bench.sh("diff s/open d/open; test ! -e d/secret; rm -r d");
    }
}

#[test]
fn what_a_user_there_may_not_write_is_told_and_stays() {
    let ends = ends!();
    let bench = &ends.bench;
    let agent = as_nobody(&ends);
    bench.sh(&format!(
        "mkdir -p s/a s/b; echo 1 > s/a/f; echo 2 > s/b/f; chmod 755 s s/a s/b
        mkdir -p d/a d/b; chown {NOBODY}:{NOBODY} d d/a; echo old > d/b/f"
    ));
    let line = format!("copy --json -T --agent {}", agent.display());
    let run = ends.job(TO_FAR, &line, ("s", "d")).expect_code(3);
    bench.sh("cmp s/a/f d/a/f; test \"$(cat d/b/f)\" = old");
    assert!(!run.said().unwrap().errors.is_empty());
    // The same user here.
    bench.sh("mkdir closed; chmod 755 closed");
    let run = ends.job(TO_FAR, &line, ("s", "closed/d"));
    assert!(matches!(run.code(), Some(2 | 3)), "{}", run.tell());
    assert_eq!(bench.sh("ls closed"), "");
}
