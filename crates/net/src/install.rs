//! Puts this program on another host, at `~/.local/bin/dmover`.
use dmover_model::Fatal;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc;
use std::time::Duration;

use crate::endpoint::RemoteHost;
use crate::failure::{self, Ended, text};
use crate::remote_command::command;
use crate::ssh::{Ssh, SshOptions};

/// What each line of the scripts begins with; other lines are from login scripts.
const MARK: &str = "dmover-install: ";

/// The beginning of both scripts. `here`: what is at the place of the program; a link counts as what it leads to, because
/// mv(1) would put a file into a directory, and as something if it leads nowhere.
const SHARED: &str = "b=$HOME/.local/bin; d=$b/dmover; \
    sum() { { sha256sum \"$1\" || shasum -a 256 \"$1\"; } 2>/dev/null || :; }; \
    here() { if [ -d \"$d\" ]; then echo directory; \
    elif [ -f \"$d\" ]; then s=$(sum \"$d\"); echo \"file-${s%% *}\"; \
    elif [ -e \"$d\" ] || [ -L \"$d\" ]; then echo other; else echo none; fi; }; \
    echo \"dmover-install: begin\"; ";

/// Says what the host is, and which dmover is there.
const PROBE: &str = "echo \"dmover-install: machine $(uname -s) $(uname -m)\"; \
    echo \"dmover-install: here $(here)\"; \
    if [ -f \"$d\" ]; then v=$(\"$d\" --version 2>/dev/null </dev/null) || v=; \
    echo \"dmover-install: version $v\"; fi; \
    echo \"dmover-install: end\"";

/// Reads the program from standard input: `$1` its size, `$2` its SHA-256, `$3` a random word, `$4` what `here` has said
/// before. Nothing has its name before it is whole and has run once.
const PUT: &str = "set -e; umask 022; mkdir -p \"$b\"; t=$b/.dmover-install-$3; \
    clean() { rm -f \"$t\"; }; trap clean EXIT; trap \"exit 1\" HUP INT PIPE TERM; \
    cat > \"$t\"; n=$(wc -c < \"$t\"); \
    if [ \"$n\" -ne \"$1\" ]; then echo \"dmover-install: size $n\"; exit 1; fi; \
    s=$(sum \"$t\"); s=${s%% *}; \
    if [ -z \"$s\" ]; then s=none; elif [ \"$s\" = \"$2\" ]; then :; else echo \"dmover-install: sum $s\"; exit 1; fi; \
    chmod 755 \"$t\"; v=$(\"$t\" --version 2>&1 </dev/null) || { echo \"dmover-install: broken $v\"; exit 1; }; \
    h=$(here); if [ \"$h\" = \"$4\" ]; then :; else echo \"dmover-install: changed $h\"; exit 1; fi; \
    mv -f \"$t\" \"$d\"; echo \"dmover-install: done $s $d\"";

/// How long ssh may take to end after the last line.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How much of the answer is read. Scripts say less; a login script may print without end.
const ANSWER_MAX: usize = 64 << 10;
/// How much of the program is written at a time, and of the answer read.
const STEP_BYTES: usize = 64 << 10;
/// How long the host may do nothing.
const PROGRESS_WITHIN: Duration = Duration::from_mins(1);

/// How long an installation waits for the host.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For the login; `None` where a user may be asked for a password.
    pub login: Option<Duration>,
    /// After the login: for the next sign of progress.
    pub progress: Duration,
}

impl Limits {
    /// The usual ones.
    pub fn new(login: Option<Duration>) -> Self {
        Self { login, progress: PROGRESS_WITHIN }
    }
}

/// What an installation did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// The program is there.
    Done {
        /// Its path at the host.
        path: String,
        /// The host has compared its SHA-256; otherwise only its size.
        is_verified: bool,
        /// The version that it replaced; empty: that did not run.
        replaced: Option<String>,
    },
    /// The same program was there before.
    Same,
}

/// Copies a program to a host. `machine`: what it runs on, as [`this_machine`] says.
///
/// # Errors
/// The host cannot be reached, is of another kind, or has another dmover there (unless `force`). If the connection ends
/// while the program is sent, it is not known whether it is there.
pub fn install(
    host: &RemoteHost,
    ssh: &SshOptions,
    program: &[u8],
    machine: &str,
    force: bool,
    limits: Limits,
) -> Result<Installed, Fatal> {
    let shown = host.shown();
    let (far, digest) = (Far { host, ssh, limits }, hex(&Sha256::digest(program)));
    let found = far.probe()?;
    if found.machine != machine {
        let message =
            format!("the host '{shown}' is {}, and this program is for {machine}", found.machine);
        return Err(Fatal::refused(
            message,
            "put a dmover for that system at ~/.local/bin/dmover there",
        ));
    }
    if found.here == "directory" {
        let message = format!("~/.local/bin/dmover at the host '{shown}' is a directory");
        return Err(Fatal::refused(message, "rename it there, then run the same command again"));
    }
    if let Some(old) = &found.program {
        if found.here.strip_prefix("file-") == Some(&digest) {
            return Ok(Installed::Same);
        }
        if !force {
            let version = if old.is_empty() { "another program" } else { old };
            let message =
                format!("the host '{shown}' has another dmover at ~/.local/bin/dmover ({version})");
            return Err(Fatal::refused(
                message,
                "replace it with --force; running jobs keep theirs",
            ));
        }
    }
    let put = far.put(program, &digest, &found.here)?;
    let replaced = found.program;
    Ok(Installed::Done { path: put.path, is_verified: put.is_verified, replaced })
}

