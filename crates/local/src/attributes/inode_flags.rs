//! Inode flags (FS_IOC_SETFLAGS) and project ids of destination entries.
use dmover_model::{Attribute, EntryError, LossKind, Note, Operation};
use dmover_sys::flags::{self, Flags, Project};
use dmover_sys::{BorrowedFd, Errno};
use std::sync::atomic::Ordering;

use super::{AttributeRules, Attributes, Object};

impl AttributeRules<'_> {
    /// Sets the flags in `mask` to those in `wanted`.
    pub(crate) fn set_flags(
        &self,
        object: Object<'_>,
        wanted: Flags,
        mask: Flags,
    ) -> Result<(), EntryError> {
        let fail = |e| object.fail(Operation::SetFlags, e);
        let Some(now) = flags::get(object.fd).map_err(fail)? else {
            object.facts.no_flags.store(true, Ordering::Relaxed);
            if wanted != 0 {
                self.reports.loss(LossKind::Flags, (object.path)(), flag_words(wanted));
            }
            return Ok(());
        };
        let new = (now & !mask) | wanted;
        if new == now {
            return Ok(());
        }
        match flags::set(object.fd, new) {
            Ok(true) => {
                let got = flags::get(object.fd).map_err(fail)?.unwrap_or(0);
                let lost = wanted & !got;
                if lost != 0 {
                    self.reports.loss(LossKind::Flags, (object.path)(), flag_words(lost));
                }
                Ok(())
            }
            Ok(false) => self.set_flags_singly(object, now, wanted, mask),
            Err(Errno::PERM) => self.set_flags_singly(object, now, wanted, mask),
            Err(error) => Err(fail(error)),
        }
    }

    /// Sets flags one by one, because a file system refuses a set of flags if it does not know one of them.
    fn set_flags_singly(
        &self,
        object: Object<'_>,
        mut now: Flags,
        wanted: Flags,
        mask: Flags,
    ) -> Result<(), EntryError> {
        for bit in (0..32).map(|shift| 1 << shift).filter(|bit| mask & bit != 0) {
            let new = (now & !bit) | (wanted & bit);
            if new == now {
                continue;
            }
            match flags::set(object.fd, new) {
                Ok(true) => now = new,
                Ok(false) if wanted & bit != 0 => {
                    self.reports.loss(LossKind::Flags, (object.path)(), flag_words(bit));
                }
                Ok(false) => {}
                Err(Errno::PERM) if !self.privilege.privileged => {
                    self.reports.note(Note::PrivilegedAttribute, object.path);
                }
                // Root without CAP_LINUX_IMMUTABLE, as in most containers.
                Err(Errno::PERM) => {
                    self.reports.loss(LossKind::Flags, (object.path)(), flag_words(bit));
                }
                Err(error) => return Err(object.fail(Operation::SetFlags, error)),
            }
        }
        Ok(())
    }

    /// Sets the flags in `mask` that the source has. `flags::PLAIN` come before the times, because an entry with its
    /// times looks complete. `flags::LOCKS` come last, because they forbid all other steps; a rerun detects if they are
    /// missing.
    pub(crate) fn carry_flags(
        &self,
        object: Object<'_>,
        attributes: &Attributes,
        mask: Flags,
    ) -> Result<(), EntryError> {
        if !self.keeps(Attribute::Flags) {
            return Ok(());
        }
        self.set_flags(object, attributes.flags & mask, mask)
    }

    /// Clears the immutable and append-only flags, so that this run can continue what an earlier run had finished.
    /// Finishing the entry sets them again. Returns whether a flag was cleared.
    pub(crate) fn lift_flags(&self, fd: BorrowedFd<'_>) -> bool {
        let now = flags::get(fd).ok().flatten().unwrap_or(0);
        self.keeps(Attribute::Flags)
            && now & flags::LOCKS != 0
            && flags::set(fd, now & !flags::LOCKS).unwrap_or(false)
    }

    /// Sets the project id after the entry has its final name: no entry of another project can be renamed or linked
    /// into a directory that hands its own project down (EXDEV).
    pub fn set_project(
        &self,
        object: Object<'_>,
        attributes: &Attributes,
    ) -> Result<(), EntryError> {
        let Some(wanted) = attributes.project_there else { return Ok(()) };
        let fail = |e| object.fail(Operation::SetFlags, e);
        match flags::project(object.fd).map_err(fail)? {
            Some(now) if now == wanted => return Ok(()),
            Some(_) => match flags::set_project(object.fd, wanted) {
                Ok(true) => return Ok(()),
                Ok(false) | Err(Errno::PERM) => {}
                Err(error) => return Err(fail(error)),
            },
            None if wanted == Project::default() => return Ok(()),
            None => {}
        }
        self.reports.loss(LossKind::Project, (object.path)(), format!("id {}", wanted.id));
        Ok(())
    }
}

fn flag_words(bits: Flags) -> String {
    const WORDS: &[(Flags, &str)] = &[
        (0x1, "secure deletion"),
        (0x2, "undeletable"),
        (0x4, "compress"),
        (0x8, "sync"),
        (0x10, "immutable"),
        (0x20, "append-only"),
        (0x40, "nodump"),
        (0x80, "noatime"),
        (flags::NO_COMPRESS, "nocompress"),
        (0x8000, "notail"),
        (0x10000, "dirsync"),
        (0x20000, "topdir"),
        (flags::NOCOW, "nocow"),
    ];
    let words: Vec<&str> = WORDS.iter().filter(|(b, _)| bits & b != 0).map(|(_, w)| *w).collect();
    words.join(", ")
}
