//! A fleet in simulated time: the real coordinator and the real table of leases, with a broker and movers that are numbers.
use dmover_model::{ByteRange, Outcome, Task, TaskClass, TaskId, TaskKind};
use dmover_plan::chunk;
use dmover_plan::coordinator::{Command, Coordinator, Input, LinkSupply, Shelved, TaskCounts};
use dmover_plan::leases::{Claim, Leases, MoverId};
use rand::Rng;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::tree::{self, Ask, TreeSize};

mod movers;
mod reports;
mod timeline;
use movers::SimulatedMovers;
use reports::{SentReport, SentReports};
use timeline::{MS, Timeline};

/// The coordinator takes back what ran out, and looks whether the broker has what it should.
const LOOK_US: u64 = 500 * MS;
/// What was offered and is in no stream after so long is published again.
const OFFER_AGAIN_MS: u64 = 3000;
/// What is not acknowledged is sent again.
const SEND_AGAIN_US: u64 = 250 * MS;
/// Idle movers are noticed by the others after so long.
const SHARE_US: u64 = 20 * MS;
/// A mover that died is away for this long.
const AWAY_S: u64 = 60;
/// A chunk with less left is not cut.
const CUT_AT_LEAST: u64 = 16 << 20;
/// Entries that are worth handing on.
const ENTRIES_AT_LEAST: u64 = 64;

/// A fleet, what it does, and what goes wrong.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// The tree.
    pub tree: TreeSize,
    /// Processes with movers.
    pub movers: usize,
    /// Tasks that each can have in hand.
    pub places: usize,
    /// Entries that one task ends in a second, and bytes that it moves.
    pub entries_per_s: u64,
    /// See `entries_per_s`.
    pub bytes_per_s: u64,
    /// How long a lease holds without a word.
    pub lease_ms: u64,
    /// A message takes so long at most.
    pub latency_us: u64,
    /// One in so many messages is lost, or arrives twice; 0: none.
    pub lost_in: u32,
    /// One in so many movers does a tenth; 0: none.
    pub slow_in: u32,
    /// So many times a mover dies, and comes back a minute later.
    pub crashes: u32,
    /// So many times a mover is silent for two leases, and goes on as if nothing were.
    pub silences: u32,
    /// So many times the broker forgets everything.
    pub wipes: u32,
}

/// How it went.
#[derive(Debug, Clone, Default)]
pub struct Result {
    /// Simulated seconds that it took, and that it would have taken if no mover had ever waited.
    pub makespan_s: f64,
    /// See `makespan_s`.
    pub ideal_s: f64,
    /// Tasks that were ended.
    pub tasks: u64,
    /// Leases that ran out.
    pub expired: u64,
    /// Messages of all kinds.
    pub messages: u64,
    /// Time that coordinator and table of leases took on a real processor.
    pub deciding: Duration,
    /// Most tasks that were out or on the shelf at a time.
    pub pending_max: u64,
    /// Entries and large files that were ended, each once.
    pub entries: u64,
    /// See `entries`.
    pub large: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A number is in the stream.
    Arrives(u32),
    /// A mover claims it.
    Claims(u32, usize),
    /// A task ends; the second number says whether it was cut since.
    Ends(u32, u32),
    /// What was said of a task is heard.
    Heard(u32, MoverId, u64),
    /// A mover says that it is there.
    Renews(usize, MoverId),
    Looks,
    Shares,
    Crashes(usize),
    Returns(usize),
    Silent(usize),
    Wiped,
}

/// A task at work.
#[derive(Debug)]
struct Running {
    task: Task,
    mover: usize,
    id: MoverId,
    begun_us: u64,
    version: u32,
    /// Entries or bytes that it does before it ends, and what it leaves.
    does: u64,
    leaves: u64,
    large: u64,
    per_s: u64,
}

