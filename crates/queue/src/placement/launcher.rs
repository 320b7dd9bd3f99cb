//! A local process that keeps movers running at a place; it may stand for many movers on other hosts.
use dmover_host::signals;
use dmover_model::Fatal;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The output of a mover that has found the broker.
const UP: &[u8] = b"waiting for jobs at ";
/// The pause before ended movers are started again; it grows up to ten times.
const AGAIN: Duration = Duration::from_secs(3);
/// How often movers that never came up are started.
const ATTEMPTS: u32 = 20;
/// How long a mover may take to return its tasks when it must leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(20);
/// How long it may take after a second signal.
const END_WITHIN: Duration = Duration::from_secs(10);
/// How long a killed process may take to end, unless it hangs in the kernel.
const KILLED_WITHIN: Duration = Duration::from_secs(1);
/// How often processes are checked for their end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One such process.
pub(super) struct Post {
    name: String,
    words: Vec<OsString>,
    feed: Option<Vec<u8>>,
    log: PathBuf,
    /// Movers that do not come up at the first attempt are skipped.
    skipped_if_absent: bool,
    /// Movers that leave by themselves are not started again.
    may_leave: bool,
    child: Option<Child>,
    was_up: bool,
    is_up: bool,
    attempts: u32,
    again: Instant,
    is_given_up: bool,
    has_failed: bool,
}

impl Post {
    pub fn new(name: &str, words: Vec<OsString>, logs: &Path) -> Self {
        let file: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .collect();
        Self {
            name: name.to_owned(),
            words,
            feed: None,
            log: logs.join(format!("mover-{file}.log")),
            skipped_if_absent: false,
            may_leave: false,
            child: None,
            was_up: false,
            is_up: false,
            attempts: 0,
            again: Instant::now(),
            is_given_up: false,
            has_failed: false,
        }
    }

    /// Writes this to its standard input, which stays open as long as it is needed.
    pub fn fed(mut self, feed: Vec<u8>) -> Self {
        self.feed = Some(feed);
        self
    }

    pub fn skipped_if_absent(mut self) -> Self {
        self.skipped_if_absent = true;
        self
    }

    /// Does not restart movers that leave in order.
    pub fn may_leave(&mut self) {
        self.may_leave = true;
    }

    #[cfg(test)]
    pub fn words(&self) -> &[OsString] {
        &self.words
    }

    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Whether it has ended for good.
    pub fn is_over(&self) -> bool {
        self.is_given_up && self.child.is_none()
    }

    /// Whether it has ended because of failures.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Keeps movers running. Returns a message for the user.
    pub fn look(&mut self) -> Option<String> {
        if self.is_given_up {
            return None;
        }
        let Some(child) = &mut self.child else {
            if Instant::now() < self.again {
                return None;
            }
            return self.start().err().and_then(|error| self.lost(&error.to_string(), false));
        };
        match child.try_wait() {
            Ok(None) => {
                if !self.is_up && contains(&std::fs::read(&self.log).unwrap_or_default(), UP) {
                    (self.is_up, self.was_up) = (true, true);
                }
                None
            }
            Ok(Some(status)) => {
                self.child = None;
                let why = self.last_words().unwrap_or_else(|| shown(status));
                self.lost(&why, status.success())
            }
            Err(error) => {
                self.child = None;
                self.lost(&error.to_string(), false)
            }
        }
    }

