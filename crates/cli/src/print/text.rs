//! Words for people: errors and losses as they come, a summary at the end.
use dmover_engine::{Control, JobReport, JobState, StopReason};
use dmover_host::signals;
use dmover_journal::ErrorList;
use dmover_model::{
    Bottleneck, EntryError, ErrorClass, Event, ExitCode, Item, Limit, LossKind, Note, Operation,
    PathBytes, units,
};
use dmover_observe::{Counter, Monitor};
use dmover_schedule::sync::Mutex;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use super::connection;
use super::progress::Progress;
use super::time::local_exact;
use super::{SHOWN, Sizes, counted, counted_all, grouped, one_line};
use crate::args::{ItemArgs, OutputArgs};
use crate::state::on_job;
use dmover_job::quote::{printable, quoted};

/// Prints events as text.
pub(crate) struct TextPrinter {
    itemize: bool,
    /// The job copies entries.
    copies: bool,
    /// Prints the name of each entry when it is done.
    names: bool,
    dry_run: AtomicBool,
    /// Errors by class and losses by kind so far.
    shown: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    template: Option<String>,
    stats: bool,
    verbose: u8,
    quiet: u8,
    sizes: Sizes,
    progress: Arc<Progress>,
    control: Arc<Control>,
}

impl Monitor for TextPrinter {
    fn event(&self, event: &Event) {
        match event {
            Event::Start { targets, dry_run, .. } => {
                self.dry_run.store(*dry_run, Ordering::Relaxed);
                let shown = self.verbose > 0 && self.copies;
                for target in targets.iter().filter(|_| shown) {
                    self.say(&format!("dmover: copying to {}", quoted(&target.0)));
                }
            }
            Event::Item(item) => self.item(item),
            // A stopped job cancels many entries; the summary counts them.
            Event::Error(error) if error.class == ErrorClass::Cancelled && self.verbose == 0 => {}
            Event::Error(error) if self.quiet < 2 && self.shows(error.class.word(), "errors") => {
                self.say(&error_line(error));
            }
            Event::Loss { path, kind, detail, allowed } => {
                let shown = if *allowed { self.verbose > 0 } else { self.quiet < 2 };
                if shown && self.shows(kind.word(), "losses") {
                    self.say(&loss_line(path, *kind, detail));
                }
            }
            Event::Note { path, note, detail } if self.verbose > 0 => {
                let detail = detail.as_ref().map(|detail| format!(": {}", one_line(detail)));
                let (path, detail) = (quoted(&path.0), detail.unwrap_or_default());
                self.say(&format!("dmover: note: {path}: {}{detail}", note_words(*note)));
            }
            Event::Difference(difference) if self.shows("read-back", "differences") => {
                let hint = "  hint: the storage does not return what dmover wrote; check the storage, then run \
                            'dmover verify --repair'";
                let path = quoted(&difference.path.0);
                let detail = difference.words(local_exact);
                self.say(&format!("dmover: error: {path}: read back differs: {detail}\n{hint}"));
            }
            Event::Withheld { reason, advice, deleted, dry_run } if self.quiet < 2 => {
                let what = match (dry_run, deleted) {
                    (true, _) => "a run without -n would delete nothing",
                    (false, 0) => "nothing is deleted",
                    (false, _) => "nothing more is deleted",
                };
                self.say(&format!("dmover: {what}: {reason}\n  hint: {advice}"));
            }
            Event::Limit(limit) => self.progress.note_limit(limit),
            Event::Unlocked { path, reason } => self.say(&format!(
                "dmover: note: cannot lock {} against other jobs: {reason}",
                quoted(&path.0)
            )),
            Event::Movers { words } => self.say(&format!("dmover: {words}")),
            _ => {}
        }
    }

    fn wants_items(&self) -> bool {
        self.itemize || self.template.is_some() || self.stats || self.names
    }
}

impl TextPrinter {
    pub fn new(
        items: Option<&ItemArgs>,
        args: &OutputArgs,
        sizes: Sizes,
        progress: Arc<Progress>,
        control: Arc<Control>,
    ) -> Self {
        Self {
            itemize: items.is_some_and(|items| items.itemize),
            copies: items.is_some(),
            names: items.is_some() && args.verbose > 0 && args.quiet == 0,
            dry_run: AtomicBool::new(false),
            shown: Mutex::default(),
            template: items.and_then(|items| items.format.clone()),
            stats: items.is_some_and(|items| items.print_stats),
            verbose: args.verbose,
            quiet: args.quiet,
            sizes,
            progress,
            control,
        }
    }

    pub(super) fn say(&self, text: &str) {
        self.progress.say(text);
    }

