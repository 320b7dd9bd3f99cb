//! Which backups cp makes, and their names.
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{Refused, flag_os, refused};
use crate::args::CpArgs;
use crate::config::environment;

/// How replaced files are backed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Control {
    #[default]
    None,
    Simple,
    Numbered,
    /// Numbered if the file has numbered backups already, otherwise simple.
    Existing,
}

/// Values of `cp --backup`. cp accepts unambiguous abbreviations as well.
const WORDS: [(&str, Control); 8] = [
    ("none", Control::None),
    ("off", Control::None),
    ("simple", Control::Simple),
    ("never", Control::Simple),
    ("existing", Control::Existing),
    ("nil", Control::Existing),
    ("numbered", Control::Numbered),
    ("t", Control::Numbered),
];

/// The backups of one command.
pub(super) struct Backups {
    pub control: Control,
    suffix: OsString,
}

impl Backups {
    /// From options and environment variables.
    pub fn new(args: &CpArgs) -> Result<Self, Refused> {
        let asked = args.simple_backup || args.backup.is_some() || args.suffix.is_some();
        let typed = args.backup.as_deref().filter(|word| !word.is_empty());
        let variable = environment("VERSION_CONTROL").filter(|_| asked && typed.is_none());
        let control = match (typed, variable) {
            (Some(word), _) => parse(word).ok_or_else(|| unknown("--backup", word))?,
            (None, Some(word)) => {
                let word = word.to_string_lossy();
                parse(&word).ok_or_else(|| unknown("$VERSION_CONTROL", &word))?
            }
            (None, None) if asked => Control::Existing,
            (None, None) => Control::None,
        };
        let variable = || {
            let is_part = |suffix: &OsString| !suffix.as_bytes().contains(&b'/');
            environment("SIMPLE_BACKUP_SUFFIX").filter(is_part)
        };
        let suffix = args.suffix.clone().or_else(variable).unwrap_or_else(|| "~".into());
        Ok(Self { control, suffix })
    }

    /// The options of `copy` for these backups.
    pub fn words(&self, control: Control) -> Vec<OsString> {
        let how = match control {
            Control::None => return Vec::new(),
            Control::Numbered => "--backup=numbered",
            Control::Simple | Control::Existing => "--backup=simple",
        };
        vec![how.into(), flag_os("--suffix", &self.suffix)]
    }

    /// The name of the next backup of a file.
    pub fn name_for(&self, path: &Path) -> PathBuf {
        let highest = highest(path);
        let mut name = path.as_os_str().as_bytes().to_vec();
        let has_some = self.control == Control::Existing && highest > 0;
        if self.control == Control::Numbered || has_some {
            name.extend(format!(".~{}~", highest + 1).into_bytes());
        } else {
            name.extend(self.suffix.as_bytes());
        }
        PathBuf::from(OsString::from_vec(name))
    }

    /// The control for these files. If one of them has numbered backups, all get numbered ones, which overwrite nothing.
    pub fn settled(&self, targets: &[PathBuf]) -> Control {
        match self.control {
            Control::Existing if targets.iter().any(|path| highest(path) > 0) => Control::Numbered,
            Control::Existing => Control::Simple,
            control => control,
        }
    }
}

fn unknown(what: &str, word: &str) -> Refused {
    let hint = "use none, simple, numbered or existing";
    refused(format!("{what}: unknown backup type '{word}'"), hint)
}

/// `None`: unknown, or an abbreviation of several values that differ.
fn parse(word: &str) -> Option<Control> {
    if let Some((_, exact)) = WORDS.iter().find(|(known, _)| *known == word) {
        return Some(*exact);
    }
    let mut begun = WORDS.iter().filter(|(known, _)| known.starts_with(word));
    let first = begun.next()?.1;
    begun.all(|(_, other)| *other == first).then_some(first)
}

/// The highest number of a backup of a file; 0 if there is none.
fn highest(path: &Path) -> u64 {
    let Some(name) = path.file_name() else { return 0 };
    let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(above) else { return 0 };
    let number = |found: &OsStr| {
        let rest = found.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b".~")?;
        let digits = std::str::from_utf8(rest.strip_suffix(b"~")?).ok()?;
        let is_number =
            !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| is_number)
    };
    entries.flatten().filter_map(|entry| number(&entry.file_name())).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Control, parse};

    #[test]
    fn beginnings_of_one_meaning_are_understood() {
        assert_eq!(parse("numbered"), Some(Control::Numbered));
        assert_eq!(parse("nu"), Some(Control::Numbered));
        assert_eq!(parse("e"), Some(Control::Existing));
        assert_eq!(parse("t"), Some(Control::Numbered));
        for word in ["n", "often", "simply"] {
            assert_eq!(parse(word), None, "{word}");
        }
    }
}
