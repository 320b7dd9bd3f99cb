//! The fault file system as plain programs see it.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dmover_testkit::faultfs::{
    Action, Config, Counters, FaultFs, FaultFsHandle, Latency, Op, OpClass, Record, Rule, When,
};
use dmover_testkit::image::base_directory;
use dmover_testkit::skip::skipped;
use tempfile::TempDir;

struct Bench {
    handle: FaultFsHandle,
    directory: TempDir,
}

impl Bench {
    fn new(test: &str, config: Config) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            skipped(test, "needs root and /dev/fuse");
            return None;
        }
        let directory = tempfile::Builder::new()
            .prefix("faultfs-")
            .tempdir_in(base_directory().unwrap())
            .unwrap();
        for name in ["backing", "mnt", "outside"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let at = |name: &str| directory.path().join(name);
        let handle = FaultFs::mount(&at("backing"), &at("mnt"), config).unwrap();
        Some(Self { handle, directory })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    fn rule(&self, rule: Rule) {
        self.handle.set_rules(&[rule]).unwrap();
    }

    /// Runs a shell command in the directory that holds `backing`, `mnt` and `outside`.
    fn sh(&self, script: &str) -> Output {
        let mut command = Command::new("bash");
        command.arg("-c").arg(script).current_dir(self.directory.path());
        command.output().unwrap()
    }

    fn ok(&self, script: &str) -> String {
        let output = self.sh(script);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn fails(&self, script: &str, message: &str) {
        let output = self.sh(script);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{script} succeeded");
        assert!(error.contains(message), "{script}: {error}");
    }
}

fn bench(test: &str) -> Option<Bench> {
    Bench::new(test, Config::default())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_copied_tree_is_equal_in_content_and_metadata() {
    let Some(bench) = bench("a_copied_tree_is_equal_in_content_and_metadata") else {
        return;
    };
    bench.ok("set -e; mkdir -p outside/d/e outside/locked; cd outside
        head -c 3000000 /dev/urandom > big; echo small > d/small; : > d/empty; ln d/small d/e/hard
        ln -s ../nowhere d/dangling; ln -s small d/sym; touch -h -d '1971-03-04 05:06:07.123456789' d/sym
        mkfifo d/fifo; mknod d/null c 1 3; mknod d/blk b 259 70000
        python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('d/sock')\"
        truncate -s 10M d/holes; printf mid | dd of=d/holes bs=1 seek=5000000 conv=notrunc status=none
        chown 1234:5678 d/small d/fifo; chown -h 77:88 d/sym; chmod 6755 big; chmod 1777 d/e; chmod 000 locked
        touch -d '1960-01-02 03:04:05.700000001' d/empty; touch -d '2038-01-20 01:02:03.999999999' big
        touch \"$(printf 'd/new\\nline-\\377')\"; touch -d '1969-12-31 23:59:58.800000000 UTC' d/e");
    let xattrs = bench.sh("setfattr -n user.one -v 1 outside/big").status.success();
    if xattrs {
        bench.ok(
            "setfattr -n trusted.two -v 0x00ff outside/d; setfacl -m u:99:r,d:u:98:rwx outside/d",
        );
    } else {
        skipped("a_copied_tree", "the backing file system has no xattrs; the rest is compared");
    }
    let copied = bench.sh("cp -a outside/. mnt/tree");
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    // diff cannot compare device nodes; rsync does.
    bench.ok("diff -r --no-dereference -x null -x blk -x fifo -x sock outside mnt/tree");
    assert_eq!(bench.ok("rsync -aHAX -n -i --delete outside/ mnt/tree/"), "");
    assert_eq!(bench.ok("rsync -aHAX -n -i --delete outside/ backing/tree/"), "");
    let times = "find . -printf '%P %T@ %m %U:%G %y %l %s %n\\n' | sort";
    let original = bench.ok(&format!("cd outside; {times}"));
    assert_eq!(original, bench.ok(&format!("cd mnt/tree; {times}")));
    assert_eq!(original, bench.ok(&format!("cd backing/tree; {times}")));
    let device = fs::symlink_metadata(bench.at("mnt/tree/d/blk")).unwrap();
    assert!(device.file_type().is_block_device());
    let number = |dev| (rustix::fs::major(dev), rustix::fs::minor(dev));
    assert_eq!(number(device.rdev()), (259, 70000));
    let blocks = |path: &str| fs::metadata(bench.at(path)).unwrap().blocks();
    assert_eq!(blocks("mnt/tree/d/holes"), blocks("outside/d/holes"), "holes are kept");
}

#[test]
fn entries_are_removed_renamed_and_linked() {
    let Some(bench) = bench("entries_are_removed_renamed_and_linked") else {
        return;
    };
    bench.ok("set -e; cd mnt; echo a > a; echo b > b; mkdir d; mv a d/a; ln d/a a2; rm d/a; rmdir d; mv -T a2 b
        [ $(cat b) = a ]; ln -s b s; [ $(readlink s) = b ]; [ $(stat -c %h b) = 1 ]; [ $(cat s) = a ]");
    let renamed = bench.at("mnt/b");
    let other = bench.at("mnt/c");
    fs::write(&other, "c").unwrap();
    let here = rustix::fs::CWD;
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(here, &renamed, here, &other, exchange).unwrap();
    assert_eq!(fs::read_to_string(&renamed).unwrap(), "c");
    let keep = rustix::fs::RenameFlags::NOREPLACE;
    let refused = rustix::fs::renameat_with(here, &renamed, here, &other, keep);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    // The name that rules see follows the rename.
    bench.rule(Rule::new(Op::Read, Action::Errno(libc::EIO)).name("c"));
    bench.ok("cat mnt/b");
    bench.fails("cat mnt/c", "Input/output error");
}

#[test]
fn umask_setgid_and_default_acl_work_as_on_the_backing() {
    let Some(bench) = bench("umask_setgid_and_default_acl_work_as_on_the_backing") else {
        return;
    };
    let script = "set -e; umask 027; touch f; mkdir d; mkfifo p; mkdir g; chgrp 55 g; chmod g+s g; mkdir g/sub; touch g/f
        chmod 777 .; setpriv --reuid 1000 --regid 1000 --clear-groups bash -c 'umask 002; mkdir u; echo x > u/f; ln -s f u/l'
        setfacl -m d:u:7:rwx,d:g::rwx,d:m::rwx d 2>/dev/null && touch d/inherits && mkdir d/too
        find . -printf '%P %m %U:%G %y\\n' | sort; getfacl -RPp . 2>/dev/null";
    let direct = bench.ok(&format!("cd outside; {script}"));
    let through = bench.ok(&format!("cd mnt; {script}"));
    assert_eq!(direct, through);
    // Ordinary users are held to the permissions.
    bench.ok("cd mnt; echo secret > hidden; chmod 600 hidden");
    bench.fails(
        "setpriv --reuid 1000 --regid 1000 --clear-groups cat mnt/hidden",
        "Permission denied",
    );
}

#[test]
fn sparse_files_keep_their_shape_through_seek_and_fallocate() {
    let Some(bench) = bench("sparse_files_keep_their_shape_through_seek_and_fallocate") else {
        return;
    };
    bench.ok("python3 - <<'END'
import os
fd = os.open('mnt/f', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 22)
os.pwrite(fd, b'x' * 4096, 1 << 20)
assert os.lseek(fd, 0, os.SEEK_DATA) == 1 << 20
assert os.lseek(fd, 1 << 20, os.SEEK_HOLE) == (1 << 20) + 4096
try:
    os.lseek(fd, 1 << 21, os.SEEK_DATA); raise SystemExit('no ENXIO')
except OSError as e:
    assert e.errno == 6
os.posix_fallocate(fd, 0, 1 << 22)
assert os.fstat(fd).st_blocks * 512 >= 1 << 22
out = os.open('mnt/copy', os.O_RDWR | os.O_CREAT)
assert os.copy_file_range(fd, out, 4096, 1 << 20, 0) == 4096
assert os.pread(out, 9000, 0) == b'x' * 4096
os.fsync(out); os.fdatasync(out); d = os.open('mnt', os.O_RDONLY); os.fsync(d)
assert os.statvfs('mnt').f_blocks == os.statvfs('backing').f_blocks
END");
    let counters = bench.handle.counters();
    assert_eq!(counters.of(Op::CopyFileRange).bytes, 4096);
    assert!(counters.of(Op::Fallocate).calls == 1);
    assert_eq!((counters.of(Op::Fsync).calls, counters.of(Op::Fsyncdir).calls), (2, 1));
    bench.ok("fallocate -p -o 0 -l 65536 mnt/f");
    // Not every backing file system can zero a range; the answer must be its answer.
    let zero = |path: &str| bench.sh(&format!("fallocate -z -o 131072 -l 65536 {path}/f")).stderr;
    assert_eq!(zero("mnt"), zero("backing"));
}

#[test]
fn large_directories_and_long_paths_work() {
    for readdirplus in [false, true] {
        let config = Config { readdirplus, ..Config::default() };
        let Some(bench) = Bench::new("large_directories_and_long_paths_work", config) else {
            return;
        };
        bench.ok("set -e; mkdir mnt/many; cd mnt/many; seq -f 'entry-with-a-long-name-%06g' 1 2000 | xargs touch
            [ $(ls | sort -u | wc -l) = 2000 ]; [ $(ls -la | wc -l) = 2003 ]; diff <(ls) <(ls ../../backing/many)");
        // 40 levels of 200 bytes: twice PATH_MAX.
        bench.ok("set -e; cd mnt; name=$(printf 'n%.0s' {1..200})
            for i in {1..40}; do mkdir $name; cd $name; done; echo deep > file; [ $(cat file) = deep ]");
        assert_eq!(bench.ok("cd mnt; find . -name file | wc -c"), "8047\n");
        bench.ok("rm -r mnt/n*; rm -r mnt/many; [ -z \"$(ls -A backing)\" ]");
    }
}

#[test]
fn errors_reach_the_program_with_their_number() {
    let Some(bench) = bench("errors_reach_the_program_with_their_number") else {
        return;
    };
    fs::write(bench.at("backing/data.bin"), pattern(100_000)).unwrap();
    let errno = |op, errno| Rule::new(op, Action::Errno(errno)).count(0);
    bench.rule(errno(Op::Read, libc::EIO).name("*.bin"));
    bench.fails("cat mnt/data.bin", "Input/output error");
    bench.rule(errno(Op::Write, libc::ENOSPC).from_offset(65536));
    bench.fails("dd if=backing/data.bin of=mnt/full bs=8k", "No space left on device");
    assert_eq!(fs::metadata(bench.at("backing/full")).unwrap().len(), 65536);
    bench.rule(errno(Op::Create, libc::EDQUOT));
    bench.fails("echo x > mnt/quota", "Disk quota exceeded");
    bench.rule(errno(Op::Open, libc::EACCES));
    bench.fails("cat mnt/data.bin", "Permission denied");
    bench.rule(errno(Op::Mkdir, libc::EROFS));
    bench.fails("mkdir mnt/d", "Read-only file system");
    bench.rule(errno(Op::Fsync, libc::EIO));
    bench.fails("dd if=backing/data.bin of=mnt/f bs=64k conv=fsync", "Input/output error");
    bench.rule(errno(Op::Flush, libc::EDQUOT));
    bench.fails("cp backing/data.bin mnt/g", "Disk quota exceeded");
    bench.rule(errno(Op::Readdir, libc::EIO));
    bench.fails("ls mnt", "Input/output error");
    bench.rule(errno(Op::Getattr, libc::EIO).name("data.bin"));
    bench.fails("exec 3< mnt/data.bin; stat -L /proc/self/fd/3", "Input/output error");
    bench.rule(errno(Op::Rename, libc::EXDEV));
    bench.fails("python3 -c \"import os; os.rename('mnt/data.bin','mnt/x')\"", "cross-device");
    bench.rule(errno(Op::Setattr, libc::EPERM));
    bench.fails("chmod 600 mnt/data.bin", "Operation not permitted");
    let interrupted = "import os; fd=os.open('mnt/data.bin',0)\ntry: os.posix_fadvise(fd,0,0,0); os.preadv(fd,[bytearray(9)],0)\nexcept InterruptedError: exit(7)";
    bench.rule(errno(Op::Lookup, libc::ESTALE).name("data.bin"));
    bench.fails("cat mnt/data.bin", "Stale file handle");
    // Python repeats a call that was interrupted: one EINTR costs one more read and is not seen.
    bench.rule(Rule::new(Op::Read, Action::Errno(libc::EINTR)));
    bench.handle.reset();
    bench.ok(&format!("python3 -c '{}'", interrupted.replace('\'', "\"")));
    let reads = bench.handle.counters().of(Op::Read);
    assert_eq!((reads.calls, reads.errors), (2, 1));
}

#[test]
fn a_lost_answer_leaves_the_change_behind() {
    let Some(bench) = bench("a_lost_answer_leaves_the_change_behind") else {
        return;
    };
    bench.rule(Rule::new(Op::Rename, Action::ErrnoAfter(libc::ETIMEDOUT)));
    fs::write(bench.at("mnt/a"), "a").unwrap();
    bench.fails("python3 -c \"import os; os.rename('mnt/a','mnt/b')\"", "timed out");
    assert!(!bench.at("backing/a").exists() && bench.at("backing/b").exists());
    bench.rule(Rule::new(Op::Create, Action::ErrnoAfter(libc::EIO)));
    bench.fails("echo x > mnt/c", "Input/output error");
    assert!(bench.at("backing/c").exists());
}

#[test]
fn only_the_chosen_calls_fail() {
    let Some(bench) = bench("only_the_chosen_calls_fail") else {
        return;
    };
    fs::write(bench.at("backing/data"), pattern(40960)).unwrap();
    let read = Rule::new(Op::Read, Action::Errno(libc::EIO));
    let dd = "dd if=mnt/data bs=4096 conv=noerror 2>&1 >/dev/null | grep -c 'error reading'";
    bench.rule(read.clone().when(When::Nth(3)).count(2));
    assert_eq!(bench.ok(dd), "2\n");
    bench.rule(read.clone().when(When::Every(4)).count(0));
    let every = bench.ok(dd);
    assert_eq!(bench.handle.counters().rules_fired.iter().sum::<u64>().to_string() + "\n", every);
    bench.rule(read.name("other*").count(0));
    bench.ok("cmp mnt/data backing/data");
}

#[test]
fn short_transfers_and_flipped_bits_are_seen() {
    let Some(bench) = bench("short_transfers_and_flipped_bits_are_seen") else {
        return;
    };
    let data = pattern(50_000);
    fs::write(bench.at("backing/data"), &data).unwrap();
    bench.rule(Rule::new(Op::Read, Action::ShortRead(100)));
    assert_eq!(bench.ok("dd if=mnt/data bs=1000 count=1 2>/dev/null | wc -c"), "100\n");
    bench.rule(Rule::new(Op::Read, Action::ShortRead(100)).count(0));
    bench.ok("cat mnt/data | cmp - backing/data");
    bench.rule(Rule::new(Op::Read, Action::ShortRead(0)).from_offset(20_000).count(0));
    let truncated = bench.ok("dd if=mnt/data bs=10000 2>/dev/null | wc -c");
    assert_eq!(truncated, "20000\n");

    bench.rule(Rule::new(Op::Write, Action::ShortWrite(7)));
    let written = "python3 -c \"import os; print(os.write(os.open('mnt/w',os.O_WRONLY|os.O_CREAT),b'x'*50))\"";
    assert_eq!(bench.ok(written), "7\n");
    bench.rule(Rule::new(Op::Write, Action::ShortWrite(1000)).count(0));
    bench.ok("cat backing/data > mnt/w; cmp mnt/w backing/data");

    let flip = Action::BitFlip { offset_in_buffer: 123 };
    bench.rule(Rule::new(Op::Read, flip));
    bench.fails("cat mnt/data | cmp - backing/data; exit ${PIPESTATUS[1]}", "");
    let different = "cmp -l backing/data <(cat FILE) | awk '{print $1}'";
    bench.rule(Rule::new(Op::Read, flip));
    assert_eq!(bench.sh(&different.replace("FILE", "mnt/data")).stdout, b"124\n");
    bench.rule(Rule::new(Op::Write, flip));
    bench.ok("dd if=backing/data of=mnt/w bs=64k status=none");
    assert_eq!(bench.sh(&different.replace("FILE", "backing/w")).stdout, b"124\n");
    bench.rule(Rule::new(Op::CopyFileRange, flip));
    bench.ok("rm mnt/w; cp mnt/data mnt/w");
    let copies = bench.handle.counters().of(Op::CopyFileRange);
    assert_eq!(copies.faults, 1, "cp used copy_file_range");
    assert_eq!(bench.sh(&different.replace("FILE", "backing/w")).stdout, b"124\n");
}

#[test]
fn a_hang_lasts_until_it_is_released() {
    fn shared<T: Send + Sync>(_: &T) {}

    let Some(bench) = bench("a_hang_lasts_until_it_is_released") else {
        return;
    };
    fs::write(bench.at("backing/data"), "data").unwrap();
    bench.rule(Rule::new(Op::Read, Action::Hang { duration_ms: 600_000 }));
    shared(&bench.handle);
    let reader = thread::spawn({
        let path = bench.at("mnt/data");
        move || fs::read_to_string(path)
    });
    while bench.handle.counters().rules_fired != [1] {
        thread::sleep(Duration::from_millis(1)); // poll
    }
    assert!(!reader.is_finished());
    assert_eq!(fs::read_to_string(bench.at("mnt/data")).unwrap(), "data", "others go on");
    while !reader.is_finished() {
        bench.handle.release_hangs();
        thread::sleep(Duration::from_millis(1)); // poll
    }
    assert_eq!(reader.join().unwrap().unwrap(), "data");
    bench.rule(Rule::new(Op::Read, Action::Hang { duration_ms: 1 }));
    bench.ok("cat mnt/data");
}

#[test]
fn latencies_of_different_requests_overlap() {
    let config = Config { keep_records: true, ..Config::default() };
    let Some(bench) = Bench::new("latencies_of_different_requests_overlap", config) else {
        return;
    };
    for reader in 0..8 {
        fs::write(bench.at(&format!("backing/{reader}")), pattern(64 * 1024)).unwrap();
    }
    let mut latency = Latency::default();
    latency.by_class_us.insert(OpClass::Read, 300_000);
    bench.handle.set_latency(latency);
    let readers = (0..8).map(|reader| {
        let path = bench.at(&format!("mnt/{reader}"));
        thread::spawn(move || fs::read(path).unwrap())
    });
    let readers: Vec<_> = readers.collect();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), pattern(64 * 1024));
    }
    assert_eq!(bench.handle.counters().of(Op::Read).max_in_flight, 8);
    // The same from the log: some read began before seven others had ended.
    let reads: Vec<Record> = bench.handle.records();
    let reads: Vec<_> = reads.iter().filter(|record| record.op == Op::Read).collect();
    let overlap = |one: &&&Record| {
        reads.iter().filter(|other| other.begin <= one.begin && one.begin < other.end).count()
    };
    assert_eq!(reads.iter().map(|read| overlap(&read)).max(), Some(8));
}

#[test]
fn files_in_use_do_not_prevent_unmounting() {
    let Some(bench) = bench("files_in_use_do_not_prevent_unmounting") else {
        return;
    };
    fs::write(bench.at("backing/data"), pattern(9000)).unwrap();
    let open = fs::File::open(bench.at("mnt/data")).unwrap();
    let Bench { handle, directory } = bench;
    let counters = handle.unmount().unwrap();
    assert_eq!(counters.of(Op::Open).calls, 1);
    assert!(std::io::copy(&mut &open, &mut std::io::sink()).is_err());
    assert_eq!(fs::read_dir(directory.path().join("mnt")).unwrap().count(), 0);
}

#[test]
fn a_mount_in_another_namespace_does_not_prevent_unmounting() {
    let name = "a_mount_in_another_namespace_does_not_prevent_unmounting";
    let Some(bench) = bench(name) else { return };
    let script = "echo held; exec cat";
    let mut holder = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut word = [0; 4];
    holder.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    let Bench { handle, directory } = bench;
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(handle.unmount().map(|_| ())));
    // The limit ends a test that would never end.
    let unmounted = told.recv_timeout(Duration::from_mins(1));
    let still_there = holder.try_wait().unwrap().is_none();
    drop(holder.stdin.take());
    holder.wait().unwrap();
    unmounted.expect("the session waits for the other namespace").unwrap();
    assert!(still_there, "the other namespace was gone before");
    drop(directory);
}

#[test]
fn the_page_cache_and_refused_copies_can_be_chosen() {
    let config = Config {
        direct_io: false,
        copy_file_range: false,
        ttl_ms: 60_000,
        posix_acl: true,
        ..Config::default()
    };
    let Some(bench) = Bench::new("the_page_cache_and_refused_copies_can_be_chosen", config) else {
        return;
    };
    bench.ok("set -e; head -c 2000000 /dev/urandom > mnt/a; cp mnt/a mnt/b; cmp mnt/a mnt/b; cmp backing/a backing/b");
    let counters = bench.handle.counters();
    assert_eq!(counters.of(Op::CopyFileRange).calls, 0);
    assert!(counters.of(Op::Write).bytes == 4_000_000);
    bench.handle.reset();
    bench.ok("for i in $(seq 20); do stat mnt/a; done");
    let questions = bench.handle.counters().of(Op::Getattr).calls;
    assert!(questions < 5, "attributes are cached: {questions}");
    bench.ok("python3 -c \"import mmap; f=open('mnt/a','r+b'); m=mmap.mmap(f.fileno(),0); m[0:4]=b'mmap'; m.flush()\"
        [ $(head -c 4 backing/a) = mmap ]");
}

#[test]
fn the_program_logs_counts_and_stops() {
    let Some(bench) = bench("the_program_logs_counts_and_stops") else {
        return;
    };
    fs::create_dir(bench.at("mnt2")).unwrap();
    fs::write(bench.at("backing/data.bin"), pattern(5000)).unwrap();
    let rules = r#"[{"operation":"read","name":"*.bin","when":{"nth":2},"count":1,"action":{"errno":"EIO"}}]"#;
    fs::write(bench.at("rules.json"), rules).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_dmover-faultfs"));
    for stop in [&["umount", "mnt2"] as &[&str], &["kill"]] {
        let mut mount = Command::new(program)
            .args(["backing", "mnt2", "--latency-us", "100", "--rules", "rules.json"])
            .args(["--log", "log.jsonl", "--stats", "stats.json"])
            .current_dir(bench.directory.path())
            .spawn()
            .unwrap();
        bench
            .ok("for i in $(seq 500); do [ -e mnt2/data.bin ] && exit 0; sleep 0.01; done; exit 1");
        bench.ok("dd if=mnt2/data.bin of=/dev/null bs=1000 count=1");
        bench.fails("dd if=mnt2/data.bin of=/dev/null bs=1000 count=1", "Input/output error");
        // Rules are read again on HUP, counters are written on USR1.
        fs::write(bench.at("rules.json"), "[]").unwrap();
        fs::remove_file(bench.at("stats.json")).ok();
        bench.ok(&format!("kill -HUP {0}; kill -USR1 {0}", mount.id()));
        bench.ok("for i in $(seq 500); do [ -s stats.json ] && exit 0; sleep 0.01; done; exit 1");
        bench.ok("cmp mnt2/data.bin backing/data.bin");
        fs::write(bench.at("rules.json"), rules).unwrap();
        bench.ok(&format!("{} $([ {} = kill ] && echo {})", stop.join(" "), stop[0], mount.id()));
        assert!(mount.wait().unwrap().success());
        let stats: Counters =
            serde_json::from_slice(&fs::read(bench.at("stats.json")).unwrap()).unwrap();
        assert_eq!(stats.of(Op::Read).faults, 1);
        assert!(stats.of(Op::Read).calls > 2);
        let log = fs::read_to_string(bench.at("log.jsonl")).unwrap();
        let log: Vec<Record> =
            log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let failed: Vec<_> = log.iter().filter(|record| record.rule.is_some()).collect();
        assert_eq!(failed.len(), 1);
        assert_eq!((failed[0].name.as_str(), failed[0].errno), ("data.bin", libc::EIO));
    }
    assert_eq!(bench.at("mnt2").file_name(), Some(OsStr::new("mnt2")));
}
