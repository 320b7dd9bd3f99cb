//! `sync --watch`: what changes at the source is at the destination a moment later, whatever happens in between.
use crate::Bench;
use crate::bench::is_root;
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::lines::Line;
use dmover_testkit::skip;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// So long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_mins(2);

/// A running watch.
struct Watch {
    child: Child,
    /// Whoever does not read what it says would have it wait.
    summaries: Receiver<Line>,
}

impl Watch {
    /// Begins to watch, and waits until the first pass has ended.
    #[track_caller]
    fn start(bench: &Bench, words: &str) -> Self {
        let mut command = Command::new(crate::bench::PROGRAM);
        command.args(["sync", "--watch", "--json", "--yes"]).args(words.split_whitespace());
        command.current_dir(bench.root()).env("DMOVER_STATE_DIR", bench.dmover.state_directory());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, summaries) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = Line(serde_json::from_str(&line).unwrap());
                if line.is("summary") {
                    tell.send(line).ok();
                }
            }
        });
        let watch = Self { child, summaries };
        let code = watch.summary().0["exit_code"].as_u64();
        assert_eq!(code, Some(0), "the first pass");
        watch
    }

    /// The next summary.
    #[track_caller]
    fn summary(&self) -> Line {
        self.summaries.recv_timeout(PATIENCE).unwrap()
    }

    /// Waits until it ends by itself; answers its exit code.
    #[track_caller]
    fn code(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end");
            // poll: a process that ends tells nobody else
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Ends it; answers the summaries that were not read so far.
    fn end(mut self) -> Vec<Line> {
        self.signal("-TERM");
        self.child.wait().unwrap();
        self.summaries.iter().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn total(summaries: &[Line], counter: &str) -> u64 {
    summaries.iter().map(|summary| summary.number(counter).unwrap_or(0)).sum()
}

/// Waits until both sides are equal by rsync's judgement, content included.
#[track_caller]
fn wait_until_equal(bench: &Bench, source: &str, destination: &str) {
    wait_until_alike(bench, source, destination, "-H");
}

#[track_caller]
fn wait_until_alike(bench: &Bench, source: &str, destination: &str, flags: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        // It fails where a file vanishes while it is compared.
        let script =
            format!("rsync -nrlptgoDAXic {flags} --delete {source}/ {destination}/ || echo again");
        let differs = bench.sh(&script);
        if differs.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "after {PATIENCE:?}:\n{differs}");
    }
}

fn grounds(
    test: &'static str,
) -> impl Iterator<Item = (FileSystem, Bench, dmover_testkit::image::Mounted)> {
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Tmpfs, FileSystem::Btrfs];
    all.into_iter().filter_map(move |which| {
        let image = Image::create_or_skip(test, which, 400 << 20)?;
        let bench = Bench::inside(image.path());
        bench.sh(
            "mkdir -p src/d/e; for i in $(seq 40); do echo $i >src/d/e/f$i; done; echo x >src/top",
        );
        Some((which, bench, image))
    })
}

/// The kernel tells under which name something was written. It is not the only one that the file has had.
#[test]
fn what_is_written_under_a_name_that_is_gone_arrives_under_the_other() {
    for (file_system, bench, _image) in grounds("what_is_written_under_a_name_that_is_gone") {
        let watch = Watch::start(&bench, "--delete src dst");
        for step in [
            "ln src/d/e/f1 src/x; echo more >>src/x; rm src/x",
            "mkdir src/z; ln src/d/e/f2 src/z/x; echo more >>src/z/x; rm -r src/z",
            "ln src/d/e/f3 src/x; chmod 640 src/x; echo new >src/t; mv src/t src/x",
            "ln src/d/e/f4 src/x2; exec 3>>src/x2; rm src/x2; echo more >&3; mv src/d/e/f4 src/y",
        ] {
            // What is told is read after the names have gone.
            watch.signal("-STOP");
            bench.sh(step);
            watch.signal("-CONT");
            wait_until_equal(&bench, "src", "dst");
        }
        let summaries = watch.end();
        let found = total(&summaries, "entries_found");
        assert!(found < 60, "{file_system}: {found} entries were looked at, so everything was");
        assert_eq!(total(&summaries, "errors"), 0, "{file_system}");
    }
}