    /// Whether one more of a kind is shown. After the last one that is shown, a line says once that more follow.
    fn shows(&self, kind: &'static str, what: &'static str) -> bool {
        if self.verbose > 0 {
            return true;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let count = shown.entry((kind, what)).or_default();
        *count += 1;
        let count = *count;
        drop(shown);
        if count == SHOWN + 1 {
            self.say(&format!("dmover: further {kind} {what} are not shown (-v shows all)"));
        }
        count <= SHOWN
    }

    /// Prints what was done with an entry, unless it was skipped or excluded.
    fn name(&self, item: &Item) {
        use dmover_model::Action::{Excluded, Skipped};
        if !self.names || matches!(item.action, Excluded | Skipped) {
            return;
        }
        let action = if self.dry_run.load(Ordering::Relaxed) {
            format!("would {}", planned_word(item.action))
        } else if item.action == dmover_model::Action::MetadataUpdated {
            "updated attributes of".to_owned()
        } else {
            action_word(item.action).to_owned()
        };
        self.say(&format!("dmover: {action} {}", shown(&item.target)));
    }

    fn item(&self, item: &Item) {
        if self.stats && item.kind == dmover_model::EntryKind::File && item.bytes > 0 {
            let seconds = item.elapsed_us as f64 / 1e6;
            let rate = self.sizes.show((item.bytes as f64 / seconds.max(1e-6)) as u64);
            let size = self.sizes.show(item.bytes);
            self.say(&format!("{}: {size} in {seconds:.3} s ({rate}/s)", shown(&item.target)));
        }
        if !self.itemize && self.template.is_none() {
            return self.name(item);
        }
        // As in rsync: excluded entries are not listed, and unchanged entries only with -v. JSON lists both.
        let equal = item.action == dmover_model::Action::Skipped
            && item.itemized[2..].bytes().all(|column| column == b'.');
        let quiet = equal && self.template.is_none() && self.verbose == 0;
        if item.action == dmover_model::Action::Excluded || quiet {
            return;
        }
        let bytes = match &self.template {
            // A program that splits at NUL gets the bytes of names as they are.
            Some(template) if template.contains("%0") || !super::is_terminal() => {
                expand(template, item)
            }
            Some(template) => printable(&expand(template, item)),
            None => format!("{} {}\n", item.itemized, shown(&item.path)).into_bytes(),
        };
        let written = self.progress.beside(|| std::io::stdout().lock().write_all(&bytes));
        if let Err(error) = written {
            self.control.stop(super::output_failed(&error));
        }
    }

    /// Prints the summary at the end of a job.
    pub fn summary(&self, report: &JobReport) {
        if self.quiet > 0 {
            if report.state == JobState::Stopped(StopReason::Output) {
                super::failure("cannot write to standard output", "check for free space");
            }
            return;
        }
        for line in summary_lines(report, self.sizes, self.verbose > 0) {
            self.say(&line);
        }
    }
}

/// Names on a terminal and in a pipe alike are quoted when odd; `-0` templates give raw bytes.
fn shown(path: &PathBytes) -> String {
    quoted(&path.0)
}

fn expand(template: &str, item: &Item) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chars = template.chars();
    let mut newline = true;
    while let Some(c) = chars.next() {
        newline = true;
        if c != '%' {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match chars.next() {
            Some('i') => out.extend_from_slice(item.itemized.as_bytes()),
            Some('n') => out.extend_from_slice(&item.path.0),
            Some('d') => out.extend_from_slice(&item.target.0),
            Some('a') => out.extend_from_slice(action_word(item.action).as_bytes()),
            Some('t') => out.extend_from_slice(item.kind.word().as_bytes()),
            Some('l') => out.extend_from_slice(item.bytes.to_string().as_bytes()),
            Some('e') => {
                out.extend_from_slice(format!("{:.6}", item.elapsed_us as f64 / 1e6).as_bytes());
            }
            Some('0') => {
                out.push(0);
                newline = false;
            }
            Some('%') => out.push(b'%'),
            // Other letters are refused on the command line.
            _ => {}
        }
    }
    if newline {
        out.push(b'\n');
    }
    out
}

pub(crate) fn action_word(action: dmover_model::Action) -> &'static str {
    use dmover_model::Action as A;
    match action {
        A::Created => "created",
        A::Replaced => "replaced",
        A::Updated => "updated",
        A::Renamed => "renamed",
        A::MetadataUpdated => "metadata_updated",
        A::Deleted => "deleted",
        A::Trashed => "trashed",
        A::Linked => "linked",
        A::Shared => "shared",
        A::Skipped => "skipped",
        A::Excluded => "excluded",
    }
}

