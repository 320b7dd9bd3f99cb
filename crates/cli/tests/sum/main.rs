//! `dmover sum` as a black box, beside the tools whose digests and lists it makes and reads.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used, reason = "tests stop")]

#[path = "../bench/mod.rs"]
mod bench;
mod copied;
mod faults;
mod guessed;
mod lists;

use bench::{Bench, append, is_root, pattern};
use dmover_testkit::lanes::run::Run;
use dmover_testkit::skip;

/// Types, and the tools that make the same digests.
const TOOLS: &[(&str, &str)] = &[
    ("md5", "md5sum"),
    ("sha1", "sha1sum"),
    ("sha224", "sha224sum"),
    ("sha256", "sha256sum"),
    ("sha384", "sha384sum"),
    ("sha512", "sha512sum"),
    ("blake3", "b3sum"),
    ("xxh3-128", "xxh128sum"),
];

fn has(tool: &str) -> bool {
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", "command -v \"$1\"", "-", tool]).stdout(std::process::Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

/// Some files of sizes around the borders of blocks, and of names that have to be escaped.
fn with_files() -> Bench {
    let bench = Bench::new();
    for (name, length) in [("empty", 0), ("one", 1), ("a b", 4096), ("large", 3_000_001)] {
        bench.write(name, pattern(length));
    }
    bench.sh(r"printf x > $'new\nline'; printf y > 'back\slash'; printf z > $'latin\xe9'; printf s > ' lead'");
    bench
}

impl Bench {
    /// Standard output of a run that has to end well.
    fn out(&self, line: &str) -> String {
        self.dmover(line).expect_code(0).text()
    }
}

fn lines(run: &Run) -> Vec<String> {
    run.text().lines().map(str::to_owned).collect()
}

/// What it said on standard error.
fn words(run: &Run) -> String {
    run.stderr.clone()
}

#[test]
fn it_prints_what_the_tools_print() {
    let bench = with_files();
    for (hash, tool) in TOOLS {
        if !has(tool) {
            skip!("{tool} is missing");
        }
        let ours = bench.sh(&format!("\"{}\" sum -a {hash} -- * | sort | od -c", bench::PROGRAM));
        let theirs = bench.sh(&format!("{tool} -- * 2>/dev/null | sort | od -c"));
        // b3sum before 1.4 cannot print names that are not UTF-8, and xxhsum escapes none.
        if ["b3sum", "xxh128sum"].contains(tool) {
            let plain = |what: &str| {
                bench.sh(&format!("{what} -- empty one 'a b' large | awk '{{ print $1 }}'"))
            };
            assert_eq!(
                plain(&format!("\"{}\" sum -a {hash}", bench::PROGRAM)),
                plain(tool),
                "{hash}"
            );
        } else {
            assert_eq!(ours, theirs, "{hash}");
        }
    }
}

#[test]
fn crcs_are_those_of_other_implementations() {
    let bench = with_files();
    let crc32 = bench.sh(
        "python3 -c 'import zlib; print(\"%08x\" % zlib.crc32(open(\"large\", \"rb\").read()))'",
    );
    assert!(bench.out("sum -a crc32 large").starts_with(crc32.trim()));
    // Bit by bit, as the standards define them.
    let script = r#"
import sys
data = open("large", "rb").read()[:100000]
def reflected(polynomial, register, last):
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (polynomial if register & 1 else 0)
    return "%08x" % (register ^ last)
def openpgp():
    register = 0xb704ce
    for byte in data:
        register ^= byte << 16
        for _ in range(8):
            register <<= 1
            if register & 0x1000000:
                register ^= 0x1864cfb
    return "%06x" % (register & 0xffffff)
print(reflected(0x82f63b78, 0xffffffff, 0xffffffff), reflected(0xedb88320, 0, 0), openpgp())
"#;
    bench.write("crc.py", script);
    let expected = bench.sh("python3 crc.py");
    let ours: Vec<String> = ["crc32c", "crc32rfc1510", "crc24rfc2440"]
        .iter()
        .map(|hash| bench.out(&format!("sum -a {hash} --length 100000 --split-size 7K large")))
        .map(|line| line.split('#').nth(3).unwrap().split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(expected.split_whitespace().collect::<Vec<_>>(), ours);
}

#[test]
fn trees_are_read_whole_and_by_the_rules() {
    let bench = Bench::new();
    bench.write("t/a", "1");
    bench.write("t/sub/b", "2");
    bench.write("t/sub/c.tmp", "3");
    bench.sh("ln -s a t/link; mkfifo t/fifo; ln t/a t/second; mkdir t/empty; ln -s t linked");
    let sorted = |line: &str| bench.sh(&format!("\"{}\" {line} | sort -k2", bench::PROGRAM));
    let all = bench.sh("find t -type f | sort | xargs sha256sum");
    assert_eq!(sorted("sum -a sha256 t"), all);
    let some = bench.sh("find t -type f -not -name '*.tmp' | sort | xargs sha256sum");
    assert_eq!(sorted("sum -a sha256 --exclude '*.tmp' t"), some);
    // A link that is named is meant for what it leads to.
    assert_eq!(sorted("sum -a sha256 linked"), all.replace("  t/", "  linked/"));
    let run = bench.dmover("sum t one-that-is-missing").expect_code(3);
    assert_eq!(lines(&run).len(), 4);
    assert!(words(&run).contains("one-that-is-missing"), "{}", run.tell());
}

#[test]
fn results_come_in_the_order_of_the_arguments() {
    let bench = Bench::new();
    let mut names = Vec::new();
    for number in 0..300 {
        let name = format!("f{number:03}");
        // The first takes longest.
        bench.write(&name, pattern(if number % 100 == 0 { 5_000_000 } else { number }));
        names.push(name);
    }
    let order = names.join(" ");
    for threads in [1, 2, 16] {
        let out = bench.out(&format!("sum -a md5 -j {threads} --split-size 1M {order} f001"));
        let named: Vec<&str> = out.lines().map(|line| &line[34..]).collect();
        assert_eq!(named[..300], names, "-j {threads}");
        assert_eq!(named[300], "f001");
    }
    let run = bench.dmover("sum f001 missing f002").expect_code(3);
    assert_eq!(lines(&run).len(), 2, "{}", run.tell());
    assert!(words(&run).contains("missing: No such file"), "{}", run.tell());
}

#[test]
fn what_has_no_size_is_read_to_its_end() {
    let bench = Bench::new();
    bench.write("f", pattern(700_000));
    let expected = bench.sh("sha256sum < f | cut -c1-64");
    let program = bench::PROGRAM;
    for command in [
        format!("cat f | \"{program}\" sum -a sha256"),
        format!("cat f | \"{program}\" sum -a sha256 -"),
        format!("\"{program}\" sum -a sha256 < f"),
        format!("\"{program}\" sum -a sha256 <(cat f)"),
        format!(
            "(printf more; cat f) > g; {{ head -c 4 > /dev/null; }} < g; {{ dd bs=4 count=1 status=none > /dev/null; \"{program}\" sum -a sha256; }} < g"
        ),
        format!(
            "python3 -c 'import os; os.set_blocking(0, False)'; (head -c 1000 f; sleep 0.1; tail -c +1001 f) | python3 -c 'import os; os.set_blocking(0, False); os.execv(\"{program}\", [\"dmover\", \"sum\", \"-a\", \"sha256\"])'"
        ),
        format!("mkfifo p; cat f > p & \"{program}\" sum -a sha256 p; wait"),
    ] {
        assert_eq!(bench.sh(&command)[..64], *expected.trim(), "{command}");
    }
    let tree = bench.out("sum -a md5 --hash-leaf-size 64K f");
    let streamed = bench.sh(&format!("cat f | \"{program}\" sum -a md5 --hash-leaf-size 64K"));
    assert_eq!(tree.split("  ").next(), streamed.split("  ").next());
    let version = bench.sh("sha256sum /proc/version");
    assert_eq!(bench.out("sum -a sha256 /proc/version"), version);
    bench.dmover("sum --check-tree -c /proc").expect_code(2);
}

#[test]
fn what_was_not_hashed_is_told_without_being_asked() {
    let bench = Bench::new();
    bench.write("f", "1");
    let run = bench.dmover("sum -j1 --max-errors 1 nowhere neither f").expect_code(5);
    assert!(
        words(&run).contains("stopped by --max-errors; some files were not hashed"),
        "{}",
        run.tell()
    );
    // What a person named wrongly has not changed under way.
    let run = bench.dmover("sum f/x f/../f").expect_code(3);
    assert!(words(&run).contains("f/x") && !words(&run).contains("[changed]"), "{}", run.tell());
}

/// Terabytes are not hashed for a reader that has gone.
#[test]
fn output_that_nobody_takes_stops_it() {
    let bench = Bench::new();
    bench.write("f", "1");
    bench.sh("mkfifo lines");
    let program = bench::PROGRAM;
    // The list stays open for a minute, but the first line that cannot be written is the end.
    let run = bench.sh(&format!(
        "(echo f; for second in $(seq 60); do sleep 1; echo f; done) > lines & writer=$!
         \"{program}\" sum --read-stdin < lines > /dev/full 2> said || echo $?; kill $writer || true; cat said"
    ));
    assert!(run.starts_with('8') && run.contains("standard output"), "{run}");
}

/// Nothing is written, so nothing has to be put in order: it ends as any tool does.
#[test]
fn a_signal_ends_it_at_once() {
    let bench = Bench::new();
    bench.sh("mkfifo nobody-writes");
    let running = bench.dmover.start(["sum", "nobody-writes"]).unwrap();
    running.signal(rustix::process::Signal::INT);
    assert_eq!(running.finish().unwrap().signal(), Some(2));
}

#[test]
fn bad_arguments_say_what_to_do() {
    let bench = Bench::new();
    bench.write("f", "1");
    for (line, hint) in [
        ("sum -a sha3 f", "xxh3-128"),
        ("sum --check-tree -a md5 f", "--hash-leaf-size"),
        ("sum --offset 1 .", "--offset and --length work only on files"),
        ("sum --status f", "--check"),
        ("sum -c nowhere", "cannot read the list nowhere"),
        ("sum -c .", "cannot read the list"),
        ("sum --hash-leaf-size 0 f", "more than 0"),
    ] {
        let run = bench.dmover(line).expect_code(2);
        assert!(words(&run).contains(hint), "{line}: {}", run.tell());
        assert_eq!(run.text(), "", "{line}");
    }
}

#[test]
fn what_cannot_be_read_is_named_and_nothing_is_made_up() {
    let bench = Bench::new().unprivileged();
    bench.sh("echo 1 > open; echo 2 > closed; chmod 0 closed; mkdir dir");
    if !is_root() {
        skip!("needs root to run as somebody else");
    }
    let run = bench.dmover("sum open closed").expect_code(3);
    assert_eq!(lines(&run).len(), 1);
    assert!(words(&run).contains("closed: Permission denied"), "{}", run.tell());
    bench.sh("b3sum open closed > list 2>/dev/null");
    let run = bench.dmover("sum -c list").expect_code(1);
    assert!(run.text().contains("closed: FAILED open or read"), "{}", run.tell());
}

#[test]
fn json_has_every_digest_and_a_summary() {
    let bench = Bench::new();
    bench.write("f", "1");
    append(&bench.at("f"), "2");
    let run = bench.dmover("sum --json -a md5 --hash-leaf-size 1 --check-tree f").expect_code(0);
    let said = run.lines().unwrap();
    let digest = said.iter().find(|line| line.is("digest")).unwrap();
    assert_eq!(digest.text("hash_type"), "md5");
    assert_eq!(digest.text("path"), "f");
    assert_eq!(digest.number("leaf_bytes"), Some(1));
    assert_eq!(said.last().unwrap().number("exit_code"), Some(0));
}

#[test]
fn v_names_what_is_done() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo 1 > a/f; echo 2 > a/g");
    let named = |run: &Run, word: &str| {
        let start = format!("dmover: {word} ");
        let named = run.stderr.lines().filter_map(|line| line.strip_prefix(&start));
        let mut named: Vec<String> = named.map(str::to_owned).collect();
        named.sort();
        named
    };
    let run = bench.dmover("sum -v a").expect_code(0);
    assert_eq!(named(&run, "hashed")[1..], ["a/f", "a/g"], "{}", run.tell());
    assert!(!run.stderr.contains("copying"), "{}", run.tell());
    bench.write("list", &run.stdout);
    let check = bench.dmover("sum -c -v list").expect_code(0);
    assert_eq!(named(&check, "checked"), ["a/f", "a/g"], "{}", check.tell());
    for line in ["sum a", "sum -c list", "sum -c -v --status list"] {
        let run = bench.dmover(line).expect_code(0);
        assert!(!run.stderr.contains("hashed a/") && !run.stderr.contains("checked a/"), "{line}");
    }
}
