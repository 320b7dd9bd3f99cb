//! Outcomes that no mover of a job has said: made by somebody else, or recorded and said again. And movers of somebody who has taken a
//! join file.
use std::collections::HashSet;

use dmover_engine::MoverReport;
use dmover_model::Outcome;
use dmover_testkit::cluster::{NatsClient, Piece, needs};
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;

use crate::bench::{Bench, NOBODY, is_root};
use crate::security::{Strangers, broker, call_mover, end, make_key};

/// A message with a code after its first byte: its mover, meeting, number, code and body.
type Sealed = (u64, u32, u64, [u8; 32], Vec<u8>);
/// What a mover says of a task: mover, task, sequence, report, whether the task has ended, whether it is a piece, whether it is the host's fault.
type ReportItem = (u64, u32, u32, MoverReport, Outcome, bool, bool, bool);

/// The first byte of a message with a code.
const SEALED: u8 = 3;

fn open(bytes: &[u8]) -> Option<Sealed> {
    bytes.strip_prefix(&[SEALED]).map(|rest| postcard::from_bytes(rest).unwrap())
}

fn seal(sealed: &Sealed) -> Vec<u8> {
    postcard::to_extend(sealed, vec![SEALED]).unwrap()
}

/// What would end the first tasks of a run, whatever was said of them already.
fn ends_of_tasks(mover: u64) -> Vec<u8> {
    let end = |(number, sequence)| {
        let said: ReportItem = (
            mover,
            number,
            sequence,
            MoverReport::default(),
            Outcome::default(),
            true,
            false,
            false,
        );
        postcard::to_extend(&said, vec![0]).unwrap()
    };
    let all = (0..64u32).flat_map(|number| (1..=4u32).map(move |sequence| (number, sequence)));
    postcard::to_stdvec(&all.map(end).collect::<Vec<_>>()).unwrap()
}

/// Fails unless a recorded outcome has the form in which outcomes are forged here: otherwise nobody would have to refuse them.
#[track_caller]
fn assert_form(outcomes: &[Vec<u8>]) {
    let mut plain = 0;
    for outcome in outcomes {
        let (mover, _, _, _, bundle) = open(outcome).unwrap();
        for message in postcard::from_bytes::<Vec<Vec<u8>>>(&bundle).unwrap() {
            // Large ones are compressed.
            let Some(message) = message.strip_prefix(&[0]) else { continue };
            let (said, rest) = postcard::take_from_bytes::<ReportItem>(message).unwrap();
            assert_eq!((said.0, rest), (mover, &[][..]));
            plain += 1;
        }
    }
    assert!(plain > 0, "no outcome was recorded");
}

/// Somebody with credentials of his own at the broker, who hears everything.
struct Eve {
    ears: NatsClient,
    mouth: NatsClient,
    said: HashSet<Vec<u8>>,
    outcomes: Vec<Vec<u8>>,
    /// Runs that have ended. The last words of their movers may come later.
    ended: HashSet<String>,
}

impl Eve {
    fn new(stage: &Strangers) -> Self {
        let (mut ears, mouth) = (stage.bob(), stage.bob());
        ears.subscribe("dmover.>").unwrap();
        Self { ears, mouth, said: HashSet::new(), outcomes: Vec::new(), ended: HashSet::new() }
    }

    fn say(&mut self, subject: &str, body: &[u8]) {
        self.said.insert(body.to_vec());
        self.mouth.publish(subject, "nowhere", body).unwrap();
    }

    /// Hears a run until it has ended, and acts on each message with a code that others say: it is given the subject of outcomes.
    fn during(&mut self, job: &mut Running, mut act: impl FnMut(&mut Self, &str, Message)) {
        let mut heard = HashSet::new();
        while !job.has_ended().unwrap() {
            // None within five seconds: it ends.
            let Ok((subject, body)) = self.ears.next_message() else { continue };
            let Some(sealed) = open(&body).filter(|_| !self.said.contains(&body)) else { continue };
            let mut words = subject.splitn(3, '.').skip(1);
            let (kind, run) = (words.next().unwrap(), words.next().unwrap());
            if self.ended.contains(run) {
                continue;
            }
            heard.insert(run.to_owned());
            let outcomes = format!("dmover.outcome.{run}");
            match kind {
                "call" => act(self, &outcomes, Message::Call(sealed)),
                "outcome" => {
                    self.outcomes.push(body.clone());
                    act(self, &outcomes, Message::Outcome(body));
                }
                _ => {}
            }
        }
        self.ended.extend(heard);
    }
}

enum Message {
    Call(Sealed),
    Outcome(Vec<u8>),
}

/// A stage with a tree whose copy takes seconds, in small tasks and in parts of a large file.
fn stage() -> Strangers {
    let stage = Strangers::new();
    stage.bench.sh(
        "for n in $(seq 20); do mkdir source/d$n; head -c 100K /dev/urandom > source/d$n/f; done
         head -c 16M /dev/urandom > source/large",
    );
    stage
}