/// What a run without `-n` would do with an entry.
fn planned_word(action: dmover_model::Action) -> &'static str {
    use dmover_model::Action as A;
    match action {
        A::Created => "create",
        A::Replaced => "replace",
        A::Updated => "update",
        A::Renamed => "rename",
        A::MetadataUpdated => "update attributes of",
        A::Deleted => "delete",
        A::Trashed => "move to the trash:",
        A::Linked => "link",
        A::Shared => "share the blocks of",
        A::Skipped => "skip",
        A::Excluded => "exclude",
    }
}

pub(crate) fn error_line(error: &EntryError) -> String {
    let path = quoted(&error.path.0);
    let doing = match error.operation {
        Operation::Attempt | Operation::Check => String::new(),
        operation => format!("cannot {} ", operation.words()),
    };
    let attempts =
        if error.attempt > 1 { format!(", {} attempts", error.attempt) } else { String::new() };
    format!("dmover: error: {doing}{path}: {error} [{}{attempts}]", error.class.word())
}

fn loss_line(path: &PathBytes, kind: LossKind, detail: &str) -> String {
    format!("dmover: lost: {}: {} {detail}", quoted(&path.0), kind.word())
}

fn note_words(note: Note) -> &'static str {
    match note {
        Note::OwnerWithoutAccount => {
            "an owner without an account at DEST keeps its number, or becomes what the rule *:TO says"
        }
        Note::OwnerNotKept => "owner not kept: setting it needs privilege",
        Note::SetIdDropped => "set-id bits dropped, because the owner was not kept",
        Note::PrivilegedAttribute => "an attribute was not copied: setting it needs privilege",
        Note::LeftoverRemoved => "removed this leftover of an interrupted run",
        Note::TemporarySkipped => "skipped this temporary file of dmover",
        Note::SourceAtimeTouched => "reading changes access times on this source file system",
        Note::SystemAttribute => "an attribute that belongs to the file system was not copied",
        Note::OpenForWriting => {
            "another program had the file open for writing during the copy; the next run compares it"
        }
    }
}

/// A line about each connection to a host of SOURCE.
pub(super) fn connection_lines(report: &JobReport) -> impl Iterator<Item = String> {
    report.connections.iter().map(|(source, known)| {
        format!("  {:<12}{}", "connection", connection::words(source, known))
    })
}

/// The summary of a job, line by line.
pub(crate) fn summary_lines(report: &JobReport, sizes: Sizes, verbose: bool) -> Vec<String> {
    let get = |counter| report.counters.get(counter);
    let bytes = get(Counter::BytesCopied) + get(Counter::BytesShared);
    let mut lines = vec![headline(report)];
    let others = [Counter::SymlinksCopied, Counter::SpecialsCopied, Counter::HardLinksCreated];
    let copied = counted_all(&[
        (get(Counter::FilesCopied), "file", "files"),
        (get(Counter::DirectoriesCreated), "directory", "directories"),
        (others.into_iter().map(get).sum(), "link or special file", "links and special files"),
    ]);
    lines.push(format!(
        "  {:<12}{}{}{}",
        if report.dry_run { "to copy" } else { "copied" },
        match (copied.is_empty(), bytes > 0) {
            (false, _) => &copied,
            // What was written belongs to files that are not complete, or whose content is equal now.
            (true, true) => "no whole entry",
            (true, false) => "nothing",
        },
        if bytes > 0 { format!("; {}", sizes.show(bytes)) } else { String::new() },
        // A dry run moves nothing, so it has no rate.
        pace(if report.dry_run { 0 } else { bytes }, report, sizes),
    ));
    if report.limit.what != Bottleneck::Unknown {
        let Limit { what, evidence } = &report.limit;
        lines.push(format!("  limit       {} ({evidence})", what.word()));
    }
    lines.extend(connection_lines(report));
    lines.extend(report.other_hosts.iter().map(|work| {
        let chunks = counted(work.chunks, "chunk", "chunks");
        let host = quoted(work.host.as_bytes());
        format!("  other host  {host} copied {}: {}", chunks, sizes.show(work.bytes))
    }));
    let skipped = get(Counter::EntriesSkipped);
    if skipped > 0 {
        let size = sizes.show(get(Counter::BytesSkipped));
        lines.push(format!(
            "  skipped     {} ({size}): up to date, or not replaced because of an option",
            counted(skipped, "entry", "entries")
        ));
    }
    let more = [
        (Counter::FilesUnchanged, "  unchanged   "),
        (Counter::EntriesRenamed, "  renamed     "),
        (Counter::MetadataUpdated, "  updated     "),
        (Counter::DirectoriesUpdated, "  directories "),
        (Counter::EntriesDeleted, "  deleted     "),
        (Counter::DeletesWithheld, "  withheld    "),
        (Counter::EntriesReplaced, "  replaced    "),
        (Counter::EntriesUnlike, "  mismatched  "),
        (Counter::EntriesExcluded, "  excluded    "),
        (Counter::LeftoversRemoved, "  leftovers   "),
        (Counter::TemporariesSkipped, "  temporaries "),
        (Counter::OwnersNotKept, "  owners      "),
        (Counter::OwnersWithoutAccount, "  accounts    "),
        (Counter::SetIdsDropped, "  set-id bits "),
        (Counter::PrivilegedAttributes, "  privileged  "),
        (Counter::FilesOpenForWriting, "  open        "),
    ];
    for (counter, label) in more {
        // A dry run deletes nothing, so its line is described by the counter of extra entries.
        let (words, label) = match counter {
            Counter::EntriesDeleted if report.dry_run => (Counter::EntriesExtra, "  to delete   "),
            _ => (counter, label),
        };
        if get(counter) > 0 {
            lines.push(format!("{label}{} ({})", grouped(get(counter)), counter_words(words)));
        }
    }
    lines.extend(trouble_lines(report));
    if verbose {
        lines.extend(slowest_lines(report, sizes));
    }
    lines
}

