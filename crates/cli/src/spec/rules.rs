//! Rules of `--include`, `--exclude` and `--filter`, and rule files, in the syntax of rsync(1).
use clap::ArgMatches;
use dmover_model::{FilterRule, PathBytes};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::{Unusable, braces, unusable};
use crate::args::FilterArgs;
use crate::print::say;
use dmover_job::quote::quoted;

/// The greatest depth of rule files that merge other rule files.
const DEPTH_MAX: usize = 16;

/// How a rule is written.
#[derive(Clone, Copy)]
enum Syntax {
    /// A pattern to include or to exclude; a sign before it overrides that.
    Pattern { include: bool },
    /// A rule with its name, as `--filter` takes it.
    Rule,
}

/// One rule.
#[derive(Debug, PartialEq, Eq)]
enum Parsed<'a> {
    Rule(FilterRule),
    /// Read more rules from this file.
    Merge(&'a [u8]),
    /// Drop all rules before this one.
    Clear,
}

/// Why a text is not a rule, and the hint.
type Refused = (String, &'static str);

/// All rules in the order in which they were typed, since the first match wins.
pub(super) fn rules(args: &FilterArgs, matches: &ArgMatches) -> Result<Vec<FilterRule>, Unusable> {
    let pattern = |include| Syntax::Pattern { include };
    let options = [
        ("include", &args.include, pattern(true), false),
        ("exclude", &args.exclude, pattern(false), false),
        ("filter", &args.filter, Syntax::Rule, false),
        ("include_from", &args.include_from, pattern(true), true),
        ("exclude_from", &args.exclude_from, pattern(false), true),
    ];
    let mut ordered: Vec<(usize, &OsString, Syntax, bool)> = Vec::new();
    for (id, values, syntax, is_file) in options {
        let indices = matches.indices_of(id).into_iter().flatten();
        ordered.extend(indices.zip(values).map(|(at, value)| (at, value, syntax, is_file)));
    }
    ordered.sort_by_key(|(at, ..)| *at);
    let mut rules = Rules::default();
    for (_, value, syntax, is_file) in ordered {
        if is_file {
            rules.read(value, syntax, 0)?;
        } else {
            rules.add(value.as_bytes(), syntax, None)?;
        }
    }
    if let Some(note) = braces::note(&rules.0) {
        say(&note);
    }
    Ok(rules.0)
}

#[derive(Default)]
struct Rules(Vec<FilterRule>);

impl Rules {
    /// Adds one rule. `file`: the file of the rule, its line number, and the nesting depth of the file.
    fn add(
        &mut self,
        text: &[u8],
        syntax: Syntax,
        file: Option<(&OsStr, usize, usize)>,
    ) -> Result<(), Unusable> {
        let parsed = parse(text, syntax).map_err(|(message, hint)| match file {
            Some((file, line, _)) => {
                unusable(format!("{}, line {line}: {message}", quoted(file.as_bytes())), hint)
            }
            None => unusable(message, hint),
        })?;
        match parsed {
            Parsed::Rule(rule) => self.0.push(rule),
            Parsed::Clear => self.0.clear(),
            Parsed::Merge(name) => {
                let depth = file.map_or(0, |(_, _, depth)| depth + 1);
                self.read(OsStr::from_bytes(name), Syntax::Rule, depth)?;
            }
        }
        Ok(())
    }

    /// Adds the rules in a file, one a line.
    fn read(&mut self, file: &OsStr, syntax: Syntax, depth: usize) -> Result<(), Unusable> {
        let shown = quoted(file.as_bytes());
        if file == "-" {
            let hint = "write the rules to a file: a resumed job reads them again";
            return Err(unusable("cannot read rules from standard input", hint));
        }
        if depth > DEPTH_MAX {
            let hint = "check whether a rule file names itself with 'merge'";
            return Err(unusable(format!("rule files are nested too deep at {shown}"), hint));
        }
        let text = std::fs::read(file).map_err(|error| {
            unusable(format!("cannot read the rules in {shown}: {error}"), "check the file")
        })?;
        if text.contains(&0) {
            let hint = "write one rule a line; rules that end with NUL are not supported";
            return Err(unusable(format!("{shown} contains NUL bytes"), hint));
        }
        // As in rsync(1): blanks belong to a pattern, and CR or LF ends it.
        let lines = text.split(|byte| matches!(byte, b'\n' | b'\r'));
        for (number, line) in lines.enumerate() {
            if !matches!(line.first(), None | Some(b'#' | b';')) {
                self.add(line, syntax, Some((file, number + 1, depth)))?;
            }
        }
        Ok(())
    }
}

/// Parses a rule.
fn parse(text: &[u8], syntax: Syntax) -> Result<Parsed<'_>, Refused> {
    let rule = |include, pattern: &[u8]| {
        Ok(Parsed::Rule(FilterRule { include, pattern: PathBytes(pattern.to_vec()) }))
    };
    let Syntax::Pattern { include } = syntax else { return parse_named(text) };
    match text {
        b"!" => Ok(Parsed::Clear),
        [b'-', b' ', pattern @ ..] => rule(false, pattern),
        [b'+', b' ', pattern @ ..] => rule(true, pattern),
        pattern => rule(include, pattern),
    }
}

