//! The coordinator takes the reports of movers in other processes, as if they had come from here.
use dmover_model::{Event, Notice};
use dmover_observe::{Counter, Slow, lock};

use crate::context::Engine;
use crate::mover_report::{MoverReport, ReportItem};

impl Engine {
    /// Takes the reports of a remote mover. Returns facts for all movers.
    pub(crate) fn hear(&self, told: MoverReport) -> Vec<Notice> {
        if told.shows_progress() {
            self.progress();
        }
        let MoverReport { counts, cells, said, slow, had } = told;
        for (cell, amount) in cells {
            self.counters.add_to_cell(usize::from(cell), amount);
        }
        for (index, amount) in counts {
            if let Some(counter) = Counter::ALL.get(usize::from(index)) {
                self.add(*counter, amount);
            }
        }
        for Slow { elapsed_us, bytes, path } in slow {
            self.slowest.note(elapsed_us, bytes, || path);
        }
        self.guard.had(had);
        said.into_iter().filter_map(|said| self.hear_one(said)).collect()
    }

    fn hear_one(&self, said: ReportItem) -> Option<Notice> {
        match said {
            ReportItem::Item(item) => self.monitor.event(&Event::Item(item)),
            ReportItem::Digest(digest) => self.monitor.event(&Event::Digest(digest)),
            ReportItem::Checked { path, number, verdict, guessed } => {
                let verdict = verdict.into();
                self.monitor.event(&Event::Checked { path, number, verdict, guessed });
            }
            ReportItem::Difference(found) => self.monitor.event(&Event::Difference(found)),
            ReportItem::Error(error) => self.error(error),
            ReportItem::Loss { path, kind, detail } => self.loss(kind, path, detail),
            ReportItem::Note { path, note } => self.note(note, || path),
            ReportItem::Record(record) => {
                if let Some(recorder) = &self.recorder {
                    self.keep(recorder, *record);
                }
            }
            ReportItem::LeftOut => self.leave_out_of_manifest(),
            ReportItem::Doubt(path) => self.doubt(path),
            ReportItem::Settled(path) => self.doubtful.settled(path),
            ReportItem::Writer(identity) => self.note_writer(identity),
            ReportItem::SharedDoubts(of, names) => self.share_doubts_of(of, names),
            ReportItem::Moved(moves) => {
                let moves: Vec<_> = moves.iter().map(|(from, to)| (from, to)).collect();
                self.carry_doubts(&moves);
            }
            ReportItem::Held(path) => self.hold(path),
            ReportItem::LookAgain(why) => self.look_again(&why),
            ReportItem::Withheld(names, reason) => self.withhold(&names, &reason),
            ReportItem::KeptTimes(path, times, unless_known) => {
                self.keep_times(path, times, unless_known);
            }
            ReportItem::Sealed(carried) => self.remember_sealed(&carried),
            ReportItem::Forbidden(identity) => {
                self.forbid(identity);
                return Some(Notice::Forbidden(identity));
            }
            ReportItem::Known(path) => {
                if let Err(error) = lock(&self.known).insert(&path) {
                    tracing::warn!(%error, ?path, "cannot report the extra entries in a directory");
                }
            }
            ReportItem::Stop(reason) => {
                self.control.stop(reason);
            }
        }
        None
    }
}
