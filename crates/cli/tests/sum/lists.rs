//! Lists of digests: those that other tools write and read, and those that are wrong.
use super::{Bench, TOOLS, has, lines, pattern, with_files, words};
use dmover_testkit::skip;

#[test]
fn the_tools_read_what_it_writes_and_the_other_way_round() {
    let bench = with_files();
    for (hash, tool) in TOOLS {
        if !has(tool) {
            skip!("{tool} is missing");
        }
        let tags = !["b3sum", "xxh128sum"].contains(tool);
        // Tools that know only names in UTF-8, or no escapes, get plain ones.
        let names = if tags { "*" } else { "empty one 'a b' large" };
        let program = super::bench::PROGRAM;
        let mut styles = vec![""];
        if tags {
            styles.extend(["--tag", "--binary"]);
        }
        for style in styles {
            bench.sh(&format!("\"{program}\" sum {style} -a {hash} -- {names} > ../ours"));
            bench.sh(&format!("{tool} -c ../ours > ../said; rm ../ours ../said"));
            bench.sh(&format!("{tool} {style} -- {names} > ../theirs"));
            let typed = if tags || *tool == "b3sum" { "" } else { "-a xxh3-128" };
            let typed = if *hash == "sha256" && style != "--tag" { "-a sha256" } else { typed };
            let checked =
                bench.sh(&format!("\"{program}\" sum -c {typed} ../theirs | cat -v; rm ../theirs"));
            let count = bench.sh(&format!("ls -- {names} | wc -l"));
            assert!(
                checked.lines().all(|line| line.ends_with(": OK")),
                "{tool} {style}: {checked}"
            );
            assert!(checked.lines().count() >= count.trim().parse::<usize>().unwrap() - 1);
        }
    }
    // NUL at the end of lines, and names as they are.
    let program = super::bench::PROGRAM;
    let ours = bench.sh(&format!("\"{program}\" sum -z -a sha256 -- * | sort -z | od -c"));
    assert_eq!(ours, bench.sh("sha256sum -z -- * | sort -z | od -c"));
    bench.sh(&format!("sha256sum -z -- * | \"{program}\" sum -cz -a sha256 --status"));
    for hash in ["md5", "sha256", "sha512"] {
        bench.sh(&format!("openssl dgst -{hash} one large | \"{program}\" sum -c --status"));
    }
}

#[test]
fn what_has_changed_fails_and_the_rest_does_not() {
    let bench = with_files();
    let program = super::bench::PROGRAM;
    bench.sh(&format!("\"{program}\" sum -- empty one 'a b' large > list"));
    bench.sh(
        "printf X | dd of=large bs=1 seek=1234567 conv=notrunc status=none; rm one; echo > empty",
    );
    let run = bench.dmover("sum -c list").expect_code(1);
    let expected = ["empty: FAILED", "one: FAILED open or read", "a b: OK", "large: FAILED"];
    assert_eq!(lines(&run), expected);
    assert!(words(&run).contains("2 computed digests did NOT match"), "{}", run.tell());
    assert!(words(&run).contains("1 listed file could not be read"), "{}", run.tell());
    let quiet = bench.dmover("sum -c --quiet list").expect_code(1);
    assert_eq!(lines(&quiet), ["empty: FAILED", "one: FAILED open or read", "large: FAILED"]);
    let status = bench.dmover("sum -c --status list").expect_code(1);
    assert_eq!((status.text().as_str(), words(&status).contains("WARNING")), ("", false));
    bench.sh("grep -v -e large -e empty list > few");
    let run = bench.dmover("sum -c --ignore-missing few").expect_code(0);
    assert_eq!(lines(&run), ["a b: OK"]);
    bench.sh("grep one list > gone");
    let run = bench.dmover("sum -c --ignore-missing gone").expect_code(1);
    assert!(words(&run).contains("nothing was compared"), "{}", run.tell());
}

