//! What is around a job: limits of the process, leases of other programs, mounts that go, and where state is kept.
use crate::bench::{Bench, PROGRAM, pattern};
use dmover_testkit::skip;

#[test]
fn a_limit_of_the_size_of_files_is_an_error_of_the_file() {
    let bench = Bench::new();
    bench.write("a/large", pattern(3_000_000));
    bench.write("a/small", "small");
    let said = bench
        .sh(&format!("ulimit -f 1000; {PROGRAM} copy --no-state -T a b 2>&1 && echo 0 || echo $?"));
    assert!(said.contains("a/large") || said.contains("b/large"), "{said}");
    assert!(said.ends_with("\n3\n"), "{said}");
    assert_eq!(bench.read("b/small"), "small");
    assert!(!bench.exists("b/large"));
}

#[test]
fn a_log_that_cannot_be_written_is_told() {
    let bench = Bench::new();
    bench.write("a/f", "x");
    let run = bench.dmover("copy --log-file=/dev/full -T a b").expect_code(0);
    assert_eq!(
        run.stderr.matches("cannot write the log file '/dev/full'").count(),
        1,
        "{}",
        run.tell()
    );
}

#[test]
fn a_file_under_a_lease_is_waited_for() {
    let bench = Bench::new();
    bench.write("a/f", pattern(100_000));
    // A server that needs a second to have its client give the lease back.
    bench.write(
        "holder.py",
        r#"import fcntl, os, signal, time
fd = os.open("a/f", os.O_RDWR)
asked = []
signal.signal(signal.SIGIO, lambda *_: asked.append(True))
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open("ready", "w").close()
while not asked:
    time.sleep(0.01)
time.sleep(1)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
os.close(fd)
"#,
    );
    for line in [
        "copy -q -T a b",
        "copy -q -T a/f c",
        "sync -q a d",
        "sync -q --checksum a d",
        "verify -q a d",
        "verify -q --repair a d",
    ] {
        bench.sh("rm -f ready");
        let mut holder = std::process::Command::new("python3");
        let mut holder = holder.arg("holder.py").current_dir(bench.root()).spawn().unwrap();
        while !bench.exists("ready") && holder.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        bench.dmover(line).expect_code(0);
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
    bench.sh("cmp a/f b/f; cmp a/f c; cmp a/f d/f");
}

#[test]
fn a_destination_that_is_unmounted_meanwhile_is_told() {
    let bench = Bench::new();
    if bench.sh("mkdir m; mount -t tmpfs none m 2> /dev/null && echo yes || true").is_empty() {
        skip!("cannot mount a tmpfs");
    }
    let _undo = bench.undo("umount -l m");
    bench.write("a/f", pattern(4_000_000));
    let words = ["copy", "-j1", "--bwlimit=2M", "a", "m"];
    let mut running = bench.dmover.start(words).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while !bench.exists("m/a/f") && !running.has_ended().unwrap() {
        assert!(std::time::Instant::now() < deadline, "nothing is copied");
        std::thread::yield_now();
    }
    bench.sh("umount -l m");
    let run = running.finish().unwrap();
    assert_eq!(run.code(), Some(3), "{}", run.tell());
    assert!(run.stderr.contains("was unmounted while the job ran"), "{}", run.tell());
}

#[test]
fn more_attributes_than_can_be_listed_leave_the_content() {
    let bench = Bench::new();
    bench.write("a/f", "content");
    // 300 names of 240 bytes. Where the file system holds them, the kernel does not list them.
    let script = r#"import os
for number in range(300):
    os.setxattr("a/f", "user.%0235d" % number, b"")
"#;
    bench.write("many.py", script);
    if bench.sh("python3 many.py 2> /dev/null && echo yes || true").is_empty()
        || !bench.sh("getfattr a/f 2> /dev/null || true").is_empty()
    {
        skip!("the file system does not hold so many attributes");
    }
    let run = bench.dmover("copy -T a b").expect_code(3);
    assert_eq!(bench.read("b/f"), "content");
    assert!(run.stderr.contains("64 KiB"), "{}", run.tell());
}

#[test]
fn a_directory_that_is_gone_has_no_inside() {
    let bench = Bench::new();
    bench.write("run42/f", "x");
    bench.sh("mkdir e");
    bench.dmover("copy -q run42 e").expect_code(0);
    bench.dmover("copy -q run42 e").expect_code(0);
    assert!(bench.exists("e/run42/f") && !bench.exists("e/f"));
    bench.sh("rm -rf e");
    // As for cp, a name that is free becomes the copy's.
    bench.dmover("copy -q run42 e").expect_code(0);
    assert!(bench.exists("e/f") && !bench.exists("e/run42"));
}

#[test]
fn a_bad_value_of_a_file_is_told_with_the_file() {
    let bench = Bench::new();
    bench.write("a/f", "x");
    bench.write("config.toml", "[copy]\nthreads = \"many\"\n");
    let run = bench.dmover("copy --config config.toml -T a b").expect_code(2);
    assert!(run.stderr.contains("config.toml: 'threads' in [copy] is 'many'"), "{}", run.tell());
    // One that was typed is a flag's.
    let run = bench.dmover("copy --config config.toml --threads=several -T a b").expect_code(2);
    assert!(!run.stderr.contains("config.toml"), "{}", run.tell());
}

#[test]
fn hints_name_no_hidden_options() {
    let bench = Bench::new();
    for line in ["copy --mutl a b", "copy --print-stat a b", "copy --link-folowed a b"] {
        let run = bench.dmover(line).expect_code(2);
        for hidden in ["--mutil", "--print-stats", "--link-followed"] {
            assert!(!run.stderr.contains(hidden), "{}", run.tell());
        }
    }
    bench.write("config.toml", "[copy]\nmutl = 4\n");
    let run = bench.dmover("copy --config config.toml a b").expect_code(2);
    assert!(!run.stderr.contains("'mutil'"), "{}", run.tell());
    let run = bench.dmover("copy --thread=2 a b").expect_code(2);
    assert!(run.stderr.contains("--threads"), "{}", run.tell());
}
