//! The kernel is the oracle: the same random calls on the disk in memory and on a tmpfs must give the same errors, the
//! same values and the same tree, as a privileged and as another user.
//!
//! `DMOVER_MEMORY_SEED=N` runs one seed only.
// The type checker's list of methods is for the program: tests may look at paths and the environment. Functions that
// are no tests are test code as well.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod cuts;
mod real;
mod simulated;
mod steps;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use dmover_memory::Actor;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use real::Real;
use simulated::Simulated;
use steps::{Step, random_step};

const SEEDS: u64 = 60;
const STEPS: usize = 300;
const USER: u32 = 1000;
const GROUP: u32 = 1001;
/// Where the second process of a test finds its tree.
const PLACE: &str = "DMOVER_MEMORY_PLACE";
const SEED: &str = "DMOVER_MEMORY_SEED";

/// Seeds to run: all, or the one of the environment.
fn seeds() -> Vec<u64> {
    let one = std::env::var(SEED).ok().and_then(|text| text.parse().ok());
    one.map_or_else(|| (0..SEEDS).collect(), |seed| vec![seed])
}

/// A new directory on tmpfs with the directory `base`, or why there is none.
fn place() -> Result<tempfile::TempDir, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    let made = tempfile::Builder::new().prefix("dmover-memory-").tempdir_in("/dev/shm");
    let made = made.map_err(|error| error.to_string())?;
    std::fs::create_dir(made.path().join("base")).map_err(|error| error.to_string())?;
    Ok(made)
}

fn open_base(place: &Path) -> OwnedFd {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    rustix::fs::open(place.join("base"), flags, rustix::fs::Mode::empty()).unwrap()
}

/// A failure is reported with the steps before it.
#[derive(Default)]
struct History(Vec<String>);

impl History {
    /// The last steps, a line each; calls that failed are left out.
    fn last(&self) -> String {
        let told = self.0.iter().filter(|line| !line.contains(": E"));
        let last: Vec<&str> = told.rev().take(60).map(String::as_str).collect();
        last.into_iter().rev().collect()
    }

    fn compare(&mut self, seed: u64, step: &Step, real: &str, simulated: &str) {
        assert!(
            real == simulated,
            "{}seed {seed}: {step:?}: kernel {real}, memory {simulated}",
            self.last()
        );
        self.0.push(format!("{step:?}: {simulated}\n"));
    }
}

#[test]
fn a_privileged_user_sees_what_the_kernel_shows() {
    for seed in seeds() {
        let place = match place() {
            Ok(place) => place,
            Err(why) => return skipped(&why),
        };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut real = Real::new(open_base(place.path()));
        let mut simulated = Simulated::new(seed);
        let root = Actor { umask: 0o022, ..Actor::root() };
        let mut history = History::default();
        for number in 0..STEPS {
            let step = random_step(&mut random);
            if simulated.is_comparable(&step) {
                let expected = real.run(&step);
                history.compare(seed, &step, &expected, &simulated.run(&root, &step));
            }
            if number % 25 == 0 || number + 1 == STEPS {
                let (expected, found) = (real.tree(), simulated.tree());
                assert!(
                    expected == found,
                    "seed {seed}: after {step:?}\nkernel:\n{expected}memory:\n{found}{}",
                    history.last()
                );
            }
        }
    }
}

/// The base directory and the tree that an unprivileged user finds, by seed; `real` is absent in the second process.
fn prepare(random: &mut ChaCha8Rng, simulated: &mut Simulated, mut real: Option<&mut Real>) {
    let root = Actor::root();
    let (owner, mode) =
        [(USER, 0o755), (0, 0o777), (0, 0o1777), (USER, 0o2775)][random.random_range(0..4)];
    let open = Step::Base { uid: owner, gid: GROUP, mode };
    let made = (0..120).map(|_| random_step(random)).collect::<Vec<_>>();
    for step in made.into_iter().chain([Step::CloseAll, open]) {
        if simulated.is_comparable(&step) {
            let found = simulated.run(&root, &step);
            if let Some(real) = real.as_deref_mut() {
                assert_eq!(real.run(&step), found, "{step:?}");
            }
        }
    }
}

#[test]
fn an_unprivileged_user_sees_what_the_kernel_shows() {
    for seed in seeds() {
        let place = match place() {
            Ok(place) => place,
            Err(why) => return skipped(&why),
        };
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(place.path(), everybody).unwrap();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut simulated = Simulated::new(seed);
        let mut real = Real::new(open_base(place.path()));
        prepare(&mut random, &mut simulated, Some(&mut real));
        let mut command = command_of_user(seed);
        command.args(["--exact", "the_steps_of_the_unprivileged_user", "--nocapture"]);
        command.env(PLACE, place.path()).env(SEED, seed.to_string());
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return skipped(&format!("no process of another user: {error}")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "{text}");
        // The same steps once more, to compare what only a privileged user sees.
        run_as_user(&mut random, &mut simulated, None, seed);
        let (expected, found) = (real.tree(), simulated.tree());
        assert!(expected == found, "seed {seed}\n{text}{}", differences(&expected, &found));
    }
}

fn run_as_user(
    random: &mut ChaCha8Rng,
    simulated: &mut Simulated,
    mut real: Option<&mut Real>,
    seed: u64,
) {
    let user = Actor { groups: further_groups(seed).to_vec(), ..Actor::user(USER, GROUP) };
    let mut history = History::default();
    for _ in 0..STEPS {
        let step = random_step(random);
        if simulated.is_comparable(&step) {
            let found = simulated.run(&user, &step);
            if let Some(real) = real.as_deref_mut() {
                history.compare(seed, &step, &real.run(&step), &found);
            }
        }
    }
}

/// This program as the other user; for every second seed with a further group, which setpriv(1) sets.
fn command_of_user(seed: u64) -> Command {
    let own = std::env::current_exe().unwrap();
    if let [group] = further_groups(seed) {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={USER}")).arg(format!("--regid={GROUP}"));
        command.arg(format!("--groups={group}")).arg(own);
        return command;
    }
    let mut command = Command::new(own);
    std::os::unix::process::CommandExt::uid(&mut command, USER);
    std::os::unix::process::CommandExt::gid(&mut command, GROUP);
    command
}

fn further_groups(seed: u64) -> &'static [u32] {
    if seed.is_multiple_of(2) { &[] } else { &[2000] }
}

/// Runs in a process of another user, which the test above starts; alone it does nothing.
#[test]
fn the_steps_of_the_unprivileged_user() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let seed = seeds()[0];
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut simulated = Simulated::new(seed);
    prepare(&mut random, &mut simulated, None);
    let mut real = Real::new(open_base(Path::new(&place)));
    run_as_user(&mut random, &mut simulated, Some(&mut real), seed);
}

/// Lines that only one side has.
fn differences(kernel: &str, memory: &str) -> String {
    let only = |who: &str, of: &str, other: &str| -> String {
        let lines = of.lines().filter(|line| !other.lines().any(|same| same == *line));
        lines.fold(String::new(), |text, line| text + who + ": " + line + "\n")
    };
    only("kernel", kernel, memory) + &only("memory", memory, kernel)
}

/// Says that a test did not run.
fn skipped(why: &str) {
    use std::io::Write as _;
    // Written, not printed: the test harness hides what a test that passes has printed.
    let _ = writeln!(std::io::stderr(), "SKIPPED {:?}: {why}", std::thread::current().name());
}
