//! Metrics in the Prometheus text format.
//!
//! Names follow the Prometheus conventions. The process that runs a job exports `dmover_job_…`, summed over all movers;
//! each mover process exports `dmover_mover_…`. Labels have few values: a job, an error class, a mover, a limit; never
//! a path.
use dmover_model::ErrorClass;
use prometheus::proto::{
    Bucket, Counter as CounterValue, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder, TextEncoder};

use crate::counters::{Counter, Snapshot};
use crate::histograms::Quantity;
use crate::view::{JobView, MoverView, NicView, ProcessView, SessionView};

/// The content type of the text.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Metric families collected for one text.
#[derive(Default)]
struct Families(Vec<MetricFamily>);

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Families {
    fn add(&mut self, name: &str, help: &str, kind: MetricType, metric: Metric) {
        if self.0.last().is_none_or(|family| family.name() != name) {
            let mut family = MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            self.0.push(family);
        }
        if let Some(family) = self.0.last_mut() {
            family.mut_metric().push(metric);
        }
    }

    fn counter(&mut self, name: &str, help: &str, labels: Labels<'_>, value: f64) {
        let mut counter = CounterValue::default();
        counter.set_value(value);
        let mut metric = Metric::from_label(pairs(labels));
        metric.set_counter(counter);
        self.add(name, help, MetricType::COUNTER, metric);
    }

    fn gauge(&mut self, name: &str, help: &str, labels: Labels<'_>, value: f64) {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        let mut metric = Metric::from_label(pairs(labels));
        metric.set_gauge(gauge);
        self.add(name, help, MetricType::GAUGE, metric);
    }

    fn counters(&mut self, whose: &str, all: &[(Labels<'_>, &Snapshot)]) {
        for counter in Counter::ALL {
            let name = format!("dmover_{whose}_{}_total", counter.name());
            for (labels, snapshot) in all {
                let value = snapshot.get(*counter) as f64;
                self.counter(&name, counter.describe().trim(), labels, value);
            }
        }
    }

    /// Adds the histograms of jobs or movers. `whose` is the prefix of the names; `all` has the labels and counters of
    /// each.
    fn histograms(&mut self, whose: &str, all: &[(Labels<'_>, &Snapshot)]) {
        let entries = "Time to copy or read one entry that is not split into chunks.";
        let sizes = "Bytes of content copied or read for each of these entries.";
        let tasks = "Time for one task. Class small: names, small files and directories. Class \
            large: the content of large files.";
        let small: Labels<'_> = &[("class", "small")];
        let large: Labels<'_> = &[("class", "large")];
        for (name, help, class, quantity) in [
            ("entry_duration_seconds", entries, &[][..], Quantity::EntryDuration),
            ("entry_size_bytes", sizes, &[], Quantity::EntrySize),
            ("task_duration_seconds", tasks, small, Quantity::SmallTaskDuration),
            ("task_duration_seconds", tasks, large, Quantity::LargeTaskDuration),
        ] {
            for (labels, snapshot) in all {
                let name = format!("dmover_{whose}_{name}");
                self.histogram(&name, help, &[labels, class].concat(), (snapshot, quantity));
            }
        }
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: Labels<'_>,
        (snapshot, quantity): (&Snapshot, Quantity),
    ) {
        let known = snapshot.histogram(quantity);
        let mut histogram = Histogram::default();
        histogram.set_sample_count(known.count);
        histogram.set_sample_sum(known.sum);
        let bucket = |(bound, count): (f64, u64)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        };
        histogram.set_bucket(known.buckets.into_iter().map(bucket).collect());
        let mut metric = Metric::from_label(pairs(labels));
        metric.set_histogram(histogram);
        self.add(name, help, MetricType::HISTOGRAM, metric);
    }

    fn process(&mut self, process: &ProcessView) {
        let help = "Always 1; the label is the version of dmover.";
        self.gauge("dmover_build_info", help, &[("version", process.version)], 1.0);
        let help = "CPU time that the process has used.";
        self.counter("process_cpu_seconds_total", help, &[], process.cpu_s);
        let help = "Resident memory of the process.";
        self.gauge("process_resident_memory_bytes", help, &[], process.resident_bytes as f64);
        let help = "Open files of the process.";
        self.gauge("process_open_fds", help, &[], process.open_files as f64);
    }

    fn text(self) -> String {
        let mut text = Vec::new();
        // Writing to memory does not fail, and the names are valid: a test checks them with promtool.
        if let Err(error) = TextEncoder::new().encode(&self.0, &mut text) {
            tracing::error!(%error, "cannot encode the metrics; please report this");
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn pairs(labels: Labels<'_>) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    labels.iter().map(pair).collect()
}

/// The metrics of the process that runs a job. `None`: no job runs at present.
pub fn of_job(process: &ProcessView, job: Option<&JobView>) -> String {
    let mut families = Families::default();
    families.process(process);
    let Some(view) = job else { return families.text() };
    let job = [("job", view.job.as_str())];
    let info = [("job", view.job.as_str()), ("verb", view.verb.as_str())];
    families.gauge("dmover_job_info", "Always 1; the label is the verb of the job.", &info, 1.0);
    let help = "Start time of this run of the job.";
    families.gauge("dmover_job_start_time_seconds", help, &job, view.begun_ms as f64 / 1000.0);
    let help = "1 if the job is paused.";
    families.gauge("dmover_job_paused", help, &job, f64::from(u8::from(view.paused)));
    let help = "Known tasks that are not done.";
    families.gauge("dmover_job_pending_tasks", help, &job, view.tasks_left as f64);
    families.counters("job", &[(&job, &view.counters)]);
    families.histograms("job", &[(&job, &view.counters)]);
    // A series that begins with its first error has no increase in the eyes of Prometheus.
    for class in ErrorClass::ALL.iter().map(|class| class.word()) {
        let labels = [("job", view.job.as_str()), ("class", class)];
        let help = "Failed entries, by error class.";
        let count = view.errors.get(class).copied().unwrap_or(0) as f64;
        families.counter("dmover_job_classified_errors_total", help, &labels, count);
    }
    if let Some(limit) = view.limit {
        let labels = [("job", view.job.as_str()), ("limit", limit)];
        families.gauge(
            "dmover_job_limit",
            "Always 1; the label is what limits the job now.",
            &labels,
            1.0,
        );
    }
    of_connections(&mut families, view);
    of_movers(&mut families, view);
    families.text()
}

/// Adds what is known of the connections to hosts of SOURCE. Their number is the label: names of trees are no labels.
fn of_connections(families: &mut Families, view: &JobView) {
    for (number, (_, known)) in view.connections.iter().enumerate() {
        let number = number.to_string();
        let labels = [("job", view.job.as_str()), ("connection", number.as_str())];
        let seconds = |time: Option<u32>| f64::from(time.unwrap_or(0)) / 1e6;
        let help = "Data streams of a connection to a host of SOURCE.";
        families.gauge("dmover_job_streams", help, &labels, f64::from(known.streams));
        let help = "The smoothed round trip of its data streams.";
        families.gauge(
            "dmover_job_round_trip_seconds",
            help,
            &labels,
            seconds(known.round_trip_us),
        );
        let help = "The shortest round trip of its data streams.";
        let least = seconds(known.least_round_trip_us);
        families.gauge("dmover_job_least_round_trip_seconds", help, &labels, least);
        let help = "Bytes that both sides have sent over it, as they went over the line.";
        families.counter("dmover_job_line_bytes_total", help, &labels, known.line_bytes as f64);
        let help = "Data streams that have ended and were replaced, or will be.";
        let lost = known.lost_streams as f64;
        families.counter("dmover_job_lost_streams_total", help, &labels, lost);
    }
}

/// Reads the value of one metric of a mover.
type Value = fn(&MoverView) -> f64;

/// Adds what a coordinator knows about its movers.
fn of_movers(families: &mut Families, view: &JobView) {
    let Some(movers) = &view.movers else { return };
    let job = [("job", view.job.as_str())];
    let help = "Processes with movers that work for the job.";
    families.gauge("dmover_job_movers", help, &job, movers.len() as f64);
    let names: Vec<String> = movers.iter().map(MoverView::place).collect();
    let each = |families: &mut Families, counts: bool, name: &str, help: &str, value: Value| {
        for (mover, known) in movers.iter().zip(&names) {
            let labels = [("job", view.job.as_str()), ("mover", known.as_str())];
            if counts {
                families.counter(name, help, &labels, value(mover));
            } else {
                families.gauge(name, help, &labels, value(mover));
            }
        }
    };
    let help = "Bytes of content that a mover has copied or read for the job.";
    each(families, true, "dmover_job_mover_bytes_total", help, |m| m.bytes as f64);
    let help = "Entries that a mover has finished for the job.";
    each(families, true, "dmover_job_mover_entries_total", help, |m| m.entries as f64);
    let help = "Tasks in progress on a mover.";
    each(families, false, "dmover_job_mover_held_tasks", help, |m| m.tasks as f64);
    let help = "Time since the last message from a mover.";
    each(families, false, "dmover_job_mover_silent_seconds", help, |m| m.silent_s);
    let help = "1 if a mover is much slower than the others.";
    each(families, false, "dmover_job_mover_slow", help, |m| f64::from(u8::from(m.slow.is_some())));
    let help = "1 if a mover gets no tasks for now, because its tasks fail.";
    each(families, false, "dmover_job_mover_left_out", help, |m| f64::from(u8::from(m.left_out)));
}

/// The metrics of a mover process: its host, and the jobs that it works for or has just left.
pub fn of_mover(process: &ProcessView, nics: &[NicView], sessions: &[SessionView]) -> String {
    let mut families = Families::default();
    families.process(process);
    let help = "Jobs that the process works for.";
    let present = || sessions.iter().filter(|session| session.left.is_none());
    families.gauge("dmover_mover_jobs", help, &[], present().count() as f64);
    for session in present() {
        let help = "Tasks in progress.";
        let job = [("job", session.job.as_str())];
        families.gauge("dmover_mover_held_tasks", help, &job, session.tasks as f64);
    }
    for session in present() {
        let help = "Maximum number of tasks in progress at a time.";
        let job = [("job", session.job.as_str())];
        families.gauge("dmover_mover_task_places", help, &job, session.places as f64);
    }
    for nic in nics {
        let help = "Bytes in packets that a network interface has received since it came up.";
        let labels = [("nic", nic.name.as_str())];
        let bytes = nic.received_bytes as f64;
        families.counter("dmover_mover_nic_received_bytes_total", help, &labels, bytes);
    }
    for nic in nics {
        let help = "Bytes in packets that a network interface has sent since it came up.";
        let labels = [("nic", nic.name.as_str())];
        families.counter("dmover_mover_nic_sent_bytes_total", help, &labels, nic.sent_bytes as f64);
    }
    let labels: Vec<[(&str, &str); 1]> =
        sessions.iter().map(|session| [("job", session.job.as_str())]).collect();
    let all: Vec<(Labels<'_>, &Snapshot)> =
        sessions.iter().zip(&labels).map(|(session, job)| (&job[..], &session.counters)).collect();
    families.counters("mover", &all);
    families.histograms("mover", &all);
    families.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;

    #[test]
    fn every_class_of_errors_is_there_from_the_beginning() {
        let job = JobView {
            job: "0123456789ab".into(),
            verb: "copy".into(),
            paused: false,
            begun_ms: 0,
            tasks_left: 0,
            counters: Counters::default().snapshot(),
            errors: [(ErrorClass::ALL[0].word(), 3)].into(),
            limit: None,
            connections: Vec::new(),
            movers: None,
        };
        let text = of_job(&ProcessView::default(), Some(&job));
        assert!(!text.contains("dmover_job_streams"), "{text}");
        for (number, class) in ErrorClass::ALL.iter().enumerate() {
            let count = if number == 0 { 3 } else { 0 };
            let labels = format!("job=\"0123456789ab\",class=\"{}\"", class.word());
            let line = format!("\ndmover_job_classified_errors_total{{{labels}}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
