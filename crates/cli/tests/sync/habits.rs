//! Habits of rsync: what another tool would have understood otherwise is refused, not done.
use super::Bench;
use super::bench::{PROGRAM, eventually};

#[test]
fn help_beside_other_arguments_is_an_error() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/f");
    for line in [
        "sync -avh a b",
        "sync -vh a b",
        "sync -h a b",
        "sync a b -h",
        "copy -Rh a b",
        "sync -hv",
        "cp -ah a b",
        "verify -h a b",
    ] {
        let run = bench.dmover(line).expect_code(2);
        assert!(run.stderr.contains("-h is help here"), "{line}: {}", run.tell());
        assert!(!bench.exists("b"), "{line}");
    }
    for line in [
        "-h",
        "sync -h",
        "sync --help",
        "snapshot create -h",
        "sync --label x -h",
        "sync a b --help",
        "help sync",
        "sync -j 2 -h",
    ] {
        let run = bench.dmover(line).expect_code(0);
        assert!(run.text().contains("Usage"), "{line}");
    }
}

/// A hint that names a copy in DEST names the directory that SOURCE is, however that is typed.
#[test]
fn the_hint_of_a_copy_in_dest_has_the_name_of_source() {
    let bench = Bench::new();
    bench.sh("mkdir -p src/d dst/photos");
    let root = bench.root().display().to_string();
    for source in ["src", "src/.", &format!("{root}/src/."), &format!("{root}/src/./")] {
        let run = bench.dmover(&format!("sync --delete {source} dst")).expect_code(2);
        assert!(run.stderr.contains("dst/src'"), "{}", run.tell());
    }
    let said = bench.sh(&format!("cd src; {PROGRAM} sync --delete . ../dst 2>&1 || echo $?"));
    assert!(said.contains("dst/src'"), "{said}");
    let run = bench.dmover("sync --delete src/d/.. dst").expect_code(2);
    assert!(!run.stderr.contains("To copy SOURCE into it"), "{}", run.tell());
}

/// rsync makes DEST/src of `SRC DEST`, and leaves whatever else DEST has.
#[test]
fn a_destination_that_holds_a_copy_beside_others_is_not_emptied() {
    let bench = Bench::new();
    let make = "mkdir -p src/d dst/src/d dst/photos; touch src/d/f dst/src/d/f dst/photos/{1..9}";
    bench.sh(make);
    for line in [
        "sync --delete src dst",
        "sync --delete ./src/ dst/",
        "sync --delete=during src dst",
        "sync --watch --delete src dst",
        "sync --delete src/. dst",
        "sync --delete src/./. dst",
    ] {
        let run = bench.dmover(line).expect_code(2);
        assert!(run.stderr.contains("dst/src'") && run.stderr.contains("--yes"), "{}", run.tell());
        assert!(run.stderr.contains("dmover sync --delete"), "{}", run.tell());
        assert!(bench.exists("dst/photos/9") && !bench.exists("dst/d"), "{line}");
    }
    // Later passes as well, and what files and variables say is not meant for this command.
    bench.dmover("sync src dst").expect_code(0);
    bench.sh("mkdir -p c; printf '[sync]\\nmax-delete = 100\\n' > c/config.toml");
    bench.dmover("sync --delete --config c/config.toml src dst").expect_code(2);
    assert!(bench.exists("dst/photos/9"));
    let listed = bench.dmover("sync -n -i --delete src dst").expect_code(2);
    assert!(listed.text().contains("photos/9"), "{}", listed.tell());
    // A limit says nothing about what was meant.
    for limit in ["--max-delete=50", "--max-delete=100%"] {
        bench.dmover(&format!("sync --delete {limit} src dst")).expect_code(2);
        assert!(bench.exists("dst/photos/9"), "{limit}");
    }
    bench.dmover("sync --delete --max-delete=50 --yes src dst").expect_code(0);
    assert_eq!(bench.sh("ls dst"), "d\n");
    // The name is an ordinary one where the source has it too, or where a rule keeps it.
    bench.sh("mkdir src/src dst/src; touch dst/src/x; mkdir dst/photos");
    bench.dmover("sync --delete src dst").expect_code(0);
    assert_eq!(bench.sh("ls dst dst/src"), "dst:\nd\nsrc\n\ndst/src:\n");
    bench.sh("rmdir src/src");
    bench.dmover("sync --delete --exclude /src src dst").expect_code(0);
    assert!(bench.exists("dst/src"));
}

