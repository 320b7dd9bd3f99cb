//! What is refused before anything is changed: exit code 2, one line that names the path, and a hint.

use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::run::Run;
use dmover_testkit::skip;

use super::bench::is_root;
use super::{Bench, snapshot};

/// Runs a command that has to be refused, in one line with these words, without touching anything.
#[track_caller]
fn refused(bench: &Bench, line: &str, words: &[&str]) -> Run {
    let before = snapshot(bench.root());
    let run = bench.dmover(line).expect_code(2);
    for word in words {
        assert!(run.stderr.contains(word), "{word:?} is not named by {line:?}: {}", run.stderr);
    }
    assert_eq!(run.text(), "", "standard output is for data");
    assert_eq!(before.changes(&snapshot(bench.root())), Vec::<String>::new(), "{line}");
    run
}

/// The same, and the message is one line of error and one of hint.
#[track_caller]
fn refused_in_one_line(bench: &Bench, line: &str, words: &[&str]) {
    let run = refused(bench, line, words);
    let lines: Vec<&str> = run.stderr.lines().collect();
    let hints = lines.iter().filter(|line| line.trim_start().starts_with("hint:")).count();
    assert!(lines[0].starts_with("dmover: error: "), "{}", run.stderr);
    assert_eq!((lines.len(), hints), (2, 1), "{}", run.stderr);
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("tree/one", "1");
    bench.write("tree/sub/two", "2");
    bench.write("file", "3");
    bench.sh("mkdir there; ln -s tree link; ln -s nowhere dangling");
    bench
}

#[test]
fn paths_that_cannot_work() {
    let bench = bench();
    let table: [(&str, &[&str]); 20] = [
        ("copy nowhere there", &["nowhere"]),
        ("copy no/where there", &["no/where"]),
        ("copy file/x there", &["file/x"]),
        ("copy tree file", &["file"]),
        ("copy -T file there", &["there"]),
        ("copy tree file there/deeper", &["there/deeper"]),
        ("copy tree file file", &["file"]),
        ("copy -T tree file there", &["there"]),
        ("copy -t nowhere tree", &["nowhere"]),
        ("copy -t file tree", &["file"]),
        ("copy tree no/where/at/all", &["no/where"]),
        ("copy file file", &["file"]),
        ("copy file ./there/../file", &["file"]),
        ("copy dangling/ there", &["dangling"]),
        ("copy host: there", &["host:"]),
        ("sync host: there", &["host:"]),
        ("sync tree host:", &["host:"]),
        ("copy tree host:", &["host:"]),
        ("copy file tree/one there/x/", &["there/x"]),
        ("copy tree/sub/two file/two", &["file/two"]),
    ];
    for (line, words) in table {
        refused_in_one_line(&bench, line, words);
    }
}

/// Whatever order they are named in.
#[test]
fn sources_in_each_others_way() {
    let bench = bench();
    bench.sh("mkdir -p there/tree/below");
    for line in ["copy there/tree/below tree there", "copy tree there/tree/below there"] {
        refused_in_one_line(&bench, line, &["there/tree/below", "overlaps", "'tree'"]);
    }
    refused_in_one_line(&bench, "copy tree ./link/../tree there", &["have the same destination"]);
    // Also behind links that are followed.
    bench.sh("mkdir -p there/tree; ln -s there/tree below; ln -s there/file named");
    refused_in_one_line(&bench, "copy below/ tree there", &["below", "overlaps", "'tree'"]);
    bench.sh("cp file there/file");
    refused_in_one_line(
        &bench,
        "copy --dereference-args named file there",
        &["named", "overlaps", "'file'"],
    );
    bench.copy("named file there").expect_code(0);
}

/// A directory stays open as long as the job runs.
#[test]
fn more_directories_than_can_be_open() {
    let bench = bench();
    bench.sh("mkdir $(seq 200)");
    let bench = bench.with(|dmover| dmover.wrapped(["prlimit", "--nofile=100:100"]));
    let sources: Vec<String> = (1..=200).map(|number| number.to_string()).collect();
    let line = format!("copy {} there", sources.join(" "));
    refused_in_one_line(&bench, &line, &["Too many open files", "ulimit"]);
}