#[test]
fn lines_that_say_nothing_never_pass() {
    let bench = Bench::new();
    bench.write("f", "1");
    let good = bench.sh("sha256sum f");
    let good = good.trim();
    for (line, hint) in [
        (format!("{}  f", &good[1..64]), "63 hexadecimal digits"),
        (format!("{}0  f", &good[..64]), "65 hexadecimal digits"),
        (format!("x{good}"), "neither"),
        ("no digest at all".into(), "neither"),
        (" ".into(), "neither"),
        (format!("SHA9 (f) = {}", &good[..64]), "unknown digest 'SHA9'"),
        (format!("MD5 (f) = {}", &good[..64]), "not a sha256 digest"),
        (format!("\\{}  f\\q", &good[..64]), "backslash"),
        (format!("{}  ", &good[..64]), "empty"),
        (format!("#dmover#sha9#{}  f", &good[..64]), "unknown digest 'sha9'"),
        (format!("#dmover#sha256,leaf=0#{}  f", &good[..64]), "neither"),
    ] {
        // A good line before it: one bad line is enough to fail.
        let list = format!("{good}\n{line}\n");
        let run = bench.dmover_with("sum -c -a sha256", list).expect_code(1);
        assert!(
            words(&run).contains("line 2:") && words(&run).contains(hint),
            "{line}: {}",
            run.tell()
        );
        assert_eq!(lines(&run), ["f: OK"], "{line}");
    }
    // A file that is no list is not printed line by line.
    let run = bench.dmover_with("sum -c", "no digest at all\n".repeat(500)).expect_code(1);
    assert_eq!(words(&run).matches("neither").count(), 20, "{}", run.tell());
    assert!(words(&run).contains("further lines of this kind are not shown"), "{}", run.tell());
    assert!(words(&run).contains("500 lines could not be read"), "{}", run.tell());
    let run = bench.dmover_with("sum -v -c", "no digest at all\n".repeat(30)).expect_code(1);
    assert_eq!(words(&run).matches("neither").count(), 30, "{}", run.tell());
    // As for md5sum, nothing says nothing.
    bench.dmover_with("sum -c --strict -a sha256", format!("\n{good}\n\n")).expect_code(0);
    for empty in ["", "\n", "# only a comment\n"] {
        let run = bench.dmover_with("sum -c", empty).expect_code(1);
        assert!(words(&run).contains("no line has a digest and a name"), "{}", run.tell());
    }
    // Also beside a good one.
    bench.sh("b3sum f > good; : > empty");
    let run = bench.dmover("sum -c good empty").expect_code(1);
    assert!(words(&run).contains("empty: no line has a digest and a name"), "{}", run.tell());
    // The usual mistake is told.
    let run = bench.dmover_with("sum -c", format!("{}  f\n", "0".repeat(32))).expect_code(1);
    assert!(words(&run).contains("give it with -a"), "{}", run.tell());
    // A list that ends in the middle of a line.
    let run = bench.dmover_with("sum -c -a sha256", good[..40].to_owned()).expect_code(1);
    assert!(words(&run).contains("line 1:"), "{}", run.tell());
}

#[test]
fn names_in_lists_lead_where_they_say() {
    let bench = Bench::new();
    bench.write("d/f", "1");
    bench.sh("ln -s f d/link; (cd d; sha256sum ../d/link \"$PWD/f\" ./f > ../list)");
    let dmover = bench.dmover("sum -c -a sha256 list").expect_code(1);
    assert!(dmover.text().contains("../d/link: FAILED open or read"), "{}", dmover.tell());
    bench.sh(&format!("cd d && \"{}\" sum -c -a sha256 --status ../list", super::bench::PROGRAM));
}

#[test]
fn a_check_by_pieces_says_where() {
    let bench = Bench::new();
    bench.write("f", pattern(10_000_000));
    for (hash, extra) in [
        ("blake3", ""),
        ("crc32c", ""),
        ("sha256", ""),
        ("md5", "--split-size 3M"),
        ("blake3", "--split-size 2M"),
    ] {
        let make = format!("sum -a {hash} {extra} --hash-leaf-size 1M --check-tree f");
        let list = bench.dmover(&make).expect_code(0).text();
        assert_eq!(list.lines().count(), 2, "{list}");
        let all = bench.dmover_with("sum -c --check-tree", list.clone()).expect_code(0);
        assert!(all.text().lines().all(|line| line == "f: OK"), "{}", all.tell());
        bench.sh("cp f g; for at in 0 1048575 5000000 9999999; do printf X | dd of=f bs=1 seek=$at conv=notrunc status=none; done");
        let run = bench.dmover_with("sum -c", list.clone()).expect_code(1);
        let ranges = "FAILED,0-1048576,4194304-5242880,9437184-10000000";
        assert!(run.text().contains(ranges), "{hash}: {}", run.tell());
        // Shorter and longer than it was.
        for (change, range) in
            [("truncate -s 9500000 f", "9437184-"), ("cp g f; echo >> f", "9437184-")]
        {
            bench.sh(change);
            let run = bench.dmover_with("sum -c", list.clone()).expect_code(1);
            assert!(run.text().contains(range), "{hash} {change}: {}", run.tell());
        }
        bench.sh("mv g f");
    }
}