#[test]
fn content_that_the_job_did_not_bring_does_not_go_unasked() {
    for when in ["--delete", "--delete=after", "--delete=during"] {
        let bench = Bench::new();
        bench.sh("mkdir -p a/d b/d b/other; touch a/d/f b/d/f b/other/x");
        let run = bench.dmover(&format!("sync {when} a b")).expect_code(2);
        assert!(
            run.stderr.contains("1 entry at its top") && run.stderr.contains("b/other"),
            "{}",
            run.tell()
        );
        // Also after a pass without deletes, and where only deeper directories have more.
        bench.dmover("sync a b").expect_code(0);
        let run = bench.dmover(&format!("sync {when} a b")).expect_code(2);
        assert!(bench.exists("b/other/x"), "{}", run.tell());
        bench.sh("mv b/other b/d");
        for _ in 0..2 {
            let run = bench.dmover(&format!("sync {when} a b")).expect_code(2);
            assert!(run.stderr.contains("nothing is deleted"), "{}", run.tell());
            assert!(bench.exists("b/d/other/x"), "{when}");
        }
        bench.dmover(&format!("sync {when} --yes a b")).expect_code(0);
        assert!(!bench.exists("b/d/other"));
        // From now on the content is the job's.
        bench.sh("touch b/d/new");
        bench.dmover(&format!("sync {when} a b")).expect_code(0);
        assert!(!bench.exists("b/d/new"));
    }
}

/// A destination that another tool has brought, without anything else in it, needs no word.
#[test]
fn a_destination_that_is_the_same_is_taken_over() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/d; touch a/d/f a/g; cp -a a b");
    bench.dmover("sync --delete a b").expect_code(0);
    bench.sh("rm a/g");
    bench.dmover("sync --delete a b").expect_code(0);
    assert_eq!(bench.sh("ls b"), "d\n");
}

#[test]
fn more_than_half_does_not_go_unasked() {
    for when in ["--delete", "--delete=after"] {
        let bench = Bench::new();
        bench.sh("mkdir a; touch a/{001..240}");
        bench.dmover("sync a b").expect_code(0);
        bench.sh("rm a/{001..140}; touch a/new-{001..500}");
        let run = bench.dmover(&format!("sync {when} a b")).expect_code(2);
        assert!(
            run.stderr.contains("more than half") && run.stderr.contains("such as 'b/"),
            "{}",
            run.tell()
        );
        assert_eq!(bench.sh("ls b | wc -l").trim(), "740", "the rest arrives");
        bench.dmover(&format!("sync {when} --yes a b")).expect_code(0);
        bench.assert_same("a", "b");
        // Of a few entries all may go.
        bench.sh("mkdir c; touch c/{01..90}");
        bench.dmover("sync c d").expect_code(0);
        bench.sh("rm c/*; touch c/new");
        bench.dmover(&format!("sync {when} c d")).expect_code(0);
        assert_eq!(bench.sh("ls d"), "new\n");
    }
}

/// What goes on the way is no more than what is known to stay; the rest waits until everything was read.
#[test]
fn deletes_on_the_way_stop_before_they_are_half() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/gone; touch a/{001..240} a/gone/{001..240}");
    bench.dmover("sync a b").expect_code(0);
    bench.sh("rm -r a/gone; rm a/{001..150}; touch a/new-{001..500}");
    for _ in 0..2 {
        let run = bench.dmover("sync --delete=during a b").expect_code(2);
        assert!(
            run.stderr.contains("nothing more is deleted: --delete would remove more than half"),
            "{}",
            run.tell()
        );
        assert_eq!(bench.sh("ls b | grep -c new").trim(), "500", "the rest arrives");
        // 391 are extra, 90 stay, and a hundred may go in any case.
        let left = bench.sh("find b -mindepth 1 ! -name 'new-*' | wc -l");
        assert!(left.trim().parse::<u64>().unwrap() >= 481 - 100, "{left}");
        bench.sh("rm -r b; mkdir -p b/gone; touch b/{001..240} b/gone/{001..240}");
    }
    bench.dmover("sync --delete=during --yes a b").expect_code(0);
    bench.assert_same("a", "b");
    // Many names that turn out to be less than half go, though they were found first.
    bench.sh("mkdir -p b/a-first; touch b/a-first/{001..200}; mkdir a/z; touch a/z/{001..900}; cp -a a/z b");
    let run = bench.dmover("sync --delete=during a b").expect_code(0);
    assert!(!bench.exists("b/a-first"), "{}", run.tell());
    bench.assert_same("a", "b");
}

