//! Lists that do not name their function: tags and lengths tell it, and of BLAKE3 and SHA-256 the content.
use super::{Bench, lines, pattern, words};

/// What is said of the functions that were found.
fn note(run: &dmover_testkit::lanes::run::Run) -> Option<String> {
    let line = run.stderr.lines().find(|line| line.contains("note: the list does not name"))?;
    Some(line.rsplit_once("function: ").unwrap().1.to_owned())
}

#[test]
fn lists_of_other_tools_need_no_option() {
    let bench = Bench::new();
    bench.write("one", "1");
    bench.write("two", pattern(3_000_001));
    for (list, said) in [
        ("md5sum one two", None),
        ("sha1sum one two", None),
        ("sha224sum one two", None),
        ("sha384sum one two", None),
        ("sha512sum one two", None),
        ("sha256sum one two", Some("2 digests are SHA256")),
        ("b3sum one two", Some("2 digests are BLAKE3")),
        ("sha256sum --tag one two", None),
        ("sha512sum --tag one; md5sum --tag two", None),
        ("md5sum one; sha512sum two", None),
        ("sha256sum --tag one; b3sum two", Some("1 digest is BLAKE3")),
    ] {
        let list_of = bench.sh(list);
        let run = bench.dmover_with("sum -c", list_of).expect_code(0);
        assert_eq!(lines(&run), ["one: OK", "two: OK"], "{list}");
        assert_eq!(note(&run).as_deref(), said, "{list}: {}", run.tell());
    }
    // What was asked for wins, and nothing has to be found out.
    let list = bench.sh("sha256sum one two");
    let run = bench.dmover_with("sum -c -a sha256", list.clone()).expect_code(0);
    assert_eq!(note(&run), None, "{}", run.tell());
    let run = bench.dmover_with("sum -c -a blake3", list.clone()).expect_code(1);
    assert_eq!(lines(&run), ["one: FAILED", "two: FAILED"]);
    let run = bench.dmover_with("sum -c -a blake3", bench.sh("sha256sum --tag one")).expect_code(1);
    assert!(words(&run).contains("is a sha256 digest, not a blake3 digest"), "{}", run.tell());
    for quiet in ["-q", "--status"] {
        let run = bench.dmover_with(&format!("sum -c {quiet}"), list.clone()).expect_code(0);
        assert_eq!(run.stderr, "", "{quiet}");
    }
}

#[test]
fn the_first_file_that_is_there_decides_and_each_line_of_a_mixed_list() {
    let bench = Bench::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        bench.write(name, name.repeat(100_000));
    }
    bench.sh("sha256sum a b c > list; rm a; b3sum d >> list; sha256sum e >> list; b3sum f >> list");
    for movers in ["", "-j1", "-j8"] {
        let run = bench.dmover(&format!("sum -c {movers} list")).expect_code(1);
        let expected = ["a: FAILED open or read", "b: OK", "c: OK", "d: OK", "e: OK", "f: OK"];
        assert_eq!(lines(&run), expected, "{movers}");
        assert_eq!(note(&run).as_deref(), Some("2 digests are BLAKE3, 3 digests are SHA256"));
    }
    let run = bench.dmover("sum -c --json list").expect_code(1);
    let functions: Vec<_> = run
        .lines()
        .unwrap()
        .iter()
        .filter(|line| line.is("checked"))
        .map(|line| line.0["hash_type"].as_str().unwrap_or("-").to_owned())
        .collect();
    let mut sorted = functions.clone();
    sorted.sort();
    assert_eq!(sorted, ["-", "blake3", "blake3", "sha256", "sha256", "sha256"]);
    // What is neither fails, beside those that are one of both.
    bench.sh("printf X >> b; sed -i /a$/d list");
    let run = bench.dmover("sum -c list").expect_code(1);
    assert_eq!(lines(&run)[..2], ["b: FAILED", "c: OK"]);
    let run = bench.dmover_with("sum -c", bench.sh("sed -n /b$/p list")).expect_code(1);
    assert!(words(&run).contains("give it with -a"), "{}", run.tell());
}

/// Bytes that were read, in the words of the program itself, and by the kernel's count.
#[test]
fn a_large_file_is_read_once() {
    let bench = Bench::new();
    let size = 40_000_000;
    bench.write("large", pattern(size));
    for tool in ["sha256sum", "b3sum"] {
        bench.sh(&format!("{tool} large > list"));
        let run = bench.dmover("sum -c --json --split-size=1M list").expect_code(0);
        let summary = run.said().unwrap().summary.unwrap();
        assert_eq!(summary.number("bytes_hashed"), Some(size as u64), "{tool}");
    }
    // Neither is it when it is not as the list says.
    bench.sh("printf X | dd of=large bs=1 seek=1234567 conv=notrunc status=none");
    let run = bench.dmover("sum -c --json list").expect_code(1);
    let summary = run.said().unwrap().summary.unwrap();
    assert_eq!(summary.number("bytes_hashed"), Some(size as u64));
}

/// Content that cannot be read again.
#[test]
fn pipes_are_read_once() {
    let bench = Bench::new();
    bench.write("f", pattern(1_000_000));
    let program = super::bench::PROGRAM;
    bench.sh(
        "mkfifo pipe; sha256sum f > list; sed s/f$/pipe/ list > piped; sed s/f$/-/ list > stdin",
    );
    // The first file has shown that the list is SHA-256, or nothing has.
    for lists in ["piped", "list piped"] {
        let out = bench.sh(&format!("cat f > pipe & \"{program}\" sum -c {lists}; wait"));
        assert!(out.ends_with("pipe: OK\n"), "{lists}: {out}");
    }
    bench.sh("b3sum f > other");
    let out = bench.sh(&format!("cat f > pipe & \"{program}\" sum -c -j1 other piped; wait"));
    assert_eq!(out, "f: OK\npipe: OK\n");
    let out = bench.sh(&format!("\"{program}\" sum -c stdin < f"));
    assert_eq!(out, "-: OK\n");
}
