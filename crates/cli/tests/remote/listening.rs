//! Agents that listen for themselves: who gets in, as whom, to which trees, and what is said to those who do not.
use super::bench::{Bench, eventually};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::lanes::run::{Run, Running};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// A user with a line in /etc/passwd on every system.
const USER: &str = "nobody";

/// An agent, and a client that knows it. Both see the same files: `out` is to be read, and `in` to be written.
struct Agent {
    running: Running,
    /// Where the agent runs, with the trees.
    there: Bench,
    /// Where the client runs.
    here: Bench,
    port: u16,
}

#[track_caller]
fn fingerprint(bench: &Bench, words: &[&str]) -> String {
    let all = ["agent"].iter().chain(words);
    let run = bench.dmover.run(all).unwrap().expect_code(0);
    let printed = run.text().trim().to_owned();
    assert!(printed.starts_with("sha256:"), "{printed}");
    printed
}

impl Agent {
    /// `client`: further lines about the client.
    fn start(client: &str) -> Self {
        Self::set_up(Bench::new(), Bench::new(), client)
    }

    fn set_up(here: Bench, there: Bench, client: &str) -> Self {
        let known = fingerprint(&here, &["--make-identity"]);
        fingerprint(&there, &["--make-identity", "--identity", "id.pem"]);
        there.sh(&format!(
            "chmod 755 .; mkdir -p out/d in secret state; seq 50000 > out/d/b; head -c 20M /dev/urandom > out/large
            ln out/large out/d/link; ln -s nowhere out/dangling; touch -d 2001-02-03 out/d; chmod 640 out/d/b
            echo private > secret/key; chown -R {USER} out in state; chmod 750 out/d"
        ));
        Self::listen(here, there, &known, client)
    }

    fn listen(here: Bench, there: Bench, known: &str, client: &str) -> Self {
        let at = |path: &str| there.at(path).display().to_string();
        let lines = format!(
            "identity = '{}'\nlisten = ['127.0.0.1:0']\n[[client]]\nname = 'laptop'\nfingerprint = '{known}'\n\
             user = '{USER}'\nstate = '{}'\nread = ['{}']\nwrite = ['{}']\n{client}\n",
            at("id.pem"),
            at("state"),
            at("out"),
            at("in"),
        );
        std::fs::write(there.at("agent.toml"), lines).unwrap();
        let running = there.dmover.start(["agent", "--listen", "agent.toml"]).unwrap();
        assert!(
            running.wait_for_stderr("its certificate is", 1),
            "{}",
            running.finish().unwrap().tell()
        );
        let said = running.stderr_so_far();
        let (_, port) = said.split_once("listens at 127.0.0.1:").unwrap();
        let port = port.split(',').next().unwrap().parse().unwrap();
        Self { running, there, here, port }
    }

    fn host(&self) -> String {
        format!("dmover://127.0.0.1:{}", self.port)
    }

    fn place(&self, path: &str) -> String {
        format!("{}{}", self.host(), self.there.at(path).display())
    }

    fn own(&self, path: &str) -> String {
        self.here.at(path).display().to_string()
    }

