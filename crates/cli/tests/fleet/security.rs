//! Attacks on a fleet: whoever is not trusted gets nothing done, and is named in the log. docs/security.md lists the threats.
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dmover_testkit::cluster::{NatsClient, NatsServer, Piece, needs};
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rustix::process::Signal;

use crate::bench::{Bench, NOBODY, eventually, is_root};

/// A broker below `state`, once it answers.
pub(crate) fn broker(bench: &Bench, state: &str, words: &str) -> Running {
    let words = format!("broker --state {state} {words}");
    let broker = bench.dmover.start(words.split_whitespace()).unwrap();
    assert!(broker.wait_for_stderr("listens at ", 1), "{}", broker.stderr_so_far());
    broker
}

/// Ends a broker with its server.
pub(crate) fn end(broker: Running) {
    broker.signal(Signal::TERM);
    broker.finish().unwrap();
}

pub(crate) fn call_mover(bench: &Bench, words: &str) -> Running {
    let words = format!("mover {words}");
    let mover = bench.dmover.start(words.split_whitespace()).unwrap();
    assert!(mover.wait_for_stderr("waiting for jobs", 1), "{}", mover.stderr_so_far());
    mover
}

fn join_file(bench: &Bench, path: &str) -> serde_json::Value {
    serde_json::from_str(&bench.read(path)).unwrap()
}

fn port_of(bench: &Bench, path: &str) -> String {
    let url = join_file(bench, path)["url"].as_str().unwrap().to_owned();
    url.rsplit_once(':').unwrap().1.to_owned()
}

/// A process that ends with its test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A nats-server of somebody else, at a port of this host.
fn impostor(bench: &Bench, port: &str) -> Ending {
    bench.sh(&format!("mkdir -p evil; if [ $(id -u) = 0 ]; then chown {NOBODY} evil; fi"));
    let front =
        if is_root() { format!("setpriv --reuid {NOBODY} --clear-groups ") } else { String::new() };
    let script = format!(
        "cd evil && PATH=$PATH:/usr/sbin exec {front}nats-server -a 127.0.0.1 -p {port} -js -sd ."
    );
    let server: Child = Command::new("sh")
        .args(["-c", &script])
        .current_dir(bench.root())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Ending(server)
}

#[test]
fn an_impostor_at_the_address_of_a_broker_that_has_ended_gets_no_mover() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let bench = Bench::new();
    bench.sh("mkdir source; seq 9 > source/f");
    let first = broker(&bench, "one", "");
    let port = port_of(&bench, "one/join.json");
    let mover = call_mover(&bench, "--broker one/join.json");
    end(first);
    let open = impostor(&bench, &port);
    let words = "refused a server without encryption at the address of the broker";
    assert!(mover.wait_for_stderr(words, 1), "{}", mover.stderr_so_far());
    // Whoever believes the impostor finds no mover there.
    let job = format!("--mover-wait 3s --insecure --broker nats://127.0.0.1:{port}");
    let run = bench.dmover(&format!("copy -T source far {job}")).expect_code(6);
    assert!(run.stderr.contains("no mover connected to"), "{}", run.tell());
    assert!(run.stderr.contains("in clear text (--insecure)"), "{}", run.tell());
    drop(open);
    // One that encrypts, but is not the one.
    let other = broker(&bench, "two", &format!("--port {port}"));
    let words = "refused a server whose certificate is not that of the broker";
    assert!(mover.wait_for_stderr(words, 1), "{}", mover.stderr_so_far());
    let run = bench.dmover("copy -T source far --mover-wait 3s --broker two/join.json");
    assert!(run.expect_code(6).stderr.contains("no mover connected to"));
    assert!(!bench.exists("far"));
    end(other);
    let again = broker(&bench, "one", "");
    bench.dmover("copy -T source far --mover-wait 1m --broker one/join.json").expect_code(0);
    bench.assert_same("source", "far");
    end(again);
    mover.kill().unwrap();
}

