//! Refused system calls and swapped names, as plain programs see them.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::process::Command;
use std::thread;

use dmover_testkit::image::base_directory;
use dmover_testkit::seccomp::{Denial, seccomp_command, with_denied};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;

fn statx() -> Result<(), Errno> {
    rustix::fs::statx(CWD, "/", AtFlags::empty(), StatxFlags::BASIC_STATS).map(|_| ())
}

#[test]
fn a_closure_and_what_it_starts_are_refused_the_calls() {
    let answers = with_denied(&["syncfs", "openat2"], libc::EPERM, || {
        let root = rustix::fs::open("/", rustix::fs::OFlags::RDONLY, 0.into()).unwrap();
        let own = rustix::fs::syncfs(&root);
        let of_thread = thread::spawn(move || rustix::fs::syncfs(&root)).join().unwrap();
        let script = "import os; os.stat('/'); os.copy_file_range";
        let program = Command::new("python3").args(["-c", script]).status().unwrap();
        let sync = Command::new("sync").args(["-f", "/"]).output().unwrap();
        (own, of_thread, program.success(), String::from_utf8(sync.stderr).unwrap())
    });
    let (own, of_thread, program, sync) = answers.unwrap();
    assert_eq!((own, of_thread, program), (Err(Errno::PERM), Err(Errno::PERM), true));
    assert!(sync.contains("Operation not permitted"), "{sync}");
    let root = rustix::fs::open("/", rustix::fs::OFlags::RDONLY, 0.into()).unwrap();
    assert_eq!(rustix::fs::syncfs(&root), Ok(()), "other threads are not filtered");
}

#[test]
fn a_program_runs_under_the_filter() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("source"), vec![7; 100_000]).unwrap();
    let script = "import os,sys
a=os.open(sys.argv[1],os.O_RDONLY); b=os.open(sys.argv[2],os.O_CREAT|os.O_WRONLY)
try: os.copy_file_range(a,b,10)
except OSError as e: print(e.errno)";
    for errno in [libc::ENOSYS, libc::EPERM, libc::EXDEV] {
        let mut command = seccomp_command(&["copy_file_range", "statx"], errno, "python3");
        let output =
            command.args(["-c", script]).args([at("source"), at("copy")]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{errno}\n"));
    }
    // cp falls back to reading and writing.
    let mut cp = seccomp_command(&["copy_file_range", "ficlone", "fallocate"], libc::ENOSYS, "cp");
    assert!(cp.args([at("source"), at("copy")]).status().unwrap().success());
    assert_eq!(fs::read(at("source")).unwrap(), fs::read(at("copy")).unwrap());
    let missing = seccomp_command(&["statx"], libc::ENOSYS, "/no/such/program").output().unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot run"));
}

#[test]
fn single_requests_and_flags_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "x").unwrap();
    let script = "import os,sys,fcntl
def errno(call, *args):
    try: call(*args); return 0
    except OSError as e: return e.errno
f=sys.argv[1]; fd=os.open(f,os.O_RDWR)
print(errno(os.open,f,os.O_RDONLY|os.O_DIRECT), errno(os.open,os.path.dirname(f),os.O_RDWR|os.O_TMPFILE),
  errno(os.open,os.path.dirname(f),os.O_RDONLY|os.O_DIRECTORY), errno(fcntl.ioctl,fd,0x40049409,fd),
  errno(fcntl.ioctl,fd,0x541b,b'0000'))";
    let denied = ["o_direct", "o_tmpfile", "ficlone"];
    let mut command = seccomp_command(&denied, libc::ENOTTY, "python3");
    let output = command.args(["-c", script]).arg(&path).output().unwrap();
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers, "25 25 0 25 0\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_call_named_with_its_requests_is_refused_altogether() {
    let check = |denied: &[&str]| {
        with_denied(denied, libc::EACCES, || {
            let error = "import fcntl,sys\ntry: fcntl.ioctl(0,0x541b,b'0000')\nexcept PermissionError: sys.exit(9)";
            Command::new("python3").args(["-c", error]).status().unwrap().code()
        })
    };
    assert_eq!(check(&["ioctl", "ficlone"]).unwrap(), Some(9));
    assert_eq!(check(&["ficlone", "ioctl"]).unwrap(), Some(9));
}

#[test]
fn filters_add_up_and_unknown_names_are_errors() {
    let answers = with_denied(&["statx"], libc::ENOSYS, || {
        Denial::new(&["syncfs"], libc::EIO).unwrap().apply().unwrap();
        let root = rustix::fs::open("/", rustix::fs::OFlags::RDONLY, 0.into()).unwrap();
        (statx().is_err(), rustix::fs::syncfs(&root))
    });
    assert_eq!(answers.unwrap(), (true, Err(Errno::IO)));
    assert!(Denial::new(&["statx", "no_such_call"], 1).is_err());
}

#[test]
fn the_swapper_program_counts() {
    let directory = tempfile::tempdir_in(base_directory().unwrap()).unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("a")).unwrap();
    fs::write(at("b"), "b").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dmover-swapper"))
        .args([at("a"), at("b")])
        .args(["--seconds", "0.2"])
        .output()
        .unwrap();
    let swaps: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(swaps > 10, "{swaps}");
    assert!(at("a").is_dir() && at("b").is_file());
}
