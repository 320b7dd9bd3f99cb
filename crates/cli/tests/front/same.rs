//! Sources and destinations that are one file, backups, and files that are made up as they are read: beside the real cp.
use dmover_testkit::skip;

use crate::bench::{Bench, PROGRAM};

/// Files, links to them, other names of them, and a file beside its backup.
const STAGE: &str = r"mkdir STAGE; cd STAGE; echo content > f; ln -s f sl; ln -s f sl2; ln f hard; echo other > o; ln -s o so
    ln -s nowhere dang; ln -P sl hsl; mkdir d; ln -s ../f d/f; echo A > a~; echo B > a";

const LOOK: &str =
    r"{ find . -printf '%P %y %l\n' | sort; find . -type f -exec sha256sum {} + | sort -k 2; }";

/// Lines at which cp 9.1 is not to be followed: it removes the source, or puts the backup into the wrong directory.
const NOT_FOLLOWED: [&str; 2] = ["--remove-destination sl sl", "--b=simple f d"];

#[test]
fn one_file_by_two_names_is_treated_as_cp_does() {
    let pairs = "f f|f hard|hard f|f sl|sl f|sl sl|sl sl2|sl hsl|f so|sl so|so f|f dang|sl d|f d|f d/f|o d/f|a~ a|sl hard|so o";
    let options = "|--remove-destination|-b|-bf|--backup=numbered|-dbf|-d --remove-destination|-a|-ab|--b=simple|-T|-n";
    let bench = Bench::new();
    // The whole table in one shell: hundreds of commands.
    let script = r#"
        one() { local at=$1; shift; rm -rf $at
            ( STAGE_LINE ) > /dev/null; ( cd $at; "$@" > /dev/null 2>> ../err.$at && echo 0 || echo 1; LOOK_LINE ) > $at.seen; }
        IFS='|' read -ra pairs <<< 'PAIRS'; IFS='|' read -ra options <<< 'OPTIONS'; unset IFS; lines=0
        for pair in "${pairs[@]}"; do for option in "${options[@]}"; do
            one theirs cp $option $pair; one ours PROGRAM cp $option $pair; lines=$((lines + 1))
            # A file is replaced here where cp writes into it, so that another name of it keeps what it had.
            had=$(echo content | sha256sum | cut -d ' ' -f 1)
            grep -q "^$had  ./hard" ours.seen && sed -i "s|^.*  ./hard$|$had  ./hard|" theirs.seen
            cmp -s theirs.seen ours.seen || { echo "== $option $pair"; diff theirs.seen ours.seen || true; }
        done; done; echo $lines"#;
    let script = script
        .replace("STAGE_LINE", &STAGE.replace("STAGE", "$at"))
        .replace("LOOK_LINE", LOOK)
        .replace("PAIRS", pairs)
        .replace("OPTIONS", options)
        .replace("PROGRAM", PROGRAM);
    let seen = bench.sh(&script);
    let (differences, lines) = seen.trim_end().rsplit_once('\n').unwrap_or(("", seen.trim_end()));
    assert_eq!(lines, "228");
    let unexpected: Vec<&str> = differences
        .split("== ")
        .filter(|part| !part.is_empty())
        .filter(|part| !NOT_FOLLOWED.contains(&part.lines().next().unwrap_or_default().trim()))
        .collect();
    assert!(unexpected.is_empty(), "{}\n{}", unexpected.concat(), bench.read("err.ours"));
}

#[test]
fn a_backup_never_overwrites_the_source() {
    let bench = Bench::new();
    let lines = [
        "cp --b=simple a~ a",
        "cp -b -t d d/a~ a",
        "cp --b=simple l~ l",
        "copy -q --backup a~ a",
        "copy -q --backup -L l~ l",
    ];
    for line in lines {
        bench.sh("rm -rf *; echo A > a~; : > a; echo L > other; ln -s other l~; echo old > l; mkdir d; echo A > d/a~; : > d/a");
        let before = bench.sh("find . -type f -exec sha256sum {} + | sort; readlink l~");
        assert_ne!(bench.dmover(line).code(), Some(0), "{line}");
        let after = bench.sh("find . -type f -exec sha256sum {} + | sort; readlink l~");
        assert_eq!(before, after, "{line}");
    }
}