/// Something else may have taken the port of a broker that has ended.
#[test]
fn what_speaks_no_nats_at_the_address_of_a_broker_is_named() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let bench = Bench::new();
    let first = broker(&bench, "one", "");
    let port = port_of(&bench, "one/join.json");
    let mover = call_mover(&bench, "--broker one/join.json");
    end(first);
    let other = std::net::TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    // It takes every connection, and says nothing.
    std::thread::spawn(move || other.incoming().for_each(drop));
    let words = "does not answer as a NATS server with TLS";
    assert!(mover.wait_for_stderr(words, 1), "{}", mover.stderr_so_far());
    let said = mover.stderr_so_far();
    let line = said.lines().find(|line| line.contains(words)).unwrap();
    assert!(line.contains(&format!(":{port}")), "{line}");
    // By now there were several attempts.
    assert!(said.matches("IO error").count() <= 1, "{said}");
    mover.kill().unwrap();
}

#[test]
fn files_with_secrets_that_others_own_or_may_open_are_refused() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let bench = Bench::new();
    bench.sh("mkdir source");
    let own = broker(&bench, "one", "");
    assert_eq!(
        bench.sh("stat -c %a one one/*.json one/*.nk one/*key*").trim(),
        "700\n600\n600\n600"
    );
    bench.sh("cp one/join.json readable.json; chmod 644 readable.json");
    bench.sh("cp one/join.json group.json; chmod 640 group.json");
    let mut files = vec![
        ("readable.json", "other users have access to it"),
        ("group.json", "other users have access to it"),
    ];
    if is_root() {
        bench.sh(&format!(
            "cp one/join.json theirs.json; chown {NOBODY} theirs.json; chmod 600 theirs.json"
        ));
        files.push(("theirs.json", "belongs to user 65534, but dmover runs as user 0"));
    }
    for (file, words) in files {
        for line in ["mover", "copy source far", "submit --local -- copy source far"] {
            let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
            let run = bench.dmover(&format!("{verb} --broker {file} {rest}")).expect_code(2);
            assert!(run.stderr.contains(words), "{}", run.tell());
        }
        let run = bench.dmover(&format!("mover --broker one/join.json --credentials {file}"));
        assert!(run.expect_code(2).stderr.contains(words));
    }
    end(own);
    bench.sh("chmod 644 one/user.nk");
    let run = bench.dmover("broker --state one").expect_code(2);
    assert!(run.stderr.contains("user.nk' contains a secret"), "{}", run.tell());
    bench.sh("chmod 600 one/user.nk; chmod 777 one");
    let run = bench.dmover("broker --state one").expect_code(2);
    assert!(run.stderr.contains("'one': other users may write to it"), "{}", run.tell());
    assert!(!bench.exists("far"));
}

#[test]
fn clear_text_is_refused_unless_allowed_and_then_said_each_time() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let bench = Bench::new();
    bench.sh("mkdir source; seq 9 > source/f");
    let clear = broker(&bench, "clear", "--insecure");
    assert!(clear.wait_for_stderr("in clear text (--insecure)", 1), "{}", clear.stderr_so_far());
    let url = join_file(&bench, "clear/join.json")["url"].as_str().unwrap().to_owned();
    assert!(url.starts_with("nats://"), "{url}");
    for broker in ["clear/join.json", url.as_str(), "tls://a:1,nats://b:1"] {
        for line in ["mover", "copy source far", "submit --local -- copy source far"] {
            let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
            let run = bench.dmover(&format!("{verb} --broker {broker} {rest}")).expect_code(2);
            assert!(run.stderr.contains("in clear text"), "{}", run.tell());
            assert!(run.stderr.contains("--insecure"), "{}", run.tell());
        }
    }
    let piped = bench.dmover_with("mover --broker -", bench.read("clear/join.json"));
    assert!(piped.expect_code(2).stderr.contains("in clear text"));
    let mover = call_mover(&bench, "--insecure --broker clear/join.json");
    assert!(mover.stderr_so_far().contains("warning: connections to the broker"));
    let words = "copy -T source far --mover-wait 1m --insecure --broker clear/join.json";
    let run = bench.dmover(words).expect_code(0);
    assert!(run.stderr.contains("warning: connections to the broker"), "{}", run.tell());
    mover.kill().unwrap();
    end(clear);
    // The broker of a job encrypts as well, unless it is told otherwise.
    let run = bench.dmover("submit --local -- copy -T source near").expect_code(0);
    assert!(!run.stderr.contains("clear text"), "{}", run.tell());
    let run = bench.dmover("submit --local --insecure -- copy -T source plain").expect_code(0);
    assert!(run.stderr.contains("in clear text (--insecure)"), "{}", run.tell());
    bench.assert_same("source", "plain");
}

