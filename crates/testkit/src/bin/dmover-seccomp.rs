//! Runs a program to which system calls are refused.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;
use clap::Parser;
use dmover_testkit::faultfs::errno_by_name;
use dmover_testkit::seccomp::exec_denied;

/// Run a program under a filter that refuses system calls.
#[derive(Parser)]
struct Args {
    /// Calls to refuse, such as `openat2,statx,copy_file_range,ficlone`.
    #[arg(long, value_delimiter = ',', required = true)]
    deny: Vec<String>,
    /// Error that they get.
    #[arg(long, default_value = "ENOSYS")]
    errno: String,
    /// Program and arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let denied: Vec<&str> = args.deny.iter().map(String::as_str).collect();
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    exec_denied(&denied, errno_by_name(&args.errno)?, &mut command)
}