    #[track_caller]
    fn trust(&self) {
        let theirs = fingerprint(&self.there, &["--show-identity", "--identity", "id.pem"]);
        let words = ["agent", "--trust", &self.host(), "--fingerprint", &theirs];
        self.here.dmover.run(words).unwrap().expect_code(0);
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> Run {
        self.here.dmover.run(words).unwrap()
    }

    #[track_caller]
    fn refused(&self, words: &[&str], why: &str) {
        let run = self.run(words).expect_code(2);
        assert!(run.stderr.contains(why), "{words:?}\n{}", run.stderr);
    }

    /// Lets the log of the agent say this, and fails if it does not.
    #[track_caller]
    fn logs(&self, words: &str) {
        eventually(words, || self.running.stderr_so_far().contains(words));
    }

    fn stop(self) -> (Bench, Bench) {
        let Self { running, there, here, .. } = self;
        running.kill().unwrap();
        (here, there)
    }
}

const COPIES: &str = "verbs = ['copy', 'verify']";
const STAYS: &str = "verbs = ['copy', 'verify', 'detach']";

#[test]
fn trees_go_in_both_directions_as_the_user_of_the_client() {
    let agent = Agent::start(COPIES);
    agent.trust();
    agent.run(&["copy", &agent.place("out"), &agent.own("got")]).expect_code(0);
    agent.run(&["copy", &agent.own("got"), &agent.place("in/new")]).expect_code(0);
    let (got, out) = (agent.own("got"), agent.there.at("out"));
    let new = agent.there.at("in/new");
    // Not owners: the user there cannot give files away.
    agent.here.sh(&format!("test -z \"$(rsync -naHAXc --delete -i {}/ {got}/)\"", out.display()));
    agent.here.sh(&format!(
        "test -z \"$(rsync -naHAXc --no-o --no-g --delete -i {got}/ {}/)\"",
        new.display()
    ));
    let owner = agent.there.sh(&format!("id -u {USER}")).trim().parse::<u32>().unwrap();
    assert_eq!(std::fs::metadata(&new).unwrap().uid(), owner);
    assert_eq!(leftovers(&new).unwrap(), Vec::<PathBuf>::new());
    agent.run(&["verify", &got, &agent.place("in/new")]).expect_code(0);
    agent.here.sh("printf x | dd of=got/large bs=1 seek=9999999 conv=notrunc status=none; touch -r got/d got/large");
    agent.run(&["verify", &got, &agent.place("in/new")]).expect_code(1);
}

#[test]
fn without_data_streams_everything_goes_through_the_connection() {
    let agent = Agent::start(COPIES);
    agent.trust();
    agent.run(&["copy", "--streams=0", &agent.place("out"), &agent.own("got")]).expect_code(0);
    agent.run(&["copy", "--streams=0", &agent.own("got"), &agent.place("in/new")]).expect_code(0);
    agent.here.sh(&format!("diff -r --no-dereference {} got", agent.there.at("out").display()));
    agent.here.sh(&format!("diff -r --no-dereference got {}", agent.there.at("in/new").display()));
}

#[test]
fn nothing_outside_its_trees_is_read_or_written() {
    let agent = Agent::start(COPIES);
    agent.trust();
    agent.there.sh("ln -s ../secret out/away; ln -s ../secret in/away; chmod 777 secret; chmod 644 secret/key; mkdir outer");
    let mine = agent.own("mine");
    agent.here.sh("mkdir mine; echo 1 > mine/f");
    for path in ["secret", "out/../secret", "out/away/", "secret/key", "."] {
        agent.refused(
            &["copy", &agent.place(path), &agent.own("got")],
            "is outside the directories that the agent accepts",
        );
    }
    for path in ["secret/new", "in/../secret/new", "in/away/new", "out/new", "outsider"] {
        agent.refused(
            &["copy", &mine, &agent.place(path)],
            "is outside the directories that the agent accepts",
        );
        agent.refused(
            &["copy", "-T", &mine, &agent.place(path)],
            "is outside the directories that the agent accepts",
        );
    }
    // The agent must not follow what leads out.
    agent.refused(&["copy", "-L", &agent.place("out"), &agent.own("got")], "symbolic links");
    let words = ["copy", "--dereference-args", &agent.place("out/away"), &agent.own("got")];
    agent.refused(&words, "symbolic links");
    agent.refused(&["copy", "-L", &agent.place("out"), &agent.place("in/x")], "symbolic links");
    assert!(!agent.here.at("got").exists());
    let left = agent.there.sh("ls secret; ls -A outer in");
    assert_eq!(left, "key\nin:\naway\n\nouter:\n");
    // A look tells the same of everything outside, also of what links in the trees lead to.
    agent.there.sh(
        "ln -s ../secret/key out/key; ln -s ../secret/none out/none; ln -s /etc/passwd in/passwd",
    );
    let looks = [
        "secret/key",
        "secret/none",
        "secret",
        "away",
        "out/key",
        "out/none",
        "in/passwd",
        "out/away",
    ];
    for path in looks {
        let look = agent.run(&["agent", "--check", &agent.place(path)]).expect_code(2);
        let (told, _) = look.stderr.split_once("hint").unwrap();
        assert!(told.contains("the path is outside the directories"), "{path}: {told}");
        assert!(!look.text().contains("a file"), "{path}: {}", look.text());
    }
}

#[test]
fn only_its_verbs_are_run() {
    let agent = Agent::start("verbs = ['copy']");
    agent.trust();
    agent.here.sh("mkdir mine; echo 1 > mine/f");
    let (mine, new) = (agent.own("mine"), agent.place("in/new"));
    agent.run(&["copy", "-T", &mine, &new]).expect_code(0);
    let no = |verb: &str| format!("the agent does not run '{verb}' jobs; it accepts copy");
    agent.refused(&["sync", "--delete", "--yes", &mine, &new], &no("sync"));
    agent.refused(&["verify", &mine, &new], &no("verify"));
    agent.refused(&["verify", "--repair", &mine, &new], &no("repair"));
    let bench = agent.run(&["bench", &agent.place("in")]);
    assert!(bench.code() != Some(0) && bench.stderr.contains(&no("bench")), "{}", bench.stderr);
    let stays = ["copy", "--detach", &agent.place("out"), &agent.place("in/x")];
    agent.refused(&stays, &no("detach"));
    agent.there.sh("grep -q 1 in/new/f; test ! -e in/x");
    // Neither does it listen elsewhere.
    for ports in ["0", "49999-50000", "50500-51001"] {
        let words = ["copy", "--data-ports", ports, &agent.place("out"), &agent.own("got")];
        agent.refused(&words, "listens for data streams at ports 50000 to 51000 only");
    }
    assert!(!agent.here.at("got").exists());
}

#[test]
fn a_client_has_no_more_connections_than_it_may() {
    let agent = Agent::start(COPIES);
    agent.trust();
    let text = std::fs::read_to_string(agent.there.at("agent.toml")).unwrap();
    std::fs::write(agent.there.at("agent.toml"), format!("connections = 1\n{text}")).unwrap();
    // Until then the connection of --trust counts.
    assert!(agent.running.wait_for_stderr("its process has ended", 1));
    let words = ["copy", "--bwlimit=1M", &agent.place("out"), &agent.own("got")];
    let job = agent.here.dmover.start(words).unwrap();
    // The first one was that of --trust.
    assert!(agent.running.wait_for_stderr("a client has connected", 2));
    let check = ["agent", "--check", &agent.place("out")];
    agent.refused(&check, "'laptop' has 1 connections, as many as it may");
    agent.logs("'laptop' has 1 connections, as many as it may");
    job.kill().unwrap();
    eventually("the end of the connection", || agent.run(&check).code() == Some(0));
}

#[test]
fn a_tree_that_somebody_replaces_by_a_link_is_not_followed() {
    let agent = Agent::start(COPIES);
    agent.trust();
    agent.there.sh("mv out real; ln -s secret out");
    for path in ["out", "out/key"] {
        let run = agent.run(&["copy", &agent.place(path), &agent.own("got")]).expect_code(2);
        assert!(run.stderr.contains("through a symbolic link"), "{}", run.stderr);
    }
    assert!(!agent.here.at("got").exists());
    agent.there.sh("rm out; mv real out");
    agent.run(&["copy", &agent.place("out"), &agent.own("got")]).expect_code(0);
}

#[test]
fn options_that_name_something_there_are_refused() {
    let agent = Agent::start(COPIES);
    agent.trust();
    agent.here.sh("mkdir mine; echo 1 > mine/f");
    let (mine, new) = (agent.own("mine"), agent.place("in/new"));
    for option in ["--state-dir=/tmp/elsewhere", "--spill-dir=/tmp", "--broker=nats://127.0.0.1:9"]
    {
        agent.refused(&["copy", option, &mine, &new], "the agent does not accept");
    }
    assert!(!agent.there.at("in/new").exists());
}

#[test]
fn links_are_copied_and_never_followed() {
    let agent = Agent::start(COPIES);
    agent.trust();
    agent.there.sh("ln -s d/b out/inner; ln -s ../secret/key out/outer; ln -s ../secret/key in/stolen; chmod 644 secret/key");
    for link in ["inner", "outer"] {
        agent.run(&["copy", &agent.place(&format!("out/{link}")), &agent.own(link)]).expect_code(0);
        let [there, here] = [agent.there.at("out").join(link), agent.here.at(link)];
        assert_eq!(std::fs::read_link(there).unwrap(), std::fs::read_link(here).unwrap());
        assert_ne!(agent.run(&["sum", &agent.place(&format!("out/{link}"))]).code(), Some(0));
    }
    agent.run(&["sum", &agent.place("out/large")]).expect_code(0);
    agent.run(&["sum", &agent.place("out/d")]).expect_code(0);
    // A job of the agent alone reads nothing else either.
    let words = ["copy", "--dereference-args", &agent.place("in/stolen"), &agent.place("in/got")];
    agent.refused(&words, "symbolic links");
    let words = ["copy", "-T", &agent.place("in/stolen"), &agent.place("in/got")];
    agent.run(&words).expect_code(0);
    assert!(agent.there.at("in/got").is_symlink());
    // Of what is elsewhere a job tells nothing, whatever it is.
    let told = |from: &str, to: &str| {
        let run = agent.run(&["copy", &agent.place(from), &agent.place(to)]).expect_code(2);
        run.stderr.lines().next().unwrap().to_owned()
    };
    agent.there.sh("mkdir -m 700 hidden");
    let all =
        ["secret", "secret/key", "secret/none", "hidden/x", "none"].map(|path| told(path, "in/x"));
    assert!(all.iter().all(|line| *line == all[0] && line.contains("is outside")), "{all:?}");
    let all = ["secret", "secret/key/x", "secret/none/x", "hidden/x"].map(|path| told("out", path));
    assert!(all.iter().all(|line| *line == all[0] && line.contains("is outside")), "{all:?}");
}

#[test]
fn the_process_of_a_client_cannot_be_led_elsewhere_by_its_own_directories() {
    let agent = Agent::start(COPIES);
    agent.trust();
    let text = std::fs::read_to_string(agent.there.at("agent.toml")).unwrap();
    let inside = agent.there.at("in/state").display().to_string();
    let outside = agent.there.at("state").display().to_string();
    std::fs::write(agent.there.at("agent.toml"), text.replace(&outside, &inside)).unwrap();
    agent.refused(&["agent", "--check", &agent.place("out")], "is where the client may write");
    // Nor does it keep memory from others.
    std::fs::write(agent.there.at("agent.toml"), &text).unwrap();
    let words = ["copy", "--bwlimit=1M", &agent.place("out"), &agent.own("got")];
    let job = agent.here.dmover.start(words).unwrap();
    let pid = || {
        let said = agent.running.stderr_so_far();
        let last = said.lines().rfind(|line| line.contains("a client has connected"))?.to_owned();
        last.rsplit_once("pid=")?.1.trim().parse::<u32>().ok()
    };
    let score = || std::fs::read_to_string(format!("/proc/{}/oom_score_adj", pid()?)).ok();
    eventually("the process of the job", || score().is_some_and(|score| score.trim() == "500"));
    job.kill().unwrap();
}

#[test]
fn jobs_elsewhere_are_for_clients_that_may_leave_some() {
    let agent = Agent::start(COPIES);
    agent.trust();
    for words in [&["jobs"][..], &["status"], &["cancel", "x"], &["logs", "x"], &["history", "x"]] {
        let host = agent.host();
        let words = [words, &["--at", &host]].concat();
        agent.refused(&words, "the agent does not run 'detach' jobs");
    }
    // The administrator sees what was refused.
    agent.logs("it says: ");
    agent.logs("refused a job: the agent does not run 'detach' jobs");
}

#[test]
fn a_host_alone_can_be_checked() {
    let agent = Agent::start(COPIES);
    agent.trust();
    let run = agent.run(&["agent", "--check", &agent.host()]).expect_code(0);
    assert!(run.text().contains(&format!("user                   {USER}")), "{}", run.text());
}

#[test]
fn signals_reach_the_job_however_the_agent_was_started() {
    let (here, there) = (Bench::new(), Bench::new());
    let deaf = ["sh", "-c", "trap '' INT HUP TERM; exec \"$@\"", "sh"];
    let agent = Agent::set_up(here, there.with(|dmover| dmover.wrapped(deaf)), COPIES);
    agent.trust();
    agent.here.sh("mkdir mine; head -c 20M /dev/urandom > mine/f");
    let words = ["copy", "--bwlimit=1M", &agent.own("mine"), &agent.place("in/new")];
    let job = agent.here.dmover.start(words).unwrap();
    eventually("the job", || agent.there.at("in/new").exists());
    job.signal(rustix::process::Signal::INT);
    let run = job.finish().unwrap();
    assert_eq!((run.code(), run.signal()), (None, Some(2)), "{}", run.tell());
}

#[test]
fn a_job_elsewhere_is_paused_and_continued() {
    let agent = Agent::start(STAYS);
    agent.trust();
    let at = agent.host();
    let words = ["copy", "--detach", "--bwlimit=10M", &agent.place("out"), &agent.place("in/new")];
    let id = left(&agent.run(&words).expect_code(0));
    agent.run(&["pause", &id, "--at", &at]).expect_code(0);
    let state = || {
        let status = agent.run(&["status", &id, "--json", "--at", &at]).text();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["state"].as_str().unwrap().to_owned()
    };
    eventually("the pause", || state() == "paused");
    agent.run(&["resume", &id, "--at", &at]).expect_code(0);
    agent.run(&["wait", &id, "--at", &at]).expect_code(0);
    agent.there.sh("diff -r --no-dereference out in/new");
    // What has ended is not run again there: only the host of the command has its words.
    assert_ne!(agent.run(&["resume", &id, "--at", &at]).code(), Some(0));
}

#[test]
fn strangers_are_refused_and_logged() {
    let agent = Agent::start(COPIES);
    // This agent is not known yet.
    agent.refused(&["copy", &agent.place("out"), &agent.own("got")], "is not known");
    agent.refused(&["agent", "--trust", &agent.host()], "it is not confirmed");
    let wrong = format!("sha256:{}", "ab".repeat(32));
    agent.refused(
        &["agent", "--trust", &agent.host(), "--fingerprint", &wrong],
        "shows another certificate",
    );
    agent.trust();
    // Somebody else's certificate.
    let stranger = Bench::new();
    let shown = fingerprint(&stranger, &["--make-identity"]);
    let theirs = fingerprint(&agent.there, &["--show-identity", "--identity", "id.pem"]);
    let trust = ["agent", "--trust", &agent.host(), "--fingerprint", &theirs];
    stranger.dmover.run(trust).unwrap().expect_code(0);
    let run = stranger.dmover.run(["copy", &agent.place("out"), "got"]).unwrap().expect_code(2);
    assert!(run.stderr.contains("does not accept the certificate"), "{}", run.stderr);
    assert!(run.stderr.contains(&shown), "the administrator needs it: {}", run.stderr);
    agent.logs(&format!("its certificate is not known here ({shown})"));
    // An identity that others could have read is not used.
    stranger.sh(&format!(
        "chmod 644 {}",
        stranger
            .dmover
            .state_directory()
            .parent()
            .unwrap()
            .join(".config/dmover/identity.pem")
            .display()
    ));
    let run = stranger.dmover.run(["copy", &agent.place("out"), "got"]).unwrap().expect_code(2);
    assert!(run.stderr.contains("other users have access"), "{}", run.stderr);
}

#[test]
fn another_agent_in_its_place_is_noticed() {
    let agent = Agent::start(COPIES);
    agent.trust();
    let (host, port) = (agent.host(), agent.port);
    let (here, there) = agent.stop();
    there.sh(&format!("rm id.pem; sed -i 's/127.0.0.1:0/127.0.0.1:{port}/' agent.toml"));
    fingerprint(&there, &["--make-identity", "--identity", "id.pem"]);
    let running = there.dmover.start(["agent", "--listen", "agent.toml"]).unwrap();
    assert!(running.wait_for_stderr("its certificate is", 1));
    let run = here.dmover.run(["agent", "--check", &format!("{host}/")]).unwrap().expect_code(2);
    assert!(run.stderr.contains("shows another certificate than before"), "{}", run.stderr);
    running.kill().unwrap();
    let run = here.dmover.run(["agent", "--check", &format!("{host}/")]).unwrap().expect_code(6);
    assert!(run.stderr.contains("cannot connect to the agent"), "{}", run.stderr);
}

/// Makes an identity that has expired, and returns its fingerprint.
#[track_caller]
fn expired(bench: &Bench, file: Option<&str>) -> String {
    let file = file.map(|file| format!("--identity={file}"));
    let words = |action| ["agent", action].into_iter().chain(file.as_deref());
    let made = bench.dmover.run(words("--make-identity").chain(["--valid-for=0s"])).unwrap();
    // In the second in which it was made, it is still valid.
    eventually("the end of the certificate", || {
        let shown = bench.dmover.run(words("--show-identity")).unwrap();
        shown.code() == Some(2) && shown.stderr.contains("has expired at")
    });
    made.text().trim().to_owned()
}

#[test]
fn expired_certificates_are_named_as_such() {
    let (here, there) = (Bench::new(), Bench::new());
    let known = fingerprint(&here, &["--make-identity"]);
    expired(&there, Some("id.pem"));
    there.sh("touch agent.toml; chmod 600 agent.toml; mkdir out in state");
    let lines = format!("identity = '{}'", there.at("id.pem").display());
    std::fs::write(there.at("agent.toml"), lines).unwrap();
    let run = there.dmover.run(["agent", "--listen", "agent.toml"]).unwrap().expect_code(2);
    assert!(run.stderr.contains("has expired at"), "{}", run.stderr);
    // The client's own one.
    there.sh("rm id.pem");
    fingerprint(&there, &["--make-identity", "--identity", "id.pem"]);
    let agent = Agent::listen(here, there, &known, COPIES);
    agent.trust();
    let own =
        agent.here.dmover.state_directory().parent().unwrap().join(".config/dmover/identity.pem");
    std::fs::remove_file(&own).unwrap();
    let expired = expired(&agent.here, None);
    let text = std::fs::read_to_string(agent.there.at("agent.toml")).unwrap();
    std::fs::write(agent.there.at("agent.toml"), text.replace(&known, &expired)).unwrap();
    let run = agent.run(&["agent", "--check", &agent.place("out")]).expect_code(2);
    assert!(run.stderr.contains("has expired at"), "{}", run.stderr);
    agent.logs("its certificate cannot be used: it has expired at");
}

#[test]
fn what_was_changed_holds_from_the_next_connection_on() {
    let agent = Agent::start(COPIES);
    agent.trust();
    let check = ["agent", "--check", &agent.place("out")];
    agent.run(&check).expect_code(0);
    let text = std::fs::read_to_string(agent.there.at("agent.toml")).unwrap();
    std::fs::write(
        agent.there.at("agent.toml"),
        text.replace("sha256:", "sha256:00").replace("00'", "'"),
    )
    .unwrap();
    // A mistake changes nothing for those who are in.
    agent.run(&check).expect_code(0);
    agent.logs("the last configuration that could be read stays valid");
    agent.logs("is no fingerprint");
    let (head, _) = text.split_once("[[client]]").unwrap();
    std::fs::write(agent.there.at("agent.toml"), head).unwrap();
    agent.refused(&check, "does not accept the certificate");
    std::fs::write(agent.there.at("agent.toml"), &text).unwrap();
    agent.run(&check).expect_code(0);
    // Nobody else may change it.
    agent.there.sh("chmod 666 agent.toml");
    agent.run(&check).expect_code(0);
    agent.logs("other users may change it");
}

#[test]
fn a_configuration_that_cannot_be_meant_is_refused() {
    let there = Bench::new();
    fingerprint(&there, &["--make-identity", "--identity", "id.pem"]);
    let print = format!("sha256:{}", "ab".repeat(32));
    let own = format!("identity='{}'", there.at("id.pem").display());
    let client = format!("{own}\n[[client]]\nname='c'\nfingerprint='{print}'\n");
    there.sh("mkdir tree; ln -s tree link");
    let at = |path: &str| there.at(path).display().to_string();
    for (lines, why) in [
        (format!("{own}\nlisten=[]"), "'listen' names no address"),
        ("identity='id.pem'".to_owned(), "'identity' is not an absolute path"),
        (format!("{own}\ndata_ports=[1000, 2000]"), "no range of ports"),
        (format!("{client}user='nobody'\nread=['{}']", at("link")), "name that"),
        (format!("{client}user='nobody'\nread=['{}']", at("missing")), "No such file"),
        (format!("{client}user='nobody'\nread=['relative']"), "is not an absolute path"),
        (format!("{client}user='nobody'\nwrite=['/tmp']"), "no verb that writes"),
        (format!("{client}user='nobody'\nverbs=['sync']"), "no tree in 'write'"),
        (format!("{client}user='nobody'\nverbs=['remove']"), "unknown variant"),
        (format!("{client}user='nobody'\ngroup='x'"), "unknown field"),
        (format!("{client}user='no such user'"), "there is no user"),
        (client.clone(), "it names no user"),
        (
            format!(
                "{client}user='nobody'\n[[client]]\nname='d'\nuser='nobody'\nfingerprint='{print}'"
            ),
            "two clients",
        ),
        (format!("{own}\nlisten=['nowhere']"), "cannot listen at"),
    ] {
        std::fs::write(there.at("agent.toml"), &lines).unwrap();
        let run = there.dmover.run(["agent", "--listen", "agent.toml"]).unwrap().expect_code(2);
        assert!(run.stderr.contains(why), "{lines}\n{}", run.stderr);
    }
}

#[test]
fn whoever_sends_anything_else_is_refused_in_time() {
    let agent = Agent::start(COPIES);
    agent.trust();
    let connect = || {
        let socket = TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        socket
    };
    for sent in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff], &[0; 10_000]] {
        let mut socket = connect();
        let _ = socket.write_all(sent);
        let mut rest = Vec::new();
        // An alert of TLS at most, and the end.
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.len() < 100, "{rest:?}");
    }
    // Nothing at all, many times; others get in meanwhile.
    let silent: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
    agent.run(&["agent", "--check", &agent.place("out")]).expect_code(0);
    for mut socket in silent {
        assert_eq!(socket.read(&mut [0; 10]).unwrap_or(0), 0);
    }
    agent.run(&["copy", &agent.place("out"), &agent.own("got")]).expect_code(0);
    agent.logs("refused a connection");
}