    fn start(&mut self) -> std::io::Result<()> {
        self.attempts += 1;
        let log = File::create(&self.log)?;
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdout(log.try_clone()?).stderr(log);
        // What a terminal sends to the job is not for them.
        command.process_group(0);
        command.stdin(if self.feed.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn()?;
        if let (Some(feed), Some(pipe)) = (&self.feed, &mut child.stdin) {
            // This fits into a pipe; a process that has already ended is noticed later.
            let _ = pipe.write_all(feed);
        }
        self.child = Some(child);
        Ok(())
    }

    fn lost(&mut self, why: &str, in_order: bool) -> Option<String> {
        let was_up = std::mem::take(&mut self.is_up);
        let name = &self.name;
        if self.may_leave && in_order {
            self.is_given_up = true;
            return None;
        }
        if was_up {
            self.attempts = 1;
        }
        if !self.was_up && (self.skipped_if_absent || self.attempts >= ATTEMPTS) {
            (self.is_given_up, self.has_failed) = (true, true);
            return Some(format!("no movers at {name}; continuing without them: {why}"));
        }
        let pause = AGAIN * self.attempts.clamp(1, 10);
        self.again = Instant::now() + pause;
        let seconds = pause.as_secs();
        // Once for each time that movers were there.
        (was_up || self.attempts == 1)
            .then(|| format!("the movers at {name} ended; restarting them in {seconds} s: {why}"))
    }

    /// The last line of its output.
    fn last_words(&self) -> Option<String> {
        let text = std::fs::read(&self.log).ok()?;
        let text = String::from_utf8_lossy(&text);
        let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
        let error = lines().find_map(|line| line.split_once("dmover: error: ").map(|(_, why)| why));
        let words = error.or_else(|| lines().next_back())?;
        Some(words.chars().filter(|c| !c.is_control()).take(300).collect())
    }

    /// Asks it to leave.
    pub fn dismiss(&mut self) {
        self.is_given_up = true;
        let Some(child) = &mut self.child else { return };
        // An ssh that has not got through yet hears of nothing.
        if child.stdin.take().is_none() || !self.is_up {
            dmover_host::other_processes::terminate(child.id());
        }
    }
}

/// Waits until all dismissed posts have left; those that do not leave are killed. `within`: the time for all of it.
pub(super) fn see_off(posts: &mut [Post], within: Option<Duration>, hurry: impl Fn() -> bool) {
    for post in &mut *posts {
        post.dismiss();
    }
    let here = |posts: &mut [Post]| {
        for post in &mut *posts {
            if let Some(child) = &mut post.child
                && !matches!(child.try_wait(), Ok(None))
            {
                post.child = None;
            }
        }
        posts.iter().any(|post| post.child.is_some())
    };
    let wait = |posts: &mut [Post], limit: Duration| {
        let until = Instant::now() + limit;
        while here(posts) && Instant::now() < until && !hurry() {
            thread::sleep(LOOK_EVERY);
        }
    };
    // The journal has their completed work: killing them costs only tasks in progress.
    let (leave, end) = within.map_or((LEAVE_WITHIN, END_WITHIN), |all| (all * 2 / 3, all / 3));
    wait(posts, leave);
    for child in posts.iter().filter_map(|post| post.child.as_ref()) {
        dmover_host::other_processes::terminate(child.id());
    }
    wait(posts, end);
    for mut child in posts.iter_mut().filter_map(|post| post.child.take()) {
        end_now(&mut child);
    }
}

/// Kills a process. A process that hangs in the kernel is not waited for.
fn end_now(child: &mut Child) {
    // It fails only if the process has already ended.
    let _ = child.kill();
    let until = Instant::now() + KILLED_WITHIN;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        thread::sleep(LOOK_EVERY);
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            end_now(&mut child);
        }
    }
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => signals::name(signal),
        (None, None) => "no status".into(),
    }
}

/// A broker as a separate process, which ends with this one.
pub(super) struct BrokerPost {
    child: Child,
    /// The join file.
    pub join_file: PathBuf,
}

impl BrokerPost {
    /// Starts one, and waits until it answers.
    ///
    /// # Errors
    /// The error that it reports.
    pub fn start(
        words: &[OsString],
        environment: &[(OsString, OsString)],
        logs: &Path,
    ) -> Result<Self, Fatal> {
        let fail = |error: &std::io::Error| {
            Fatal::refused(
                format!("cannot start a broker: {error}"),
                "choose a broker with --broker",
            )
        };
        let log = logs.join("broker.log");
        let file = File::create(&log).map_err(|e| fail(&e))?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
        // It keeps the keys of the job's user where the job does.
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child = command.process_group(0).spawn().map_err(|e| fail(&e))?;
        let mut line = String::new();
        if let Some(said) = child.stdout.take() {
            // It answers or ends within a bounded time.
            let read = std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line);
            read.map_err(|e| fail(&e))?;
        }
        if line.ends_with('\n') {
            return Ok(Self { child, join_file: PathBuf::from(line.trim_end_matches('\n')) });
        }
        let status = child.wait().map_err(|e| fail(&e))?;
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let of = |mark: &str| text.lines().find_map(|line| line.split_once(mark).map(|(_, it)| it));
        let message = of("dmover: error: ").map_or_else(|| shown(status), str::to_owned);
        let (message, hint) =
            (format!("cannot start a broker: {message}"), of("hint: ").unwrap_or_default());
        Err(match status.code() {
            Some(6) => Fatal::unavailable(message, hint),
            _ => Fatal::refused(message, hint),
        })
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it in order within this time. Then it is killed, and the kernel ends its server with it.
    pub fn end(mut self, within: Duration) {
        self.end_within(within);
    }

    fn end_within(&mut self, within: Duration) {
        drop(self.child.stdin.take());
        let until = Instant::now() + within;
        while !self.has_ended() && Instant::now() < until {
            thread::sleep(LOOK_EVERY);
        }
        end_now(&mut self.child);
    }
}

impl Drop for BrokerPost {
    fn drop(&mut self) {
        if !self.has_ended() {
            // It ends its server within ten seconds.
            self.end_within(2 * END_WITHIN);
        }
    }
}