/// A fleet with its coordinator and its broker.
struct World {
    /// What is simulated.
    scenario: Scenario,
    /// Everything that happens by chance.
    random: ChaCha8Rng,
    /// What happens next.
    timeline: Timeline<Event>,
    /// The coordinator under test.
    coordinator: Coordinator,
    /// Which mover has which task.
    leases: Leases<Task>,
    /// Tasks that wait for the coordinator: small ones, and those of large files.
    shelf: [Vec<Shelved>; 2],
    /// Numbers of tasks that wait at the broker.
    stream: VecDeque<u32>,
    /// The movers, and their places that wait.
    movers: SimulatedMovers,
    /// Tasks that movers run, by the numbers of their leases.
    running: HashMap<u32, Running>,
    /// Reports on their way.
    reports: SentReports,
    /// [`Event::Shares`] follows.
    shares: bool,
    /// The coordinator has ended the job.
    finished: bool,
    /// What was measured so far.
    result: Result,
}

/// Runs a scenario to its end. The same seed gives the same run.
pub fn simulate(scenario: Scenario, seed: u64) -> Result {
    let places = scenario.movers * scenario.places;
    let mut coordinator = Coordinator::new(places * 4, tree::BUDGET).remembering();
    coordinator.widen(places);
    let mut world = World {
        scenario,
        random: ChaCha8Rng::seed_from_u64(seed),
        timeline: Timeline::new(),
        coordinator,
        leases: Leases::new(scenario.lease_ms + scenario.lease_ms / 10),
        shelf: [Vec::new(), Vec::new()],
        stream: VecDeque::new(),
        movers: SimulatedMovers::new(scenario.places),
        running: HashMap::new(),
        reports: SentReports::default(),
        shares: false,
        finished: false,
        result: Result::default(),
    };
    world.begin();
    while !world.finished {
        let Some(event) = world.timeline.next() else { break };
        world.happens(event);
    }
    world.end()
}

impl World {
    /// How long a message takes; sometimes it has to be sent again.
    fn travel(&mut self) -> u64 {
        self.result.messages += 1;
        let once =
            self.random.random_range(self.scenario.latency_us / 4..=self.scenario.latency_us);
        if self.is_one_in(self.scenario.lost_in) { once + SEND_AGAIN_US } else { once }
    }

    fn is_one_in(&mut self, many: u32) -> bool {
        many > 0 && self.random.random_range(0..many) == 0
    }

    fn begin(&mut self) {
        for index in 0..self.scenario.movers {
            let is_slow = self.is_one_in(self.scenario.slow_in);
            let tenths = if is_slow { 1 } else { 10 };
            let id = self.movers.add(tenths);
            let begin = self.random.random_range(0..2_000_000);
            self.timeline.after(begin, Event::Renews(index, id));
        }
        let about_us = (self.ideal_s() * 1e6) as u64;
        let crashes =
            (0..self.scenario.crashes).map(|_| 0).chain((0..self.scenario.silences).map(|_| 1));
        for kind in crashes.collect::<Vec<_>>() {
            let mover = self.random.random_range(0..self.scenario.movers);
            let at = self.random.random_range(0..about_us.max(1));
            self.timeline
                .after(at, if kind == 0 { Event::Crashes(mover) } else { Event::Silent(mover) });
        }
        for _ in 0..self.scenario.wipes {
            let at = self.random.random_range(0..about_us.max(1));
            self.timeline.after(at, Event::Wiped);
        }
        self.timeline.after(LOOK_US, Event::Looks);
        let TreeSize { files, large: (large, _) } = self.scenario.tree;
        self.decide(Input::Start { tasks: vec![tree::scan(files, large)], more: false });
    }

    /// Seconds that the fleet needs if nobody ever waits.
    fn ideal_s(&self) -> f64 {
        let Scenario { tree, entries_per_s, bytes_per_s, .. } = self.scenario;
        let bytes = tree.large.0 as f64 * tree.large.1 as f64;
        let seconds = tree.files as f64 / entries_per_s as f64 + bytes / bytes_per_s as f64;
        self.movers.ideal_s(seconds)
    }