#[test]
fn the_agent_ends_what_it_serves_with_the_client() {
    let agent = Agent::start(COPIES);
    agent.trust();
    let words = ["copy", "--bwlimit=1M", "--json", &agent.place("out"), &agent.own("got")];
    let job = agent.here.dmover.start(words).unwrap();
    eventually("content", || {
        agent
            .here
            .sh("du -s got 2>/dev/null || true; true")
            .split_whitespace()
            .next()
            .is_some_and(|n| n != "0")
    });
    let ended = |run: &Running| run.stderr_so_far().matches("its process has ended").count();
    let before = ended(&agent.running);
    job.kill().unwrap();
    eventually("the end of the process", || ended(&agent.running) > before);
    agent.run(&["copy", &agent.place("out"), &agent.own("got")]).expect_code(0);
    agent.here.sh(&format!("diff -r --no-dereference {} got", agent.there.at("out").display()));
}

#[test]
fn two_agents_exchange_a_tree_and_a_third_one_relays_it() {
    let source = Agent::start(COPIES);
    source.trust();
    let known = fingerprint(&source.here, &["--show-identity"]);
    let more = |verbs: &str| {
        let there = Bench::new();
        fingerprint(&there, &["--make-identity", "--identity", "id.pem"]);
        there.sh(&format!("chmod 755 .; mkdir out in state; chown {USER} in state"));
        let agent = Agent::listen(Bench::new(), there, &known, verbs);
        let theirs = fingerprint(&agent.there, &["--show-identity", "--identity", "id.pem"]);
        let words = ["agent", "--trust", &agent.host(), "--fingerprint", &theirs];
        source.here.dmover.run(words).unwrap().expect_code(0);
        agent
    };
    let target = more(COPIES);
    let run = source
        .run(&["copy", "--json", &source.place("out"), &target.place("in/new")])
        .expect_code(0);
    assert!(run.text().contains("\"protection\":\"tls\""), "{}", run.tell());
    let same = |new: &str| {
        let there = target.there.at(new);
        source.there.sh(&format!(
            "test -z \"$(rsync -naHAXc --no-o --no-g --delete -i out/ {}/)\"",
            there.display()
        ));
    };
    same("in/new");
    let relay = more("verbs = ['copy', 'relay']");
    let through = [
        "copy",
        "--json",
        "--relay",
        &relay.host(),
        &source.place("out"),
        &target.place("in/relayed"),
    ];
    let run = source.run(&through).expect_code(0);
    assert!(run.text().contains("\"relays\":[\"127.0.0.1\""), "{}", run.tell());
    same("in/relayed");
    // One that is not for that.
    let through =
        ["copy", "--relay", &source.host(), &source.place("out"), &target.place("in/not")];
    let run = source.run(&through);
    assert!(
        run.code() != Some(0) && run.stderr.contains("does not run 'relay' jobs"),
        "{}",
        run.stderr
    );
}

