//! Swap attacks: names of the source or the destination are exchanged with ways out while copies run in a loop.

mod arena;
mod control;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::check::{contents, leftovers};
use super::run::Dmover;
use super::{LaneOptions, LaneReport, rng};
use crate::compare::{CompareOptions, compare};
use crate::swap::{Decoy, SwapKind, Swapper};
use arena::{Arena, SECRET};

/// Copies in one experiment.
const ROUNDS: u32 = 8;
/// A run that takes longer waits for a FIFO.
const PATIENCE: Duration = Duration::from_mins(1);

/// Which name is attacked, and what takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    SourceDirectory,
    SourceAbove,
    SourceFileBySymlink,
    SourceFileByFifo,
    SourceFileByHardLink,
    DestinationDirectory,
    DestinationAbove,
    DestinationFileBySymlink,
    DestinationFileByFifo,
    DestinationFileByHardLink,
    DestinationTemporaries,
}

const ATTACKS: [Attack; 11] = [
    Attack::SourceDirectory,
    Attack::SourceAbove,
    Attack::SourceFileBySymlink,
    Attack::SourceFileByFifo,
    Attack::SourceFileByHardLink,
    Attack::DestinationDirectory,
    Attack::DestinationAbove,
    Attack::DestinationFileBySymlink,
    Attack::DestinationFileByFifo,
    Attack::DestinationFileByHardLink,
    Attack::DestinationTemporaries,
];

impl Attack {
    fn on_source(self) -> bool {
        matches!(
            self,
            Self::SourceDirectory
                | Self::SourceAbove
                | Self::SourceFileBySymlink
                | Self::SourceFileByFifo
                | Self::SourceFileByHardLink
        )
    }

    /// The name that is exchanged, below the root of its side.
    fn victim(self) -> &'static str {
        match self {
            Self::SourceDirectory | Self::DestinationDirectory => "top/victim",
            Self::SourceAbove | Self::DestinationAbove => "top",
            _ => "top/victim/f00",
        }
    }

    fn by_hard_link(self) -> bool {
        matches!(
            self,
            Self::SourceFileByHardLink
                | Self::DestinationFileByHardLink
                | Self::DestinationTemporaries
        )
    }
}

/// Runs every attack in turn; a control shows first that the same attacks catch `cp -a`.
pub fn swap(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("swap");
    report.failures.extend(control::cp_is_caught(&mut report.counts)?);
    report.each_seed(options, |seed, report| {
        attack_once(Dmover::new(&options.program)?, seed, report)
    });
    Ok(report)
}

/// The attack of one seed.
pub(super) fn attack_once(
    dmover: Dmover,
    seed: u64,
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let attack = ATTACKS[seed as usize % ATTACKS.len()];
    let mut rng = rng("swap", seed);
    let arena = Arena::new(seed)?;
    let dmover = dmover.patience(PATIENCE);
    let words = words(&arena, attack, &mut rng);
    if !attack.on_source() {
        // A destination has to be there before it can be attacked.
        let run = dmover.copy(&words)?;
        anyhow::ensure!(run.code() == Some(0), "{}", run.tell());
    }
    let watch = arena.watch(attack.by_hard_link())?;
    let kind =
        *[SwapKind::Exchange, SwapKind::Rotate].choose(&mut rng).unwrap_or(&SwapKind::Rotate);
    let attacker = Attacker::start(&arena, attack, kind)?;
    let mut failures = Vec::new();
    for round in 0..ROUNDS {
        let run = dmover.copy(&words)?;
        report.add("copies", 1);
        report.add("copies_that_noticed", u64::from(run.code() != Some(0)));
        if !matches!(run.code(), Some(0 | 2..=4)) {
            failures.push(format!("round {round}: {}", run.tell()));
        }
        if attack.on_source() {
            failures.extend(secrets(&arena, attack)?);
            arena.empty_destination()?;
        }
    }
    let (swaps, ended) = attacker.stop();
    report.add("swaps", swaps);
    // The copier may put a directory of its own where a name was missing for a moment.
    report.add("attacks_that_ended_early", u64::from(ended.is_err()));
    let seen = watch.events()?;
    report.add("events_outside", seen.len() as u64);
    failures.extend(seen.into_iter().map(|event| format!("outside: {event}")));
    failures.extend(arena.outside_changes(attack.by_hard_link())?);
    if attack != Attack::DestinationTemporaries {
        failures.extend(afterwards(&dmover, &arena, &words)?);
    }
    Ok(failures.into_iter().map(|failure| format!("{attack:?} {kind:?}: {failure}")).collect())
}

