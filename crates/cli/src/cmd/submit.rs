//! `dmover submit`.
use dmover_journal::StateDirectory;
use dmover_model::ExitCode as Code;
use dmover_model::Fatal;
use dmover_queue::Identity;
use dmover_queue::placement::script::{Request, System, template};
use dmover_queue::placement::{
    BrokerPlace, Conduct, Ended, Given, Shape, Site, address_of_interface, address_towards,
    conduct, host_behind_ssh, slurm_nodes,
};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::run::exit;
use crate::args::{SubmitArgs, SystemArg};
use crate::config::{as_submitted, environment};
use crate::print::{failure, line, say};
use crate::state::{NO_STATE_DIRECTORY, state_directory};

/// The verbs that can run on the movers of a broker.
const VERBS: [&str; 4] = ["copy", "sync", "verify", "sum"];
/// A batch job waits this long for a lock that its previous run may still hold.
const RETRY_IN_BATCH: Duration = Duration::from_mins(10);
/// A placeholder for the broker of the job.
const A_BROKER: &str = "tls://a-broker";
/// Movers without a job of their own leave after this long without work.
const IDLE_EXIT: &str = "1h";
/// Slurm ends a requeued job within this time.
const END_WITHIN: Duration = Duration::from_secs(30);

/// Why nothing was started.
enum Failed {
    Fatal(Fatal),
    /// The message is already printed, or there is no error.
    Told(ExitCode),
}

impl From<Fatal> for Failed {
    fn from(error: Fatal) -> Self {
        Self::Fatal(error)
    }
}

type Result<T> = std::result::Result<T, Failed>;

fn refused<T>(message: impl Into<String>, hint: &str) -> Result<T> {
    Err(Fatal::refused(message, hint).into())
}

pub(crate) fn run(args: &SubmitArgs) -> ExitCode {
    let code = match args.template {
        Some(_) if !args.job.is_empty() => refused(
            "--template prints a script and takes no job",
            "omit the job, and put it into the script that is printed",
        ),
        Some(system) => {
            line(template(system_of(system)).trim_end());
            Ok(exit(Code::Done))
        }
        None => submit(args),
    };
    match code {
        Ok(code) | Err(Failed::Told(code)) => code,
        Err(Failed::Fatal(error)) => {
            failure(&error.to_string(), &error.hint());
            exit(error.exit_code())
        }
    }
}

fn system_of(system: SystemArg) -> System {
    match system {
        SystemArg::Slurm => System::Slurm,
        SystemArg::Pbs => System::Pbs,
    }
}

fn batch_system(args: &SubmitArgs) -> Option<System> {
    match (args.slurm, args.pbs) {
        (true, _) => Some(System::Slurm),
        (_, true) => Some(System::Pbs),
        _ => None,
    }
}

fn submit(args: &SubmitArgs) -> Result<ExitCode> {
    let is_batch = batch_system(args).is_some() || args.allocation;
    check_job(args, is_batch)?;
    if args.print && batch_system(args).is_none() {
        return refused(
            "--print needs --slurm or --pbs: it prints a batch script",
            "add one of them",
        );
    }
    let program = std::env::current_exe().map_err(|error| {
        Fatal::refused(format!("cannot find the dmover program: {error}"), "use its full path")
    })?;
    let state = if is_batch { shared_state(args)? } else { own_state(args)? };
    let place = Place { args, program, state };
    match batch_system(args) {
        Some(system) => place.batch(system),
        None => place.here(),
    }
}

