//! The coordinator takes the reports of movers in other processes, as if they had come from here.
use dmover_model::{Event, Notice};

use crate::context::Engine;
use crate::extra;
use crate::mover_report::{MoverReport, ReportItem};

impl Engine {
    /// Takes the reports of a remote mover. Returns facts for all movers.
    pub(crate) fn hear(&self, mut told: MoverReport) -> Vec<Notice> {
        self.reports.hear(&mut told);
        self.pass.had(told.had);
        told.said.into_iter().filter_map(|said| self.hear_one(said)).collect()
    }

    fn hear_one(&self, said: ReportItem) -> Option<Notice> {
        match said {
            ReportItem::Item(item) => self.reports.show(Event::Item(item)),
            ReportItem::Digest(digest) => self.reports.show(Event::Digest(digest)),
            ReportItem::Checked { path, number, verdict, guessed } => {
                let verdict = verdict.into();
                self.reports.show(Event::Checked { path, number, verdict, guessed });
            }
            ReportItem::Difference(found) => self.reports.show(Event::Difference(found)),
            ReportItem::Error(error) => self.error(error),
            ReportItem::Loss { path, kind, detail } => self.reports.loss(kind, path, detail),
            ReportItem::Note { path, note } => self.reports.note(note, || path),
            ReportItem::Record(record) => {
                self.proof.keep(|| *record);
            }
            ReportItem::LeftOut => self.proof.leave_out(),
            ReportItem::Doubt(path) => self.doubts.add(path),
            ReportItem::Settled(path) => self.doubts.earlier.settled(path),
            ReportItem::Writer(identity) => self.doubts.note_writer(identity),
            ReportItem::SharedDoubts(of, names) => self.doubts.share_of(of, names),
            ReportItem::Moved(moves) => {
                let moves: Vec<_> = moves.iter().map(|(from, to)| (from, to)).collect();
                self.doubts.carry(&moves);
            }
            ReportItem::Held(path) => self.pass.hold(path),
            ReportItem::LookAgain(why) => self.pass.look_again(&why),
            ReportItem::Withheld(names, reason) => extra::guard::withhold(self, &names, &reason),
            ReportItem::KeptTimes(path, times, unless_known) => {
                self.proof.keep_times(path, times, unless_known);
            }
            ReportItem::Sealed(carried) => self.proof.remember_sealed(&carried),
            ReportItem::Forbidden(identity) => {
                self.places.forbidden.add(identity);
                return Some(Notice::Forbidden(identity));
            }
            ReportItem::Known(path) => {
                if let Err(error) = self.proof.learn([&path]) {
                    tracing::warn!(%error, ?path, "cannot report the extra entries in a directory");
                }
            }
            ReportItem::Stop(reason) => {
                // A mover stops the job when its flush has failed.
                self.reports.note_failed_flush();
                self.control.stop(reason);
            }
        }
        None
    }
}