/// A server that encrypts, and a file that leads there.
fn encrypted(bench: &Bench, config: &str, join: &str) -> NatsServer {
    bench.sh(
        "openssl req -x509 -newkey ed25519 -nodes -days 2 -keyout self.key -out self.pem -subj /CN=self 2> errors",
    );
    let at = |name: &str| bench.at(name).display().to_string();
    let tls =
        format!("tls {{ cert_file: \"{}\", key_file: \"{}\" }}", at("self.pem"), at("self.key"));
    let server = NatsServer::start_local(&format!("{tls}\n{config}")).unwrap();
    write_join(bench, join, &server.url().replace("nats://", "tls://"));
    server
}

fn write_join(bench: &Bench, join: &str, url: &str) {
    let text = serde_json::json!({ "url": url, "certificates": bench.read("self.pem") });
    bench.write(join, text.to_string());
    bench.sh(&format!("chmod 600 {join}"));
}

#[test]
fn a_mover_of_root_stays_away_from_a_broker_that_lets_anybody_in() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("nobody else has anything to give up");
    }
    let bench = Bench::new();
    bench.sh("mkdir source");
    let open = encrypted(&bench, "", "open.json");
    let run = bench.dmover("mover --broker open.json").expect_code(2);
    assert!(run.stderr.contains("accepts clients without credentials"), "{}", run.tell());
    let mover = call_mover(&bench, "--insecure --broker open.json");
    mover.kill().unwrap();
    drop(open);
    let locked = encrypted(&bench, "authorization { token: s3cret }", "locked.json");
    bench.sh("umask 077; echo s3cret > token");
    let mover = call_mover(&bench, "--broker locked.json --credentials token");
    mover.kill().unwrap();
    drop(locked);
    assert!(Path::new(&bench.at("source")).exists());
}

/// Makes a key pair for a state directory, as dmover would. Answers the public key.
pub(crate) fn make_key(bench: &Bench, state: &str) -> String {
    // The forms of NATS: a prefix, 32 bytes and a checksum, in base32.
    let script = r#"umask 077; mkdir -p "$1"; python3 - "$1" <<'E'
import base64, binascii, os, subprocess, sys
seed = os.urandom(32)
def text(head, raw):
    data = head + raw
    data += binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data).decode().rstrip("=")
open(sys.argv[1] + "/identity.key", "w").write(text(bytes([149, 0]), seed) + "\n")
private = bytes.fromhex("302e020100300506032b657004220420") + seed
made = subprocess.run(["openssl", "pkey", "-inform", "DER", "-pubout", "-outform", "DER"],
                      input=private, stdout=subprocess.PIPE, check=True).stdout
print(text(bytes([160]), made[-32:]))
E"#;
    bench.sh(&script.replace("$1", state)).trim().to_owned()
}

/// A server at which alice and bob can say anything. The job and its movers are alice's.
pub(crate) struct Strangers {
    pub bench: Bench,
    broker: NatsServer,
}

impl Strangers {
    pub(crate) fn new() -> Self {
        let bench = Bench::new();
        bench.sh("mkdir source; seq 9 | (cd source; xargs touch)");
        let alice = make_key(&bench, "alice");
        make_key(&bench, &bench.dmover.state_directory().display().to_string());
        let bob = "{ user: bob, password: b }";
        let config = format!("authorization {{ users: [ {{ nkey: {alice} }}, {bob} ] }}");
        Self { broker: NatsServer::start_local(&config).unwrap(), bench }
    }

    /// What leads to the broker.
    pub(crate) fn way(&self) -> String {
        format!("--insecure --broker {} --credentials alice/identity.key", self.broker.url())
    }

    pub(crate) fn bob(&self) -> NatsClient {
        NatsClient::connect(self.broker.address(), Some(("bob", "b"))).unwrap()
    }

    /// Starts a job, and waits until it is offered. Answers its key, and how it is offered.
    fn offered(&self, line: &str) -> (Running, String, serde_json::Value) {
        let line = format!("{line} {}", self.way());
        let job = self.bench.dmover.start(line.split_whitespace()).unwrap();
        assert!(job.wait_for_stderr("no mover is connected", 1), "{}", job.stderr_so_far());
        let (key, record) = self.record().unwrap();
        (job, key, record)
    }