    fn end(mut self) -> Result {
        self.result.makespan_s = self.timeline.now_us() as f64 / 1e6;
        self.result.ideal_s = self.ideal_s();
        self.result
    }

    /// Gives something to the coordinator and does what it says.
    fn decide(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let begun = Instant::now();
            let commands = self.coordinator.handle(input);
            self.result.deciding += begun.elapsed();
            for command in commands {
                match command {
                    Command::Publish(task) => {
                        let begun = Instant::now();
                        let number =
                            self.leases.offer(TaskClass::of(&task), task, self.timeline.now_ms());
                        self.result.deciding += begun.elapsed();
                        let travel = self.travel();
                        self.timeline.after(travel, Event::Arrives(number));
                    }
                    Command::Shelve(tasks) => {
                        for task in tasks {
                            self.shelf[usize::from(task.task.kind.is_large())].push(task);
                        }
                    }
                    Command::Unshelve(TaskCounts { large, small }) => {
                        let mut back = Vec::new();
                        for (shelf, most) in self.shelf.iter_mut().zip([small, large]) {
                            back.extend(shelf.drain(shelf.len().saturating_sub(most)..).rev());
                        }
                        inputs.push_back(Input::Unshelved(back));
                    }
                    Command::FetchLinks => {
                        let none = LinkSupply { exhausted: true, ..LinkSupply::default() };
                        inputs.push_back(Input::Links(none));
                    }
                    Command::FetchDirty => inputs.push_back(Input::Dirty(Vec::new())),
                    Command::FetchExtra => inputs.push_back(Input::Extra(Vec::new())),
                    Command::Finished => self.finished = true,
                    _ => {}
                }
            }
        }
        self.result.pending_max = self.result.pending_max.max(self.coordinator.pending());
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrives(number) => {
                self.stream.push_back(number);
                self.hand_out();
            }
            Event::Claims(number, mover) => self.claims(number, mover),
            Event::Ends(number, version) => self.ends(number, version),
            Event::Heard(number, mover, say) => self.hears(number, mover, say),
            Event::Renews(mover, id) => self.renews(mover, id),
            Event::Looks => self.looks(),
            Event::Shares => self.share(),
            Event::Crashes(mover) => self.crashes(mover),
            Event::Returns(mover) => {
                let id = self.movers.revive(mover);
                self.timeline.after(MS, Event::Renews(mover, id));
                self.hand_out();
            }
            Event::Silent(mover) => {
                let until = self.timeline.now_us() + 2 * self.scenario.lease_ms * MS;
                self.movers.silence(mover, until);
            }
            Event::Wiped => self.stream.clear(),
        }
    }

    /// The broker hands tasks to movers that wait.
    fn hand_out(&mut self) {
        while !self.stream.is_empty() {
            let Some(mover) = self.movers.take_idle() else { return };
            let Some(number) = self.stream.pop_front() else { return };
            let travel = self.travel() + self.travel();
            self.timeline.after(travel, Event::Claims(number, mover));
        }
        self.wants_shares();
    }

    /// Movers wait, and nothing is there for them.
    fn wants_shares(&mut self) {
        if !self.shares
            && self.movers.idle() > 0
            && self.leases.offered() == 0
            && !self.running.is_empty()
        {
            self.shares = true;
            self.timeline.after(SHARE_US, Event::Shares);
        }
    }

    fn is_free(&mut self, mover: usize) {
        self.movers.wait(mover);
        self.hand_out();
    }

    fn claims(&mut self, number: u32, mover: usize) {
        let (id, alive, tenths) = {
            let mover = self.movers.get(mover);
            (mover.id, mover.alive, mover.tenths)
        };
        if !alive {
            return;
        }
        let begun = Instant::now();
        let claim = self.leases.claim(number, id, self.timeline.now_ms());
        let task = self.leases.get(number).cloned();
        self.result.deciding += begun.elapsed();
        let Some(task) = task.filter(|_| claim == Claim::Granted) else {
            return self.is_free(mover);
        };
        let Scenario { entries_per_s, bytes_per_s, .. } = self.scenario;
        let (entries_per_s, bytes_per_s) =
            ((entries_per_s * tenths / 10).max(1), (bytes_per_s * tenths / 10).max(1));
        let budget = task.budget;
        let (does, leaves, large, per_s) = match tree::ask(&task) {
            Ask::Entries(entries, large) => {
                let in_time = (entries_per_s * budget.time_ms / 1000).max(1);
                let does = entries.min(budget.entries).min(in_time);
                (does, entries - does, large, entries_per_s)
            }
            Ask::Bytes(range) => (range.len(), 0, 0, bytes_per_s),
            Ask::Open | Ask::End => (1, 0, 0, entries_per_s),
        };
        let begun_us = self.timeline.now_us();
        let running = Running { task, mover, id, begun_us, version: 0, does, leaves, large, per_s };
        self.running.insert(number, running);
        self.timeline.after(does * 1_000_000 / per_s, Event::Ends(number, 0));
    }

    /// A mover says something of a task, sometimes twice.
    fn says(&mut self, number: u32, id: MoverId, report: SentReport) {
        let say = self.reports.send(report);
        let travel = self.travel();
        self.timeline.after(travel, Event::Heard(number, id, say));
        if self.is_one_in(self.scenario.lost_in) {
            let again = travel + self.travel();
            self.timeline.after(again, Event::Heard(number, id, say));
        }
    }

    fn ends(&mut self, number: u32, version: u32) {
        let is_current = self.running.get(&number).is_some_and(|r| r.version == version);
        if !is_current {
            return;
        }
        let Some(running) = self.running.remove(&number) else { return };
        let silent = self.movers.get(running.mover).silent_until_us;
        if self.timeline.now_us() < silent {
            // It is stopped: it ends when it goes on, and by then it has lost the task.
            let wait = silent - self.timeline.now_us();
            self.running.insert(number, running);
            return self.timeline.after(wait, Event::Ends(number, version));
        }
        let Running { task, mover, id, does, leaves, large, .. } = running;
        let (entries, bytes, outcome) = match tree::ask(&task) {
            Ask::Entries(all, _) => {
                // Large files are found evenly.
                let part = (large * does).checked_div(all);
                let found = part.filter(|_| leaves > 0).unwrap_or(large);
                (does, 0, tree::rest_of_tree(leaves, large - found, found))
            }
            Ask::Open => {
                let size = self.scenario.tree.large.1;
                (0, 0, tree::opened(&task, size))
            }
            Ask::Bytes(range) => {
                let covered = Some(ByteRange { start: range.start, end: range.start + does });
                (0, does, Outcome { covered, ..Outcome::default() })
            }
            Ask::End => (0, 0, tree::sealed(&task)),
        };
        let outcome = Outcome { work: tree::work(entries, bytes), ..outcome };
        let file = u64::from(tree::ends_file(&task));
        self.says(number, id, SentReport { ended: true, outcome, done: (entries, file) });
        self.is_free(mover);
    }

    fn hears(&mut self, number: u32, mover: MoverId, say: u64) {
        if !self.leases.holds(number, mover) {
            return;
        }
        let Some(SentReport { ended, outcome, done: (entries, files) }) = self.reports.receive(say)
        else {
            return;
        };
        let Some(id) = self.leases.get(number).map(|task| task.id) else { return };
        if ended {
            let begun = Instant::now();
            self.leases.end(number);
            self.result.deciding += begun.elapsed();
            self.result.tasks += 1;
            self.result.entries += entries;
            self.result.large += files;
            self.decide(Input::Done(id, outcome));
        } else {
            self.report(id, outcome);
        }
        self.wants_shares();
    }

    fn report(&mut self, id: TaskId, outcome: Outcome) {
        self.decide(Input::Report(id, outcome));
    }

    fn renews(&mut self, mover: usize, id: MoverId) {
        let known = self.movers.get(mover);
        if known.id != id || !known.alive {
            return;
        }
        if self.timeline.now_us() >= known.silent_until_us {
            let held = self.leases.held_by(id).to_vec();
            self.result.messages += 2;
            let begun = Instant::now();
            // What is lost shows when it is looked for.
            self.leases.renew(id, &held, self.timeline.now_ms());
            self.result.deciding += begun.elapsed();
        }
        self.timeline.after(2_000 * MS, Event::Renews(mover, id));
    }

    fn looks(&mut self) {
        let begun = Instant::now();
        let expired = self.leases.expired(self.timeline.now_ms());
        self.result.deciding += begun.elapsed();
        for (number, _, mut task) in expired {
            self.result.expired += 1;
            task.lost.push(number);
            self.decide(Input::Expired(task));
        }
        if self.stream.is_empty() {
            let before = self.timeline.now_ms().saturating_sub(OFFER_AGAIN_MS);
            let again: Vec<u32> = self.leases.unclaimed(before).collect();
            for number in again {
                let travel = self.travel();
                self.timeline.after(travel, Event::Arrives(number));
            }
        }
        self.timeline.after(LOOK_US, Event::Looks);
    }

    fn crashes(&mut self, mover: usize) {
        if !self.movers.get(mover).alive {
            return;
        }
        self.movers.crash(mover, AWAY_S as f64);
        self.running.retain(|_, running| running.mover != mover);
        self.timeline.after(AWAY_S * 1000 * MS, Event::Returns(mover));
    }

    /// Whoever has most left gives half of it to those who wait.
    fn share(&mut self) {
        self.shares = false;
        if self.movers.idle() == 0 || self.leases.offered() > 0 {
            return;
        }
        let now = self.timeline.now_us();
        let left = |running: &Running| {
            let done = (now - running.begun_us) * running.per_s / 1_000_000;
            running.does.saturating_sub(done)
        };
        let mut all: Vec<(u64, u32)> = self
            .running
            .iter()
            .filter(|(_, running)| now >= self.movers.get(running.mover).silent_until_us)
            .map(|(number, running)| {
                let whole = left(running) + running.leaves;
                ((whole as f64 / running.per_s as f64 * 1e6) as u64, *number)
            })
            .collect();
        all.sort_unstable_by_key(|known| Reverse(*known));
        all.truncate(self.movers.idle());
        for (_, number) in all {
            self.cut(number);
        }
        self.wants_shares();
    }

    fn cut(&mut self, number: u32) {
        let now = self.timeline.now_us();
        let Some(running) = self.running.get_mut(&number) else { return };
        let done = ((now - running.begun_us) * running.per_s / 1_000_000).min(running.does);
        let left = running.does - done;
        let id = running.id;
        let outcome = match &running.task.kind {
            TaskKind::Chunk(piece) => {
                let at = piece.range.start + done;
                let range = ByteRange { start: at, end: at + left };
                let Some(rest) = chunk::half(range, CUT_AT_LEAST / 2) else { return };
                running.does -= rest.len();
                Outcome {
                    tasks: vec![tree::rest_of_chunk(&running.task, rest)],
                    ..Outcome::default()
                }
            }
            TaskKind::Scan { .. } if left + running.leaves >= 2 * ENTRIES_AT_LEAST => {
                // What would be handed on later goes first, and then half of what is under way.
                let given = if running.leaves > 0 {
                    std::mem::take(&mut running.leaves)
                } else {
                    running.does -= left / 2;
                    left / 2
                };
                let large = running.large / 2;
                running.large -= large;
                tree::rest_of_tree(given, large, 0)
            }
            _ => return,
        };
        running.version += 1;
        let (version, end) = (running.version, running.does * 1_000_000 / running.per_s);
        let wait = (running.begun_us + end).saturating_sub(now);
        self.timeline.after(wait, Event::Ends(number, version));
        self.says(number, id, SentReport { ended: false, outcome, done: (0, 0) });
    }
}