/// Checks the job now, so that its errors show before it waits in a queue.
fn check_job(args: &SubmitArgs, is_batch: bool) -> Result<()> {
    let Some(verb) = args.job.first() else {
        if args.broker.is_some() {
            return Ok(());
        }
        return refused(
            "no job given",
            "add the job after '--': dmover submit … -- copy SOURCE DEST",
        );
    };
    let Some(verb) = VERBS.into_iter().find(|known| verb == known) else {
        let message = format!("'{}' cannot run on movers", verb.to_string_lossy());
        return refused(message, "after '--', give copy, sync, verify or sum with its arguments");
    };
    // Options for movers require --broker.
    let mut words: Vec<OsString> =
        ["dmover", verb, "--broker", A_BROKER].map(OsString::from).to_vec();
    words.extend(args.job.iter().skip(1).cloned());
    let parsed = crate::config::parse(&words);
    let matches = match parsed {
        Ok(matches) => matches,
        Err(crate::config::ParseError::Config(message)) => {
            return refused(message, "correct the configuration file");
        }
        Err(crate::config::ParseError::Habit((message, hint))) => return refused(message, &hint),
        Err(crate::config::ParseError::Clap(error)) => {
            if let Some((message, hint)) = crate::hints::for_error(&error) {
                return refused(message, &hint);
            }
            if !error.use_stderr() {
                // A script would take help with exit code 0 for a copy.
                let message = "the job has -h, --help or -V, which print text and end".to_owned();
                return refused(message, &format!("omit it; 'dmover {verb} --help' shows help"));
            }
            crate::print::usage(&error);
            return Err(Failed::Told(exit(Code::Usage)));
        }
    };
    let Some((_, job)) = matches.subcommand() else {
        return refused(format!("'{verb}' needs arguments"), &format!("see 'dmover {verb} -h'"));
    };
    let is_typed = |name: &str| {
        if name == "broker" {
            let broker = job.try_get_one::<String>(name).ok().flatten();
            return broker.is_some_and(|broker| broker != A_BROKER);
        }
        let source = job.try_contains_id(name).is_ok().then(|| job.value_source(name)).flatten();
        source == Some(clap::parser::ValueSource::CommandLine)
    };
    for (option, is_wrong, hint) in [
        ("broker", true, "move the option before '--'"),
        ("detach", true, "omit it; 'nohup dmover submit … &' runs in the background"),
        ("state_dir", is_batch, "move the option before '--'"),
        ("no_state", is_batch, "omit it: a batch job needs its state to resume after a requeue"),
        ("read_stdin", is_batch, "write the list to a file and use --files-from FILE"),
    ] {
        if is_wrong && is_typed(option) {
            let name = option.replace('_', "-");
            return refused(format!("--{name} cannot be used after '--' in 'dmover submit'"), hint);
        }
    }
    let list = job.try_get_one::<OsString>("files_from").ok().flatten();
    if is_batch && list.is_some_and(|list| list == "-") {
        return refused(
            "a batch job has no standard input",
            "write the list to a file and use --files-from FILE",
        );
    }
    Ok(())
}

/// Where a job that runs from here keeps its state.
fn own_state(args: &SubmitArgs) -> Result<PathBuf> {
    let named = args.state_dir.clone().or_else(|| environment("DMOVER_STATE_DIR"));
    match state_directory(named.as_ref()) {
        Some(state) => Ok(absolute(&state)),
        None => refused(NO_STATE_DIRECTORY, "choose a directory with --state-dir"),
    }
}