/// What programs for this host run on, in the words of uname(1): the system and the machine.
pub fn this_machine() -> String {
    let machine = match std::env::consts::ARCH {
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        other => other,
    };
    let system = if cfg!(target_os = "linux") { "Linux" } else { std::env::consts::OS };
    format!("{system} {machine}")
}

struct Found {
    machine: String,
    /// What is at the place of the program, as the script says: it has to be the same when the program gets its name.
    here: String,
    /// The version of what is there; empty: that does not run.
    program: Option<String>,
}

struct Put {
    path: String,
    is_verified: bool,
}

/// The host and how it is reached.
struct Far<'a> {
    host: &'a RemoteHost,
    ssh: &'a SshOptions,
    limits: Limits,
}

impl Far<'_> {
    fn probe(&self) -> Result<Found, Fatal> {
        let answer = self.run(PROBE, &[], &[])?;
        let field = |name: &str| answer.lines.iter().find_map(|line| line.strip_prefix(name));
        let (Some(machine), Some(here), Some(_)) =
            (field("machine "), field("here "), field("end"))
        else {
            return Err(answer.failed(self.host));
        };
        // 64 bits under two names.
        let machine = machine.trim().replace(" arm64", " aarch64").replace(" amd64", " x86_64");
        let here = here.trim().to_owned();
        let version = || field("version").unwrap_or_default().trim().to_owned();
        let program = (here != "none").then(version);
        Ok(Found { machine, here, program })
    }

    fn put(&self, program: &[u8], digest: &str, here: &str) -> Result<Put, Fatal> {
        let shown = self.host.shown();
        let size = program.len().to_string();
        let word = format!("{:016x}", dmover_host::random_u64());
        let words = [&size, digest, &word, here].map(str::as_bytes);
        let answer = self.run(PUT, &words, program)?;
        for line in &answer.lines {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            let nothing = "nothing was replaced; run the same command again";
            match name {
                "done" => {
                    let (sum, path) = value.split_once(' ').unwrap_or_default();
                    return Ok(Put { path: path.to_owned(), is_verified: sum == digest });
                }
                "size" => {
                    let message = format!("the host '{shown}' received {value} of {size} bytes");
                    return Err(Fatal::unavailable(message, nothing));
                }
                "sum" => {
                    let message = format!("the host '{shown}' received other bytes than were sent");
                    return Err(Fatal::unavailable(message, nothing));
                }
                "changed" => {
                    let message = format!(
                        "~/.local/bin/dmover at the host '{shown}' was changed by something else"
                    );
                    return Err(Fatal::unavailable(message, nothing));
                }
                "broken" => {
                    let message =
                        format!("this program does not run at the host '{shown}': {value}");
                    let hint =
                        "install the static program of a release there; nothing was replaced";
                    return Err(Fatal::refused(message, hint));
                }
                _ => {}
            }
        }
        Err(answer.failed(self.host))
    }

    /// Runs a script at the host. `feed`: its standard input.
    fn run(&self, script: &str, words: &[&[u8]], feed: &[u8]) -> Result<Answer, Fatal> {
        let command = command(&format!("{SHARED}{script}"), words);
        let (ssh, input, output) = Ssh::start(self.host, self.ssh, &command)?;
        let (sender, events) = mpsc::channel();
        let (written, feed) = (sender.clone(), feed.to_vec());
        // Neither thread is waited for: what ssh has started may keep the streams open after its end.
        let named = |name: &str| thread::Builder::new().name(name.into());
        named("net-feed").spawn(move || write(input, &feed, &written)).map_err(Fatal::Thread)?;
        named("net-answer").spawn(move || read(output, &sender)).map_err(Fatal::Thread)?;
        let (said, patience) = match listen(&events, self.limits) {
            Ok(said) if said.len() < ANSWER_MAX => (said, END_WITHIN),
            Ok(said) => (said, Duration::ZERO),
            Err(late) => {
                ssh.end(Duration::ZERO);
                let shown = self.host.shown();
                return Err(match late {
                    Late::Login(limit) => failure::silent(&shown, limit.as_secs()),
                    Late::Progress(limit) => failure::stuck(&shown, limit),
                });
            }
        };
        let status = ssh.end(patience);
        let text = String::from_utf8_lossy(&said);
        let lines =
            text.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned).collect();
        Ok(Answer { lines, other: said, status, errors: ssh.errors() })
    }
}