/// The id of a job that was left elsewhere.
#[track_caller]
pub fn left(run: &Run) -> String {
    let id = run.text().trim().to_owned();
    assert!(id.len() == 12 && id.chars().all(|digit| digit.is_ascii_hexdigit()), "{}", run.tell());
    id
}

#[test]
fn a_job_stays_when_its_user_has_gone() {
    let agent = Agent::start(STAYS);
    agent.trust();
    let words = ["copy", "--detach", "--bwlimit=10M", &agent.place("out"), &agent.place("in/new")];
    let run = agent.run(&words).expect_code(0);
    let at = agent.host();
    assert!(run.stderr.contains(&format!("--at {at}")), "{}", run.stderr);
    let id = left(&run);
    // The command has ended, and the same one is told that the job runs.
    let again = agent.run(&words).expect_code(6);
    assert!(again.stderr.contains("is already running"), "{}", again.stderr);
    agent.run(&["wait", &id, "--at", &at]).expect_code(0);
    agent.there.sh("diff -r --no-dereference out in/new");
    let logs = agent.run(&["logs", &id, "--at", &at]).expect_code(0).text();
    assert!(logs.contains("dmover: done"), "{logs}");
    let status = agent.run(&["status", &id, "--json", "--at", &at]).expect_code(0).text();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["state"], "finished");
    assert!(agent.run(&["jobs", "--at", &at]).expect_code(0).text().contains(&id));
    agent.logs("its process has ended");
}

