//! The mover processes of a job, as its coordinator knows them.
use dmover_engine::queue::Class;
use dmover_model::Limit;
use dmover_observe::{CLASSES, MoverView};
use dmover_plan::leases::MoverId;
use dmover_plan::scaling::Scaling;
use dmover_plan::stragglers::Stragglers;
use dmover_wire::{Load, MoverInfo};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The shortest period for rates, in milliseconds.
const STRETCH_MS: u64 = 1000;
/// A mover that works sends messages more often than this.
const SILENT_MS: u64 = 5000;
/// How often the total rate is checked.
const TOGETHER_MS: u64 = 2000;

/// A mover process that has joined.
struct Member {
    info: MoverInfo,
    /// See `MoverView::slot`.
    slot: u32,
    load: Load,
    heard_ms: u64,
    /// Since when the broker has not accepted its messages.
    troubled_ms: Option<u64>,
    /// Its threads wait for work of these classes.
    waits: [bool; CLASSES],
    /// The time of the last rate, the work done by then, and the rate.
    rated: (u64, u64, u64),
    rates: (f64, f64),
}

/// All mover processes.
#[derive(Default)]
pub(crate) struct Members {
    all: HashMap<MoverId, Member>,
    stragglers: Stragglers,
    scaling: Scaling,
    looked_ms: u64,
    /// Work of movers that have left.
    left: u64,
    /// Movers that were reported as slow.
    slow: HashSet<MoverId>,
}

fn work(load: &Load) -> u64 {
    load.done.work.iter().sum()
}

impl Members {
    /// For a job with or without limits on its rates.
    pub fn of_job(has_limits: bool) -> Self {
        Self { stragglers: Stragglers::of_job(has_limits), ..Self::default() }
    }