/// With hard links that are not kept, the names of a file are several files at the destination, and all of them change.
#[test]
fn what_has_several_names_changes_under_all_of_them() {
    for (file_system, bench, _image) in grounds("what_has_several_names_changes") {
        for (words, destination, flags) in
            [("--delete", "dst", "-H"), ("--delete --no-preserve=links", "dst2", "")]
        {
            bench.sh("ln -f src/d/e/f1 src/x; ln -f src/d/e/f1 src/d/y");
            let watch = Watch::start(&bench, &format!("{words} src {destination}"));
            bench.sh("echo more >>src/x");
            wait_until_alike(&bench, "src", destination, flags);
            let summaries = watch.end();
            assert_eq!(total(&summaries, "errors"), 0, "{file_system}");
        }
    }
}

#[test]
fn every_kind_of_change_arrives_without_a_look_at_everything() {
    for (file_system, bench, _image) in grounds("every_kind_of_change") {
        // The destination is beside the source, so that its own changes are told as well.
        let watch = Watch::start(&bench, "--delete src dst");
        for step in [
            "echo new >src/new",
            "echo more >>src/d/e/f1",
            "chmod 600 src/d/e/f2; setfattr -n user.a -v b src/d/e/f3; touch -d 2001-01-01 src/d/e/f4",
            "chmod 700 src/d/e; touch -d 2002-02-02 src/d",
            "rm src/d/e/f5; ln -s f1 src/d/e/link; mkfifo src/d/e/fifo",
            "mkdir -p src/x/y/z; echo deep >src/x/y/z/f",
            "mv src/d/e/f6 src/x/y/f6; mv src/top src/TOP",
            "cp -a src/x src/x2; rm -r src/x",
            "printf 12 | dd of=src/d/e/f7 conv=notrunc status=none; truncate -s 100000 src/d/e/f8",
            "echo swap >src/t; mv src/t src/d/e/f9",
            "rm src/d/e/f10; mkdir src/d/e/f10; echo in >src/d/e/f10/in",
            "rm -r src/d/e/f10; echo file >src/d/e/f10",
            "chmod 750 src",
        ] {
            bench.sh(step);
            wait_until_equal(&bench, "src", "dst");
        }
        let summaries = watch.end();
        let found = total(&summaries, "entries_found");
        assert!(found < 400, "{file_system}: {found} entries were looked at, so everything was");
        assert_eq!(total(&summaries, "errors"), 0, "{file_system}");
    }
}

#[test]
fn renamed_trees_are_renamed_and_not_read() {
    for (file_system, bench, _image) in grounds("renamed_trees") {
        bench.sh("mkdir -p src/big/a/b; for i in $(seq 300); do echo $i >src/big/a/b/$i; done");
        let watch = Watch::start(&bench, "--delete src dst");
        let inode = bench.inode("dst/big/a/b/7");
        bench.sh("mv src/big src/d/moved");
        wait_until_equal(&bench, "src", "dst");
        assert_eq!(bench.inode("dst/d/moved/a/b/7"), inode, "{file_system}");
        // What was made while it watches is known as well.
        bench.sh("head -c 100000 /dev/urandom >src/fresh");
        wait_until_equal(&bench, "src", "dst");
        while watch.summary().number("files_copied") != Some(1) {}
        let inode = bench.inode("dst/fresh");
        bench.sh("mkdir src/new; mv src/fresh src/new/kept");
        wait_until_equal(&bench, "src", "dst");
        assert_eq!(bench.inode("dst/new/kept"), inode, "{file_system}");
        // A change in a directory that is renamed right after it.
        bench.sh(
            "echo changed >src/d/moved/a/b/8; mv src/d/moved src/again; echo late >src/again/a/b/9",
        );
        wait_until_equal(&bench, "src", "dst");
        let summaries = watch.end();
        let copied = total(&summaries, "files_copied");
        assert!(copied <= 8, "{file_system}: {copied} files were sent");
    }
}

