//! The `dmover` program.
#![forbid(unsafe_code)]
use std::process::ExitCode;

fn main() -> ExitCode {
    dmover_cli::main()
}