#[test]
fn flags_that_make_no_sense() {
    let bench = bench();
    let table: [(&str, &[&str]); 31] = [
        ("copy", &["SOURCE"]),
        ("copy file", &["file"]),
        ("copy -t there", &["SOURCE"]),
        ("copy -T -t there tree", &["-t"]),
        ("copy --overwrite=sometimes file new", &["sometimes"]),
        ("copy --sparse=maybe file new", &["maybe"]),
        ("copy --reflink=maybe file new", &["maybe"]),
        ("copy --preserve=colour file new", &["colour"]),
        ("copy --no-preserve=colour file new", &["colour"]),
        ("copy --allow-loss=hope file new", &["hope"]),
        ("copy --split-size lots file new", &["lots"]),
        ("copy --bwlimit 0 file new", &["bwlimit"]),
        ("copy --bwlimit 0K file new", &["more than 0"]),
        (
            "copy --bwlimit 1000 file new",
            &["1000K is KiB per second, as in rsync", "1000B is bytes"],
        ),
        ("copy --max-errors 0 file new", &["max-errors"]),
        ("copy --max-duration soon file new", &["soon"]),
        ("copy -j 0 file new", &["threads"]),
        ("copy --min-size 2K --max-size 1K file new", &["min-size"]),
        ("copy --newer yesterdayish file new", &["yesterdayish"]),
        ("copy --exclude [ file new", &["["]),
        ("copy --update --no-clobber file new", &["--no-clobber"]),
        ("copy --backup --inplace file new", &["--inplace"]),
        ("copy -L --preserve=links tree new", &["--dereference"]),
        ("copy --format %q file new", &["%q"]),
        ("copy -j many file new", &["from 1 to 1024"]),
        ("copy --backup=weekly file new", &["weekly"]),
        ("copy --usermap a:b:c file new", &["a:b:c"]),
        ("copy --usermap root:nosuch file new", &["nosuch"]),
        ("copy --projectmap a:b file new", &["a:b"]),
        ("copy -Q file new", &["-Q"]),
        ("copy --frobnicate file new", &["frobnicate"]),
    ];
    for (line, words) in table {
        refused(&bench, line, words);
    }
}

#[test]
fn files_that_are_read_must_be_there() {
    let bench = bench();
    refused_in_one_line(&bench, "copy --files-from no-list tree new", &["no-list"]);
    refused_in_one_line(&bench, "copy --exclude-from no-rules tree new", &["no-rules"]);
    refused(&bench, "copy --config no-config tree new", &["no-config"]);
    refused(&bench, "copy --log-file no/where tree new", &["no/where"]);
    refused(&bench, "copy --files-from list tree file there", &["--files-from"]);
    refused(&bench, "copy --read-stdin tree there", &["--read-stdin"]);
}

#[test]
fn a_tree_is_not_copied_into_or_onto_itself() {
    let bench = bench();
    let table: [(&str, &[&str]); 12] = [
        ("copy tree tree", &["tree"]),
        ("copy -T tree tree", &["tree"]),
        ("copy tree tree/sub", &["tree/sub"]),
        ("copy tree tree/new", &["tree/new"]),
        ("copy tree/sub tree/sub/deeper", &["tree/sub/deeper"]),
        ("copy -T tree/sub tree", &["tree"]),
        ("copy link/ tree", &["tree"]),
        ("copy tree/. tree/sub", &["tree"]),
        ("copy tree link/sub", &["link/sub"]),
        ("copy tree there/../tree/sub/x", &["tree"]),
        ("copy tree/sub tree", &["tree/sub"]),
        ("copy tree/one tree", &["tree/one"]),
    ];
    for (line, words) in table {
        refused_in_one_line(&bench, line, words);
    }
}

#[test]
fn two_sources_of_one_name_are_refused() {
    let bench = bench();
    bench.write("other/file", "another");
    refused_in_one_line(&bench, "copy file other/file there", &["other/file"]);
}