/// ` in 0:21 (868 MiB/s)`, without a rate if no bytes were moved.
pub(crate) fn pace(bytes: u64, report: &JobReport, sizes: Sizes) -> String {
    let time = units::format_duration(report.elapsed.as_secs());
    let seconds = report.elapsed.as_secs_f64().max(0.001);
    let rate = || format!(" ({}/s)", sizes.show((bytes as f64 / seconds) as u64));
    format!(" in {time}{}", if bytes > 0 { rate() } else { String::new() })
}

/// What a counter counts, as it stands within a line. Words such as DEST stay as they are.
fn counter_words(counter: Counter) -> String {
    let words = counter.describe().trim().trim_end_matches('.');
    let (first, rest) = words.split_at_checked(1).unwrap_or((words, ""));
    if rest.starts_with(|c: char| c.is_uppercase()) {
        return words.to_owned();
    }
    first.to_lowercase() + rest
}

fn headline(report: &JobReport) -> String {
    let code = report.exit_code();
    let words = match (report.state, code) {
        (JobState::Finished, ExitCode::Done) if report.dry_run => {
            "dry run: nothing was changed; a run without -n would do this".into()
        }
        (JobState::Finished, ExitCode::Done) => "done".into(),
        (JobState::Finished, ExitCode::SourceMoved) => {
            "finished; some entries vanished or changed at the source".into()
        }
        (JobState::Finished, _) if report.withheld.is_some() && report.errors.is_empty() => {
            let reason = report.withheld.as_ref().map(|withheld| withheld.reason.words());
            let deleted = report.counters.get(Counter::EntriesDeleted) > 0;
            let what = match (report.dry_run, deleted) {
                (true, _) => "dry run; a run without -n would delete nothing",
                (false, true) => "finished, but some entries were not deleted",
                (false, false) => "finished, but nothing was deleted",
            };
            format!("{what}: {}", reason.unwrap_or_default())
        }
        (JobState::Finished, _) if report.dry_run => {
            "dry run: nothing was changed; a run without -n would end with errors".to_owned()
        }
        (JobState::Finished, _) => "finished with errors".to_owned(),
        (JobState::Stopped(reason), _) => stop_words(reason),
    };
    format!("dmover: {words}")
}

/// Why a job stopped before its end.
pub(crate) fn stop_words(reason: StopReason) -> String {
    match reason {
        StopReason::Signal(signal) => format!("stopped by {}", signals::name(signal)),
        StopReason::Errors => "stopped by --max-errors".into(),
        StopReason::Output => "stopped: cannot write to standard output".into(),
        StopReason::Manifest => "stopped: cannot write the manifest".into(),
        StopReason::Duration => "stopped by --max-duration".into(),
        StopReason::Cancelled => "cancelled".into(),
        StopReason::Systemic(class) => {
            format!(
                "paused: every entry fails with the same error ({}): {}",
                class.word(),
                class.advice()
            )
        }
    }
}

