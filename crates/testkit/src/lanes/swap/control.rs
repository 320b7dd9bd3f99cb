//! The control: the same attacks on `cp -a`, which falls for them.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::arena::{Arena, SECRET};
use crate::lanes::check::contents;
use crate::swap::{Decoy, SwapKind, Swapper};

/// Far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(90);

/// Whether `cp -a` reads outside and writes outside; what it did not do is a failure of the attack.
pub fn cp_is_caught(counts: &mut BTreeMap<String, u64>) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for (name, attack) in
        [("reading", caught_reading as fn() -> Result<u64>), ("writing", caught_writing)]
    {
        let copies = attack()?;
        counts.insert(format!("control_cp_caught_{name}_after"), copies);
        if copies == 0 {
            failures.push(format!("control: cp -a was not caught {name} outside"));
        }
    }
    Ok(failures)
}

/// Attacks until something is found; the number of copies that took, or 0.
fn until_caught(arena: &Arena, mut caught: impl FnMut() -> Result<bool>) -> Result<u64> {
    let deadline = Instant::now() + PATIENCE;
    let mut copies = 0;
    while Instant::now() < deadline {
        copies += 1;
        let mut cp = Command::new("cp");
        cp.arg("-aT").arg(arena.source()).arg(arena.destination());
        // It complains about what it sees; that is not what counts.
        cp.output()?;
        if caught()? {
            return Ok(copies);
        }
    }
    Ok(0)
}

fn caught_reading() -> Result<u64> {
    let arena = Arena::new(0)?;
    Decoy::SymlinkTo(&arena.outside().join("top/victim")).create(&arena.decoy())?;
    let victim = arena.source().join("top/victim");
    let watch = arena.watch(false)?;
    let swapper = Swapper::start(&victim, &arena.decoy(), SwapKind::Exchange)?;
    let copies = until_caught(&arena, || {
        let files = contents(&arena.destination())?;
        let secret = |bytes: &Vec<u8>| bytes.windows(SECRET.len()).any(|w| w == SECRET);
        arena.empty_destination()?;
        Ok(files.values().any(secret))
    })?;
    swapper.stop()?;
    // The alarm has to have rung as well.
    Ok(if watch.events()?.is_empty() { 0 } else { copies })
}

fn caught_writing() -> Result<u64> {
    let arena = Arena::new(0)?;
    Command::new("cp").arg("-aT").arg(arena.source()).arg(arena.destination()).output()?;
    Decoy::SymlinkTo(&arena.outside().join("top/victim")).create(&arena.decoy())?;
    let victim = arena.destination().join("top/victim");
    let swapper = Swapper::start(&victim, &arena.decoy(), SwapKind::Exchange)?;
    let copies = until_caught(&arena, || Ok(!arena.outside_changes(false)?.is_empty()))?;
    swapper.stop()?;
    Ok(copies)
}