#[test]
fn hard_links_to_itself_are_seen() {
    let bench = bench();
    bench.sh("ln file twin");
    refused_in_one_line(&bench, "copy file twin", &["file"]);
}

#[test]
fn bind_mounts_do_not_hide_that_it_is_the_same_tree() {
    if !is_root() {
        skip!("needs root to mount");
    }
    let bench = bench();
    bench
        .sh("mkdir bound; mount --bind tree bound; mkdir subbound; mount --bind tree/sub subbound");
    let _undo = bench.undo("umount bound; umount subbound");
    for line in [
        "copy -T tree bound",
        "copy tree bound",
        "copy tree bound/new",
        "copy bound tree/sub",
        "copy -T bound tree",
        "copy tree subbound",
        "copy tree subbound/new",
        "copy -T tree subbound",
        "copy bound subbound/new",
        "copy -T subbound tree",
    ] {
        refused(&bench, line, &["bound"]);
    }
}

/// Mounts an overlay on `m`, with the layers `l` and `u`. A relative path in its options says nothing to anybody else.
fn overlay(layers: &str) -> Bench {
    let bench = Bench::new();
    bench.write("l/one", "1");
    bench.write("l/sub/two", "2");
    bench.write("l,w:x/three", "3");
    bench.sh("mkdir u w m away; mkdir u/new");
    bench.sh(&format!("root=$PWD; mount -t overlay -o {layers} overlay m"));
    bench
}

#[test]
fn an_overlay_is_not_copied_into_its_own_layers() {
    if !is_root() {
        skip!("needs root to mount");
    }
    let bench = overlay("lowerdir=$root/l:$root/l\\\\,w\\\\:x,upperdir=$root/u,workdir=$root/w");
    let _undo = bench.undo("umount m");
    for line in [
        "copy m l/x",
        "copy m l",
        "copy -x m l/x",
        "copy -T m l/sub/x",
        "copy m u/x",
        "copy m/sub l/sub",
        "copy m/new u/new/x",
        "copy m ./l,w:x/x",
        "copy -T m/sub l",
        // What is written to the overlay lands in its upper layer.
        "copy u m/x",
        "copy -T u/new m",
        "sync m l/x",
        "sync u m/x",
    ] {
        refused(&bench, line, &["overlay", "/m'"]);
    }
    // Beside the layers, or into another part of the overlay.
    for line in ["copy l m/y", "copy m away", "copy m/sub m/z", "copy m/sub l/z", "copy u away"] {
        bench.dmover(line).expect_code(0);
    }
    assert_eq!(bench.read("m/y/sub/two"), "2");
    // Seen through a mount below the source.
    bench.sh("mkdir outer outer/m; mount --bind m outer/m");
    let _undo = bench.undo("umount outer/m");
    refused(&bench, "copy outer l/x", &["overlay"]);
    bench.dmover("copy -x outer l/x").expect_code(0);
}

/// Options that name no path that anybody could look at.
#[test]
fn an_overlay_with_unknown_layers_does_not_recurse() {
    if !is_root() {
        skip!("needs root to mount");
    }
    for (line, copy) in [("copy m l/x", "l/x"), ("copy m u/x", "u/x"), ("copy u m/x", "u/x")] {
        let bench = overlay("lowerdir=l,upperdir=u,workdir=w");
        let _undo = bench.undo("umount m");
        let run = bench.dmover(line);
        // Whether an overlay shows what was made below it is not defined.
        if run.code() != Some(0) {
            assert_eq!(run.code(), Some(3), "{line}: {}", run.stderr);
            assert!(run.stderr.contains("is inside the source"), "{line}: {}", run.stderr);
        }
        assert!(!bench.exists(&format!("{copy}/x/x")), "{line} recurses");
    }
}

#[test]
fn a_destination_below_a_mount_inside_the_source_is_seen() {
    if !is_root() {
        skip!("needs root to mount");
    }
    let bench = bench();
    bench.sh("mkdir tree/mnt; mount -t tmpfs none tree/mnt");
    let _undo = bench.undo("umount tree/mnt");
    refused(&bench, "copy tree tree/mnt/new", &["tree/mnt/new"]);
    bench.copy("-x tree tree/mnt/new").expect_code(0);
    assert_eq!(bench.read("tree/mnt/new/sub/two"), "2");
}