#[test]
fn files_with_several_names_keep_them() {
    for (_, bench, _image) in grounds("files_with_several_names") {
        bench.sh("ln src/top src/d/other");
        let watch = Watch::start(&bench, "--delete src dst");
        for step in [
            "echo more >>src/d/other",
            "ln src/d/e/f1 src/second; ln src/d/e/f1 src/third",
            "rm src/top; echo again >>src/second",
            "mv src/third src/d/e/third",
        ] {
            bench.sh(step);
            wait_until_equal(&bench, "src", "dst");
        }
        drop(watch);
    }
}

#[test]
fn more_changes_than_the_kernel_remembers_have_everything_looked_at() {
    let Some((_, bench, _image)) = grounds("more_changes").next() else { return };
    let watch = Watch::start(&bench, "--delete src dst");
    watch.signal("-STOP");
    bench.sh("mkdir src/many; cd src/many; for i in $(seq 20000); do : >$i; done; rm ../d/e/f1; mv ../d ../d2");
    watch.signal("-CONT");
    wait_until_equal(&bench, "src", "dst");
    let summaries = watch.end();
    let found = summaries.iter().filter_map(|line| line.number("entries_found")).max();
    assert!(found >= Some(20_000), "{found:?}");
}

#[test]
fn what_happened_while_nobody_watched_is_found() {
    for (_, bench, _image) in grounds("while_nobody_watched") {
        for round in 0..3 {
            let watch = Watch::start(&bench, "--delete src dst");
            bench.sh(&format!(
                "echo {round} >src/now; for i in $(seq 200); do echo {round} >src/d/$i; done"
            ));
            watch.signal("-KILL");
            drop(watch);
            bench.sh(&format!(
                "rm -f src/d/{round}*; mv src/d/e src/e{round}; mkdir -p src/d/e; echo y >src/d/e/z"
            ));
        }
        let watch = Watch::start(&bench, "--delete src dst");
        wait_until_equal(&bench, "src", "dst");
        drop(watch);
    }
}