/// The state directory of a batch job, which may resume on another host.
fn shared_state(args: &SubmitArgs) -> Result<PathBuf> {
    let named = args.state_dir.clone().or_else(|| environment("DMOVER_STATE_DIR"));
    let state = match named {
        Some(named) => absolute(Path::new(&named)),
        None if dmover_host::user::effective_uid() == 0 => {
            let hint = "choose a directory that all nodes share, with --state-dir";
            return refused("the default state directory of root is local to one host", hint);
        }
        None => own_state(args)?.join("shared"),
    };
    match StateDirectory::new(&state).share() {
        Ok(()) => Ok(state),
        Err(error) => {
            let message =
                format!("hosts cannot share '{}' as state directory: {error}", state.display());
            refused(message, "choose a new directory that all nodes share, with --state-dir")
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The request, the program and the state directory.
struct Place<'a> {
    args: &'a SubmitArgs,
    program: PathBuf,
    state: PathBuf,
}

impl Place<'_> {
    /// The path of dmover on the hosts of the movers.
    fn mover(&self) -> PathBuf {
        self.args.dmover.as_ref().map_or_else(|| self.program.clone(), PathBuf::from)
    }

    /// The directory of this command. The same command gets the same directory, and finds the leases of its earlier runs there.
    fn directory(&self) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        let here = std::env::current_dir().unwrap_or_default();
        let words = std::iter::once(here.as_os_str());
        // Movers without a job: host and process make the name unique.
        let alone = self.args.job.is_empty().then(|| {
            let host = dmover_host::name();
            OsString::from(format!("{host} {}", std::process::id()))
        });
        let words = words.chain(self.args.job.iter().map(OsString::as_os_str));
        for word in words.chain(alone.as_deref()) {
            hasher.update(word.as_bytes()).update(b"\0");
        }
        let name = hasher.finalize().to_hex();
        self.state.join("placement").join(&name.as_str()[..12])
    }

    fn mover_options(&self) -> Vec<OsString> {
        let mut options = Vec::new();
        if self.args.threads > 0 {
            options.push(format!("-j{}", self.args.threads).into());
        }
        if self.args.insecure {
            options.push("--insecure".into());
        }
        if self.args.job.is_empty() {
            options.extend(["--idle-exit".into(), IDLE_EXIT.into()]);
        }
        options
    }

    fn given_broker(&self) -> Result<Option<Given>> {
        let word = self.args.broker.as_ref().map(broker_word);
        let Some(word) = word else { return Ok(None) };
        let identity = Identity::of_user(&self.key_directories())?;
        Ok(Some(Given::new(&word, self.args.insecure, &identity)?))
    }

    /// The directories in which the job looks for the key of its user.
    fn key_directories(&self) -> Vec<PathBuf> {
        let named = environment("DMOVER_STATE_DIR").map(PathBuf::from);
        let named = if self.names_state() { Some(self.state.clone()) } else { named };
        super::fleet::key_directories_of(named)
    }

    /// Whether the job gets an explicit state directory.
    fn names_state(&self) -> bool {
        self.args.allocation || self.args.state_dir.is_some()
    }

    fn ssh(&self) -> Vec<OsString> {
        self.args.ssh_command.split_whitespace().map(OsString::from).collect()
    }

    /// Runs the job with this process as its conductor.
    fn here(&self) -> Result<ExitCode> {
        let (site, others) = self.site()?;
        let broker = match self.given_broker()? {
            Some(given) => BrokerPlace::Given(given),
            None => {
                let state = self.directory().join("broker");
                BrokerPlace::Own { state, listen: self.listen(&others)? }
            }
        };
        self.conduct(site, broker)
    }

    /// Where movers run, and the hosts that must reach the broker.
    fn site(&self) -> Result<(Site, Vec<String>)> {
        let args = self.args;
        let shape = args.movers.unwrap_or(Shape { places: None, each: 1 });
        if let Some(hosts) = &args.ssh {
            let ssh = self.ssh();
            if ssh.is_empty() {
                return refused("--ssh-command is empty", "omit it, or give 'ssh' with options");
            }
            let most = shape.places.map_or(hosts.0.len(), |places| places as usize);
            let hosts: Vec<String> = hosts.0.iter().take(most).cloned().collect();
            let others = hosts.iter().map(|host| host_behind_ssh(&ssh, host)).collect();
            return Ok((Site::Ssh { hosts, each: shape.each, ssh }, others));
        }
        if args.allocation {
            return self.allocation();
        }
        let movers = shape.places.unwrap_or(if shape.each > 1 { 1 } else { 2 });
        Ok((Site::Local { movers: movers.saturating_mul(shape.each) }, Vec::new()))
    }

    /// The nodes of the batch job in which this process runs.
    fn allocation(&self) -> Result<(Site, Vec<String>)> {
        let text = |name: &str| environment(name).map(|value| value.to_string_lossy().into_owned());
        let number = |name: &str| text(name).and_then(|value| value.parse::<u32>().ok());
        if let (Some(_), Some(list)) = (text("SLURM_JOB_ID"), text("SLURM_JOB_NODELIST")) {
            let others: Vec<String> = slurm_nodes(&list).into_iter().skip(1).collect();
            let each = self.args.movers.map(|shape| shape.each);
            let site = Site::Srun {
                nodes: number("SLURM_JOB_NUM_NODES").unwrap_or(others.len() as u32 + 1),
                each: each.or_else(|| number("SLURM_NTASKS_PER_NODE")).unwrap_or(1),
                cpus: number("SLURM_CPUS_PER_TASK"),
            };
            return Ok((site, others));
        }
        let Some(file) = environment("PBS_NODEFILE") else {
            let hint = "outside a batch job, use --local, --ssh, --slurm or --pbs";
            return refused("--allocation works only inside a job of Slurm or PBS", hint);
        };
        let nodes = std::fs::read_to_string(&file).map_err(|error| {
            let message = format!("cannot read the node file '{}': {error}", file.display());
            Fatal::refused(message, "run this on the first node of the PBS job")
        })?;
        let mut hosts: Vec<String> = Vec::new();
        for host in nodes.lines().map(str::trim).filter(|host| !host.is_empty()) {
            if !hosts.iter().any(|known| known == host) {
                hosts.push(host.to_owned());
            }
        }
        let others = hosts.iter().skip(1).cloned().collect();
        if is_on_path("pbsdsh") {
            return Ok((Site::Pbsdsh, others));
        }
        let each = self.args.movers.map_or(1, |shape| shape.each);
        Ok((Site::Ssh { hosts, each, ssh: self.ssh() }, others))
    }

    /// The address for the broker.
    fn listen(&self, others: &[String]) -> Result<IpAddr> {
        if let Some(address) = self.args.listen {
            return Ok(address);
        }
        if let Some(name) = &self.args.interface {
            return Ok(address_of_interface(name)?);
        }
        let mut found = Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
        for host in others {
            match address_towards(host) {
                // Other hosts cannot reach a loopback address.
                Ok(address) if address.is_loopback() => {}
                Ok(address) => return Ok(address),
                Err(error) => found = Err(error),
            }
        }
        Ok(found?)
    }

    fn conduct(&self, site: Site, broker: BrokerPlace) -> Result<ExitCode> {
        let args = self.args;
        let in_batch = args.allocation;
        let retry = args.retry_for.map(Duration::from_millis);
        let mut environment = vec![as_submitted()];
        if self.names_state() {
            environment.push(("DMOVER_STATE_DIR".into(), self.state.clone().into()));
        }
        let job = Conduct {
            program: self.program.clone(),
            job: (!args.job.is_empty()).then(|| args.job.clone()),
            broker,
            site,
            mover: self.mover(),
            mover_options: self.mover_options(),
            directory: self.directory(),
            environment,
            retry_for: retry.unwrap_or(if in_batch { RETRY_IN_BATCH } else { Duration::ZERO }),
            insecure: args.insecure,
            identity: Arc::new(Identity::of_user(&self.key_directories())?),
            warnings: if in_batch { vec![SIGUSR1, SIGUSR2] } else { Vec::new() },
        };
        let signals = listen(in_batch)?;
        let next = || signals.borrow_mut().pending().next();
        let ended = conduct(&job, &next, &|note| say(&format!("dmover: {note}")))?;
        if ended.wants_more_time {
            return Ok(requeue(ended, &next));
        }
        Ok(code_of(ended))
    }

    /// Submits the whole job, or only the movers, to a batch system.
    fn batch(&self, system: System) -> Result<ExitCode> {
        let args = self.args;
        let is_array = args.broker.is_some();
        let request = self.request(is_array);
        if let Err(message) = request.check(system) {
            return refused(message, "pass other options of the batch system with --with");
        }
        let given = self.given_broker()?;
        let script = request.render(system);
        if args.print {
            let mut out = crate::print::data();
            return match out.write_all(&script).and_then(|()| out.flush()) {
                Ok(()) => Ok(exit(Code::Done)),
                Err(_) => Ok(exit(Code::Fatal)),
            };
        }
        let id = hand_in(system, &script)?;
        let Some(given) = given.filter(|_| !args.job.is_empty()) else {
            say(&format!(
                "dmover: submitted batch job {id}; its state is in '{}'",
                self.state.display()
            ));
            line(&id);
            return Ok(exit(Code::Done));
        };
        say(&format!("dmover: the movers are batch job {id}"));
        let ended = self.conduct(Site::Elsewhere, BrokerPlace::Given(given));
        cancel(system, &id);
        ended
    }

    fn request(&self, is_array: bool) -> Request {
        let args = self.args;
        let mut command: Vec<OsString> = vec![self.mover().into(), "submit".into()];
        command.extend(["--allocation".into(), "--state-dir".into(), self.state.clone().into()]);
        let mut pass = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                command.extend([name.into(), value]);
            }
        };
        pass("--broker", args.broker.as_ref().map(broker_word));
        pass("--listen", args.listen.map(|address| address.to_string().into()));
        pass("--interface", args.interface.clone().map(OsString::from));
        pass("--retry-for", args.retry_for.map(|ms| format!("{ms}ms").into()));
        pass("--threads", (args.threads > 0).then(|| args.threads.to_string().into()));
        let plain_ssh = args.ssh_command == "ssh";
        pass("--ssh-command", (!plain_ssh).then(|| args.ssh_command.clone().into()));
        command.extend(args.insecure.then(|| "--insecure".into()));
        if !is_array {
            command.push("--".into());
            command.extend(args.job.iter().cloned());
        }
        Request {
            name: args.job_name.clone(),
            shape: args.movers.unwrap_or(Shape { places: None, each: 1 }),
            time: args.time.clone(),
            partition: args.partition.clone(),
            account: args.account.clone(),
            licenses: args.licenses.clone(),
            gres: args.gres.clone(),
            cpus: args.cpus,
            output: args.output.clone(),
            further: args.with.clone(),
            apart: is_array,
            command,
        }
    }
}

