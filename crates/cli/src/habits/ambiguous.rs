//! Options that take a value in one tool and none in another, so that the next word is a value or an operand.
//!
//! An operand that was meant as a value becomes a source or a destination, and replaces the wrong files.
use super::{Refused, Verbs};

/// Refuses a letter of a cluster that other tools read in two ways. `next`: the word after the cluster, if this letter is the
/// last one.
pub(super) fn check_letter(
    verb: Verbs,
    letters: &str,
    letter: char,
    next: Option<&str>,
) -> Result<(), Refused> {
    if verb != Verbs::Copy {
        // sync takes exactly two operands: a value that becomes one is refused by their number.
        return Ok(());
    }
    let next = next.unwrap_or_default();
    match letter {
        't' if letters.len() > 1 => Err((
            format!("'-{letters}': -t names the directory to copy into, as in cp; rsync -t keeps times"),
            "to keep times, omit -t: times are always kept; to copy into DIR, type '-t DIR' separately from other \
             letters"
                .into(),
        )),
        'P' if !next.is_empty() && next.bytes().all(|byte| byte.is_ascii_digit()) => Err((
            format!("'-P {next}': scp -P takes a port; -P of cp and rsync takes no value"),
            format!("omit -P: it has no effect; for a source of this name, type ./{next}"),
        )),
        'f' if is_rule(next) => Err((
            format!("'-f {next}': rsync -f takes a filter rule; cp -f takes no value"),
            format!("for a rule, use --filter; for a source of this name, omit -f and type './{next}'"),
        )),
        _ => Ok(()),
    }
}

/// Refuses a long option without `=` that other tools read in two ways.
pub(super) fn check_long(name: &str, next: Option<&str>) -> Result<(), Refused> {
    match (name, next.unwrap_or_default()) {
        ("info", next) => Err((
            format!("'--info {next}': rsync --info takes a value"),
            "omit --info and its value: a terminal shows progress".into(),
        )),
        ("sparse", next) if !["auto", "always", "never"].contains(&next) => Err((
            "'--sparse': rsync --sparse takes no value, dmover --sparse takes one".into(),
            "use --sparse=always to make holes of zeroes".into(),
        )),
        ("stats", next) if is_duration(next) => Err((
            format!("'--stats {next}': rclone --stats takes a value; rsync --stats takes none"),
            format!(
                "for an interval, type --stats={next}; for a source of this name, type ./{next}"
            ),
        )),
        _ => Ok(()),
    }
}

/// Whether a word looks like a rule of rsync's --filter. Underscores may replace spaces.
fn is_rule(word: &str) -> bool {
    let mut rest = word.chars();
    let short = match rest.next() {
        Some('!') => rest.as_str().is_empty(),
        Some('+' | '-') => {
            rest.as_str().trim_start_matches(|c| "/!Csrpx".contains(c)).starts_with([' ', '_'])
        }
        Some('.' | ':') => rest.as_str().starts_with([' ', ',']),
        Some('H' | 'S' | 'P' | 'R') => rest.as_str().starts_with(' '),
        _ => false,
    };
    let long = ["exclude", "include", "merge", "dir-merge", "hide", "show", "protect", "risk"];
    let is_long = |rest: &str| rest.starts_with([' ', ',']);
    short || long.iter().filter_map(|name| word.strip_prefix(name)).any(is_long)
}

fn is_duration(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h', 'd'])
        && word.bytes().all(|byte| byte == b'.' || byte.is_ascii_alphanumeric())
}