#[test]
fn backups_follow_the_variables_and_numbers_of_cp() {
    let before = "echo 1 > a; echo 2 > b; echo 3 > c; echo old > c.~3~; mkdir d; echo 4 > d/a; echo 5 > d/b; echo v > d/b.~2~";
    let lines = [
        ("", "cp -b a b"),
        ("", "cp -b a c"),
        ("", "cp --backup=t a c"),
        ("", "cp --backup=simple a c"),
        ("", "cp -b a d"),
        ("", "cp -b b d"),
        ("", "cp -b -t d b"),
        ("", "cp --backup=nu a b"),
        ("VERSION_CONTROL=numbered", "cp -b a b"),
        ("VERSION_CONTROL=simple", "cp -b a c"),
        ("VERSION_CONTROL=numbered", "cp --backup=simple a b"),
        ("VERSION_CONTROL=off", "cp -b a b"),
        ("VERSION_CONTROL=numbered", "cp a b"),
        ("VERSION_CONTROL=colour", "cp -b a b"),
        ("VERSION_CONTROL=numbered", "cp --backup a b"),
        ("VERSION_CONTROL=none", "cp --backup a b"),
        ("VERSION_CONTROL=colour", "cp --backup a b"),
        ("VERSION_CONTROL=numbered", "cp --backup= a b"),
        ("VERSION_CONTROL=numbered", "cp --backup=existing a b"),
        ("VERSION_CONTROL=none", "cp --backup /dev/null b"),
        ("VERSION_CONTROL=numbered", "cp --backup /dev/null b"),
        ("SIMPLE_BACKUP_SUFFIX=.orig", "cp -b a b"),
        ("SIMPLE_BACKUP_SUFFIX=.orig", "cp -b -S .mine a b"),
        ("SIMPLE_BACKUP_SUFFIX=x/y", "cp -b a b"),
        ("", "cp -b -n a b"),
        ("", "cp --backup=n a b"),
    ];
    let bench = Bench::new();
    for (variables, line) in lines {
        let run = |at: &str, program: &str| {
            bench.sh(&format!(
                "rm -rf {at}; mkdir {at}; cd {at}; {before}; {variables} {program}{line} 2> ../err && echo 0 || echo 1; {LOOK}"
            ))
        };
        let (theirs, ours) = (run("theirs", ""), run("ours", &format!("{PROGRAM} ")));
        assert_eq!(theirs, ours, "{variables} {line}: {}", bench.read("err"));
    }
}

/// What is read as a stream takes the place of files as cp has it: with backups, only if it is newer, and beside other names.
#[test]
fn streams_replace_files_as_cp_does() {
    let before = "umask 022; echo precious > a; ln a h; echo other > n; ln -s a l; ln -s nowhere dang; mkfifo p; mkdir d; echo inner > d/stdin
        echo numbered > n.~4~; (echo piped > p) & pid=$!";
    let lines = [
        "-b /dev/stdin a",
        "--backup /dev/stdin a",
        "--backup=numbered /dev/stdin a",
        "-S .x -b /dev/stdin a",
        "-b /dev/stdin n",
        "-b /dev/null a",
        "-b /dev/null new",
        "-b p a",
        "p a",
        "-u /dev/null a",
        "-u /dev/stdin a",
        "-ub /dev/stdin a",
        "-u /dev/null new",
        "--remove-destination /dev/null a",
        "--remove-destination p l",
        "-d /dev/null a",
        "-P /dev/null a",
        "--preserve=links /dev/stdin a",
        "-b /dev/stdin d",
        "-b -t d /dev/stdin",
        "-t d /dev/stdin",
        "/dev/stdin n d",
        "-b /dev/stdin n d",
        "-b /dev/stdin l",
        "/dev/stdin l",
        "-b /dev/stdin dang",
        "/dev/stdin dang",
        "-b a p",
        "--remove-destination a p",
        "p p",
        "-b p p",
        "-n /dev/stdin a",
        "-T -b /dev/null d",
        "-b /proc/version a",
        "-u /proc/version a",
        "--remove-destination /proc/version a",
        "-b /dev/nowhere a",
    ];
    let look = r"find . -printf '%P %y %m %n %l\n' | sort; find . -type f -exec sha256sum {} + | sort -k 2";
    let bench = Bench::new();
    for line in lines {
        let run = |at: &str, program: &str| {
            bench.sh(&format!(
                "rm -rf {at}; mkdir {at}; cd {at}; {before}
                 echo new | timeout 20 {program}cp {line} 2> ../err > /dev/null && echo 0 || echo 1
                 kill $pid 2> /dev/null || true; {look}"
            ))
        };
        let (theirs, ours) = (run("theirs", ""), run("ours", &format!("{PROGRAM} ")));
        assert_eq!(theirs, ours, "{line}: {}", bench.read("err"));
    }
}

