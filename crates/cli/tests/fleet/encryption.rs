//! Connections to a broker are encrypted unless somebody asks for less, and nobody else is taken for it.
use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rustix::process::Signal;

use crate::bench::Bench;

/// A broker below `state`, once it answers.
fn broker(bench: &Bench, state: &str, words: &str) -> Running {
    let words = format!("broker --state {state} {words}");
    let broker = bench.dmover.start(words.split_whitespace()).unwrap();
    assert!(
        broker.wait_for_stderr("the broker listens at tls://", 1),
        "{}",
        broker.stderr_so_far()
    );
    broker
}

/// Ends a broker with its server.
fn end(broker: Running) {
    broker.signal(Signal::TERM);
    broker.finish().unwrap();
}

/// What a server of NATS says before anything is encrypted.
fn greeting(bench: &Bench, state: &str) -> String {
    let join: serde_json::Value =
        serde_json::from_str(&bench.read(&format!("{state}/join.json"))).unwrap();
    let address = join["url"].as_str().unwrap().strip_prefix("tls://").unwrap().to_owned();
    let mut line = String::new();
    BufReader::new(TcpStream::connect(address).unwrap()).read_line(&mut line).unwrap();
    line
}

fn copies(bench: &Bench, join: &str, to: &str) {
    let mover = bench.dmover.start(["mover", "--broker", join]).unwrap();
    bench.dmover(&format!("copy -T source {to} --mover-wait 1m --broker {join}")).expect_code(0);
    bench.assert_same("source", to);
    mover.kill().unwrap();
}

#[test]
fn a_broker_makes_a_certificate_and_only_who_shows_it_is_taken_for_the_broker() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let bench = Bench::new();
    bench.sh("mkdir source; seq 9 > source/f");
    let first = broker(&bench, "one", "");
    assert!(
        greeting(&bench, "one").contains("\"tls_required\":true"),
        "{}",
        greeting(&bench, "one")
    );
    assert_eq!(bench.sh("stat -c %a one/tls-key.pem one/join.json one").trim(), "600\n600\n700");
    copies(&bench, "one/join.json", "far");
    // From anywhere, on any host: the file has all that is needed.
    bench
        .sh("umask 077; mkdir sub; mv one/join.json sub/copy.json; cp sub/copy.json one/join.json");
    copies(&bench, "sub/copy.json", "far2");
    let plain = greeting(&bench, "one");
    assert!(!plain.is_empty());
    let join: serde_json::Value = serde_json::from_str(&bench.read("one/join.json")).unwrap();
    let url = join["url"].as_str().unwrap();
    for wrong in [url.to_owned(), format!("{} --insecure", url.replace("tls://", "nats://"))] {
        let run = bench.dmover(&format!("copy source none --broker {wrong}")).expect_code(2);
        assert!(run.stderr.contains("certificate that is not trusted"), "{}", run.tell());
    }
    // Somebody else listens there, with a certificate of his own.
    end(first);
    let other = broker(&bench, "two", &format!("--port {}", url.rsplit_once(':').unwrap().1));
    let run = bench.dmover("copy source none --broker one/join.json").expect_code(2);
    assert!(run.stderr.contains("certificate that is not trusted"), "{}", run.tell());
    assert!(!bench.exists("none"));
    end(other);
    // Its own certificate stays the same over a restart.
    let again = broker(&bench, "one", "");
    copies(&bench, "sub/copy.json", "far3");
    end(again);
}

#[test]
fn certificates_of_a_site_will_do_signed_by_themselves_or_by_another() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let bench = Bench::new();
    bench.sh("mkdir source; seq 9 > source/f");
    bench.sh(
        "new='openssl req -x509 -newkey ed25519 -nodes -days 2'
         $new -keyout self.key -out self.pem -subj /CN=self 2> errors
         $new -keyout ca.key -out ca.pem -subj /CN=ca 2>> errors
         echo subjectAltName=IP:127.0.0.1 > names
         openssl req -newkey ed25519 -nodes -keyout leaf.key -subj /CN=leaf -out leaf.csr 2>> errors
         openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -days 2 -extfile names -out leaf.pem 2>> errors
         cat leaf.pem ca.pem > chain.pem",
    );
    let own = broker(&bench, "one", "--tls-certificate self.pem --tls-key self.key");
    copies(&bench, "one/join.json", "far");
    end(own);
    let signed = broker(&bench, "two", "--tls-certificate chain.pem --tls-key leaf.key");
    copies(&bench, "two/join.json", "far2");
    // The signer alone is enough.
    bench.sh(r#"umask 077; python3 - <<'E'
import json
join = json.load(open("two/join.json"))
join["certificates"] = open("ca.pem").read()
json.dump(join, open("signer.json", "w"))
E"#);
    copies(&bench, "signer.json", "far3");
    end(signed);
    for (wrong, words) in [
        ("--tls-certificate self.key --tls-key self.key", "self.key"),
        ("--tls-certificate self.pem --tls-key nowhere", "nowhere"),
        ("--tls-certificate self.pem", "--tls-key"),
        ("--insecure --tls-certificate self.pem --tls-key self.key", "--insecure"),
    ] {
        let run = bench.dmover(&format!("broker --state three {wrong}")).expect_code(2);
        assert!(run.stderr.contains(words), "{}", run.tell());
    }
}
