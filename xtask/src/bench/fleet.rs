//! Movers behind a broker beside one process, and four hosts beside one.
use anyhow::{Context, Result, ensure};
use clap::Args;
use dmover_testkit::cluster::{Cluster, NatsServer, Piece, needs};
use dmover_testkit::faultfs::{Config, FaultFs, Latency};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::duel::{Duel, DuelArgs, Rounds};
use super::machine::describe;
use super::report::Report;
use super::subjects;

/// Where trees are kept in memory.
const MEMORY: &str = "/dev/shm";
/// What every operation of the slow file system takes.
const LATENCY_US: u64 = 1000;
/// Operations that each mover of the slow file system has in flight: so few that the processors here, which serve the file system as
/// well, are not what is measured.
const IN_FLIGHT: u32 = 1;

/// Which cases are run.
#[derive(Debug, Args)]
pub struct FleetArgs {
    #[command(flatten)]
    duel: DuelArgs,
}

/// A process that ends with the bench.
struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a mover that says nothing.
fn mover(mut command: Command, broker: &NatsServer, words: &[&str]) -> Result<Part> {
    command.args(["mover", "--insecure", "--broker", &broker.url()]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Part(command.spawn().context("cannot start a mover")?))
}

/// Makes directories of files of random content.
fn fill(root: &Path, directories: u64, files: u64, bytes: usize) -> Result<()> {
    let mut content = vec![0; bytes];
    File::open("/dev/urandom")?.read_exact_at(&mut content, 0)?;
    for directory in 0..directories {
        let directory = root.join(directory.to_string());
        std::fs::create_dir_all(&directory)?;
        for number in 0..files {
            // No two are alike.
            content[..8].copy_from_slice(&number.to_le_bytes());
            std::fs::write(directory.join(number.to_string()), &content)?;
        }
    }
    Ok(())
}

fn scaled(count: u64, args: &FleetArgs) -> u64 {
    ((count as f64 * args.duel.scale) as u64).max(1)
}

/// Runs the cases and prints a table.
pub fn run(args: &FleetArgs) -> Result<()> {
    if let Err(why) = needs(&[Piece::Nats]) {
        anyhow::bail!("nothing can be measured here: {why}");
    }
    let dmover = crate::soak::program()?;
    let programs = subjects::Programs::find(Path::new("target/peers"))?;
    print!("{}", Report { machine: describe(&programs) }.heading());
    println!(
        "'tool' is the same command in one process; in the last row it is one host instead of four.\n"
    );
    println!("{}", Rounds::HEADING);
    let is_wanted = |name: &str| name.contains(&args.duel.only);
    let names = ["100,000 files of 4 KiB", "16 files of 256 MiB"];
    if is_wanted(names[0]) {
        let fill = |root: &Path| fill(root, scaled(100, args), 1000, 4096);
        against_one_process(args, &dmover, names[0], &fill)?;
    }
    if is_wanted(names[1]) {
        let fill = |root: &Path| fill(root, 1, scaled(16, args), 256 << 20);
        against_one_process(args, &dmover, names[1], &fill)?;
    }
    let name = "1 ms for each operation, 4 hosts instead of 1";
    if is_wanted(name) {
        four_hosts(args, &dmover, name)?;
    }
    Ok(())
}

/// A copy through a broker on this host beside the same without.
fn against_one_process(
    args: &FleetArgs,
    dmover: &Path,
    name: &str,
    fill: &dyn Fn(&Path) -> Result<()>,
) -> Result<()> {
    let scratch = tempfile::tempdir_in(MEMORY)?;
    fill(&scratch.path().join("s"))?;
    let broker = NatsServer::start_local("")?;
    let _mover = mover(Command::new(dmover), &broker, &[])?;
    let at = scratch.path().display();
    let command = format!("{} copy -q -T --no-state {at}/s {at}/d", dmover.display());
    let through = format!("{command} --insecure --broker {}", broker.url());
    let before = format!("rm -rf {at}/d; sleep 0.3");
    let answers = tempfile::tempdir()?;
    let duel = Duel {
        before: &before,
        own: &through,
        tool: &command,
        rounds: args.duel.rounds,
        scratch: answers.path(),
    };
    println!("{}", duel.run().context(name.to_owned())?.row(name, 1.10));
    Ok(())
}

/// A file system that is slow to answer, and hosts that each have so much in flight.
fn four_hosts(args: &FleetArgs, dmover: &Path, name: &str) -> Result<()> {
    let hosts = ["one", "two", "three", "four"];
    if let Err(why) = needs(&[Piece::Network]) {
        anyhow::bail!("{name}: {why}");
    }
    let scratch = tempfile::tempdir_in(MEMORY)?;
    let (backing, mountpoint) = (scratch.path().join("backing"), scratch.path().join("slow"));
    fill(&backing.join("s"), scaled(20, args), 25, 4096)?;
    std::fs::create_dir(&mountpoint)?;
    let config = Config { latency: Latency::of_us(LATENCY_US), threads: 64, ..Config::default() };
    let slow = FaultFs::mount(&backing, &mountpoint, config)?;
    let bases = ["base", "other"];
    let cluster = Cluster::new(&[&bases, &hosts[..]].concat())?;
    // A fleet of one and a fleet of four, each with a broker of its own, take turns.
    let fleets = [(1, bases[0]), (hosts.len(), bases[1])];
    let fleets = fleets.map(|(count, base)| -> Result<(NatsServer, Vec<Part>)> {
        let broker = NatsServer::start(cluster.host(base), "")?;
        let threads = IN_FLIGHT.to_string();
        let movers = hosts.iter().take(count).map(|host| {
            let command = cluster.host(host).command(dmover);
            mover(command, &broker, &["--threads", &threads])
        });
        let movers = movers.collect::<Result<Vec<_>>>()?;
        Ok((broker, movers))
    });
    let [one, four] = fleets;
    let (one, four) = (one?, four?);
    let at = mountpoint.display();
    let enter: Vec<String> = words_of(&cluster.host("base").command(dmover));
    let line = |broker: &NatsServer| {
        format!(
            "{} copy -q -T --no-state {at}/s {at}/d --insecure --broker {}",
            enter.join(" "),
            broker.url()
        )
    };
    let before = format!("rm -rf {}/d; sleep 0.3", backing.display());
    let (own, tool) = (line(&four.0), line(&one.0));
    let answers = tempfile::tempdir()?;
    let duel = Duel {
        before: &before,
        own: &own,
        tool: &tool,
        rounds: args.duel.rounds,
        scratch: answers.path(),
    };
    println!("{}", duel.run().context(name.to_owned())?.row(name, 1.0 / 3.6));
    drop((one, four));
    let counters = slow.unmount()?;
    ensure!(!counters.ops.is_empty(), "nothing went through the slow file system");
    Ok(())
}

fn words_of(command: &Command) -> Vec<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(Path::new);
    // Quoted for a shell: some are scripts themselves.
    words.map(|word| format!("'{}'", word.display().to_string().replace('\'', r"'\''"))).collect()
}