    /// The last offer that stands at the broker.
    fn record(&self) -> Option<(String, serde_json::Value)> {
        let wanted = br#"{"last_by_subj":"$KV.dmover_jobs.>"}"#;
        let subject = "$JS.API.STREAM.MSG.GET.KV_dmover_jobs";
        let answer = self.bob().request(subject, wanted).unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        let key = answer["message"]["subject"].as_str()?.rsplit_once('.')?.1.to_owned();
        let data = answer["message"]["data"].as_str()?;
        let script = format!("echo {data} | base64 -d");
        Some((key, serde_json::from_str(&self.bench.sh(&script)).ok()?))
    }

    /// Puts something in the place of an offer, as bob.
    fn put(&self, key: &str, record: &serde_json::Value) {
        let answer =
            self.bob().request(&format!("$KV.dmover_jobs.{key}"), record.to_string().as_bytes());
        assert!(String::from_utf8_lossy(&answer.unwrap()).contains("KV_dmover_jobs"));
    }
}

#[test]
fn an_offer_that_somebody_else_rewrote_is_refused_and_put_right() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let stage = Strangers::new();
    let (job, key, record) = stage.offered("copy -T source far --mover-wait 2m --only-movers a=b");
    let mover = call_mover(&stage.bench, &stage.way());
    // Other labels, so that it would be this mover's; another user; another place.
    let offer = record["offer"].as_str().unwrap();
    assert!(offer.contains("\"uid\":") && offer.contains("far"), "{offer}");
    let uid = rustix::process::geteuid().as_raw();
    let evil = offer.replace(&format!("\"uid\":{uid},"), "\"uid\":4242,");
    assert_ne!(evil, offer);
    let changes: [(&str, serde_json::Value); 4] = [
        ("offer", evil.into()),
        ("only", serde_json::json!([])),
        ("lease_ms", 1.into()),
        ("signature", "".into()),
    ];
    for (field, value) in changes {
        let mut forged = record.clone();
        forged["only"] = serde_json::json!([]);
        forged[field] = value;
        stage.put(&key, &forged);
        let restored = || stage.record().is_some_and(|(_, now)| now == record);
        eventually("the offer to be put right", restored);
    }
    let refused = "this mover cannot work for a job job=";
    assert!(mover.wait_for_stderr(refused, 1), "{}", mover.stderr_so_far());
    let said = mover.stderr_so_far();
    assert!(said.contains("its signature is wrong") || said.contains("is not signed"), "{said}");
    assert!(!said.contains(" dmover_queue::mover: working for a job"), "{said}");
    assert!(!stage.bench.exists("far"));
    mover.kill().unwrap();
    let right = call_mover(&stage.bench, &format!("{} --label a=b", stage.way()));
    job.finish().unwrap().expect_code(0);
    stage.bench.assert_same("source", "far");
    right.kill().unwrap();
}

#[test]
fn an_old_offer_that_is_put_again_gets_nothing_done() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let stage = Strangers::new();
    let (job, key, record) = stage.offered("copy -T source far --mover-wait 2m");
    let mover = call_mover(&stage.bench, &stage.way());
    job.finish().unwrap().expect_code(0);
    stage.bench.sh("rm -r far");
    stage.put(&key, &record);
    let words = "refused the offer of a run that has ended";
    assert!(mover.wait_for_stderr(words, 1), "{}", mover.stderr_so_far());
    // Whoever does not remember the run asks for a proof that its coordinator is there.
    let other = call_mover(&stage.bench, &stage.way());
    let words = "the coordinator of this job does not answer";
    assert!(other.wait_for_stderr(words, 1), "{}", other.stderr_so_far());
    assert!(!other.stderr_so_far().contains(" dmover_queue::mover: working for a job"));
    assert!(!stage.bench.exists("far"));
    for mover in [mover, other] {
        mover.kill().unwrap();
    }
}