/// The old file has its name again when the disk is full, and the backup does not replace what is read.
#[test]
fn a_stream_that_fails_leaves_the_old_file() {
    let bench = Bench::new();
    bench.sh("mkdir d; mkfifo a~; echo precious > a");
    bench.dmover("cp -b a~ a").expect_code(1);
    bench.sh("rm a~");
    let full = format!(
        "ulimit -f 1; trap '' XFSZ; {PROGRAM} cp -b /dev/zero a 2> err && exit 1; cat a; ls -A"
    );
    assert_eq!(bench.sh(&full), "precious\na\nd\nerr\n");
    let run = bench.dmover("cp /dev/null /dev/null d").expect_code(2);
    assert!(run.stderr.contains("two sources"), "{}", run.tell());
}

#[test]
fn pairs_that_mcp_reads_are_backed_up() {
    for (word, backup) in [("--backup=simple", "b~"), ("-b", "b.~1~")] {
        let bench = Bench::new();
        bench.sh(&format!(
            "echo new > a; echo precious > b; ln -s {PROGRAM} mcp; printf '%s\\n' 'a b' | ./mcp {word} --read-stdin 2>&1"
        ));
        assert_eq!((bench.read("b"), bench.read(backup)), ("new\n".into(), "precious\n".into()));
    }
}

#[test]
fn files_without_storage_are_read_as_cp_reads_them() {
    let bench = Bench::new();
    bench.sh("mkdir theirs ours; echo old | tee theirs/old > ours/old");
    for line in [
        "/proc/version v",
        "/proc/version old",
        "/proc/version /proc/filesystems .",
        "-t . /proc/cmdline",
        "-p /proc/filesystems p",
        "-a /proc/filesystems q",
        "-n /proc/version old",
        "/sys/kernel/mm/transparent_hugepage/enabled h",
    ] {
        bench.sh(&format!("cd theirs; cp {line}"));
        let run = bench.sh(&format!("cd ours; {PROGRAM} cp {line} 2>&1 || echo $?"));
        assert_eq!(run, "", "{line}");
        let look = r"find . -printf '%P %m %s\n' | sort; cat v old p q h 2> /dev/null || true";
        let (theirs, ours) =
            (bench.sh(&format!("cd theirs; {look}")), bench.sh(&format!("cd ours; {look}")));
        assert_eq!(theirs, ours, "{line}");
    }
    // The native verb names it instead.
    assert_ne!(bench.dmover("copy -q --no-state /proc/version n").code(), Some(0));
    assert!(!bench.exists("n"));
}

#[test]
fn names_that_lead_to_one_file_become_links_where_cp_links_them() {
    let bench = Bench::new();
    bench.sh("mkdir -p s/d; echo x > s/f; ln -s f s/l1; ln -s ../f s/d/l2; ln s/f s/h; echo y > s/single; ln -s single s/l3");
    for line in [
        "-RL --preserve=links s",
        "-aL s",
        "-L --preserve=links s/l1 s/l3 s/single s/d/l2",
        "-RL s",
    ] {
        bench.sh(&format!("rm -rf theirs ours; mkdir theirs ours; cp {line} theirs"));
        bench.dmover(&format!("cp {line} ours")).expect_code(0);
        // Which names are one inode, by the first of them.
        let look = r"find . -type f -printf '%i %P\n' | sort -k 2 | awk '!($1 in first) { first[$1] = $2 } { print $2, first[$1] }'; find . -type f | sort | xargs cat";
        let (theirs, ours) =
            (bench.sh(&format!("cd theirs; {look}")), bench.sh(&format!("cd ours; {look}")));
        assert_eq!(theirs, ours, "{line}");
    }
}

#[test]
fn all_attributes_are_kept_as_far_as_the_destination_has_them() {
    let bench = Bench::new();
    if bench.sh("mkdir m; mount -t ramfs none m 2> /dev/null && echo yes || true").is_empty() {
        skip!("cannot mount a ramfs");
    }
    let _undo = bench.undo("umount m");
    bench.sh("echo x > f; setfattr -n user.a -v 1 f");
    for line in
        ["--preserve=all f m/x", "-a f m/x", "--preserve=xattr f m/x", "-R --preserve=all f m/x"]
    {
        let theirs = bench.sh(&format!("rm -f m/x; cp {line} 2> /dev/null && echo 0 || echo 1"));
        let ours = bench.sh(&format!("rm -f m/x; {PROGRAM} cp {line} 2> err && echo 0 || echo 1"));
        assert_eq!(theirs, ours, "{line}: {}", bench.read("err"));
    }
}