    pub fn has(&self, mover: MoverId) -> bool {
        self.all.contains_key(&mover)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The ids of all movers.
    pub fn ids(&self) -> Vec<MoverId> {
        self.all.keys().copied().collect()
    }

    pub fn describe(&self, mover: MoverId) -> Option<String> {
        self.all.get(&mover).map(|member| member.info.describe())
    }

    /// Adds a mover, or updates one that joins again.
    pub fn welcome(&mut self, info: MoverInfo, now_ms: u64) {
        let load = Load { places: info.cores.max(1), ..Load::default() };
        let id = info.id;
        let others = self
            .all
            .iter()
            .filter(|(other, member)| **other != id && member.info.host == info.host);
        let taken: HashSet<u32> = others.map(|(_, member)| member.slot).collect();
        let known = self.all.get(&id).map(|member| member.slot);
        let slot = known.unwrap_or_else(|| free_slot(&taken));
        let member = Member {
            info,
            slot,
            load,
            heard_ms: now_ms,
            troubled_ms: None,
            waits: [true; CLASSES],
            rated: (now_ms, 0, 0),
            rates: (0.0, 0.0),
        };
        self.all.insert(id, member);
    }

    /// Removes a mover that has left or counts as dead. Returns its name.
    pub fn remove(&mut self, mover: MoverId) -> Option<String> {
        self.stragglers.forget(mover);
        self.slow.remove(&mover);
        let member = self.all.remove(&mover)?;
        self.left += work(&member.load);
        Some(member.info.describe())
    }

    /// Removes movers without a message for this long. Returns their names.
    pub fn remove_silent(&mut self, now_ms: u64, silence_ms: u64) -> Vec<String> {
        let silent = self.all.iter().filter(|(_, member)| now_ms >= member.heard_ms + silence_ms);
        let silent: Vec<MoverId> = silent.map(|(id, _)| *id).collect();
        silent.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Records for which classes of work threads of a mover wait.
    pub fn waits(&mut self, mover: MoverId, waits: [bool; CLASSES]) {
        if let Some(member) = self.all.get_mut(&mover) {
            member.waits = waits;
        }
    }

    /// Whether any mover waits for work of a class.
    pub fn anybody_waits(&self, class: Class) -> bool {
        self.all.values().any(|member| member.waits[class as usize])
    }

    /// Records a message of a mover. `None`: the mover is not known. Otherwise returns what is new and worth reporting.
    pub fn heard(&mut self, mover: MoverId, load: Load, now_ms: u64) -> Option<Vec<String>> {
        let member = self.all.get_mut(&mover)?;
        let (then, bytes, entries) = member.rated;
        if now_ms >= then + STRETCH_MS {
            let seconds = (now_ms - then) as f64 / 1000.0;
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
            member.rates = (rate(load.bytes, bytes), rate(load.entries, entries));
            member.rated = (now_ms, load.bytes, load.entries);
        }
        self.stragglers.tell(mover, load.done, now_ms);
        (member.heard_ms, member.load) = (now_ms, load);
        let name = member.info.describe();
        let slow = self.stragglers.slow(mover);
        let news = match &slow {
            Some(slow) if self.slow.insert(mover) => Some(format!("{name} is {}", slow.words())),
            None if self.slow.remove(&mover) => {
                Some(format!("{name} is as fast as the other movers now"))
            }
            _ => None,
        };
        Some(news.into_iter().collect())
    }

    /// Whether a mover is much slower than the others.
    pub fn is_slow(&self, mover: MoverId) -> bool {
        self.slow.contains(&mover)
    }

    /// Checks the total rate. Returns what is worth reporting.
    pub fn look(&mut self, now_ms: u64) -> Option<String> {
        if now_ms < self.looked_ms + TOGETHER_MS {
            return None;
        }
        self.looked_ms = now_ms;
        // Most jobs have work of one class only: a mover that works on that class does not wait.
        let waits = |member: &&Member| member.waits.iter().all(|waits| *waits);
        let waiting = self.all.values().filter(waits).count();
        let done = self.left + self.all.values().map(|member| work(&member.load)).sum::<u64>();
        let count = self.all.len();
        let plateau = self.scaling.tell(count, done, waiting * 4 > count, now_ms)?;
        let limit = self.limit().map_or("unknown", |limit| limit.what.word());
        Some(plateau.words(limit))
    }

    /// The tasks that all movers can have in progress together.
    pub fn places(&self) -> usize {
        self.all.values().map(|member| member.load.places as usize).sum::<usize>().max(1)
    }

    /// The limit of most movers.
    pub fn limit(&self) -> Option<Limit> {
        let limits = self.all.values().filter_map(|member| member.load.limit.as_ref());
        let mut votes: HashMap<&str, (usize, &Limit)> = HashMap::new();
        for limit in limits {
            votes.entry(limit.what.word()).or_insert((0, limit)).0 += 1;
        }
        let most = votes.into_iter().max_by_key(|(word, (votes, _))| (*votes, *word));
        most.map(|(_, (_, limit))| limit.clone())
    }

    /// Why the broker has not accepted the messages of a mover for this long.
    pub fn lasting_trouble(&mut self, now_ms: u64, lasting: Duration) -> Option<String> {
        let lasting = lasting.as_millis() as u64;
        self.all.values_mut().find_map(|member| {
            let trouble = member.load.trouble.clone();
            member.troubled_ms = trouble.as_ref().map(|_| member.troubled_ms.unwrap_or(now_ms));
            trouble.filter(|_| member.troubled_ms.is_some_and(|since| now_ms > since + lasting))
        })
    }

    /// All movers for displays, sorted by name. `held`: the number of tasks of a mover; `is_left_out`: whether it gets
    /// no tasks.
    pub fn views(
        &self,
        now: u64,
        held: impl Fn(MoverId) -> u64,
        is_left_out: impl Fn(MoverId) -> bool,
    ) -> Vec<MoverView> {
        // Of whom nothing is heard is not known to do anything.
        let rates = |member: &Member| {
            let is_silent = now.saturating_sub(member.heard_ms) > SILENT_MS;
            if is_silent { (0.0, 0.0) } else { member.rates }
        };
        let view = |(id, member): (&MoverId, &Member)| MoverView {
            host: member.info.host.clone(),
            pid: member.info.pid,
            slot: member.slot,
            labels: member.info.labels.clone(),
            version: member.info.version.clone(),
            cores: member.info.cores,
            memory_bytes: member.info.memory_bytes,
            mounts: member.info.mounts.clone(),
            nics: member.load.nics.clone(),
            left_out: is_left_out(*id),
            tasks: held(*id),
            bytes: member.load.bytes,
            entries: member.load.entries,
            bytes_per_s: rates(member).0,
            entries_per_s: rates(member).1,
            silent_s: now.saturating_sub(member.heard_ms) as f64 / 1000.0,
            limit: member.load.limit.as_ref().map(|limit| limit.what.word().to_owned()),
            slow: self.stragglers.slow(*id).map(|slow| slow.words()),
        };
        let mut all: Vec<MoverView> = self.all.iter().map(view).collect();
        all.sort_by(|one, other| (&one.host, one.pid).cmp(&(&other.host, other.pid)));
        all
    }
}

/// The lowest number that no other mover of the host has.
fn free_slot(taken: &HashSet<u32>) -> u32 {
    let most = taken.len() as u32 + 1;
    (1..=most).find(|slot| !taken.contains(slot)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_plan::stragglers::Done;

    fn info(id: MoverId) -> MoverInfo {
        MoverInfo {
            id,
            protocol: dmover_wire::PROTOCOL,
            version: String::new(),
            host: format!("host{id}"),
            pid: 7,
            cores: 2,
            memory_bytes: 0,
            labels: Vec::new(),
            mounts: Vec::new(),
        }
    }

    fn load(second: u64, bytes_per_s: u64) -> Load {
        let bytes = second * bytes_per_s;
        let done = Done { work: [0, bytes], busy: [0, 200 * second], ..Done::default() };
        Load { done, bytes, places: 4, ..Load::default() }
    }

    #[test]
    fn rates_are_told_and_the_slow_one_once() {
        let mut members = Members::default();
        (0..4).for_each(|id| members.welcome(info(id), 0));
        let mut news = Vec::new();
        for second in 1..9 {
            for id in 0..4 {
                let rate = if id == 2 { 10 << 20 } else { 200 << 20 };
                let said = members.heard(id, load(second, rate), second * 1000);
                news.extend(said.unwrap());
            }
        }
        assert_eq!(news.len(), 1, "{news:?}");
        assert!(news[0].starts_with("host2 (process 7) is 20.0 times slower"), "{news:?}");
        let views = members.views(8_500, |id| id, |id| id == 1);
        assert_eq!(
            views.iter().map(|v| v.host.as_str()).collect::<Vec<_>>(),
            ["host0", "host1", "host2", "host3"]
        );
        assert!(views[1].left_out && !views[0].left_out);
        assert!((views[0].bytes_per_s - f64::from(200 << 20)).abs() < 1.0);
        assert!(views[2].slow.is_some() && views[3].slow.is_none() && views[3].tasks == 3);
        assert!(
            members.views(60_000, |id| id, |_| false).iter().all(|view| view.bytes_per_s < 1.0)
        );
        assert_eq!(members.places(), 16);
        assert!(members.heard(9, Load::default(), 0).is_none(), "a stranger");
    }

    #[test]
    fn the_next_mover_of_a_host_has_the_name_of_the_one_before() {
        let mut members = Members::default();
        let named = |id: MoverId, pid| MoverInfo { host: "dtn1".into(), pid, ..info(id) };
        let places = |members: &Members| {
            let views = members.views(0, |_| 0, |_| false);
            views.iter().map(|view| (view.pid, view.place())).collect::<Vec<_>>()
        };
        members.welcome(named(1, 100), 0);
        members.welcome(named(2, 200), 0);
        members.welcome(named(1, 100), 0);
        assert_eq!(places(&members), [(100, "dtn1".into()), (200, "dtn1/2".into())]);
        members.remove(1);
        members.welcome(named(3, 300), 0);
        assert_eq!(places(&members), [(200, "dtn1/2".into()), (300, "dtn1".into())]);
    }

    #[test]
    fn who_is_silent_is_forgotten_and_who_is_in_trouble_is_waited_for() {
        let mut members = Members::default();
        members.welcome(info(1), 0);
        members.welcome(info(2), 500);
        assert_eq!(members.remove_silent(1000, 1000), ["host1 (process 7)"]);
        assert!(members.has(2) && members.len() == 1);
        let trouble = Load { trouble: Some("full".into()), ..Load::default() };
        members.heard(2, trouble, 600).unwrap();
        let lasting = Duration::from_secs(1);
        assert_eq!(members.lasting_trouble(600, lasting), None);
        assert_eq!(members.lasting_trouble(1700, lasting).as_deref(), Some("full"));
        members.heard(2, Load::default(), 1800).unwrap();
        assert_eq!(members.lasting_trouble(9000, lasting), None);
    }
}