#[test]
fn offers_are_believed_by_the_key_that_signs_them_and_for_its_user_alone() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("the user of the job is root here");
    }
    let stage = Strangers::new();
    let bench = &stage.bench;
    let own = make_key(bench, &bench.dmover.state_directory().display().to_string());
    let strange = make_key(bench, "other");
    assert_ne!(own, strange);
    for (file, line) in [("right.pub", format!("{own} 0")), ("wrong.pub", format!("{own} 1000"))] {
        bench.write(file, format!("{line} somebody@somewhere\n"));
        bench.sh(&format!("chmod 644 {file}"));
    }
    bench.write("strange.pub", format!("{strange} 0\n"));
    bench.sh("chmod 644 strange.pub");
    // Root's job, and movers of root that have another key.
    let line = format!("copy -T source far --mover-wait 2m --trust strange.pub {}", stage.way());
    let job = bench.dmover.start(line.split_whitespace()).unwrap();
    let call = |trust: &str| {
        let mut command = bench.dmover.command();
        let line = format!("mover {} {trust}", stage.way());
        command.args(line.split_whitespace()).env("DMOVER_STATE_DIR", bench.at("other"));
        let log = std::fs::File::create(bench.at("mover.log")).unwrap();
        Ending(command.stderr(log).stdout(Stdio::null()).spawn().unwrap())
    };
    for (trust, why) in [
        ("", format!("signed by the key {own}, which is not trusted")),
        ("--trust wrong.pub", "claims user 0, but is signed by the key of user 1000".into()),
    ] {
        let mover = call(trust);
        eventually("the mover to refuse", || bench.read("mover.log").contains(&why));
        assert!(!bench.read("mover.log").contains(" dmover_queue::mover: working for a job"));
        drop(mover);
        // A person hears of it where the job runs.
        assert!(job.wait_for_stderr(&why, 1), "{}", job.stderr_so_far());
    }
    assert!(!bench.exists("far"));
    let mover = call("--trust right.pub");
    job.finish().unwrap().expect_code(0);
    bench.assert_same("source", "far");
    drop(mover);
}

#[test]
fn whoever_has_taken_a_join_file_gets_nothing_done_by_the_movers_of_its_owner() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("there is nobody to take it from");
    }
    let bench = Bench::new();
    bench.sh("mkdir source; seq 9 | (cd source; xargs touch); chmod 755 .");
    make_key(&bench, &bench.dmover.state_directory().display().to_string());
    let own = broker(&bench, "one", "");
    let mover = call_mover(&bench, "--broker one/join.json");
    let thief = Bench::new().unprivileged();
    let stolen = bench.read("one/join.json");
    thief.write("join.json", &stolen);
    thief.sh(&format!("chmod 600 join.json; chown {NOBODY} join.json; mkdir -p s; touch s/f"));
    let line = "copy -T s far --mover-wait 3s --broker join.json";
    let run = thief.dmover(line).expect_code(6);
    assert!(run.stderr.contains("no mover connected to"), "{}", run.tell());
    assert!(mover.wait_for_stderr("which is not trusted", 1), "{}", mover.stderr_so_far());
    assert!(!mover.stderr_so_far().contains(" dmover_queue::mover: working for a job"));
    // The same, of somebody who claims to be root.
    make_key(&bench, "evil");
    let mut command = bench.dmover.command();
    command.args([
        "copy",
        "-T",
        "source",
        "far",
        "--mover-wait",
        "3s",
        "--broker",
        "one/join.json",
    ]);
    let output = command.env("DMOVER_STATE_DIR", bench.at("evil")).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert!(!mover.stderr_so_far().contains(" dmover_queue::mover: working for a job"));
    assert!(!bench.exists("far"));
    mover.kill().unwrap();
    end(own);
}

