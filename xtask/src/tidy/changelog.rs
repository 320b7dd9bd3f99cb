//! Fragments of the changelog: one file a change, in the form that `changelog/README.md` describes.
use super::{Finding, SourceFile};

const DIRECTORY: &str = "changelog/unreleased/";
const KINDS: &[&str] = &["New", "Fixed", "Changed", "Performance"];
const HEADLINE_MAX: usize = 100;

/// Whether a fragment parses.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let Some(name) = file.path.strip_prefix(DIRECTORY) else { return Vec::new() };
    let problem = name_problem(name).or_else(|| text_problem(&file.text));
    problem.map(|what| Finding::new(file, 1, what)).into_iter().collect()
}

fn name_problem(name: &str) -> Option<String> {
    let (number, rest) = name.split_once('-').unwrap_or_default();
    let slug = rest.strip_suffix(".md").unwrap_or_default();
    let good_number = number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit());
    let good_slug = !slug.is_empty()
        && slug.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let message = "a fragment is named NNNN-some-words.md";
    (!good_number || !good_slug).then(|| message.to_owned())
}

fn text_problem(text: &str) -> Option<String> {
    let mut lines = text.lines();
    let (kind, headline) =
        lines.next().and_then(|first| first.split_once(": ")).unwrap_or_default();
    if !KINDS.contains(&kind) {
        return Some(format!("the first line starts with one of: {}", KINDS.join(": , ") + ":"));
    }
    if headline.trim().is_empty() || headline.len() > HEADLINE_MAX {
        return Some(format!("the headline has 1 to {HEADLINE_MAX} characters"));
    }
    if lines.next().is_some_and(|second| !second.is_empty()) {
        return Some("an empty line follows the headline".to_owned());
    }
    if lines.all(|line| line.trim().is_empty()) {
        return Some("text follows the headline: what a user notices, and what to do".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, text: &str) -> usize {
        check(&SourceFile::new(&format!("{DIRECTORY}{name}"), text)).len()
    }

    #[test]
    fn good_fragments_pass() {
        assert_eq!(
            count("0012-copy-holes.md", "Fixed: holes stay holes\n\nThey grew before.\n"),
            0
        );
        assert!(check(&SourceFile::new("changelog/README.md", "anything")).is_empty());
    }

    #[test]
    fn bad_fragments_are_found() {
        for text in [
            "",
            "Added: x\n\ntext\n",
            "New:\n\ntext\n",
            "New: x\ntext\n",
            "New: x\n",
            "new: x\n\ntext\n",
        ] {
            assert_eq!(count("0001-x.md", text), 1, "{text:?}");
        }
    }

    #[test]
    fn bad_names_are_found() {
        for name in ["x.md", "1-x.md", "0001-X.md", "0001-x.txt", "0001.md"] {
            assert_eq!(count(name, "New: x\n\ntext\n"), 1, "{name}");
        }
    }
}