fn start(stage: &Strangers, place: &str, log: &str) -> Running {
    let line = format!(
        "copy -T source {place} --bwlimit 4M --split-size 2M --lease 3s --progress=never --log-file {log} {}",
        stage.way()
    );
    stage.bench.dmover.start(line.split_whitespace()).unwrap()
}

/// The copy is right by the tools of the system, and the refusal is in the log and was told.
#[track_caller]
fn assert_refused_and_right(bench: &Bench, job: Running, place: &str, log: &str) {
    let run = job.finish().unwrap().expect_code(0);
    bench.sh(&format!(
        "diff -r source {place}; cmp <(cd source; find . -type f | sort | xargs sha256sum) \
         <(cd {place}; find . -type f | sort | xargs sha256sum)"
    ));
    bench.assert_same("source", place);
    let words = "refused an outcome that no mover of this job sent: forged or replayed";
    assert!(bench.read(log).contains(words), "{}", bench.read(log));
    assert_eq!(run.stderr.matches(words).count(), 1, "{}", run.tell());
}

#[test]
fn a_forged_outcome_does_not_end_a_task() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let stage = stage();
    let mut eve = Eve::new(&stage);
    let mover = call_mover(&stage.bench, &stage.way());
    let mut job = start(&stage, "far", "job.log");
    let mut in_the_middle = 0;
    eve.during(&mut job, |eve, outcomes, message| {
        let Message::Call((mover, turn, ..)) = message else { return };
        let ends = ends_of_tasks(mover);
        // Without a code, with none that fits, and with one that fits another outcome of this mover.
        eve.say(outcomes, &ends);
        eve.say(outcomes, &seal(&(mover, turn, 1 << 40, [7; 32], ends.clone())));
        if let Some((_, turn, number, code, _)) = eve.outcomes.last().and_then(|last| open(last)) {
            eve.say(outcomes, &seal(&(mover, turn, number, code, ends)));
        }
        let left = "find far -name '.dmover-*' 2>/dev/null | wc -l";
        in_the_middle += usize::from(stage.bench.sh(left).trim() != "0");
    });
    assert!(in_the_middle > 0, "nothing was forged while the large file was under way");
    assert_form(&eve.outcomes);
    assert_refused_and_right(&stage.bench, job, "far", "job.log");
    mover.kill().unwrap();
}

#[test]
fn a_recorded_outcome_that_is_said_again_does_not_end_a_task() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let stage = stage();
    let bench = &stage.bench;
    let mut eve = Eve::new(&stage);
    let mover = call_mover(bench, &stage.way());
    // In the same run, each at once.
    let mut job = start(&stage, "far", "first.log");
    eve.during(&mut job, |eve, outcomes, message| {
        let Message::Outcome(body) = message else { return };
        eve.say(outcomes, &body);
    });
    assert_form(&eve.outcomes);
    assert_refused_and_right(bench, job, "far", "first.log");
    // In another run of the same job, and in another job.
    bench.sh("rm -r far");
    let recorded = std::mem::take(&mut eve.outcomes);
    for (place, log) in [("far", "second.log"), ("other", "third.log")] {
        let mut job = start(&stage, place, log);
        let mut calls = 0;
        eve.during(&mut job, |eve, outcomes, message| {
            let Message::Call(_) = message else { return };
            calls += 1;
            for outcome in &recorded {
                eve.say(outcomes, outcome);
            }
        });
        assert!(calls > 2, "too few calls to act on");
        assert_refused_and_right(bench, job, place, log);
    }
    mover.kill().unwrap();
}

#[test]
fn the_mover_of_somebody_who_has_taken_a_join_file_gets_no_task() {
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
    let thief = Bench::new().unprivileged();
    thief.write("join.json", bench.read("one/join.json"));
    thief.sh(&format!("chmod 600 join.json; chown {NOBODY} join.json"));
    let theirs = call_mover(&thief, "--broker join.json");
    let line = "copy -T source far --mover-wait 2s --broker one/join.json";
    let run = bench.dmover(line).expect_code(6);
    assert!(run.stderr.contains("no mover connected to"), "{}", run.tell());
    let said = theirs.stderr_so_far();
    assert!(said.contains("of another user") || said.contains("user 0"), "{said}");
    assert!(!said.contains(" dmover_queue::mover: working for a job"), "{said}");
    assert!(!bench.exists("far"));
    // It does not get the tasks of others either.
    let mover = call_mover(&bench, "--broker one/join.json");
    let line = "copy -T source far --mover-wait 1m --broker one/join.json";
    bench.dmover(line).expect_code(0);
    bench.assert_same("source", "far");
    let said = theirs.stderr_so_far();
    assert!(!said.contains(" dmover_queue::mover: working for a job"), "{said}");
    for running in [mover, theirs] {
        running.kill().unwrap();
    }
    end(own);
}
