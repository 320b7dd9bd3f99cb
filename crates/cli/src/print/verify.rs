//! Output of a comparison: a line for each entry that differs, and a summary.
use dmover_engine::{Control, JobReport, JobState};
use dmover_model::{Action, Difference, DifferenceKind, Event};
use dmover_observe::{Counter, Monitor};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::text::{TextPrinter, connection_lines, pace, stop_words, trouble_lines};
use super::time::local_exact;
use super::{Sizes, counted, grouped};
use crate::args::OutputArgs;
use dmover_job::quote::quoted;

/// Prints differences.
pub(crate) struct VerifyPrinter {
    words: TextPrinter,
    control: Arc<Control>,
    shown: bool,
    /// Whether to name each entry without a difference.
    names: bool,
    /// A line could not be written.
    lost: AtomicBool,
    /// An entry has another owner or group.
    owners_differ: AtomicBool,
}

impl Monitor for VerifyPrinter {
    fn event(&self, event: &Event) {
        if let Event::Difference(difference) = event
            && difference.kinds.has(DifferenceKind::Owner)
        {
            self.owners_differ.store(true, Ordering::Relaxed);
        }
        match event {
            Event::Difference(difference) if self.shown => self.line(difference),
            Event::Item(item) if self.names && item.action == Action::Skipped => {
                self.words.say(&format!("dmover: compared {}", quoted(&item.target.0)));
            }
            Event::Difference(_) | Event::Item(_) | Event::Start { .. } => {}
            other => self.words.event(other),
        }
    }

    fn wants_items(&self) -> bool {
        self.names
    }
}

impl VerifyPrinter {
    pub fn new(words: TextPrinter, control: Arc<Control>, args: &OutputArgs) -> Self {
        Self {
            words,
            control,
            shown: args.quiet < 2,
            names: args.verbose > 0 && args.quiet == 0,
            lost: AtomicBool::default(),
            owners_differ: AtomicBool::default(),
        }
    }

    fn line(&self, difference: &Difference) {
        let done = match difference.repaired {
            Some(true) => " [repaired]",
            Some(false) => " [NOT repaired]",
            None => "",
        };
        let (path, detail) = (quoted(&difference.path.0), difference.words(local_exact));
        let line = format!("{path}: {detail}{done}\n");
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            self.lost.store(true, Ordering::Relaxed);
            self.control.stop(super::output_failed(&error));
        }
    }

    /// A hint for a user without privilege who demanded owners by name: owners that differ cannot be set.
    pub fn owner_hint(&self, demands_owners: bool) -> Option<&'static str> {
        let hint = "  hint: only root can set owners; --no-preserve=owner excludes owners from the comparison";
        let is_root = dmover_host::user::effective_uid() == 0;
        let differ = self.owners_differ.load(Ordering::Relaxed);
        (demands_owners && differ && !is_root).then_some(hint)
    }

    /// Whether a line could not be written.
    pub fn has_lost_lines(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The summary of a comparison, line by line. `is_whole`: everything could be compared.
pub(crate) fn summary(report: &JobReport, sizes: Sizes, is_whole: bool) -> Vec<String> {
    let get = |counter| report.counters.get(counter);
    let (compared, differing) = (get(Counter::EntriesCompared), get(Counter::EntriesDiffering));
    let all = counted(compared, "entry", "entries");
    let unsettable =
        [Counter::OwnersNotKept, Counter::SetIdsDropped, Counter::PrivilegedAttributes];
    let found = if compared == 0 && is_whole {
        "found no entries to compare".to_owned()
    } else if compared == 0 {
        "nothing could be compared".to_owned()
    } else if differing == 0 && !is_whole {
        format!("no difference in {all}, but some entries could NOT be compared")
    } else if differing == 0 && unsettable.into_iter().any(|counter| get(counter) > 0) {
        format!("no difference in {all}, except attributes that this user cannot set")
    } else if differing == 0 {
        format!("no difference in {all}")
    } else {
        let verb = if compared == 1 { "differs" } else { "differ" };
        format!("{} of {all} {verb}", grouped(differing))
    };
    let stopped = match report.state {
        JobState::Stopped(reason) => format!("{}; ", stop_words(reason)),
        JobState::Finished => String::new(),
    };
    let mut lines = vec![format!("dmover: {stopped}{found}")];
    if get(Counter::EntriesRepaired) > 0 {
        lines.push(format!("  repaired    {}", grouped(get(Counter::EntriesRepaired))));
    }
    let bytes = get(Counter::BytesHashed);
    if bytes > 0 {
        lines.push(format!("  read        {}{}", sizes.show(bytes), pace(bytes, report, sizes)));
    }
    if get(Counter::BytesCopied) > 0 {
        lines.push(format!("  written     {}", sizes.show(get(Counter::BytesCopied))));
    }
    if get(Counter::FilesWithoutDigest) > 0 {
        let files = counted(get(Counter::FilesWithoutDigest), "file", "files");
        lines.push(format!(
            "  unproven    the manifest has no digest of {files}: only metadata was compared"
        ));
    }
    lines.extend(unsettable_lines(report));
    let more = [(Counter::EntriesUntouched, "untouched"), (Counter::EntriesExcluded, "excluded")];
    for (counter, label) in more {
        if get(counter) > 0 {
            lines.push(format!("  {label:<11} {}", grouped(get(counter))));
        }
    }
    lines.extend(connection_lines(report));
    lines.extend(trouble_lines(report));
    lines
}

/// Lines about attributes that differ but do not count as differences, because this user cannot set them.
fn unsettable_lines(report: &JobReport) -> Vec<String> {
    let get = |counter| report.counters.get(counter);
    let mut lines = Vec::new();
    let mut line =
        |label: &str, what: String, verb: &str| lines.push(format!("  {label:<11} {what} {verb}"));
    let owners = get(Counter::OwnersNotKept);
    if owners > 0 {
        let verb = if owners == 1 {
            "has a different owner or group"
        } else {
            "have a different owner or group"
        };
        line("owners", counted(owners, "entry", "entries"), verb);
    }
    let set_ids = get(Counter::SetIdsDropped);
    if set_ids > 0 {
        let verb = if set_ids == 1 { "lacks set-id bits" } else { "lack set-id bits" };
        line("set-id bits", counted(set_ids, "entry", "entries"), verb);
    }
    let others = get(Counter::PrivilegedAttributes);
    if others > 0 {
        let what = counted(others, "time", "times");
        line("privileged", "attributes or flags missing".to_owned(), &what);
    }
    if !lines.is_empty() {
        let no_owners =
            if owners > 0 { "; --no-preserve=owner does not compare owners" } else { "" };
        lines.push(format!(
            "  hint: this user cannot set these attributes, so they do not count as differences \
             (--preserve=all counts them{no_owners})"
        ));
    }
    lines
}
