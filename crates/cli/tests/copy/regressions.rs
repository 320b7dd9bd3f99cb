//! Faults that were found once, by a hostile reading, by a new user or by a lane; each with the least that shows it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dmover_testkit::compare::{CompareOptions, compare};
use dmover_testkit::faultfs::{Action, Op, Rule, When};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::skip;
use rustix::process::Signal;

use super::bench::{append, is_root, pattern};
use super::{Bench, snapshot};

/// Waits until something is true; false if it never becomes so.
fn poll(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if condition() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn a_copied_part_never_passes_for_the_whole() {
    let bench = Bench::new();
    let data = pattern(3_000_000);
    bench.write("whole", &data);
    bench.sh("touch -d 2001-01-01 whole");
    bench.copy("--offset 1M whole new").expect_code(0);
    assert_ne!(
        bench.at("new").metadata().unwrap().mtime(),
        bench.at("whole").metadata().unwrap().mtime()
    );
    bench.copy("--offset 0 --length 1M whole new").expect_code(0);
    assert!(fs::read(bench.at("new")).unwrap() == data, "both parts make the whole");
    bench.copy("--offset 2M whole other").expect_code(0);
    bench.copy("whole other").expect_code(0);
    assert!(fs::read(bench.at("other")).unwrap() == data, "a plain copy does not trust a part");
}

#[test]
fn two_ranges_in_a_batch_are_both_written() {
    let bench = Bench::new();
    let data = pattern(3_145_728);
    bench.write("src", &data);
    let lines = "src dst 1048576-3145728\nsrc dst 0-1048576\n";
    bench.dmover_with("copy --json --read-stdin", lines).expect_code(0);
    assert!(fs::read(bench.at("dst")).unwrap() == data);
}

#[test]
fn an_interrupted_copy_that_keeps_what_is_newer_is_finished_all_the_same() {
    for flag in ["-u", "--no-clobber"] {
        let bench = Bench::new();
        let data = pattern(6_000_000);
        bench.write("s/file", &data);
        bench.sh("touch -d 2001-01-01 s/file");
        let running = bench.dmover.start_copy([flag, "--bwlimit=2M", "s", "d"]).unwrap();
        assert!(poll(|| bench
            .sh("du -sb d 2>/dev/null | cut -f1 || echo 0")
            .trim()
            .parse::<u64>()
            .is_ok_and(|n| n > 500_000)));
        running.kill().unwrap();
        bench.copy_words(&[flag, "s", "d"]).expect_code(0);
        assert!(fs::read(bench.at("d/file")).unwrap() == data, "{flag}");
        assert_eq!(leftovers(&bench.at("d")).unwrap().len(), 0);
    }
}

#[test]
fn a_name_that_was_kept_is_no_anchor_for_the_other_names() {
    let bench = Bench::new();
    bench.sh(
        "mkdir s d; echo source > s/a; ln s/a s/b; echo unrelated > d/a; touch -d 2035-01-01 d/a",
    );
    bench.copy("-T --no-clobber s d").expect_code(0);
    assert_eq!(bench.read("d/a"), "unrelated\n");
    assert_eq!(bench.read("d/b"), "source\n", "--no-clobber");

    bench.sh("rm d/b; echo newer-b > d/b; touch -d 2036-01-01 d/b");
    bench.copy("-T -u s d").expect_code(0);
    assert_eq!(
        (bench.read("d/a"), bench.read("d/b")),
        ("unrelated\n".into(), "newer-b\n".into()),
        "-u"
    );
}

#[test]
fn a_name_that_failed_is_no_anchor_either() {
    if !is_root() {
        skip!("needs root for immutable files");
    }
    let bench = Bench::new();
    bench.sh("mkdir s d; echo new-content > s/a; ln s/a s/b; ln s/a s/c; mkdir d/a; echo good > d/b; touch -d 2001-01-01 d/b");
    let run = bench.copy("-T s d").expect_code(3);
    assert!(bench.at("d/a").is_dir());
    for name in ["d/b", "d/c"] {
        let content = fs::read_to_string(bench.at(name)).unwrap_or_default();
        assert!(["good\n", "new-content\n", ""].contains(&content.as_str()), "{name}: {content}");
    }
    assert!(run.said().unwrap().errors.iter().any(|line| line.path().ends_with("d/a")));
}

#[test]
fn a_link_group_that_changes_between_scan_and_link_phase_is_not_mixed_up() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo OLD > s/a; ln s/a s/b; for i in $(seq 100); do : > s/f$i; done");
    let running = bench.dmover.start_copy(["--ops-limit=100", "-T", "s", "d"]).unwrap();
    assert!(running.wait_for_stdout("s/f", 60));
    bench.sh("echo NEWCONTENT > s/n; mv s/n s/a");
    let run = running.finish().unwrap();
    let b = fs::read_to_string(bench.at("d/b")).unwrap_or_default();
    assert!(b == "OLD\n" || b.is_empty() && run.code() != Some(0), "{b}: {}", run.tell());
    bench.copy("-T s d").expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn without_the_right_to_set_flags_no_version_is_lost() {
    if !is_root() {
        skip!("needs root for immutable files");
    }
    let bench = Bench::new();
    bench.sh("mkdir s d; echo new > s/f; chattr +i s/f; echo old > d/f; touch -d 2001-01-01 d/f");
    let _undo = bench.undo("chattr -i s/f d/f");
    let caps = ["setpriv", "--bounding-set", "-linux_immutable", "--inh-caps", "-linux_immutable"];
    let bench = bench.with(|dmover| dmover.wrapped(caps));
    let run = bench.copy("-T s d");
    let left = fs::read_to_string(bench.at("d/f")).unwrap_or_default();
    assert!(["new\n", "old\n"].contains(&left.as_str()), "both versions are gone: {}", run.tell());
    bench.sh("chattr -i s/f d/f");
}

#[test]
fn an_empty_or_crooked_backup_suffix_destroys_nothing() {
    for suffix in ["", "/../x", "a/b"] {
        let bench = Bench::new();
        bench.sh("mkdir s d; echo new > s/f; echo old > d/f; touch -d 2001-01-01 d/f");
        let run = bench.copy_words(&["--backup", "--suffix", suffix, "-T", "s", "d"]);
        let kept = bench.sh("grep -rl old d || true");
        assert!(run.code() == Some(2) || !kept.is_empty(), "{suffix:?}: {}", run.tell());
    }
}

#[test]
fn a_backup_does_not_replace_an_entry_of_the_source() {
    let bench = Bench::new();
    bench.sh("mkdir s d; echo new > s/f; echo source-tilde > s/f~; echo old > d/f; touch -d 2001-01-01 d/f");
    let run = bench.copy("-T --backup s d");
    let tilde = bench.read("d/f~");
    let said = run.code() != Some(0);
    assert!(tilde == "source-tilde\n" || said, "f~ holds {tilde:?}: {}", run.tell());
}

#[test]
fn a_batch_line_through_links_neither_panics_nor_hangs() {
    let bench = Bench::new();
    bench.sh("echo f > f; ln -s f s; ln s s2");
    let bench = bench.with(|dmover| dmover.patience(Duration::from_secs(30)));
    let run = bench.dmover_with("copy --json --read-stdin", "s d\n");
    assert!(run.code().is_some(), "{}", run.tell());
    assert!(!run.stderr.contains("panicked"), "{}", run.tell());
}

#[test]
fn a_closed_standard_error_stops_nothing() {
    let bench = Bench::new();
    bench.sh("mkdir s d; for i in $(seq 200); do echo $i > s/$i; done; for i in $(seq 100); do mkdir d/$i; done");
    let program = bench.dmover.command().get_program().to_string_lossy().into_owned();
    let state = bench.dmover.state_directory();
    let script = format!(
        "export DMOVER_STATE_DIR='{}'; timeout 30 '{program}' copy -T s d 2>&1 >/dev/null | true; echo ${{PIPESTATUS[0]}}",
        state.display()
    );
    let code = bench.sh(&script);
    assert_ne!(code, "124\n", "it hangs");
    assert_ne!(code, "101\n", "it panicked");
}

#[test]
fn a_destination_that_hands_down_a_project_is_filled_and_keeps_it() {
    let Some(image) = Image::create_or_skip("project", FileSystem::Xfs, 0) else { return };
    let bench = Bench::inside(image.path());
    bench.write("s/large", pattern(3_000_000));
    bench.sh("echo small > s/small; ln s/small s/twin; mkdir d");
    if bench.sh("chattr -p 1000 +P d 2>&1 || echo FAILED").contains("FAILED") {
        skip!("no project ids with chattr here");
    }
    bench.write("d/s/small", "old");
    bench.copy("--split-size 1M s d").expect_code(0);
    for name in ["large", "small", "twin"] {
        let project = bench.sh(&format!("lsattr -p d/s/{name} | awk '{{print $1}}'"));
        assert_eq!(project, "1000\n", "{name} left its project");
    }
    bench.copy("--split-size 1M s d").expect_code(0);
}

#[test]
fn many_listed_names_in_common_directories_do_not_race() {
    let bench = Bench::new();
    bench.sh("mkdir -p s/a/b s/c; for i in $(seq 2500); do : > s/a/b/$i; : > s/c/$i; done
        (cd s && find . -type f | sort -R --random-source=/bin/sh) > list");
    for round in 0..3 {
        let target = format!("d{round}");
        let words = ["-j16", "--files-from", "list", "s", &target];
        bench.copy_words(&words).expect_code(0);
        assert_eq!(bench.sh(&format!("find {target} -type f | wc -l")), "5000\n");
    }
}

#[test]
fn two_runs_with_different_state_directories_do_not_harm_each_other() {
    let bench = Bench::new();
    let data = pattern(3_000_000);
    bench.write("s/large", &data);
    bench.write("d/large", "old");
    let flags = ["--bwlimit=1M", "--split-size=500K", "-T", "s", "d"];
    let first = bench.dmover.start_copy(flags).unwrap();
    assert!(poll(|| !leftovers(&bench.at("d")).unwrap().is_empty()));
    let other = bench.at("other-state");
    let words =
        ["--state-dir".as_ref(), other.as_os_str(), "-T".as_ref(), "s".as_ref(), "d".as_ref()];
    let second = bench.copy_words(&words);
    let first = first.finish().unwrap();
    assert!(matches!(second.code(), Some(0 | 6)), "{}", second.tell());
    assert!(matches!(first.code(), Some(0 | 6)), "{}", first.tell());
    assert!(fs::read(bench.at("d/large")).unwrap() == data);
}

#[test]
fn leftovers_go_also_where_the_destination_was_named_with_a_slash() {
    for target in ["d/", "d/."] {
        let bench = Bench::new();
        bench.write("s/large", pattern(3_000_000));
        bench.write("d/large", "old");
        let flags = ["--bwlimit=1M", "--split-size=500K", "-T", "s", target];
        let running = bench.dmover.start_copy(flags).unwrap();
        assert!(poll(|| !leftovers(&bench.at("d")).unwrap().is_empty()));
        running.kill().unwrap();
        bench.copy_words(&["--split-size=500K", "-T", "s", target]).expect_code(0);
        bench.assert_same("s", "d");
    }
}

#[test]
fn few_descriptors_are_enough_for_deep_trees_and_long_batches() {
    let bench = Bench::new();
    bench.sh("p=s; for i in $(seq 90); do p=$p/d; done; mkdir -p $p; echo deep > $p/f
        mkdir out; head -c 3M /dev/urandom > large
        for i in $(seq 400); do
            mkdir -p b/$i; echo $i > b/$i/f; ln b/$i/f b/$i.link; ln -s ../large b/$i/l
            echo \"b/$i out/$i\"; echo \"b/$i.link out/$i.link\"
        done > batch
        for i in $(seq 20); do cp large b/$i.large; echo \"b/$i.large out/$i.large\"; done >> batch");
    let program = bench.dmover.command().get_program().to_string_lossy().into_owned();
    let state = bench.dmover.state_directory();
    bench.sh(&format!(
        "export DMOVER_STATE_DIR='{}'; ulimit -n 100; '{program}' copy -q -j2 s d; '{program}' copy -q --split-size=1M --read-stdin < batch",
        state.display()
    ));
    bench.assert_same("s", "d");
    bench.sh("touch -r b out");
    bench.assert_same("b", "out");
}

#[test]
fn following_a_link_into_the_destination_ends() {
    let bench = Bench::new();
    bench.sh("mkdir -p r/sub; ln -s ../../rd/sub r/sub/link; echo f > r/sub/f");
    let bench = bench.with(|dmover| dmover.patience(Duration::from_secs(30)));
    let run = bench.copy("-L -T r rd");
    assert_eq!(run.code(), Some(3), "{}", run.tell());
    assert!(bench.sh("find rd | wc -l").trim().parse::<u32>().unwrap() < 20);
}

#[test]
fn an_immutable_source_is_skipped_where_its_flag_is_not_wanted_or_cannot_be() {
    if !is_root() {
        skip!("needs root for immutable files");
    }
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/f; chattr +i s/f");
    let _undo = bench.undo("chattr -i s/f d/f e/f 2>/dev/null");
    bench.copy("--no-preserve=flags s d").expect_code(0);
    let before = snapshot(&bench.at("d"));
    bench.copy("--no-preserve=flags s d").expect_code(0);
    assert_eq!(before.changes(&snapshot(&bench.at("d"))), Vec::<String>::new());
    bench.copy("s e").expect_code(0);
    bench.sh("chattr -i s/f; echo longer >> s/f; chattr +i s/f");
    bench.copy("s e").expect_code(0);
    assert_eq!(bench.read("e/f"), "1\nlonger\n", "an immutable copy can be updated");
    bench.sh("chattr -i s/f e/f");
}

/// However many pieces its file is copied in.
#[test]
fn a_system_attribute_is_told_once() {
    if !is_root() {
        skip!("needs root for attributes of the system");
    }
    let bench = Bench::new();
    bench.sh("mkdir s; head -c 300000 /dev/urandom > s/f; setfattr -n trusted.lov -v 1 s/f");
    for options in ["--split-size=64K --reflink=never", "-j1"] {
        let run = bench.copy(&format!("{options} --overwrite=always -T s d")).expect_code(0);
        let summary = run.said().unwrap().summary.unwrap();
        assert_eq!(summary.number("system_attributes"), Some(1), "{options}");
    }
}

/// A temporary can be made in an append-only directory, but neither renamed nor removed.
#[test]
fn locked_directories_are_updated_and_locked_again() {
    if !is_root() {
        skip!("needs root for immutable files");
    }
    for (flag, options) in
        [("i", ""), ("a", ""), ("i", "--split-size=64K"), ("a", "--split-size=64K")]
    {
        let bench = Bench::new();
        bench.sh(&format!(
            "mkdir s; head -c 200000 /dev/urandom > s/big; echo 1 > s/f; ln -s 1 s/link; touch -hd @1.1 s/link; chattr +{flag} s"
        ));
        let _undo = bench.undo("chattr -ia s d");
        bench.copy(&format!("{options} -T s d")).expect_code(0);
        bench.sh("echo more >> s/big; echo more >> s/f");
        // So near that the step of times at the destination is tried out.
        bench.sh(&format!(
            "chattr -{flag} s; ln -sfn 2 s/link; touch -hd @1.2 s/link; ln s/f s/second; chattr +{flag} s"
        ));
        let mut job = String::new();
        for _ in 0..2 {
            let run = bench.copy(&format!("{options} -T s d")).expect_code(0);
            job = run.said().unwrap().summary.unwrap().text("job").to_owned();
            bench.sh(&format!(
                "diff -r --no-dereference s d; lsattr -d d | cut -d' ' -f1 | grep {flag}"
            ));
            assert_eq!(bench.sh("ls -A d"), bench.sh("ls -A s"), "+{flag} {options}: no leftovers");
        }
        // Only the directory's own times differ, as after somebody has listed the source.
        bench.sh(&format!("chattr -{flag} s; touch -ad 2020-01-01 s; chattr +{flag} s"));
        bench.copy(&format!("{options} -T s d")).expect_code(0);
        let atimes = bench.sh("stat -c %x s d; lsattr -d s d | cut -d' ' -f1");
        let lines: Vec<_> = atimes.lines().collect();
        assert_eq!((lines[0], lines[2]), (lines[1], lines[3]), "+{flag} {options}: {atimes}");
        let left = format!("d/.dmover-{job}-00000000000000aa-0000000000000001");
        bench.sh(&format!("chattr -ia d; echo > {left}; chattr +{flag} d"));
        bench.copy(&format!("{options} -T s d")).expect_code(0);
        assert!(!bench.exists(&left), "+{flag} {options}: an interrupted run's leftover");
        bench.sh(&format!("lsattr -d d | cut -d' ' -f1 | grep {flag}; chattr -ia s d"));
    }
}

#[test]
fn modes_that_are_not_kept_are_left_alone() {
    let bench = Bench::new();
    bench.sh("mkdir -p s/sub d/sub; chmod 755 s s/sub; chmod 700 d d/sub; echo 1 > s/sub/f");
    bench.copy("--no-preserve=mode -T s d").expect_code(0);
    assert_eq!((bench.mode("d"), bench.mode("d/sub")), (0o700, 0o700));
}

#[test]
fn in_place_removes_rights_that_the_source_does_not_give() {
    let bench = Bench::new();
    bench.sh("mkdir s d; echo secret-longer > s/f; chmod 600 s/f; echo old > d/f; chmod 666 d/f; setfacl -m u:1234:rw d/f
        setfattr -n user.old -v 1 d/f");
    bench.copy("-T --inplace s d").expect_code(0);
    assert_eq!(bench.mode("d/f"), 0o600);
    assert_eq!(bench.sh("getfacl -cs d/f"), "", "an old ACL gives rights");
    bench.assert_same("s", "d");
}

#[test]
fn sharing_that_is_demanded_is_demanded_of_chunked_files_too() {
    let bench = Bench::new();
    bench.write("s/large", pattern(3_000_000));
    let run = bench.copy("--reflink=always --split-size=1M s d");
    assert_ne!(run.code(), Some(0), "tmpfs shares no blocks: {}", run.tell());
}

#[test]
fn a_rerun_without_privilege_leaves_directories_closed() {
    if !is_root() {
        skip!("needs root to become somebody else");
    }
    let bench = Bench::new().unprivileged();
    bench.sh(
        "mkdir -p s/ro; echo 1 > s/ro/a; ln s/ro/a s/ro/b; chmod 555 s/ro; chown -R 65534:65534 s",
    );
    bench.copy("s d").expect_code(0);
    assert_eq!(bench.mode("d/ro"), 0o555);
    bench.copy("s d").expect_code(0);
    assert_eq!(bench.mode("d/ro"), 0o555, "after a run that had nothing to do");
}

#[test]
fn output_that_cannot_be_written_is_no_success() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/f");
    let program = bench.dmover.command().get_program().to_string_lossy().into_owned();
    let state = bench.dmover.state_directory();
    let script = format!(
        "export DMOVER_STATE_DIR='{}'; '{program}' copy --json s d > /dev/full || echo $?",
        state.display()
    );
    assert_eq!(bench.sh(&script), "8\n");
}

#[test]
fn a_batch_does_not_lock_out_another_one() {
    let bench = Bench::new();
    bench.write("large", pattern(2_000_000));
    bench.write("f", "f");
    let words = ["copy", "--json", "--bwlimit=1M", "--read-stdin"];
    let first = bench.dmover.start_with(words, b"large d1\n".to_vec()).unwrap();
    assert!(first.wait_for_stdout("\"start\"", 1));
    bench.dmover_with("copy --json --read-stdin", "f d2\n").expect_code(0);
    first.finish().unwrap().expect_code(0);
}

#[test]
fn a_directory_made_anew_is_not_taken_for_the_old_one_on_a_disk_either() {
    let Some(image) = Image::create_or_skip("placement", FileSystem::Ext4, 32 << 20) else {
        return;
    };
    let bench = Bench::inside(image.path());
    bench.sh("mkdir s; echo 1 > s/f");
    bench.copy("s new").expect_code(0);
    bench.sh("rm -r new; mkdir new");
    bench.copy("s new").expect_code(0);
    assert!(bench.exists("new/s/f"), "{}", bench.sh("find new"));
}

#[test]
fn a_source_inside_the_target_of_another_is_refused() {
    let bench = Bench::new();
    bench.sh("mkdir -p oa od/oa/sub; echo 1 > oa/f; echo 2 > od/oa/sub/g");
    let before = snapshot(bench.root());
    bench.copy("oa od/oa/sub od").expect_code(2);
    assert_eq!(before.changes(&snapshot(bench.root())), Vec::<String>::new());
}

#[test]
fn an_explicit_flag_wins_over_the_configuration() {
    let bench = Bench::new();
    bench.sh("mkdir s d; echo new > s/f; echo old > d/f");
    bench.write("config.toml", "[copy]\nno-clobber = true\n");
    bench.copy("--config config.toml --overwrite=always -T s d").expect_code(0);
    assert_eq!(bench.read("d/f"), "new\n");
    let mut command = bench.dmover.command();
    command.env("DMOVER_DRY_RUN", "1").args(["copy", "s", "fresh"]);
    assert!(command.output().unwrap().status.success());
    assert!(!bench.exists("fresh"));
}

#[test]
fn a_stopped_job_says_so_in_a_few_lines() {
    let bench = Bench::new();
    bench.sh("mkdir s; for i in $(seq 1000); do echo $i > s/$i; done");
    let running = bench.dmover.start(["copy", "--ops-limit=100", "s", "d"]).unwrap();
    assert!(poll(|| bench
        .sh("ls d 2>/dev/null | wc -l")
        .trim()
        .parse::<u32>()
        .is_ok_and(|n| n > 10)));
    running.signal(Signal::INT);
    let run = running.finish().unwrap();
    assert!(run.stderr.lines().count() < 60, "{}", run.stderr);
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
}

#[test]
fn a_source_that_grows_between_runs_is_brought_up_to_date() {
    let bench = Bench::new();
    let file = bench.write("s/log", pattern(100_000));
    for _ in 0..3 {
        bench.copy("s d").expect_code(0);
        let options = CompareOptions::default();
        assert!(compare(&bench.at("s"), &bench.at("d"), &options).unwrap().is_empty());
        append(&file, "one more line\n");
    }
}

#[test]
fn a_file_that_never_rests_is_named_and_not_waited_for() {
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/busy; echo 2 > s/calm");
    let busy = bench.at("s/busy");
    let done = AtomicBool::new(false);
    let gave_up = std::thread::scope(|scope| {
        // Every change of the mode is a new change time; several threads, as one may have to wait.
        for _ in 0..3 {
            scope.spawn(|| {
                for mode in [0o600, 0o644].into_iter().cycle() {
                    fs::set_permissions(&busy, Permissions::from_mode(mode)).unwrap();
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let mut runs = (0..200).map(|round| bench.copy(&format!("s d{round}")));
        let gave_up = runs.find(|run| {
            let summary = run.said().ok().and_then(|said| said.summary);
            summary.is_none_or(|summary| summary.number("retries") != Some(0))
        });
        done.store(true, Ordering::Relaxed);
        gave_up
    });
    let run = gave_up.expect("no run gave up waiting for the file");
    assert!(matches!(run.code(), Some(0 | 4)), "{}", run.tell());
    let changed = run.tell().contains("\"class\":\"changed\"");
    assert_eq!(changed, run.code() == Some(4), "{}", run.tell());
    assert!(bench.sh("cat d*/calm | sort -u") == "2\n");
}

/// A directory that could not be opened was taken for none, and what it contained was overwritten.
#[test]
fn a_directory_that_cannot_be_opened_is_copied_into_or_refused() {
    const TREES: &str = "mkdir s d; echo from s > s/a; echo old > d/a";
    if is_root() {
        for mode in ["000", "100", "200", "300", "311", "500"] {
            let bench = Bench::new().unprivileged();
            bench.sh(&format!("{TREES}; chown -R --reference=. s d; chmod {mode} d"));
            let run = bench.copy("s d");
            assert_eq!(bench.read("d/a"), "old\n", "{mode}");
            assert_eq!(bench.sh("stat -c %a d").trim().parse(), mode.parse::<u32>(), "{mode}");
            // As cp(1), which needs the same rights.
            let searches = matches!(mode, "300" | "311");
            assert_eq!(run.code(), Some(if searches { 0 } else { 2 }), "{mode}: {}", run.tell());
            if searches {
                bench.sh("diff -r s d/s");
            }
        }
    }
    for nth in 1..=3 {
        let Some((served, bench)) = Bench::faulty() else { skip!("no faultfs") };
        bench.sh(&format!("cd backing; {TREES}"));
        for operation in [Op::Opendir, Op::Getattr, Op::Lookup] {
            let rule = Rule::new(operation, Action::Errno(5)).name("d").when(When::Nth(nth));
            served.set_rules(&[rule]).unwrap();
            let run = bench.copy("faulty/s faulty/d");
            let shown = format!("{operation:?} {nth}: {}", run.tell());
            assert_eq!(bench.read("backing/d/a"), "old\n", "{shown}");
            let copied = bench.exists("backing/d/s/a");
            assert!(copied || run.code() != Some(0), "{shown}");
            bench.sh("rm -rf backing/d/s");
        }
    }
}