#[test]
fn rules_hold_for_what_changes() {
    let Some((_, bench, _image)) = grounds("rules_hold").next() else { return };
    bench.sh("mkdir -p dst src/no; echo mine >dst/mine.tmp");
    let watch = Watch::start(&bench, "--delete --exclude *.tmp --exclude no/ src dst");
    bench.sh("echo 1 >src/a.tmp; echo 2 >src/no/b; mkdir -p src/no/c; echo 3 >src/d/e/c.tmp; echo 4 >src/d/last");
    let until = Instant::now() + PATIENCE;
    while !bench.exists("dst/d/last") {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    watch.end();
    assert_eq!(bench.sh("find dst -name '*.tmp' -o -name no"), "dst/mine.tmp\n");
}

#[test]
fn too_many_deletes_end_it() {
    let Some((_, bench, _image)) = grounds("too_many_deletes").next() else { return };
    let mut watch = Watch::start(&bench, "--delete --max-delete=10 src dst");
    bench.sh("rm src/d/e/f1");
    wait_until_equal(&bench, "src", "dst");
    bench.sh("rm -r src/d");
    assert_eq!(watch.code(), Some(5));
    assert!(bench.exists("dst/d/e/f2"));
}

#[test]
fn a_watch_is_seen_held_and_cancelled_from_outside() {
    let Some((_, bench, _image)) = grounds("from_outside").next() else { return };
    let mut watch = Watch::start(&bench, "--label live --delete src dst");
    let bench = &bench;
    let ask = |verb: &str| bench.dmover(&format!("{verb} live")).expect_code(0);
    let wait_for = |word: &str| {
        let until = Instant::now() + PATIENCE;
        loop {
            let run = bench.dmover("status live").expect_code(0);
            if String::from_utf8_lossy(&run.stdout).contains(&format!("state: {word}")) {
                return;
            }
            assert!(Instant::now() < until, "{word}");
        }
    };
    wait_for("watching");
    ask("pause");
    wait_for("paused");
    bench.sh("echo held >src/held");
    bench.dmover("sync --yes --delete src dst").expect_code(6);
    assert!(!bench.exists("dst/held"));
    ask("resume");
    wait_until_equal(bench, "src", "dst");
    ask("cancel");
    watch.code();
    wait_for("cancelled");
    bench.dmover("sync --yes --delete src dst").expect_code(0);
}

#[test]
fn what_cannot_be_watched_is_told_and_nothing_is_done() {
    let bench = Bench::new();
    bench.sh("mkdir src; echo x >src/x");
    if is_root() {
        let bench = Bench::new().unprivileged();
        bench.sh("mkdir src; echo x >src/x; chmod -R a+rX .");
        let refused = bench.dmover("sync --watch src dst").expect_code(2);
        assert!(refused.stderr.contains("only root"), "{}", refused.stderr);
        assert!(!bench.exists("dst"));
    }
    if let Some((_handle, bench)) = Bench::faulty() {
        bench.sh("echo x >faulty/x");
        let refused = bench.dmover("sync --watch faulty dst").expect_code(2);
        assert!(refused.stderr.contains("does not report changes"), "{}", refused.stderr);
        assert!(!bench.exists("dst"));
    }
    for options in ["--dry-run", "--no-state", "-L", "--check"] {
        bench.dmover(&format!("sync --watch {options} src dst")).expect_code(2);
    }
    let refused = bench.dmover("sync --watch --delete --max-delete=5% src dst").expect_code(2);
    assert!(refused.stderr.contains("cannot be used with --watch"), "{}", refused.stderr);
    assert!(!Path::new(&bench.at("dst")).exists());
}

#[test]
fn a_subvolume_that_is_mounted_alone_cannot_be_watched() {
    let Some(image) = Image::create_or_skip("a_subvolume", FileSystem::Btrfs, 400 << 20) else {
        return;
    };
    if !is_root() {
        skip!("root may mount only");
    }
    let bench = Bench::inside(image.path());
    bench.sh("btrfs subvolume create sub >/dev/null; echo x >sub/x; mkdir here
        mount -o subvol=/$(basename $PWD)/sub $(findmnt -no SOURCE -T . | sed 's/\\[.*//') here");
    let _undo = bench.undo("umount here");
    let refused = bench.dmover("sync --watch here dst").expect_code(2);
    assert!(refused.stderr.contains("subvolume"), "{}", refused.stderr);
}

#[test]
fn file_systems_that_are_mounted_below_the_source_are_watched_as_well() {
    let Some((_, bench, _image)) = grounds("mounted_below").next() else { return };
    bench.sh("mkdir src/mnt; mount -t tmpfs none src/mnt; echo 1 >src/mnt/one");
    let _undo = bench.undo("umount src/mnt");
    let watch = Watch::start(&bench, "--delete src dst");
    bench.sh("echo 2 >src/mnt/two; rm src/mnt/one; mkdir src/mnt/d; echo 3 >src/mnt/d/three");
    wait_until_equal(&bench, "src", "dst");
    drop(watch);
}

/// All of it is told at once: the process is held meanwhile.
#[test]
fn what_happens_at_once_is_told_apart() {
    for (_, bench, _image) in grounds("what_happens_at_once") {
        bench.sh("mkdir -p src/A/b src/C src/app src/app.new src/d/sub src/q/sub; echo 1 >src/A/b/f; echo old >src/app/config
            echo new >src/app.new/config; echo 1 >src/d/Makefile; echo 2 >src/d/sub/Makefile");
        let watch = Watch::start(&bench, "--delete src dst");
        for step in [
            // A file, and a directory that comes after it.
            "echo more >>src/d/Makefile; chmod 700 src/d/sub",
            "echo more >>src/A/b/f; mv src/A src/A2; mv src/A2/b src/C/b",
            "mv src/app src/app.old; mv src/app.new src/app; echo changed >>src/app/config",
            "for i in $(seq 50); do echo $i >src/q/sub/$i; done; mv src/q src/q2; echo x >src/q2/sub/x; mv src/q2/sub src/sub",
            "mkdir src/n; mv src/C src/n/C; echo y >src/n/C/b/y; mv src/n src/C; rm src/C/C/b/f",
        ] {
            watch.signal("-STOP");
            bench.sh(step);
            watch.signal("-CONT");
            wait_until_equal(&bench, "src", "dst");
        }
        let summaries = watch.end();
        assert_eq!(total(&summaries, "errors"), 0);
    }
}

#[test]
fn a_source_that_is_put_elsewhere_ends_it() {
    let Some((_, bench, _image)) = grounds("put_elsewhere").next() else { return };
    let mut watch = Watch::start(&bench, "--delete src dst");
    bench.sh("mv src old; mkdir src; echo other >src/other");
    assert_eq!(watch.code(), Some(8));
    assert!(bench.exists("dst/top"));
}

/// What leads to the source is the same, and its path is another: places could not be told from those of other trees.
#[test]
fn a_source_that_is_renamed_behind_a_link_ends_it() {
    let Some((_, bench, _image)) = grounds("renamed_behind_a_link").next() else { return };
    // In one step, so that the path leads to the source all the time.
    bench.sh("mkdir one; mv src one; ln -s two two");
    let mut watch = Watch::start(&bench, "--delete one/src dst");
    let exchange = "import ctypes, sys; c = ctypes.CDLL(None); sys.exit(c.renameat2(-100, b'one', -100, b'two', 2))";
    bench.sh(&format!("python3 -c \"{exchange}\"; test -L one; echo more >two/src/later"));
    assert_eq!(watch.code(), Some(8));
    assert!(bench.exists("dst/top"));
}

/// As an unmounted destination would be.
#[test]
fn a_destination_that_is_another_directory_ends_it() {
    let Some((_, bench, _image)) = grounds("another_destination").next() else { return };
    let mut watch = Watch::start(&bench, "--delete src dst");
    bench.sh("mv dst old; mkdir dst; touch src/after");
    assert_eq!(watch.code(), Some(8));
    assert_eq!(bench.sh("ls dst"), "", "a few changes would look like all of it");
}

#[test]
fn the_end_of_a_watch_is_told_and_what_an_earlier_one_was_asked_ends_no_other() {
    let Some((_, bench, _image)) = grounds("the_end_of_a_watch").next() else { return };
    bench.sh(
        "printf '#!/bin/sh\\necho $DMOVER_JOB_STATE $DMOVER_JOB_EXIT >told\\n' >tell; chmod +x tell",
    );
    let words = "--label mine --notify ./tell src dst";
    // One that is killed before it hears what it is asked.
    let mut watch = Watch::start(&bench, words);
    watch.signal("-STOP");
    bench.dmover("cancel mine").expect_code(0);
    watch.signal("-KILL");
    assert_eq!(watch.code(), None);
    assert!(!bench.exists("told"));
    let mut watch = Watch::start(&bench, words);
    bench.sh("echo changed >src/top");
    wait_until_equal(&bench, "src", "dst");
    assert!(!bench.exists("told"), "it heard what another was asked");
    bench.dmover("cancel mine").expect_code(0);
    assert_eq!(watch.code(), Some(3));
    assert_eq!(bench.read("told"), "cancelled 3\n");
}

#[test]
fn a_destination_that_is_made_anew_ends_a_watch() {
    let Some((_, bench, _image)) = grounds("made_anew").next() else { return };
    let mut watch = Watch::start(&bench, "src dst");
    // Its inode number is given to the next directory that is made.
    bench.sh("rm -r dst; mkdir dst; touch src/top");
    assert_eq!(watch.code(), Some(8));
}

#[test]
fn a_watch_that_is_refused_to_go_on_tells_it() {
    let Some((_, bench, _image)) = grounds("refused_to_go_on").next() else { return };
    bench.sh(
        "printf '#!/bin/sh\\necho $DMOVER_JOB_STATE $DMOVER_JOB_EXIT >told\\n' >tell; chmod +x tell",
    );
    let mut watch = Watch::start(&bench, "--reconcile 1s --notify ./tell src dst");
    bench.sh("rm -r src/*");
    assert_eq!(watch.code(), Some(2));
    assert_eq!(bench.read("told"), "failed 2\n");
    assert!(bench.exists("dst/top"));
}
