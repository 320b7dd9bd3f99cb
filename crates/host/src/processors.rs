//! Processors of this host, and the time that they spend.

/// How many processors this process may use: its affinity and the quota of its control group count.
pub fn available() -> usize {
    if is_simulated() {
        return 2;
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Time that all processors of the machine have spent since it started, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// At work, for whomever.
    pub busy: u64,
    /// At all.
    pub all: u64,
}

impl Times {
    /// The share of the time since then that was spent at work; `None`: no time has passed.
    pub fn busy_since(&self, earlier: &Self) -> Option<f64> {
        let all = self.all.saturating_sub(earlier.all);
        (all > 0).then(|| self.busy.saturating_sub(earlier.busy) as f64 / all as f64)
    }
}

/// The first line of /proc/stat (proc_stat(5)); `None` where it is hidden.
pub fn times() -> Option<Times> {
    if is_simulated() {
        return None;
    }
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    // user nice system idle iowait irq softirq steal; what follows is part of user and nice.
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    Some(Times { busy: all - idle, all })
}

/// Seconds that processors have spent on this process since it started (clock_gettime(2)).
pub fn process_seconds() -> f64 {
    if is_simulated() {
        return 0.0;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds that processors have spent on this thread since it started (clock_gettime(2)).
pub fn thread_seconds() -> f64 {
    if is_simulated() {
        return 0.0;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Gives this thread the lowest priority (setpriority(2) with a thread's number, see its notes). A failure costs only the
/// others a little time.
pub fn yield_to_others() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19);
}

/// Whether the calling thread belongs to a simulation, in which processors take no time.
fn is_simulated() -> bool {
    #[cfg(feature = "simulated")]
    return dmover_schedule::simulation::is_running();
    #[cfg(not(feature = "simulated"))]
    false
}
