//! The units for systemd in `contrib/`.
use dmover_testkit::skip;
use std::path::Path;
use std::process::Command;

use crate::bench::{Bench, PROGRAM};

#[test]
fn systemd_takes_the_units_and_dmover_their_arguments() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let bench = Bench::new();
    let mut units = Vec::new();
    for name in ["dmover-broker.service", "dmover-mover.service"] {
        let text = std::fs::read_to_string(directory.join(name)).unwrap();
        let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let words = start.strip_prefix("/usr/bin/dmover ").unwrap();
        // Clap refuses what it does not know before it prints help.
        bench.dmover(&format!("{words} --help")).expect_code(0);
        units.push(bench.write(name, text.replace("/usr/bin/dmover", PROGRAM)));
    }
    let verified =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units).output();
    let Ok(verified) = verified else { skip!("no systemd-analyze here") };
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("dmover-"), "{said}");
}
