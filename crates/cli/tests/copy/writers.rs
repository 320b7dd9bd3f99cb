//! Files that somebody writes to while they are copied: no time says so, and the next run compares them.
use crate::bench::{Bench, eventually, is_root, pattern};
use dmover_testkit::faultfs::{Action, Op, Rule};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::lanes::run::Run;
use dmover_testkit::skip::skipped;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Half of the file that one long write(2) fills.
const HALF: usize = 4 << 20;

/// Writes one byte as a mapping or a long write(2) does it: size and time of the last write stay as they were.
fn write_unseen(bench: &Bench, file: &std::fs::File, at: u64) {
    let before = file.metadata().unwrap();
    file.write_all_at(b"~", at).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), before.len(), "{:?}", bench.root());
}

#[test]
fn what_was_open_for_writing_is_told_and_compared_by_the_next_run() {
    // Below and above the size from which files are copied in parts.
    for (name, size, words) in [("small", 3000, ""), ("large", 3_000_000, "--split-size=1M")] {
        let bench = Bench::new();
        let path = bench.write(&format!("a/d/{name}"), pattern(size));
        bench.write("a/quiet", "quiet");
        let line = format!("copy {words} -T a b");
        let writer = OpenOptions::new().write(true).open(path).unwrap();
        let run = bench.dmover(&line).expect_code(0);
        assert!(run.stderr.contains("open        1 "), "{}", run.tell());
        write_unseen(&bench, &writer, 100);
        // It is open still: it is compared now and in the run after.
        let run = bench.dmover(&line).expect_code(0);
        assert_eq!(bench.sh("diff -r a b || true"), "", "{}", run.tell());
        assert!(run.stderr.contains("open        1 "), "{}", run.tell());
        write_unseen(&bench, &writer, 200);
        drop(writer);
        let compared = |line: &str| {
            let summary = bench.copy(line).expect_code(0).said().unwrap().summary.unwrap();
            (summary.number("files_compared").unwrap(), bench.sh("diff -r a b || true"))
        };
        let line = format!("{words} -T a b");
        assert_eq!(compared(&line), (1, String::new()));
        // Nobody has it open any more, so nothing is compared.
        assert_eq!(compared(&line), (0, String::new()));
    }
}

#[test]
fn a_file_of_several_names_that_was_open_for_writing_is_compared() {
    let bench = Bench::new();
    let path = bench.write("a/1", pattern(3000));
    bench.sh("ln a/1 a/2; mkdir a/d; ln a/1 a/d/3");
    let writer = OpenOptions::new().write(true).open(path).unwrap();
    bench.dmover("copy -q -T a b").expect_code(0);
    write_unseen(&bench, &writer, 100);
    drop(writer);
    bench.dmover("copy -q -T a b").expect_code(0);
    bench.assert_same("a", "b");
}

#[test]
fn a_copy_that_was_killed_remembers_what_was_open() {
    let bench = Bench::new();
    let path = bench.write("a/1", pattern(3000));
    bench.write("a/2", pattern(4_000_000));
    let writer = OpenOptions::new().write(true).open(path).unwrap();
    let words = ["copy", "-q", "-j1", "--bwlimit=1M", "-T", "a", "b"];
    let mut running = bench.dmover.start(words).unwrap();
    eventually("both to be begun", || {
        running.has_ended().unwrap() || (bench.exists("b/1") && bench.exists("b/2"))
    });
    running.kill().unwrap();
    write_unseen(&bench, &writer, 100);
    drop(writer);
    bench.dmover("copy -q -u -T a b").expect_code(0);
    assert_eq!(bench.sh("cmp a/1 b/1 || true"), "");
}

/// A process that writes to the first byte of a file through a mapping.
struct Mapping {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Mapping {
    fn of(bench: &Bench, path: &str) -> Self {
        let script = "import mmap, os, sys
memory = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 1000)
for line in sys.stdin:
    memory[0:1] = line[0:1].encode()
    print(flush=True)";
        let mut command = Command::new("python3");
        command.args(["-c", script, path]).current_dir(bench.root());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    /// Returns when the byte is in the file.
    fn write(&mut self, byte: &str) {
        writeln!(self.input, "{byte}").unwrap();
        self.output.read_line(&mut String::new()).unwrap();
    }

