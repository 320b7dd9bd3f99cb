//! `dmover cp`, `mcp` and `msum` beside the programs that they stand in for.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

#[path = "../bench/mod.rs"]
mod bench;

mod same;

use bench::{Bench, PROGRAM, pattern};
use dmover_testkit::skip;

/// Everything about a tree that cp decides on; what is made anew has the time of the day.
const LOOK: &str = r"find . -printf '%P %y %m %U:%G %n %s %l %TY-%Tm-%Td\n' | sort
    find . -type f -exec sha256sum {} + | sort -k 2; getfattr -Rdhm- . 2>/dev/null | grep -v selinux | sort";

fn stage(bench: &Bench, name: &str) {
    bench.sh(&format!(
        r"mkdir {name}; cd {name}; umask 022; mkdir -p s/d into; printf one > s/f; printf two > s/d/kept-x
          chmod 604 s/d/kept-x; chmod 2755 s/d; ln -s f s/link; ln s/f s/hard; setfattr -n user.a -v 1 s/f
          touch -d 2001-02-03 s/f s/d/kept-x; printf old > old; touch -d 2010-01-01 old; printf older > into/f
          chown 1:1 s/f 2>/dev/null || true; ln -s s/d to-d; ln -s old to-old"
    ));
}

#[test]
fn cp_does_what_cp_does() {
    let lines = [
        "s/f g",
        "s/f into",
        "s/f s/d/kept-x into",
        "-t into s/f",
        "-T s/f into/f",
        "-r s t",
        "-R s into",
        "-a s t",
        "-a s/. into",
        "-rp s t",
        "-dp s/link into",
        "-P s/link into",
        "s/link into",
        "-L s/link into",
        "-rL s t",
        "-rH to-d t",
        "-r to-d t",
        "-d s/f s/hard into",
        "-n s/f into",
        "-u s/f into",
        "-u into/f old",
        "-b s/f into",
        "--backup=numbered s/f into",
        "-S .old s/f into",
        "--preserve=mode,timestamps s/d/kept-x into",
        "--preserve s/d/kept-x into",
        "-a --no-preserve=ownership s t",
        "--preserve=xattr s/f into",
        "--preserve=all -r s t",
        "-rv s t",
        "-f s/f old",
        "--sparse=always s/f g",
        "--reflink=auto s/f g",
        "--strip-trailing-slashes -r s/d/ t",
        "-x -r s t",
        "-rT s into",
        "nowhere s/f into",
        "s/f s/nowhere s/d/kept-x into",
        "--targ=into s/f",
        "-L -P s/link into",
        "s/f to-old",
        "-P s/link to-old",
        "-d s/link to-old",
        "-a s/link to-old",
        "-P -L s/link into",
        "--target-directory=into -T s/f",
        // Errors: cp ends with 1.
        "s t",
        "s s/f into",
        "nowhere t",
        "s/f s/d/kept-x nowhere",
        "s/f",
        "",
    ];
    let mut failures = Vec::new();
    for line in lines {
        let bench = Bench::new();
        stage(&bench, "theirs");
        stage(&bench, "ours");
        let run = |program: &str, directory: &str| {
            let script = format!(
                "cd {directory}; umask 027; {program} {line} > ../said.{directory} 2> ../err.{directory}; echo $?"
            );
            bench.sh(&script.replace("; echo $?", " && echo 0 || echo $?"))
        };
        let theirs = run("cp", "theirs");
        let ours = run(&format!("{PROGRAM} cp"), "ours");
        let sorted = |text: String| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let look = |directory: &str| {
            let mut seen = sorted(bench.sh(&format!("cd {directory}; {LOOK}")));
            seen.extend(sorted(bench.read(&format!("said.{directory}"))));
            seen
        };
        let said = bench.read("err.ours");
        if (theirs.trim() == "0") != (ours.trim() == "0") {
            failures.push(format!("cp {line}: {} and not {}: {said}", ours.trim(), theirs.trim()));
        }
        let (theirs, ours) = (look("theirs"), look("ours"));
        for only in theirs.iter().filter(|line| !ours.contains(line)) {
            failures.push(format!("cp {line}: lacks {only} {said}"));
        }
        for only in ours.iter().filter(|line| !theirs.contains(line)) {
            failures.push(format!("cp {line}: has {only}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_second_cp_of_a_directory_goes_inside_as_cps_does() {
    let bench = Bench::new();
    stage(&bench, "a");
    for _ in 0..2 {
        bench.dmover("cp -r a/s t").expect_code(0);
    }
    assert!(bench.exists("t/s/f") && bench.exists("t/f"));
}

#[test]
fn devices_and_fifos_are_written_to_and_not_replaced() {
    let bench = Bench::new();
    bench.write("f", "content");
    bench.sh("mkfifo pipe; timeout 20 cat pipe > got 2>&1 &");
    bench.dmover("cp f pipe").expect_code(0);
    bench.sh("n=0; while [ ! -s got ] && [ $n -lt 1000 ]; do sleep 0.01; n=$((n + 1)); done; test -p pipe");
    assert_eq!(bench.read("got"), "content");
    // The native verb refuses it instead.
    let run = bench.dmover("copy f pipe").expect_code(2);
    assert!(run.stderr.contains("dmover does not replace it with a file"), "{}", run.tell());
    bench.sh("test -p pipe");
}

#[test]
fn what_stands_there_keeps_its_acl_and_its_directory_its_mode() {
    let bench = Bench::new();
    bench.sh("printf old > o; printf new > n; setfacl -m u:12345:rw,g::- o; chmod o= o; cp -a o p");
    bench.sh("cp n p");
    bench.dmover("cp n o").expect_code(0);
    assert_eq!(bench.sh("getfacl -cn o"), bench.sh("getfacl -cn p"));
    if !bench::is_root() {
        skip!("needs root to run as somebody else");
    }
    let bench = Bench::new().unprivileged();
    bench.sh(
        "mkdir closed; printf x > closed/f; printf y > f; chmod 555 closed; chown -R 65534:65534 .",
    );
    bench.dmover("cp f closed/f");
    bench.dmover("copy -q --no-state -T f closed/f");
    assert_eq!(bench.mode("closed"), 0o555);
}

#[test]
fn a_link_never_takes_the_place_of_what_it_leads_to() {
    let bench = Bench::new();
    bench.sh(
        "printf precious > f; ln -s f l; mkdir t1 t2; printf precious > t2/x; ln -s ../t2/x t1/x",
    );
    for line in [
        "cp -d l f",
        "cp -a l f",
        "copy -q l f",
        "copy -q -n l f",
        "cp -a t1/. t2",
        "copy -q -T t1 t2",
    ] {
        assert_ne!(bench.dmover(line).code(), Some(0), "{line}");
        assert_eq!(bench.read("f") + &bench.read("t2/x"), "preciousprecious", "{line}");
    }
    // Through a link the file itself is meant.
    bench.sh("printf new > n");
    bench.dmover("cp n l").expect_code(0);
    assert_eq!(bench.read("f"), "new");
    bench.sh("test -L l; ln -s nowhere dangling");
    bench.dmover("cp n dangling").expect_code(2);
    bench.dmover("cp f l").expect_code(2);
}

#[test]
fn what_is_not_possible_is_refused_before_anything_is_done() {
    let bench = Bench::new();
    stage(&bench, "a");
    for line in [
        "cp -i a/s/f g",
        "cp -l a/s/f g",
        "cp -s a/s/f g",
        "cp --parents a/s/f a/into",
        "cp --attributes-only a/s/f g",
        "cp --preserve=colour a/s/f g",
        "cp --backup=often a/s/f g",
        "mcp --mpi a/s/f g",
        "mcp --manager-host=h a/s/f g",
        "mcp --manager-port=1 a/s/f g",
        "mcp --listen-port=1 a/s/f g",
        "mcp --password-file=p a/s/f g",
        "mcp --check-tree a/s/f g",
        "msum --mpi a/s/f",
        "msum --hash-type=colour a/s/f",
    ] {
        bench.dmover(line).expect_code(2);
        assert!(!bench.exists("g"), "{line}");
    }
}

/// Called by the name of the program that it stands in for.
fn called(bench: &Bench, name: &str, line: &str) -> (i32, String) {
    let script =
        format!("ln -sfn {PROGRAM} {name}; ./{name} {line} 2> err && echo \"=0\" || echo \"=$?\"");
    let text = bench.sh(&script);
    let (out, code) = text.trim_end().rsplit_once('=').unwrap();
    (code.parse().unwrap(), out.to_owned())
}

#[test]
fn mcp_prints_digests_that_md5sum_checks() {
    let bench = Bench::new();
    bench.write("s/f", pattern(3_000_000));
    bench.write("s/e", "");
    let (code, out) = called(&bench, "mcp", "-r --print-hash --threads=2 s t");
    assert_eq!(code, 0, "{}", bench.read("err"));
    bench.write("list", &out);
    assert_eq!(bench.sh("md5sum -c list | sort"), "t/e: OK\nt/f: OK\n");
    let (_, out) = called(&bench, "mcp", "--print-hash --print-src --hash-type=SHA256 s/f u");
    assert_eq!(out, bench.sh("sha256sum s/f"));
    // Ranges, the sizes of mutil, and what needs Lustre.
    let (code, _) =
        called(&bench, "mcp", "--offset=1000 --length=500 --dst-offset=0 --buffer-size=1 s/f v");
    assert_eq!(code, 0, "{}", bench.read("err"));
    bench.sh("cmp v <(tail -c +1001 s/f | head -c 500)");
    let (code, out) = called(&bench, "mcp", "--stripe-count=2 --split-size=3 --print-stats s/f w");
    assert_eq!((code, out.as_str()), (0, ""));
    let err = bench.read("err");
    for words in [
        "--stripe-count has no effect",
        "--split-size was rounded down from 3 to 2",
        "w: 2.86 MiB in",
    ] {
        assert!(err.contains(words), "{err}");
    }
    bench.sh("echo 's%2Ff x%20y' | ./mcp --read-stdin; cmp s/f 'x y'");
}

#[test]
fn msum_prints_and_checks_what_msum_does() {
    let bench = Bench::new();
    bench.write("f", pattern(3_000_000));
    bench.write("back\\slash", "x");
    let (_, out) = called(&bench, "msum", "f back*");
    assert_eq!(out, bench.sh("md5sum f back*"));
    assert_eq!(called(&bench, "msum", "--hash-type=crc32rfc1510 f").0, 0);
    // Trees as mutil's source makes them: digests of the parts in one line, and their tree.
    let parts = bench.sh("for at in 0 1 2; do tail -c +$((at * 1048576 + 1)) f | head -c 1048576 | md5sum | head -c 32; done");
    let (_, out) = called(&bench, "msum", "--check-tree --split-size=1 f");
    assert_eq!(out, format!("#mutil##{parts}  f\n"));
    let tree = bench.sh(r#"python3 -c '
import hashlib
data = open("f", "rb").read()
leaves = [hashlib.md5(data[at:at + (1 << 20)]).digest() for at in range(0, len(data), 1 << 20)]
both = lambda a, b: hashlib.md5(a + b).digest()
print(both(both(leaves[0], leaves[1]), leaves[2]).hex())'"#);
    let (_, out) = called(&bench, "msum", "--hash-leaf-size=1024 f");
    assert_eq!(out, format!("#mutil##{}  f\n", tree.trim()));
    // Checks, by parts and with ranges.
    bench.sh("./msum --check-tree --split-size=1 f > tree; ./msum f > plain; echo 'f 0-10,20-30' | ./msum --read-stdin > ranges");
    assert_eq!(bench.read("ranges").lines().count(), 2);
    for (line, expected) in [
        ("-c --check-tree --split-size=1 tree", "f: OK\n"),
        ("-c plain", "f: OK\n"),
        ("-c --quiet plain", ""),
        ("-c ranges", "f: OK\nf: OK\n"),
    ] {
        assert_eq!(called(&bench, "msum", line), (0, expected.to_owned()), "{line}");
    }
    bench.sh("printf X | dd of=f bs=1 seek=2500000 conv=notrunc status=none");
    let found = called(&bench, "msum", "-c --check-tree --split-size=1 tree");
    assert_eq!(found, (1, "f: FAILED,2097152-3000000\n".to_owned()));
    assert_eq!(called(&bench, "msum", "-c --status plain"), (1, String::new()));
    if bench.sh("./msum --help | wc -l").trim() == "0" {
        skip!("no help");
    }
}