/// The broker as an absolute path or a URL.
fn broker_word(word: &OsString) -> OsString {
    let is_url = word.as_bytes().windows(3).any(|three| three == b"://");
    if is_url { word.clone() } else { absolute(Path::new(word)).into() }
}

fn is_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file())
}

fn is_on_path(program: &str) -> bool {
    let path = environment("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| is_file(&directory.join(program)))
}

fn listen(in_batch: bool) -> Result<RefCell<Signals>> {
    let stopping = [SIGINT, SIGTERM, SIGHUP].into_iter();
    // A signal that is ignored at the start, as under nohup(1), stays ignored.
    let stopping = stopping.filter(|signal| !dmover_host::signals::is_ignored(*signal));
    let further = in_batch.then_some(SIGUSR2);
    match Signals::new(stopping.chain([SIGUSR1]).chain(further)) {
        Ok(signals) => Ok(RefCell::new(signals)),
        Err(error) => {
            failure(&format!("cannot listen to signals: {error}"), "check the process limits");
            Err(Failed::Told(exit(Code::Fatal)))
        }
    }
}

fn code_of(ended: Ended) -> ExitCode {
    match ended.how {
        Ok(code) => ExitCode::from(code),
        Err(signal) => crate::signals::raise_again(signal),
    }
}

/// Requeues the batch job, so that it continues after its time limit. The owner of a job may do that at every site.
fn requeue(ended: Ended, next: &dyn Fn() -> Option<i32>) -> ExitCode {
    let Some(job) = environment("SLURM_JOB_ID") else {
        say("dmover: the job is not complete: submit the same command again");
        return code_of(ended);
    };
    let asked = Command::new("scontrol").arg("requeue").arg(&job).stdin(Stdio::null()).status();
    match asked {
        Ok(status) if status.success() => {
            say("dmover: the job is requeued and resumes when it starts again");
            let begun = Instant::now();
            // Slurm ends the processes of the job.
            while next().is_none() && begun.elapsed() < END_WITHIN {
                thread::sleep(Duration::from_millis(50));
            }
            exit(Code::Done)
        }
        _ => {
            let job = job.to_string_lossy();
            failure(&format!("cannot requeue job {job}"), "submit the same command again");
            code_of(ended)
        }
    }
}

/// Submits a script to the batch system, and returns the id of the job.
fn hand_in(system: System, script: &[u8]) -> Result<String> {
    let (program, arguments): (&str, &[&str]) = match system {
        System::Slurm => ("sbatch", &["--parsable"]),
        System::Pbs => ("qsub", &[]),
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        let hint = "run this on a submit host of the batch system, or use --print";
        Fatal::refused(format!("cannot start {program}: {error}"), hint)
    })?;
    if let Some(mut input) = child.stdin.take() {
        // If the program has already ended, its exit status below gives the reason.
        let _ = input.write_all(script);
    }
    let unavailable = |why: &str| {
        let hint = "see its messages above; 'dmover submit --print' prints the script";
        Fatal::unavailable(format!("{program} did not accept the job: {why}"), hint)
    };
    let output = child.wait_with_output().map_err(|error| unavailable(&error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    // '12' or '12;cluster' of sbatch, '12.server' of qsub.
    let id = said.trim().split(';').next().unwrap_or_default();
    if !output.status.success() || id.is_empty() {
        return Err(unavailable(&output.status.to_string()).into());
    }
    Ok(id.to_owned())
}

/// Cancels the batch job of the movers.
fn cancel(system: System, id: &str) {
    let program = match system {
        System::Slurm => "scancel",
        System::Pbs => "qdel",
    };
    let asked = Command::new(program).arg(id).stdin(Stdio::null()).status();
    if !asked.is_ok_and(|status| status.success()) {
        say(&format!("dmover: note: cannot cancel the movers: run '{program} {id}'"));
    }
}