#[test]
fn a_read_only_destination_is_refused() {
    if !is_root() {
        skip!("needs root to mount");
    }
    let bench = bench();
    bench.sh("mkdir ro; mount -t tmpfs none ro; mkdir ro/there; mount -o remount,ro ro");
    let _undo = bench.undo("umount ro");
    refused_in_one_line(&bench, "copy tree ro", &["ro/tree", "read-only"]);
    refused_in_one_line(&bench, "copy file ro/there", &["ro/there", "read-only"]);
    refused_in_one_line(&bench, "copy -T tree ro/there", &["ro/there", "read-only"]);
    refused_in_one_line(&bench, "copy -n tree ro", &["ro/tree", "read-only"]);
}

#[test]
fn without_permission_nothing_is_begun() {
    if !is_root() {
        skip!("needs root to become somebody else");
    }
    let bench = Bench::new().unprivileged();
    bench.sh("mkdir mine theirs secret; echo 1 > mine/1; echo 2 > secret/2; chmod 700 secret
        echo 3 > file; chmod 600 file; chown -R 65534:65534 mine");
    refused_in_one_line(&bench, "copy mine theirs", &["theirs"]);
    refused_in_one_line(&bench, "copy mine theirs/new", &["theirs/new"]);
    refused_in_one_line(&bench, "copy secret mine/new", &["secret"]);
    refused_in_one_line(&bench, "copy file mine/new", &["file"]);
    refused_in_one_line(&bench, "copy mine secret/new", &["secret/new"]);
}

#[test]
fn what_preserve_names_and_the_destination_cannot_hold_is_refused() {
    let Some(zfs) = Image::create_or_skip("preserve on zfs-fuse", FileSystem::ZfsFuse, 64 << 20)
    else {
        return;
    };
    let bench = Bench::inside(zfs.path());
    let away = Bench::new();
    away.write("tree/one", "1");
    let words = |list: &str, to: &str| {
        let to = bench.at(to).into_os_string();
        [format!("--preserve={list}").into(), away.at("tree").into_os_string(), to]
    };
    let run = away.copy_words(&words("flags", "new")).expect_code(2);
    assert!(run.stderr.contains("flags"), "{}", run.stderr);
    assert!(!bench.exists("new"));
    assert_eq!(bench.sh("ls -A"), "", "the probe left something behind");
    away.copy_words(&words("mode,owner", "new")).expect_code(0);
    assert_eq!(bench.read("new/one"), "1");
}

#[test]
fn a_run_that_is_under_way_locks_the_same_job_out() {
    let bench = bench();
    bench.sh("head -c 3000000 /dev/zero | tr '\\0' x > large");
    let running = bench.dmover.start_copy(["--bwlimit", "1M", "large", "new"]).unwrap();
    assert!(running.wait_for_stdout("\"start\"", 1));
    let run = bench.dmover("copy large new").expect_code(6);
    assert!(run.stderr.contains("already running"), "{}", run.stderr);
    bench.copy("file other").expect_code(0);
    running.finish().unwrap().expect_code(0);
    bench.copy("large new").expect_code(0);
}

#[test]
fn habits_from_other_tools_are_answered() {
    let bench = bench();
    let options = [
        ("-l", "cp -l makes hard links"),
        ("--delete-after", "never deletes"),
        ("-c", "--overwrite=always"),
    ];
    for (option, words) in options {
        let run = refused(&bench, &format!("copy {option} file new"), &[words]);
        assert!(!run.stderr.contains("Usage:"), "{}", run.stderr);
    }
    let bench = bench.with(|dmover| dmover.wrapped(["env", "DMOVER_THREADS=many"]));
    let run = bench.dmover("copy file new").expect_code(2);
    assert!(run.stderr.contains("$DMOVER_THREADS is 'many'"), "{}", run.stderr);
}

/// Each verb answers for itself.
#[test]
fn habits_are_answered_by_verb() {
    let bench = bench();
    for (line, words) in [
        ("sync --filter x tree new", "merge FILE"),
        ("copy --filter x tree new", "merge FILE"),
        ("sum -f x tree", "--filter"),
        ("verify -F tree new", "--filter='merge FILE'"),
        ("sync -m tree new", "does not prune empty directories"),
        ("copy --prune-empty-dirs tree new", "--exclude 'NAME/'"),
        ("sum -m tree", "exclude directories"),
        ("sync -C tree new", "no list of names"),
        ("verify -C tree new", "no list of names"),
        ("sync --delete-before tree new", "--delete=after"),
        ("snapshot create --broker x tree new", "does not support --broker"),
        ("broker --listen 127.0.0.1:4222 --state st", "--port 4222"),
    ] {
        let run = bench.dmover(line).expect_code(2);
        assert!(run.stderr.contains(words) && !run.stderr.contains("a similar"), "{}", run.tell());
        assert!(!bench.exists("new") && !bench.exists("st"), "{line}");
    }
    // cp (GNU coreutils 9.1) has no such option.
    bench.dmover("cp --debug file new").expect_code(2);
    assert!(!bench.exists("new"));
}

/// What was typed wins over a variable that says the opposite.
#[test]
fn an_option_beats_a_variable_that_contradicts_it() {
    let bench = bench();
    bench.sh("mkdir st");
    let bench = bench.with(|dmover| {
        dmover.wrapped(["env", "DMOVER_STATE_DIR=st", "DMOVER_MANIFEST=m", "DMOVER_SI=1"])
    });
    bench.dmover("copy --no-state -n --bytes file new").expect_code(0);
    bench.dmover("copy --no-state file new").expect_code(0);
    assert_eq!(bench.sh("ls st; ls m"), "m\n", "the manifest contradicts nothing");
    bench.dmover("copy --state-dir st --no-state file new").expect_code(2);
}

#[test]
fn braces_in_rules_are_remarked_on_once() {
    let bench = bench();
    bench.sh("mkdir t; touch t/a.log t/a.tmp 't/a.{log,tmp}'; printf '*.{log,tmp}\\n*.{c,d}\\n' > braces; cp -a t u");
    let remark = "matches only names that contain these braces";
    for line in [
        "copy -T --exclude *.{log,tmp} --exclude x{1,2} t new",
        "sync -n --exclude-from braces t new",
        "verify --include-from braces t u",
        "sum --exclude *.{log,tmp} t",
    ] {
        let run = bench.dmover(line).expect_code(0);
        assert_eq!(run.stderr.matches(remark).count(), 1, "{}", run.tell());
        assert!(run.stderr.contains("*.log") && run.stderr.contains("*.tmp"), "{}", run.tell());
    }
    assert_eq!(bench.sh("ls new"), "a.log\na.tmp\n");
    for silent in ["*.\\{log,tmp}", "*.[{]log,tmp}", "{a}", "*.log"] {
        let run = bench.dmover(&format!("copy -n --exclude {silent} t other")).expect_code(0);
        assert!(!run.stderr.contains(remark), "{silent}: {}", run.tell());
    }
}

#[test]
fn lists_that_cannot_mean_anything_are_refused() {
    let bench = bench();
    bench.sh("echo x > list; printf -- 'a\n\n: .rsync-filter\n' > rules; echo 'merge self' > self");
    refused_in_one_line(&bench, "copy --files-from list file new", &["file", "not a directory"]);
    refused_in_one_line(&bench, "copy file/ new", &["file/", "not a directory"]);
    let merges = |file| format!("copy --filter merge_{file} tree new");
    refused_in_one_line(&bench, &merges("rules"), &["rules, line 1", "unknown name"]);
    refused_in_one_line(&bench, &merges("self"), &["nested too deep", "self"]);
    refused_in_one_line(&bench, "copy --exclude-from - tree new", &["standard input"]);
    let run = bench.dmover_with("copy --json --read-stdin", "tree new 0-5\n").expect_code(3);
    assert!(
        run.tell().contains("a byte range needs a regular file")
            || run.tell().contains("is a directory")
    );
    assert!(!bench.exists("new"));
}
