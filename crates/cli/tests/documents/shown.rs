//! What a document shows beside what a command printed.
//!
//! With `DMOVER_DOCUMENTS=update` the test writes outputs whose form has changed into the document: lines of the same
//! form keep the numbers that they had there, and everything else stays byte for byte.

use crate::page::form;

/// Stands for lines that are not shown.
const MORE: &str = "…";

/// What documents show and a short run need not print.
const SOMETIMES: [&str; 4] = ["  limit ", "  limit: ", "  directories ", "  leftovers "];

/// Lines of a document, counted from 0, and what replaces them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub at: usize,
    pub count: usize,
    pub lines: Vec<String>,
}

/// Whether outputs that differ are written into the document.
pub fn is_update() -> bool {
    std::env::var("DMOVER_DOCUMENTS").is_ok_and(|mode| mode == "update")
}

fn is_sometimes(line: &str) -> bool {
    SOMETIMES.iter().any(|start| line.starts_with(start))
}

/// The document shows what was printed, but for numbers and order.
pub fn is_shown(shown: &[String], said: &str) -> bool {
    let forms = |lines: &mut dyn Iterator<Item = &str>| -> Vec<String> {
        let mut forms: Vec<String> = lines.filter(|line| !is_sometimes(line)).map(form).collect();
        forms.sort_unstable();
        forms
    };
    let mut lines = shown.iter().map(String::as_str).filter(|line| *line != MORE);
    let (shown_forms, said_forms) = (forms(&mut lines), forms(&mut said.lines()));
    if shown.iter().any(|line| line == MORE) {
        shown_forms.iter().all(|form| said_forms.contains(form))
    } else {
        shown_forms == said_forms
    }
}

/// What the document has to show instead, in the order in which it was printed.
pub fn updated(shown: &[String], said: &str) -> Vec<String> {
    let said: Vec<&str> = said.lines().collect();
    let has_more = shown.iter().any(|line| line == MORE);
    // For each printed line, the one of the document that it replaces.
    let mut pairs = vec![None; said.len()];
    pair(shown, &said, &mut pairs, |shown, said| form(shown) == form(said));
    pair(shown, &said, &mut pairs, |shown, said| {
        SOMETIMES.iter().any(|start| shown.starts_with(start) && said.starts_with(start))
    });
    if has_more {
        pair(shown, &said, &mut pairs, is_like);
    }
    let mut lines: Vec<(Option<usize>, String)> = Vec::new();
    for (said, pair) in said.iter().zip(pairs) {
        match pair {
            Some(at) if form(&shown[at]) == form(said) => lines.push((pair, shown[at].clone())),
            Some(_) => lines.push((pair, (*said).to_owned())),
            None if is_sometimes(said) => {}
            None if !has_more => lines.push((None, (*said).to_owned())),
            None if lines.last().is_some_and(|(_, line)| line == MORE) => {}
            None => lines.push((None, MORE.to_owned())),
        }
    }
    for (at, line) in shown.iter().enumerate().filter(|(_, line)| is_sometimes(line)) {
        if !lines.iter().any(|(pair, _)| *pair == Some(at)) {
            let before = lines.iter().rposition(|(pair, _)| pair.is_some_and(|pair| pair < at));
            lines.insert(before.map_or(lines.len(), |before| before + 1), (None, line.clone()));
        }
    }
    if has_more && !lines.iter().any(|(_, line)| line == MORE) {
        lines.push((None, MORE.to_owned()));
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// Finds for each line of the document that has no partner yet the first free line that was printed and is the same.
fn pair(
    shown: &[String],
    said: &[&str],
    pairs: &mut [Option<usize>],
    is_same: impl Fn(&str, &str) -> bool,
) {
    for (at, line) in shown.iter().enumerate().filter(|(_, line)| *line != MORE) {
        if !pairs.contains(&Some(at)) {
            let is_partner = |to: &usize| pairs[*to].is_none() && is_same(line, said[*to]);
            if let Some(to) = (0..said.len()).find(is_partner) {
                pairs[to] = Some(at);
            }
        }
    }
}

/// Half of the words of a line are in the other one: it was reworded.
fn is_like(shown: &str, said: &str) -> bool {
    let (shown, said) = (form(shown), form(said));
    let said: Vec<&str> = said.split(' ').collect();
    let common = shown.split(' ').filter(|word| said.contains(word)).count();
    common * 2 >= shown.split(' ').count()
}

/// The document with these changes, which are in its order.
pub fn replaced(document: &str, changes: &[Change]) -> String {
    let mut lines = document.split_inclusive('\n');
    let mut at = 0;
    let mut text = String::new();
    for change in changes {
        text.extend(lines.by_ref().take(change.at - at));
        at = change.at + change.count;
        lines.by_ref().take(change.count).for_each(drop);
        text.extend(change.lines.iter().map(|line| format!("{line}\n")));
    }
    text.extend(lines);
    text
}

#[cfg(test)]
fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

#[test]
fn numbers_that_a_document_shows_stay_where_the_rest_is_updated() {
    let shown = lines("dmover: done\n  copied      3 files in 0:01\n  unlike      1 (old words)");
    let said = "dmover: done\n  copied      4 files in 0:02\n  unlike      2 (new words)\n";
    assert!(!is_shown(&shown, said));
    let expected = "dmover: done\n  copied      3 files in 0:01\n  unlike      2 (new words)";
    assert_eq!(updated(&shown, said), lines(expected));
    assert!(is_shown(&updated(&shown, said), said));
    assert!(is_shown(&shown, &said.replace("new", "old")));
}

#[test]
fn lines_that_a_run_prints_sometimes_are_neither_added_nor_lost() {
    let shown = lines("dmover: done\n  copied      nothing\n  directories 1 (of them)");
    let said = "dmover: complete\n  copied      nothing\n  limit       cap\n";
    let expected = lines("dmover: complete\n  copied      nothing\n  directories 1 (of them)");
    assert_eq!(updated(&shown, said), expected);
    let said = "dmover: complete\n  copied      nothing\n  directories 2 (directories)\n";
    assert_eq!(updated(&shown, said), lines(said));
}

#[test]
fn what_a_document_omits_stays_omitted() {
    let shown = lines("dmover: error: cannot write a: no space\n…\ndmover: stopped by a limit\n…");
    let said = "dmover: error: cannot write b: no space\ndmover: error: cannot write c: no space\n\
                dmover: ended by a limit\n  copied      nothing\n";
    let expected = "dmover: error: cannot write b: no space\n…\ndmover: ended by a limit\n…";
    assert_eq!(updated(&shown, said), lines(expected));
    assert!(is_shown(&lines(expected), said));
    assert_eq!(updated(&lines("…\nold words"), "copied\n"), ["…"]);
    assert_eq!(updated(&lines("a word\n…"), "the word\n"), ["the word", "…"]);
}

#[test]
fn everything_else_in_a_document_stays() {
    let document = "words  \n\n```console\n$ a\nold\nold\n$ b\n$ c\nc\n```\n\tend";
    let change = |at, count, text| Change { at, count, lines: lines(text) };
    let changes = [change(4, 2, "new"), change(7, 0, "b\nb"), change(8, 1, "")];
    let expected = "words  \n\n```console\n$ a\nnew\n$ b\nb\nb\n$ c\n```\n\tend";
    assert_eq!(replaced(document, &changes), expected);
    assert_eq!(replaced(document, &[]), document);
}