#[test]
fn a_job_elsewhere_is_cancelled_and_its_errors_are_shown() {
    let agent = Agent::start(STAYS);
    agent.trust();
    let at = agent.host();
    let words = ["copy", "--detach", "--bwlimit=1M", &agent.place("out"), &agent.place("in/new")];
    let id = left(&agent.run(&words).expect_code(0));
    agent.run(&["cancel", &id, "--at", &at]).expect_code(0);
    let waited = agent.run(&["wait", &id, "--at", &at]);
    assert!(waited.stderr.contains("cancelled"), "{}", waited.stderr);
    // What cannot start is told as if the job were here.
    let words = ["copy", "--detach", &agent.place("missing"), &agent.place("in/x")];
    let missing = agent.run(&words);
    assert!(!matches!(missing.code(), Some(0)), "{}", missing.stderr);
    // The kernel lets the process run nothing, whatever dmover thinks of it.
    let words = ["copy", "--detach", "elsewhere:/data", &agent.place("in/x")];
    agent.refused(&words, "cannot run 'ssh': Permission denied");
    agent.here.sh("mkdir mine");
    let words = ["copy", "--detach", &agent.own("mine"), &agent.place("in/x")];
    agent.refused(&words, "this host would have to stay");
    // Jobs of others are not shown, and neither is anything else.
    agent.refused(
        &["jobs", "--at", &at, "--state-dir=/var/lib/dmover"],
        "does not accept --state-dir",
    );
    agent.refused(&["logs", "nosuchjob", "--at", &at], "nosuchjob");
}