/// A dry run lists what would go, and says that the run itself would delete nothing without a word.
#[test]
fn a_dry_run_says_that_the_run_itself_would_ask() {
    let bench = Bench::new();
    let told = |line: &str, why: &str, listed: &str| {
        let before = bench.sh("find . -path ./.state -prune -o -print | sort");
        let run = bench.dmover(&format!("sync -n -i {line}")).expect_code(2);
        let said = run.stderr.contains("a run without -n would delete nothing")
            && run.stderr.contains(why)
            && run.stderr.contains("--yes");
        assert!(said, "{line}: {}", run.tell());
        assert!(run.text().contains(listed), "{line}: {}", run.tell());
        let run = bench.dmover(&format!("sync -n --json {line}")).expect_code(2);
        let lines = run.lines().unwrap();
        let withheld = lines.iter().find(|line| line.is("withheld")).unwrap();
        assert!(withheld.0["reason"].as_str().unwrap().contains(why), "{line}: {}", run.tell());
        let summary = lines.iter().find(|line| line.is("summary")).unwrap();
        assert_eq!(summary.number("exit_code"), Some(2), "{line}");
        assert!(summary.0["deletes_withheld_because"].as_str().unwrap().contains(why), "{line}");
        // It is so.
        let real = bench.dmover(&format!("sync {line}")).expect_code(2);
        assert!(real.stderr.contains(why), "{line}: {}", real.tell());
        assert!(
            bench.sh("find . -path ./.state -prune -o -print | sort").contains(&before),
            "{line}"
        );
        let is_copy = why.contains("name of SOURCE");
        let run = bench.dmover(&format!("sync -n --max-delete=10000 {line}"));
        run.expect_code(if is_copy { 2 } else { 0 });
        let run = bench.dmover(&format!("sync -n --yes {line}")).expect_code(0);
        assert!(!run.stderr.contains("--yes"), "{line}: {}", run.tell());
        bench.dmover(&format!("sync --check {line}")).expect_code(1);
    };
    bench.sh("mkdir -p src/d dst/src/d dst/photos; touch src/d/f dst/src/d/f dst/photos/{1..9}");
    for when in ["delay", "during", "after"] {
        told(&format!("--delete={when} src dst"), "which has the name of SOURCE", "photos/9");
    }
    bench.sh("mkdir -p a/d b/other; touch a/d/f b/other/x");
    told("--delete a b", "has content that this job did not copy", "b/other/x");
    bench.dmover("sync a b").expect_code(0);
    bench.sh("mv b/other b/d");
    for when in ["delay", "during", "after"] {
        told(&format!("--delete={when} a b"), "DEST had content that this job", "b/d/other/x");
    }
    bench.dmover("sync --delete --yes a b").expect_code(0);
    bench.sh("mkdir -p h; touch h/{001..240}");
    bench.dmover("sync h i").expect_code(0);
    bench.sh("rm h/{001..140}");
    for when in ["delay", "after"] {
        told(&format!("--delete={when} h i"), "more than half", "i/140");
    }
    // What needs no word needs none here.
    bench.sh("touch b/d/new");
    let run = bench.dmover("sync -n -i --delete a b").expect_code(0);
    assert!(
        run.text().contains("b/d/new") && !run.stderr.contains("nothing would be"),
        "{}",
        run.tell()
    );
}

/// Somebody at a terminal is asked.
#[test]
fn a_terminal_asks() {
    let bench = Bench::new();
    bench.sh("mkdir -p src dst/src dst/photos; touch src/f");
    let program = bench.dmover.program().display().to_string();
    let state = "--state-dir state";
    let asked = |answer: &str, code: i32| {
        let script = format!(
            "printf '{answer}\\n' | script -qec '{program} sync --delete {state} src dst' /dev/null > out || code=$?; echo $code; cat out"
        );
        let told = bench.sh(&format!("code=0; {script}"));
        assert!(told.starts_with(&code.to_string()), "{told}");
        assert!(told.contains("Delete these entries? [y/N]"), "{told}");
    };
    asked("n", 2);
    assert!(bench.exists("dst/photos"));
    asked("y", 0);
    assert_eq!(bench.sh("ls dst"), "f\n");
}

/// Nothing is drawn over a question, also where it comes in the middle of a pass, and a signal is an answer.
#[test]
fn a_question_stays_on_the_screen_until_it_is_answered() {
    let bench = Bench::new();
    // Deeper than the first look before the pass.
    bench.sh("mkdir -p src/sub dst/sub; touch src/f dst/sub/other; mkfifo keys");
    let program = bench.dmover.program().display().to_string();
    let begin = format!(
        "exec 3<>keys; script -qfec 'echo $$ > pid; exec {program} sync --delete --progress=always --state-dir state src dst' out < keys > /dev/null 2>&1 3>&- & echo $! > script; wait $!; echo $? > code"
    );
    let mut shell = std::process::Command::new("bash")
        .args(["-c", &begin])
        .current_dir(bench.root())
        .spawn()
        .unwrap();
    let out = || std::fs::read(bench.at("out")).unwrap_or_default();
    eventually("the question", || String::from_utf8_lossy(&out()).contains("[y/N] "));
    let asked = out().len();
    for _ in 0..100 {
        assert_eq!(out().len(), asked, "{}", String::from_utf8_lossy(&out()));
        // Poll: progress would be drawn ten times a second.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // bash starts processes in the background with SIGINT ignored.
    bench.sh("kill -USR1 $(cat pid); kill -TERM $(cat pid)");
    shell.wait().unwrap();
    assert_eq!(bench.sh("cat code").trim(), "143", "{}", String::from_utf8_lossy(&out()));
    assert!(bench.exists("dst/sub/other"));
}