fn words(arena: &Arena, attack: Attack, rng: &mut ChaCha8Rng) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![format!("-j{}", rng.random_range(1..=4)).into()];
    if !attack.on_source() {
        // Otherwise there would be nothing to do in the second round.
        words.push("--overwrite=always".into());
    }
    let chunked = attack == Attack::DestinationTemporaries || rng.random_bool(0.3);
    if chunked {
        words.push("--split-size=64K".into());
    } else if !attack.on_source() && rng.random_bool(0.5) {
        words.push("--inplace".into());
    }
    words.extend(["-T".into(), arena.source().into(), arena.destination().into()]);
    words
}

/// What came from outside into the copy.
fn secrets(arena: &Arena, attack: Attack) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    if !arena.destination().exists() {
        return Ok(failures);
    }
    for (path, bytes) in contents(&arena.destination())? {
        let secret = bytes.windows(SECRET.len()).any(|window| window == SECRET);
        // A hard link is a name in the source like any other; only a mixture would be wrong.
        let honest = attack.by_hard_link() && arena.is_outside_file(&path, &bytes)?;
        if secret && !honest {
            failures.push(format!("the secret arrived in {}", path.display()));
        }
    }
    Ok(failures)
}

/// When the attack is over the same command makes everything right.
fn afterwards(dmover: &Dmover, arena: &Arena, words: &[OsString]) -> Result<Vec<String>> {
    let run = dmover.copy(words)?;
    let mut failures = Vec::new();
    if run.code() != Some(0) {
        failures.push(format!("when it was over: {}", run.tell()));
    }
    let options = CompareOptions::default();
    let differences = compare(&arena.source(), &arena.destination(), &options)?;
    failures.extend(differences.iter().map(|difference| format!("when it was over: {difference}")));
    let left = leftovers(&arena.destination())?;
    failures.extend(left.iter().map(|path| format!("left over: {}", path.display())));
    Ok(failures)
}

/// Whoever exchanges names.
enum Attacker {
    Names(Swapper),
    Temporaries(arena::TemporarySwapper),
}

impl Attacker {
    fn start(arena: &Arena, attack: Attack, kind: SwapKind) -> Result<Self> {
        if attack == Attack::DestinationTemporaries {
            return Ok(Self::Temporaries(arena::TemporarySwapper::start(arena)?));
        }
        let side = if attack.on_source() { arena.source() } else { arena.destination() };
        let (victim, decoy) = (side.join(attack.victim()), arena.decoy());
        let outside = arena.outside();
        let file = outside.join("top/victim/f00");
        let within: &Path = match attack {
            Attack::SourceDirectory | Attack::DestinationDirectory => &outside.join("top/victim"),
            Attack::SourceAbove | Attack::DestinationAbove => &outside.join("top"),
            _ => &file,
        };
        let what = match attack {
            Attack::SourceFileByFifo | Attack::DestinationFileByFifo => Decoy::Fifo,
            Attack::SourceFileByHardLink | Attack::DestinationFileByHardLink => {
                Decoy::HardLinkTo(within)
            }
            _ => Decoy::SymlinkTo(within),
        };
        what.create(&decoy)?;
        Ok(Self::Names(Swapper::start(&victim, &decoy, kind)?))
    }

    /// How many swaps there were, and whether it went on to the end.
    fn stop(self) -> (u64, Result<()>) {
        match self {
            Self::Names(swapper) => {
                let swaps = swapper.swaps();
                (swaps, swapper.stop().map(drop))
            }
            Self::Temporaries(swapper) => swapper.stop(),
        }
    }
}
