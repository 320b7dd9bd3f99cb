//! Retired words in texts that people see. `docs/style.md` has the table of these words and the reasons.
use super::texts::{Seen, literals};
use super::{Finding, SourceFile};

/// The document with the table, and the header of the table.
const DOCUMENT: &str = "docs/style.md";
const HEADER: &str = "| retired | say |";

/// Beginnings of the paths that are clean. A crate joins when its texts are.
const CLEAN: &[&str] = &[
    "contrib/",
    "crates/cli/src/",
    "crates/digest/src/",
    "crates/engine/src/",
    "crates/job/src/",
    "crates/journal/src/",
    "crates/local/src/",
    "crates/model/src/",
    "crates/net/src/",
    "crates/observe/src/",
    "crates/plan/src/",
    "crates/queue/src/",
    "crates/remote/src/",
    "crates/server/src/",
    "crates/simulator/src/",
    "crates/sys/src/",
    "crates/tree/src/",
    "crates/wire/src/",
];

/// Data that other programs or older versions read, so that its words stay.
const DATA: &[&str] = &["state = 'given up'"];

/// A word or phrase that no text may have.
#[derive(Debug, PartialEq, Eq)]
pub struct Retired {
    phrase: String,
    instead: String,
}

/// The table of the document; empty if there is none.
pub fn retired(files: &[SourceFile]) -> Vec<Retired> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else { return Vec::new() };
    let rows = document.text.lines().skip_while(|line| *line != HEADER).skip(2);
    let mut all = Vec::new();
    for row in rows.take_while(|row| row.starts_with('|')) {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (phrases, instead) = (cells.next().unwrap_or_default(), cells.next());
        for phrase in phrases.split(", ").filter(|phrase| !phrase.is_empty()) {
            let instead = instead.unwrap_or_default().to_owned();
            all.push(Retired { phrase: phrase.to_ascii_lowercase(), instead });
        }
    }
    all
}

/// The table has to exist.
pub fn check_missing(retired: &[Retired]) -> Option<Finding> {
    let what = format!("has no table that begins with '{HEADER}'");
    retired.is_empty().then(|| Finding::of_tree(DOCUMENT, what))
}

/// String literals of Rust outside tests, and every line of other files.
pub fn check(file: &SourceFile, retired: &[Retired]) -> Vec<Finding> {
    if file.is_test() || !CLEAN.iter().any(|clean| file.path.starts_with(clean)) {
        return Vec::new();
    }
    let texts = if file.rust.is_some() { literals(file) } else { lines(&file.text) };
    let mut findings = Vec::new();
    for Seen { line, text, end } in texts {
        let mut text = text.to_ascii_lowercase();
        for data in DATA {
            text = text.replace(data, "");
        }
        for Retired { phrase, instead } in retired {
            if has_phrase(&text, end, phrase) {
                let what = format!("'{phrase}' is retired: {instead} ({DOCUMENT}, \"Words\")");
                findings.push(Finding::new(file, line, what));
            }
        }
    }
    findings
}

/// Whether a phrase begins before `end` in a text, and is not a part of longer words.
fn has_phrase(text: &str, end: usize, phrase: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(phrase).take_while(|(at, _)| *at < end).any(|(at, _)| {
        let after = text[at + phrase.len()..].chars().next();
        !is_inside(text[..at].chars().next_back()) && !is_inside(after)
    })
}

/// Each line with the first words of the next one, as a phrase may be broken there.
fn lines(text: &str) -> Vec<Seen> {
    let all: Vec<&str> = text.lines().map(|line| line.trim_matches([' ', '#'])).collect();
    let next = all.iter().skip(1).copied().chain([""]);
    let joined = all.iter().zip(next).enumerate();
    joined
        .map(|(index, (line, next))| {
            let next = next.split(' ').take(3).collect::<Vec<_>>().join(" ");
            Seen { line: index + 1, text: format!("{line} {next}"), end: line.len() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<Retired> {
        let text = format!(
            "# Style\n\n{HEADER}\n|---|---|\n| left alone, In hand | skipped |\n\n| a | b |\n"
        );
        retired(&[SourceFile::new(DOCUMENT, &text)])
    }

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&SourceFile::new(path, text), &table()).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn the_table_is_read_to_its_end() {
        let phrases: Vec<String> = table().into_iter().map(|word| word.phrase).collect();
        assert_eq!(phrases, ["left alone", "in hand"]);
        assert!(check_missing(&table()).is_none());
        assert!(check_missing(&retired(&[])).is_some());
    }

    #[test]
    fn a_retired_word_in_a_text_is_found() {
        let code = "fn f() {\n    warn!(\"3 entries left \\\n        alone\");\n    g(\"In hand: {}\", 3)\n}\n";
        assert_eq!(found("crates/engine/src/a.rs", code), [2, 4]);
        assert_eq!(found("crates/engine/src/a.rs", "#[error(\"left alone\")]\nstruct E;\n"), [1]);
        assert_eq!(
            found("crates/observe/src/a.rs", "counters! {\n/// In hand.\nA = \"a\" }\n"),
            [2]
        );
        assert_eq!(found("contrib/systemd/a.service", "# one left\n# alone\n# in hand\n"), [1, 3]);
    }

    #[test]
    fn what_people_do_not_see_is_not_looked_at() {
        let code = "/// What is left alone.\nfn left_alone() {} // in hand\nconst A: &str = \"left_alone behind hands\";\n";
        assert!(found("crates/engine/src/a.rs", code).is_empty());
        let test = "#[cfg(test)]\nmod tests {\n    const A: &str = \"left alone\";\n}\n";
        assert!(found("crates/engine/src/a.rs", test).is_empty());
        let text = "const A: &str = \"left alone\";\n";
        assert!(found("crates/engine/src/a_tests.rs", text).is_empty());
        assert!(found("crates/testkit/src/a.rs", text).is_empty());
    }
}
