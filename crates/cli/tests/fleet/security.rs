//! Attacks on a fleet: whoever is not trusted gets nothing done, and is named in the log. docs/security.md lists the threats.
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dmover_testkit::cluster::{NatsServer, Piece, needs};
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rustix::process::Signal;

use crate::bench::{Bench, NOBODY, is_root};

/// A broker below `state`, once it answers.
fn broker(bench: &Bench, state: &str, words: &str) -> Running {
    let words = format!("broker --state {state} {words}");
    let broker = bench.dmover.start(words.split_whitespace()).unwrap();
    assert!(broker.wait_for_stderr("answers at ", 1), "{}", broker.stderr_so_far());
    broker
}

/// Ends a broker with its server.
fn end(broker: Running) {
    broker.signal(Signal::TERM);
    broker.finish().unwrap();
}

fn call_mover(bench: &Bench, words: &str) -> Running {
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
    let words = "answers without encryption at the address of the broker";
    assert!(mover.wait_for_stderr(words, 1), "{}", mover.stderr_so_far());
    // Whoever believes the impostor finds no mover there.
    let job = format!("--mover-wait 3s --insecure --broker nats://127.0.0.1:{port}");
    let run = bench.dmover(&format!("copy -T source far {job}")).expect_code(6);
    assert!(run.stderr.contains("there was no mover for"), "{}", run.tell());
    assert!(run.stderr.contains("in clear text (--insecure)"), "{}", run.tell());
    drop(open);
    // One that encrypts, but is not the one.
    let other = broker(&bench, "two", &format!("--port {port}"));
    let words = "another certificate than the broker's";
    assert!(mover.wait_for_stderr(words, 1), "{}", mover.stderr_so_far());
    let run = bench.dmover("copy -T source far --mover-wait 3s --broker two/join.json");
    assert!(run.expect_code(6).stderr.contains("there was no mover for"));
    assert!(!bench.exists("far"));
    end(other);
    let again = broker(&bench, "one", "");
    bench.dmover("copy -T source far --mover-wait 1m --broker one/join.json").expect_code(0);
    bench.assert_same("source", "far");
    end(again);
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
    let mut files =
        vec![("readable.json", "others may open it"), ("group.json", "others may open it")];
    if is_root() {
        bench.sh(&format!(
            "cp one/join.json theirs.json; chown {NOBODY} theirs.json; chmod 600 theirs.json"
        ));
        files.push(("theirs.json", "belongs to user 65534, and this is user 0"));
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
    assert!(run.stderr.contains("user.nk' has a secret in it"), "{}", run.tell());
    bench.sh("chmod 600 one/user.nk; chmod 777 one");
    let run = bench.dmover("broker --state one").expect_code(2);
    assert!(run.stderr.contains("others may write to 'one'"), "{}", run.tell());
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
    assert!(run.stderr.contains("lets anybody in"), "{}", run.tell());
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