pub(crate) fn trouble_lines(report: &JobReport) -> Vec<String> {
    let mut lines = Vec::new();
    for (class, count) in &report.errors {
        let remark = match class {
            ErrorClass::Cancelled => "a directory counts as one, with everything in it; ",
            _ => "",
        };
        let (word, count) = (class.word(), grouped(*count));
        lines.push(format!("  {word:<11} {count}: {remark}{}", class.advice()));
    }
    lines.extend(list_line(report));
    for (kind, count) in &report.losses {
        let times = counted(*count, "time", "times");
        let word = kind.word();
        lines.push(if report.allowed_losses.has(*kind) {
            format!("  lost {word:<6} {times}, accepted by --allow-loss")
        } else {
            format!("  lost {word:<6} {times}: --allow-loss={word} accepts this loss")
        });
    }
    for (kind, count) in &report.earlier_losses {
        let (times, word) = (counted(*count, "time", "times"), kind.word());
        lines.push(format!(
            "  lost {word:<6} {times} in earlier runs, on entries that this run skipped: --overwrite=always \
             (copy) or --checksum (sync) copies them again; --allow-loss={word} accepts this loss"
        ));
    }
    let failed = report.earlier_failures.all();
    if failed > 0 {
        let entries = counted(failed, "entry", "entries");
        lines.push(format!(
            "  {entries} failed before this pass was interrupted: 'dmover errors' lists them; 'dmover retry' or the \
             next pass retries them"
        ));
    }
    if let JobState::Stopped(_) = report.state {
        lines.push(format!("  resume with {}", resume_command(report.meant_as_name)));
    }
    lines
}

/// The line that says where the list of all errors is.
fn list_line(report: &JobReport) -> Option<String> {
    let failed = report.errors.iter().filter(|(class, _)| **class != ErrorClass::Cancelled);
    let most = failed.map(|(_, count)| *count).max()?;
    place_line(&report.error_list, &report.job.0, most)
}

/// The line that says where all differences of a read-back are listed. `job`: the copy.
pub(crate) fn differences_line(read: &JobReport, job: &str) -> Option<String> {
    let differing = read.counters.get(Counter::EntriesDiffering);
    Some(differing).filter(|n| *n > 0).and_then(|n| place_line(&read.error_list, job, n))
}

/// `most`: the greatest number of errors of a kind.
fn place_line(list: &ErrorList, job: &str, most: u64) -> Option<String> {
    let place = match list {
        ErrorList::In(state) => match crate::config::host_as_typed() {
            Some(host) => format!("dmover errors {job} --at {}", quoted(host.as_bytes())),
            None => on_job("errors", job, state),
        },
        ErrorList::Incomplete(why) => format!("incomplete: {why}"),
        ErrorList::Nowhere if most > SHOWN => {
            "not kept; --errors-to FILE saves it, -v shows all errors".into()
        }
        ErrorList::Nowhere => return None,
    };
    Some(format!("  full list: {place}"))
}

/// The command that resumes the job: the one that the user typed. `-T` is added where the destination was the name of the
/// copy: the destination exists now, and without `-T` a run without saved state would copy into it.
fn resume_command(as_name: bool) -> String {
    use std::os::unix::ffi::OsStrExt;
    let typed = crate::config::words_as_typed();
    let mut words: Vec<String> = typed.iter().map(|word| quoted(word.as_bytes())).collect();
    let verb = words.iter().position(|word| word == "copy");
    if let Some(verb) = verb.filter(|_| as_name) {
        words.insert(verb + 1, "-T".into());
    }
    words.join(" ")
}

fn slowest_lines(report: &JobReport, sizes: Sizes) -> Vec<String> {
    let slow = report.slowest.iter().map(|slow| {
        let seconds = slow.elapsed_us as f64 / 1e6;
        let rate = sizes.show((slow.bytes as f64 / seconds.max(1e-6)) as u64);
        format!("  slowest     {seconds:.3} s  {rate}/s  {}", quoted(&slow.path.0))
    });
    let memory = sizes.show(report.peak_memory_bytes);
    slow.chain([format!("  memory      {memory} at most")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{Action, EntryKind};

    #[test]
    fn templates_expand_and_can_end_with_nul() {
        let item = Item {
            path: PathBytes(b"a\xffb".to_vec()),
            target: PathBytes(b"c".to_vec()),
            action: Action::Created,
            kind: EntryKind::File,
            bytes: 12,
            elapsed_us: 1_500_000,
            itemized: ">f+++++++++".into(),
        };
        assert_eq!(expand("%n%0", &item), b"a\xffb\0");
        assert_eq!(expand("%i %l %a 100%%", &item), b">f+++++++++ 12 created 100%\n");
        assert_eq!(expand("'%d'", &item), b"'c'\n");
        assert_eq!(expand("%e", &item), b"1.500000\n");
    }
}
