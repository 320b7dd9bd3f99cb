//! Rules with braces: a shell expands `{a,b}` into several words, and rules take it literally.
use dmover_model::FilterRule;

/// One note for all rules that seem to use braces for alternatives.
pub(super) fn note(rules: &[FilterRule]) -> Option<String> {
    let mut found =
        rules.iter().filter_map(|rule| Some((&rule.pattern.0[..], split(&rule.pattern.0)?)));
    let (pattern, [one, other]) = found.next()?;
    let more = match found.count() {
        0 => String::new(),
        count => format!(" (and {count} more like it)"),
    };
    let show = |pattern: &[u8]| dmover_job::quote::quoted(pattern);
    Some(format!(
        "dmover: note: the rule {}{more} matches only names that contain these braces: as in \
         rsync, rules have no alternatives\n  \
         hint: give one rule for each, such as {} and {}; to match a brace, write [{{]",
        show(pattern),
        show(&one),
        show(&other),
    ))
}

/// The first two alternatives of a pattern with braces: `a.b` and `a.c` for `a.{b,c}`.
fn split(pattern: &[u8]) -> Option<[Vec<u8>; 2]> {
    let open = plain(pattern, 0, b'{')?;
    let close = plain(pattern, open + 1, b'}')?;
    let comma = plain(&pattern[..close], open + 1, b',')?;
    let next = plain(&pattern[..close], comma + 1, b',').unwrap_or(close);
    let with = |word: &[u8]| [&pattern[..open], word, &pattern[close + 1..]].concat();
    Some([with(&pattern[open + 1..comma]), with(&pattern[comma + 1..next])])
}

/// The first position of a byte from `at` on that is neither escaped by a backslash nor inside a set.
fn plain(pattern: &[u8], from: usize, wanted: u8) -> Option<usize> {
    let mut at = from;
    while let Some(byte) = pattern.get(at) {
        match byte {
            byte if *byte == wanted => return Some(at),
            b'\\' => at += 1,
            // A bracket right at the start of a set belongs to it.
            b'[' => {
                let rest = pattern.get(at + 2..)?;
                at += 2 + rest.iter().position(|byte| *byte == b']').unwrap_or(0);
            }
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_found_and_plain_braces_are_not() {
        let words = |pattern: &str| {
            split(pattern.as_bytes()).map(|both| both.map(|one| String::from_utf8(one).unwrap()))
        };
        assert_eq!(words("*.{log,tmp}"), Some(["*.log".into(), "*.tmp".into()]));
        assert_eq!(words("/a/{b,,c}/"), Some(["/a/b/".into(), "/a//".into()]));
        for silent in
            ["*.log", "{a}", "a,b", "\\{a,b}", "*[{]a,b}", "{a,b", "}a,b{", "{a\\,b}", "a[", ""]
        {
            assert_eq!(words(silent), None, "{silent}");
        }
    }
}