/// What the threads at the streams of ssh tell.
enum Event {
    Written,
    Said(Vec<u8>),
    Ended,
}

fn write(mut input: ChildStdin, feed: &[u8], events: &mpsc::Sender<Event>) {
    for step in feed.chunks(STEP_BYTES) {
        // The script reads all of it, or ends and says why.
        if input.write_all(step).is_err() {
            return;
        }
        let _ = events.send(Event::Written);
    }
}

fn read(mut output: ChildStdout, events: &mpsc::Sender<Event>) {
    let mut buffer = vec![0; STEP_BYTES];
    loop {
        let event = match output.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => Event::Ended,
            Ok(length) => Event::Said(buffer[..length].to_vec()),
        };
        let is_last = matches!(event, Event::Ended);
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

/// Which limit was reached.
enum Late {
    Login(Duration),
    Progress(Duration),
}

/// Collects the output of the host, up to [`ANSWER_MAX`].
fn listen(events: &mpsc::Receiver<Event>, limits: Limits) -> Result<Vec<u8>, Late> {
    let begin = Instant::now();
    let mut said = Vec::new();
    while said.len() < ANSWER_MAX {
        let is_in = said.split(|byte| *byte == b'\n').any(|line| line.starts_with(MARK.as_bytes()));
        let event = match limits.login {
            _ if is_in => {
                events.recv_timeout(limits.progress).map_err(|_| Late::Progress(limits.progress))?
            }
            Some(limit) => {
                let left = limit.saturating_sub(begin.elapsed());
                events.recv_timeout(left).map_err(|_| Late::Login(limit))?
            }
            None => events.recv().unwrap_or(Event::Ended),
        };
        match event {
            Event::Written => {}
            Event::Said(bytes) => said.extend(bytes),
            Event::Ended => break,
        }
    }
    Ok(said)
}

/// What a script said.
struct Answer {
    lines: Vec<String>,
    other: Vec<u8>,
    status: Option<std::process::ExitStatus>,
    errors: Vec<String>,
}

impl Answer {
    /// The error for a script that did not come to its end.
    fn failed(&self, host: &RemoteHost) -> Fatal {
        let shown = host.shown();
        let ended = Ended { host: &shown, status: self.status, errors: &self.errors, agent: None };
        if self.status.and_then(|status| status.code()) == Some(255) {
            return ended.of_ssh();
        }
        match (ended.last_line(), &self.other[..]) {
            (Some(line), _) => {
                let message = format!("cannot install dmover at the host '{shown}': {line}");
                Fatal::refused(message, "check the home directory there: space, owner and mode")
            }
            (None, other) if !other.trim_ascii().is_empty() => text(&shown, other),
            (None, _) => ended.without_hello(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    const PROGRAM: &[u8] = b"#!/bin/sh\necho dmover 9.9\n";

    /// A program in place of ssh, which runs the command here in another home directory.
    fn here(home: &Path) -> SshOptions {
        let script = "home=$1; shift; for last; do :; done; cd \"$home\"; HOME=$home exec /bin/sh -c \"$last\"";
        let mut program: Vec<_> = ["/bin/sh", "-c", script, "ssh"].map(OsString::from).into();
        program.push(home.into());
        SshOptions { program, agent: None }
    }

    fn host() -> RemoteHost {
        RemoteHost { user: None, name: "far".into(), port: None }
    }

    fn put_here(home: &Path, program: &[u8], force: bool) -> Result<Installed, Fatal> {
        install(&host(), &here(home), program, &this_machine(), force, Limits::new(None))
    }

    fn names(home: &Path) -> Vec<String> {
        let all = std::fs::read_dir(home.join(".local/bin")).unwrap().flatten();
        all.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_program_is_put_there_once_and_replaced_by_force_only() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(".local/bin/dmover");
        let put = put_here(home.path(), PROGRAM, false).unwrap();
        let shown = path.to_str().unwrap().to_owned();
        assert_eq!(put, Installed::Done { path: shown.clone(), is_verified: true, replaced: None });
        assert_eq!(std::fs::read(&path).unwrap(), PROGRAM);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(put_here(home.path(), PROGRAM, false).unwrap(), Installed::Same);
        let other = [PROGRAM, b"# another\n"].concat();
        let error = put_here(home.path(), &other, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the host 'far' has another dmover at ~/.local/bin/dmover (dmover 9.9)"
        );
        assert_eq!(std::fs::read(&path).unwrap(), PROGRAM);
        let put = put_here(home.path(), &other, true).unwrap();
        let replaced = Some("dmover 9.9".to_owned());
        assert_eq!(put, Installed::Done { path: shown, is_verified: true, replaced });
        assert_eq!(std::fs::read(&path).unwrap(), other);
        assert_eq!(names(home.path()), ["dmover"]);
    }

    #[test]
    fn what_does_not_run_there_replaces_nothing() {
        let home = tempfile::tempdir().unwrap();
        put_here(home.path(), PROGRAM, false).unwrap();
        let error =
            put_here(home.path(), b"#!/bin/sh\necho too old >&2; exit 1\n", true).unwrap_err();
        assert_eq!(error.to_string(), "this program does not run at the host 'far': too old");
        let (ssh, limits) = (here(home.path()), Limits::new(None));
        let error = install(&host(), &ssh, PROGRAM, "Linux pdp11", true, limits).unwrap_err();
        assert!(error.to_string().ends_with("this program is for Linux pdp11"), "{error}");
        assert_eq!(std::fs::read(home.path().join(".local/bin/dmover")).unwrap(), PROGRAM);
        assert_eq!(names(home.path()), ["dmover"]);
    }

    #[test]
    fn bytes_that_were_lost_or_changed_are_noticed() {
        let home = tempfile::tempdir().unwrap();
        let digest = hex(&Sha256::digest(PROGRAM));
        let (host, ssh) = (host(), here(home.path()));
        let far = Far { host: &host, ssh: &ssh, limits: Limits::new(None) };
        let lines = |size: usize, digest: &str, here: &str| {
            let size = size.to_string();
            let words = [&size, digest, "x", here].map(str::as_bytes);
            far.run(PUT, &words, PROGRAM).unwrap().lines[1..].to_vec()
        };
        let size = PROGRAM.len();
        assert_eq!(lines(size + 1, &digest, "none"), [format!("size {size}")]);
        assert_eq!(lines(size, "0", "none"), [format!("sum {digest}")]);
        assert_eq!(lines(size, &digest, "file-0"), ["changed none"]);
        assert_eq!(names(home.path()), [""; 0]);
    }

    #[test]
    fn what_is_no_file_is_there_all_the_same() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(".local/bin/dmover");
        std::fs::create_dir_all(&path).unwrap();
        let error = put_here(home.path(), PROGRAM, true).unwrap_err().to_string();
        assert_eq!(error, "~/.local/bin/dmover at the host 'far' is a directory");
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(home.path(), &path).unwrap();
        let error = put_here(home.path(), PROGRAM, true).unwrap_err().to_string();
        assert_eq!(error, "~/.local/bin/dmover at the host 'far' is a directory");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/no/such", &path).unwrap();
        let error = put_here(home.path(), PROGRAM, false).unwrap_err().to_string();
        assert!(error.ends_with("dmover at ~/.local/bin/dmover (another program)"), "{error}");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_symlink());
        put_here(home.path(), PROGRAM, true).unwrap();
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(names(home.path()), ["dmover"]);
    }

    /// Installs by a script in place of ssh.
    fn by_script(script: &str, program: &[u8]) -> Fatal {
        let program_of_ssh = ["/bin/sh", "-c", script].map(OsString::from).into();
        let ssh = SshOptions { program: program_of_ssh, agent: None };
        let limits =
            Limits { login: Some(Duration::from_secs(1)), progress: Duration::from_millis(500) };
        let far = Far { host: &host(), ssh: &ssh, limits };
        far.put(program, "", "none").err().unwrap()
    }

    #[test]
    fn a_host_that_does_nothing_is_given_up() {
        let large = vec![0; 1 << 20];
        let begun = "echo dmover-install: begin";
        for (script, wanted) in [
            ("exec sleep 1000".to_owned(), "the host 'far' did not answer within 1 s"),
            (format!("{begun}; exec sleep 1000"), "the host 'far' made no progress for 0.5 s"),
            // What ssh has started keeps the streams.
            (
                format!("{begun}; sleep 20 & exec sleep 1000"),
                "the host 'far' made no progress for 0.5 s",
            ),
            ("exec yes".to_owned(), "the login shell at the host 'far' prints text: 'y'"),
        ] {
            for program in [PROGRAM, &large] {
                let begin = Instant::now();
                let error = by_script(&script, program);
                assert_eq!(error.to_string(), wanted, "{script}");
                assert!(begin.elapsed() < Duration::from_secs(15), "{script}");
            }
        }
    }

    #[test]
    fn a_home_directory_that_cannot_be_written_to_is_named() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".local"), "a file").unwrap();
        let error = put_here(home.path(), PROGRAM, false).unwrap_err().to_string();
        assert!(error.starts_with("cannot install dmover at the host 'far': mkdir: "), "{error}");
    }
}