#[test]
fn batch_lines_name_files_and_ranges() {
    let bench = Bench::new();
    bench.write("a b", pattern(100_000));
    let sum = |range: &str| bench.sh(&format!("cat 'a b' | {range} | md5sum | cut -c1-32"));
    let (first, second) = (sum("head -c 10"), sum("tail -c +51 | head -c 50000"));
    let run = bench.dmover_with("sum -a md5 --read-stdin", "a%20b 0-10,50-50050\n\n./a%20b\n");
    let run = run.expect_code(0);
    let expected = [
        format!("#dmover#md5,range=0-10#{}  a b", first.trim()),
        format!("#dmover#md5,range=50-50050#{}  a b", second.trim()),
        format!("{}  ./a b", sum("cat").trim()),
    ];
    assert_eq!(lines(&run), expected);
    bench.dmover_with("sum -c --status", run.stdout.clone()).expect_code(0);
    let run = bench.dmover_with("sum --read-stdin", "a%20b 9-1\n").expect_code(3);
    assert!(words(&run).contains("line 1:"), "{}", run.tell());
}

/// Who writes a list may think for hours between two lines; what is there is hashed and printed meanwhile. (Of a
/// check all but the last line, whose pieces may follow.)
#[test]
fn a_list_that_is_still_written_is_worked_on() {
    let bench = Bench::new();
    let program = super::bench::PROGRAM;
    bench.write("f", "1");
    bench.sh("sha256sum f f > sums; mkfifo lines");
    for (line, lines, expected) in
        [("--read-stdin", "echo f", "b3sum f"), ("-a sha256 -c", "cat sums", "echo f: OK")]
    {
        bench.sh(&format!(
            "\"{program}\" sum {line} < lines > out & exec 3> lines; {lines} >&3
             for wait in $(seq 400); do grep -q f out && break; sleep 0.05; done
             {expected} | cmp - out; exec 3>&-; wait $!; rm out"
        ));
    }
}

/// The first line of a tree of mutil with its leaves, as its source makes it: the parts are on the command line.
#[test]
fn lists_of_mutil_are_checked() {
    let bench = Bench::new();
    bench.write("f", pattern(3_000_000));
    let tree = bench.out("sum -a md5 --hash-leaf-size 1M --check-tree f");
    let hex = |line: &str| line.rsplit('#').next().unwrap().split(' ').next().unwrap().to_owned();
    let (root, pieces) = tree.split_once('\n').unwrap();
    for digests in [hex(root), hex(pieces.trim_end())] {
        let list = format!("#mutil##{digests}  f\n");
        bench
            .dmover_with("sum -c -a md5 --hash-leaf-size 1M --status", list.clone())
            .expect_code(0);
        bench.dmover_with("sum -c -a md5 --hash-leaf-size 2M --status", list).expect_code(1);
    }
}

#[test]
fn a_list_of_sha256_is_checked_without_a_word_about_it() {
    let bench = with_files();
    for list in [
        "sum -a sha256 . > ../l",
        "sum . > ../l",
        "sum -a sha256 empty > ../l; \"$0\" sum one large >> ../l",
    ] {
        let program = super::bench::PROGRAM;
        bench.sh(&format!("set -- ; bash -ec '\"$0\" {list}' \"{program}\""));
        let said = bench.sh(&format!("\"{program}\" sum -c --split-size=1M ../l | cat -v"));
        assert_eq!(said.lines().count(), bench.sh("cat -v ../l").lines().count());
        assert!(said.lines().all(|line| line.ends_with(": OK")), "{list}: {said}");
    }
    bench.sh("sha256sum one large > ../l; echo >> one");
    let run = bench.dmover("sum -c ../l").expect_code(1);
    assert_eq!(lines(&run), ["one: FAILED", "large: OK"]);
    assert!(words(&run).contains("1 computed digest did NOT match"), "{}", run.tell());
    bench.sh("rm ../l");
}

#[test]
fn no_name_controls_a_terminal() {
    let bench = Bench::new();
    bench.sh(r"mkdir d; printf x > d/$'a\e[2Jb\xff'; printf x > d/plain");
    let program = super::bench::PROGRAM;
    let seen = |line: &str| {
        bench.sh(&format!(
            "python3 - <<'END' | od -An -c | tr -d ' \\n'
import pty, sys
def read(fd):
    import os
    return os.read(fd, 65536)
pty.spawn(['{program}'] + '{line}'.split(), read)
END"
        ))
    };
    bench.sh(&format!("\"{program}\" sum d > l"));
    for line in ["sum d", "sum -c l"] {
        let seen = seen(line);
        assert!(seen.contains(r"a\033[2Jb\377") && seen.contains("plain"), "{line}: {seen}");
    }
    // A pipe gets names as they are.
    assert_eq!(bench.sh(&format!("\"{program}\" sum d | grep -ac $'\\e'")), "1\n");
}