/// Bob has credentials of his own at the broker, and says there whatever he likes.
#[test]
fn tasks_and_calls_that_somebody_else_says_are_refused() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let stage = Strangers::new();
    let bench = &stage.bench;
    bench.sh("head -c 40M /dev/urandom > source/large");
    let mut bob = stage.bob();
    bob.subscribe("dmover.>").unwrap();
    let line = "copy -T source far --bwlimit 2M --mover-wait 2m -v --log-file job.log";
    let (job, ..) = stage.offered(line);
    let mut hear = |beginning: &str| loop {
        let (subject, body) = bob.next_message().unwrap();
        // The first bytes of what has a code.
        if subject.starts_with(beginning) && (body[0] == 3 || beginning == "dmover.task") {
            return (subject, body);
        }
    };
    // Another task under the number of one, in its place.
    let (subject, task) = hear("dmover.task");
    let words: Vec<&str> = subject.split('.').collect();
    let stream = format!("$JS.API.STREAM.PURGE.DMOVER_TASKS_{}_{}", words[2], words[3]);
    let purged = stage.bob().request(&stream, b"").unwrap();
    assert!(String::from_utf8_lossy(&purged).contains("\"success\":true"));
    stage.bob().request(&subject, &[&task[..], b"x"].concat()).unwrap();
    let mover = call_mover(bench, &stage.way());
    assert!(mover.wait_for_stderr("refused a task", 1), "{}", mover.stderr_so_far());
    let refused = |what: &str| bench.read("job.log").contains(&format!("refused {what}"));
    eventually("the task to be refused", || refused("a task that no mover"));
    // A call, said again.
    let (subject, call) = hear("dmover.call");
    let mut evil = stage.bob();
    evil.publish(&subject, "nowhere", &call).unwrap();
    eventually("the call to be refused", || refused("a call that no mover"));
    // The end of the run, told to all movers.
    evil.publish(&subject.replace("call", "tell"), "nowhere", b"\0\x01\x01\x01").unwrap();
    let words = "refused a message to all movers";
    assert!(mover.wait_for_stderr(words, 1), "{}", mover.stderr_so_far());
    job.finish().unwrap().expect_code(0);
    bench.assert_same("source", "far");
    mover.kill().unwrap();
}

#[test]
fn a_mover_works_only_where_and_for_what_it_is_allowed_to() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let bench = Bench::new();
    bench.sh(
        "mkdir -p in/source in/far out/source out/far; seq 9 | (cd in/source; xargs touch)
         seq 9 > out/source/f; seq 9 > out/file; ln -s ../out in/link; ln -s ../out/source in/tree",
    );
    let own = broker(&bench, "one", "");
    let words = "--allow-root in --allow-verb copy --allow-verb sum --allow-verb sync";
    let mover = call_mover(&bench, &format!("--broker one/join.json {words}"));
    let lies = "this mover accepts nothing else (--allow-root)";
    for (line, why) in [
        ("copy -T out/source in/new", lies),
        ("copy -T in/source out/new", lies),
        ("copy -T in/source in/../out/new", lies),
        ("copy -T in/source in/link/new", lies),
        ("copy in/source in/link", lies),
        ("copy -T in/tree/ in/new", lies),
        ("copy -T in/link/file in/new", lies),
        ("copy -L -T in/source in/new", "follows symbolic links"),
        ("sync --delete --trash out/trash in/source in/far", lies),
        ("sum out", lies),
        ("verify in/source in/far", "does not run 'verify' jobs"),
    ] {
        let run = bench.dmover(&format!("{line} --mover-wait 2s --broker one/join.json"));
        assert_eq!(run.code(), Some(6), "{line}: {}", run.tell());
        let said = run.stderr.contains("no movers on") && run.stderr.contains(why);
        assert!(said, "{line}: {}", run.tell());
    }
    let names = bench.sh("ls in in/far out/far | tr '\\n' ' '");
    assert_eq!(names, "in: far link source tree  in/far:  out/far: ");
    // Digests of single files as well.
    let run = bench.dmover("sum in/source/1 out/file --mover-wait 1m --broker one/join.json");
    assert!(run.code() != Some(0) && run.stderr.contains("out/file"), "{}", run.tell());
    assert_eq!(run.text().lines().count(), 1, "{}", run.tell());
    let line = "copy -T in/source in/far/copy --mover-wait 1m --broker one/join.json";
    bench.dmover(line).expect_code(0);
    bench.assert_same("in/source", "in/far/copy");
    mover.kill().unwrap();
    let reader = call_mover(&bench, "--broker one/join.json --allow-verb verify");
    let line = "in/source in/far/copy --mover-wait 2s --broker one/join.json";
    bench.dmover(&format!("verify {line}")).expect_code(0);
    let run = bench.dmover(&format!("verify --repair {line}")).expect_code(6);
    assert!(run.stderr.contains("does not run 'repair' jobs"), "{}", run.tell());
    reader.kill().unwrap();
    end(own);
}