    fn end(mut self) {
        drop(self.input);
        self.process.wait().unwrap();
    }
}

/// Waits until a file counts as one that was not changed for a moment.
fn wait_until_it_rests(bench: &Bench, path: &str) {
    eventually("a file that was not changed for a while", || {
        bench.sh(&format!("find {path} -newerct '5 seconds ago'")).is_empty()
    });
}

fn tells_of_a_writer(run: &Run) -> bool {
    run.stderr.contains("open        1 ")
}

/// A page that was not written back can be written to through a mapping, and no time changes.
#[test]
fn a_mapping_of_a_small_file_is_noticed_as_long_as_its_page_is_dirty() {
    let Some(image) = Image::create_or_skip("mapping", FileSystem::Ext4, 128 << 20) else { return };
    let bench = Bench::inside(image.path());
    bench.sh("mkdir a; head -c 3000 /dev/zero > a/f; sync -f a");
    let mut writer = Mapping::of(&bench, "a/f");
    let times = || bench.sh("stat -c '%y %z' a/f");
    writer.write("1");
    let begun = times();
    wait_until_it_rests(&bench, "a/f");
    let run = bench.dmover("copy -T a b").expect_code(0);
    writer.write("2");
    // Somebody else may have had the page written back, and then the time tells it.
    if times() == begun {
        assert!(tells_of_a_writer(&run), "{}", run.tell());
        assert_ne!(bench.sh("cmp a/f b/f || true"), "", "the control: it was written to");
    }
    bench.dmover("copy -T a b").expect_code(0);
    bench.sh("cmp a/f b/f");
    // What is written after that has a new time.
    bench.sh("sync -f a");
    wait_until_it_rests(&bench, "a/f");
    let run = bench.dmover("copy -T a c").expect_code(0);
    assert!(!tells_of_a_writer(&run), "{}", run.tell());
    writer.write("3");
    assert_ne!(times(), begun);
    bench.dmover("copy -T a c").expect_code(0);
    bench.sh("cmp a/f c/f");
    writer.end();
}

/// Containers mount single files: such a file may lie on a file system that never writes back.
#[test]
fn a_mapping_of_a_file_that_is_mounted_by_itself_is_noticed() {
    if !is_root() {
        return skipped("a file that is mounted by itself", "it needs root");
    }
    let Some(image) = Image::create_or_skip("mapping", FileSystem::Ext4, 128 << 20) else { return };
    let bench = Bench::inside(image.path());
    bench.sh(
        "mkdir a memory; touch a/f; mount -t tmpfs none memory; head -c 3000 /dev/zero > memory/f",
    );
    bench.sh("mount --bind memory/f a/f");
    let _away = bench.undo("umount a/f; umount memory");
    let mut writer = Mapping::of(&bench, "a/f");
    writer.write("1");
    wait_until_it_rests(&bench, "a/f");
    let run = bench.dmover("copy -T a b").expect_code(0);
    assert!(tells_of_a_writer(&run), "{}", run.tell());
    writer.write("2");
    bench.dmover("copy -T a b").expect_code(0);
    bench.sh("cmp a/f b/f");
    writer.end();
}

#[test]
fn a_long_write_is_noticed() {
    // write(2) takes its bytes from a mapped file whose second half is read late, so it stops half way.
    let Some((served, bench)) = Bench::faulty() else { return skipped("long write", "no faultfs") };
    bench.sh(
        "mkdir a; head -c 8M /dev/zero > a/f; head -c 8M /dev/zero | tr '\\0' x > backing/buffer",
    );
    let late = Rule::new(Op::Read, Action::Hang { duration_ms: 60_000 }).from_offset(HALF as u64);
    served.set_rules(&[late]).unwrap();
    let script = "import mmap, os
memory = mmap.mmap(os.open('faulty/buffer', os.O_RDONLY), 0, prot=mmap.PROT_READ)
memory.madvise(mmap.MADV_RANDOM)
os.pwrite(os.open('a/f', os.O_WRONLY), memory, 0)";
    let mut writer =
        Command::new("python3").args(["-c", script]).current_dir(bench.root()).spawn().unwrap();
    let target = std::fs::File::open(bench.at("a/f")).unwrap();
    let begun = || {
        let mut byte = [0];
        target.read_exact_at(&mut byte, HALF as u64 - 1).unwrap();
        byte == *b"x"
    };
    eventually("the write to stand half way", begun);
    bench.dmover("copy -q -T a b").expect_code(0);
    served.release_hangs();
    assert!(writer.wait().unwrap().success());
    // The copy has a part of the write, under the size and the time that the file has at the end.
    assert_ne!(bench.sh("cmp a/f b/f || true"), "");
    assert_eq!(bench.sh("stat -c '%s %y' a/f"), bench.sh("stat -c '%s %y' b/f"));
    bench.dmover("copy -q -T a b").expect_code(0);
    bench.sh("cmp a/f b/f");
}
