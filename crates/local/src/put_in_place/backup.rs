//! Backups: the old version of a replaced entry gets another name.
use dmover_model::{EntryError, ErrorClass, Operation, Side};
use dmover_sys::{Errno, directory, path, stat};

use super::Renaming;
use crate::directory::TargetDirectory;
use crate::error::entry_error;
use crate::put_in_place;
use crate::session::{self, BackupNumbers, Session};

/// Renames the old version of an entry to its backup name, which must overwrite neither the source nor what another
/// entry has brought.
pub(crate) fn back_up(session: &Session<'_>, renaming: Renaming<'_>) -> Result<(), EntryError> {
    let Renaming { from, to: target, last: name, source, others, .. } = renaming;
    let Some(backup) = &session.local.rules.policy.backup else { return Ok(()) };
    if renaming.is_link && put_in_place::separate_copy::is_separate_copy(session, renaming)? {
        // Comparing may have taken long.
        return session.check_commit(target, name);
    }
    if backup.numbered {
        return back_up_numbered(session, target, name);
    }
    let fail = |e| entry_error(Side::Destination, Operation::Backup, target.place.entry(name), e);
    let refuse = |class, words: &str| {
        let path = target.place.entry(name);
        Err(EntryError::plain(Side::Destination, Operation::Backup, class, path, words))
    };
    let kept = [name, &backup.suffix].concat();
    // Through a link as well: what leads to the source is how it was named.
    let leads_to_source = stat::stat_at(&target.fd, &kept, true)
        .is_ok_and(|found| session.local.end.mounts.identity(&found) == source);
    if leads_to_source || session::is_at(&session.local, target, &kept, source) {
        let words = "its backup would overwrite the source";
        return refuse(ErrorClass::SelfCopy, words);
    }
    let is_taken = || match others {
        Some(others) => others.has(&kept),
        // A host that does not answer may have it.
        None => from.handle.has(&kept).unwrap_or(from.handle.fd().is_none()),
    };
    if is_taken() {
        let words = "its backup name belongs to another entry of the source";
        return refuse(ErrorClass::NameClash, words);
    }
    // A link keeps the old version reachable at every instant; the rename changes hands in one step.
    let at = session::temporary_name(session).as_bytes().to_vec();
    match directory::hard_link(&target.fd, name, &target.fd, &at) {
        Ok(()) => {
            let renamed = directory::rename(&target.fd, &at, &kept);
            // rename(2) leaves both names if they are one file already.
            match directory::unlink(&target.fd, &at) {
                Err(error) if renamed.is_ok() && !stat::is_absent(error) => Err(fail(error)),
                _ => renamed.map_err(fail),
            }
        }
        Err(error) if stat::is_absent(error) => Ok(()),
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {
            directory::rename(&target.fd, name, &kept).map_err(fail)
        }
        Err(error) => Err(session::not_made(target, &at, name, error)),
    }
}

/// Backs up under the next number after the highest one: a lower free number would look like an older version.
fn back_up_numbered(
    session: &Session<'_>,
    target: &TargetDirectory,
    name: &[u8],
) -> Result<(), EntryError> {
    let fail = |e| entry_error(Side::Destination, Operation::Backup, target.place.entry(name), e);
    let mut number = highest_backup(session, target, name).map_err(fail)?;
    loop {
        number += 1;
        let kept = [name, format!(".~{number}~").as_bytes()].concat();
        match directory::hard_link(&target.fd, name, &target.fd, &kept) {
            Ok(()) => break,
            Err(Errno::EXIST) => {}
            Err(error) if stat::is_absent(error) => return Ok(()),
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {
                match directory::rename_new(&target.fd, name, &kept) {
                    Ok(true) => break,
                    Err(Errno::EXIST) => {}
                    Ok(false) if stat::stat_at(&target.fd, &kept, false).is_ok() => {}
                    Ok(false) => {
                        directory::rename(&target.fd, name, &kept).map_err(fail)?;
                        break;
                    }
                    Err(error) => return Err(fail(error)),
                }
            }
            Err(error) => return Err(fail(error)),
        }
    }
    if let Some((_, numbers)) = &mut *session.backups.borrow_mut() {
        numbers.insert(name.to_vec(), number);
    }
    Ok(())
}

/// The highest number of a backup of `name`; 0 if there is none. The directory is read once.
fn highest_backup(
    session: &Session<'_>,
    target: &TargetDirectory,
    name: &[u8],
) -> Result<u64, Errno> {
    let identity = target.metadata.identity;
    let mut known = session.backups.borrow_mut();
    if let Some((_, numbers)) = known.as_ref().filter(|(of, _)| *of == identity) {
        return Ok(numbers.get(name).copied().unwrap_or(0));
    }
    let mut numbers = BackupNumbers::new();
    let fd = path::open_directory_at(&target.fd, b".")?;
    directory::DirectoryReader::default().read(&fd, |found, _| -> Result<bool, Errno> {
        if let Some((of, number)) = numbered(found) {
            let highest = numbers.entry(of.to_vec()).or_default();
            *highest = number.max(*highest);
        }
        Ok(true)
    })?;
    let highest = numbers.get(name).copied().unwrap_or(0);
    *known = Some((identity, numbers));
    Ok(highest)
}

/// Splits the name of a numbered backup, `name.~7~`.
fn numbered(name: &[u8]) -> Option<(&[u8], u64)> {
    let rest = name.strip_suffix(b"~")?;
    let at = rest.windows(2).rposition(|two| two == b".~")?;
    let digits = &rest[at + 2..];
    let is_number =
        digits.first().is_some_and(|first| *first != b'0') && digits.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    Some((&rest[..at], number)).filter(|_| number < u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn only_whole_numbers_between_tildes_count() {
        assert_eq!(numbered(b"a.~7~"), Some((&b"a"[..], 7)));
        assert_eq!(numbered(b"a.~1~.~12~"), Some((&b"a.~1~"[..], 12)));
        for name in [
            &b"a~"[..],
            b"a.~~",
            b"a.~07~",
            b"a.~x~",
            b"a.~7",
            b"a.~-1~",
            b"a.~99999999999999999999~",
        ] {
            assert_eq!(numbered(name), None, "{name:?}");
        }
    }
}