/// Long names of rules with their short ones.
const NAMES: [(&[u8], u8); 9] = [
    (b"exclude", b'-'),
    (b"include", b'+'),
    (b"merge", b'.'),
    (b"dir-merge", b':'),
    (b"hide", b'H'),
    (b"show", b'S'),
    (b"protect", b'P'),
    (b"risk", b'R'),
    (b"clear", b'!'),
];

fn parse_named(text: &[u8]) -> Result<Parsed<'_>, Refused> {
    let shown = quoted(text);
    let refuse = |why: &str, hint| Err((format!("the rule {shown} {why}"), hint));
    let ends = |rest: &[u8]| matches!(rest.first(), None | Some(b' ' | b'_' | b',' | b'\t'));
    let long = NAMES.iter().find_map(|(name, short)| {
        let rest = text.strip_prefix(*name).filter(|rest| ends(rest))?;
        Some((*short, rest))
    });
    let (kind, rest) = match (long, text) {
        (Some(found), _) => found,
        (None, [short, rest @ ..]) => (*short, rest),
        (None, []) => return refuse("is empty", WRITE),
    };
    match kind {
        b'-' | b'+' | b'.' | b'!' => {}
        b':' => {
            let hint = "name one file: --filter='merge FILE', or --exclude-from FILE";
            return refuse("asks for rule files in each directory, which are not supported", hint);
        }
        b'H' | b'S' | b'P' | b'R' => {
            let hint = "write '- PATTERN': what it matches is neither copied nor deleted";
            return refuse("is for one side only; rules always apply to SOURCE and DEST", hint);
        }
        _ => return refuse("has an unknown name", WRITE),
    }
    if kind == b'!' {
        return match rest {
            [] | [b','] => Ok(Parsed::Clear),
            _ => refuse("has text after '!'", "write '!' alone: it drops all rules before it"),
        };
    }
    let modifiers = rest.strip_prefix(b",").unwrap_or(rest);
    let end = modifiers.iter().position(|byte| matches!(byte, b' ' | b'_'));
    let end = end.unwrap_or(modifiers.len());
    if let Some(modifier) = modifiers[..end].first() {
        let modifier = quoted(&[*modifier]);
        return refuse(&format!("has the modifier {modifier}, which is not supported"), WRITE);
    }
    match (kind, modifiers.get(end + 1..).unwrap_or_default()) {
        (_, []) => refuse("has no pattern or file", WRITE),
        (b'.', name) => Ok(Parsed::Merge(name)),
        (_, pattern) => Ok(Parsed::Rule(FilterRule {
            include: kind == b'+',
            pattern: PathBytes(pattern.to_vec()),
        })),
    }
}

const WRITE: &str = "write '- PATTERN', '+ PATTERN', 'merge FILE' or '!'";

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> String {
        match parse(text.as_bytes(), Syntax::Rule) {
            Ok(Parsed::Rule(rule)) => {
                let sign = if rule.include { '+' } else { '-' };
                format!("{sign}{}", String::from_utf8(rule.pattern.0).unwrap())
            }
            Ok(Parsed::Merge(name)) => format!(".{}", String::from_utf8_lossy(name)),
            Ok(Parsed::Clear) => "!".into(),
            Err((message, _)) => message,
        }
    }

    #[test]
    fn rules_have_short_and_long_names() {
        for (text, meant) in [
            ("- a b", "-a b"),
            ("+ *.c", "+*.c"),
            ("-_a", "-a"),
            ("-, a", "-a"),
            ("exclude a", "-a"),
            ("include_a ", "+a "),
            ("exclude, a", "-a"),
            ("-  a", "- a"),
            (". file", ".file"),
            ("merge my file", ".my file"),
            ("!", "!"),
            ("clear", "!"),
        ] {
            assert_eq!(rule(text), meant, "{text}");
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (text, words) in [
            (": .rsync-filter", "in each directory"),
            ("dir-merge,n x", "in each directory"),
            (":C", "in each directory"),
            ("P x", "one side only"),
            ("protect x", "one side only"),
            ("-s x", "modifier s"),
            ("-! x", "modifier"),
            ("+,r x", "modifier r"),
            ("exclude,p x", "modifier p"),
            (".- x", "modifier -"),
            ("! x", "after '!'"),
            ("-", "has no pattern"),
            ("- ", "has no pattern"),
            ("x", "unknown name"),
            ("excluded a", "unknown name"),
            ("", "is empty"),
        ] {
            assert!(rule(text).contains(words), "{text}: {}", rule(text));
        }
    }
}
