//! The rules of `--usermap`, `--groupmap` and `--projectmap`.
use dmover_model::{AccountKey, IdRule, NameRule};

use super::{Unusable, unusable};

/// Rules of one option.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// Those of numbers alone.
    pub ids: Vec<IdRule>,
    /// Those with names.
    pub names: Vec<NameRule>,
}

/// What a rule for owners looks like.
const OWNERS: &str = "use 1000:5000, alice:bob, 1000:5000:100 for a range of ids, *:65534 for all others, @FILE for a file of rules";
/// What a rule for projects looks like.
const PROJECTS: &str =
    "use 1000:5000, 1000:5000:100 for a range, *:7 for all others, @FILE for a file of rules";

/// The rules of `--usermap` or `--groupmap`.
///
/// # Errors
/// A word is no rule, or a file cannot be read.
pub(super) fn owner_rules(words: &[String], flag: &str) -> Result<Rules, Unusable> {
    let mut rules = Rules::default();
    each_rule(words, (flag, OWNERS), |word| {
        if let Some(rule) = id_rule(word) {
            rules.ids.push(rule);
            return true;
        }
        let rule = name_rule(word);
        let is_rule = rule.is_some();
        rules.names.extend(rule);
        is_rule
    })?;
    Ok(rules)
}

/// The rules of `--projectmap`. An entry without a project gets none by a map.
///
/// # Errors
/// A word is no rule, or a file cannot be read.
pub(super) fn project_rules(words: &[String]) -> Result<Vec<IdRule>, Unusable> {
    let mut rules = Vec::new();
    each_rule(words, ("--projectmap", PROJECTS), |word| {
        let rule = id_rule(word);
        rules.extend(rule);
        rule.is_some()
    })?;
    Ok(rules)
}

/// Calls `take` with each rule. A word that begins with `@` names a file of rules, one on a line. `take` answers whether it is one.
fn each_rule(
    words: &[String],
    (flag, hint): (&str, &'static str),
    mut take: impl FnMut(&str) -> bool,
) -> Result<(), Unusable> {
    for word in words {
        let Some(file) = word.strip_prefix('@') else {
            if !take(word) {
                return Err(unusable(format!("{flag}: '{word}' is no rule"), hint));
            }
            continue;
        };
        let cannot =
            |error| unusable(format!("{flag}: cannot read '{file}': {error}"), "check the file");
        let text = std::fs::read_to_string(file).map_err(cannot)?;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let fields = line.split_whitespace().collect::<Vec<_>>().join(":");
            if !fields.is_empty() && !take(&fields) {
                let line = line.trim();
                let wrong = format!("{flag}: '{file}', line {number}: '{line}' is no rule");
                return Err(unusable(wrong, hint));
            }
        }
    }
    Ok(())
}

fn id_rule(word: &str) -> Option<IdRule> {
    let fields: Vec<&str> = word.split(':').collect();
    match fields[..] {
        ["*", to] => Some(IdRule { from: 0, to: id(to)?, count: 0 }),
        [from, to] => Some(IdRule { from: id(from)?, to: id(to)?, count: 1 }),
        [from, to, count] => {
            let (from, to, count): (u32, u32, u32) = (id(from)?, id(to)?, count.parse().ok()?);
            // Neither side goes beyond the largest id.
            let fits = |first: u32| count > 0 && first.checked_add(count).is_some();
            (fits(from) && fits(to)).then_some(IdRule { from, to, count })
        }
        _ => None,
    }
}

/// A number that an owner can have: the largest one means none (chown(2)).
fn id(word: &str) -> Option<u32> {
    word.parse().ok().filter(|id| *id != u32::MAX)
}

/// A rule with a name on at least one side.
fn name_rule(word: &str) -> Option<NameRule> {
    let (from, to) = word.split_once(':')?;
    let from = if from == "*" { AccountKey::Others } else { account(from)? };
    let to = account(to)?;
    let is_name = |key: &AccountKey| matches!(key, AccountKey::Name(_));
    (is_name(&from) || is_name(&to)).then_some(NameRule { from, to })
}

/// A number or a name. What is neither may be a mistake: names have no colon, and are no number (useradd(8)).
fn account(word: &str) -> Option<AccountKey> {
    if let Some(id) = id(word) {
        return Some(AccountKey::Id(id));
    }
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    let may_begin = !word.starts_with(['-', '+', '*', '@']);
    // rsync takes patterns and ranges of this form.
    let is_pattern = word.contains(['*', '?', '[']);
    let is_range = word.split_once('-').is_some_and(|(first, last)| {
        [first, last].iter().all(|end| end.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let may_be = !(is_number || is_pattern || is_range);
    let is_name = !word.is_empty() && may_be && may_begin && !word.contains(':');
    is_name.then(|| AccountKey::Name(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(words: &[&str]) -> Result<Rules, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        owner_rules(&words, "--usermap").map_err(|why| format!("{why:?}"))
    }

    #[test]
    fn rules_are_numbers_or_have_a_name() {
        let name = |name: &str| AccountKey::Name(name.into());
        let found =
            rules(&["1:2", "alice:bob", "5:carol", "dave:7", "*:nobody", "*:65534"]).unwrap();
        let ids = [IdRule { from: 1, to: 2, count: 1 }, IdRule { from: 0, to: 65534, count: 0 }];
        assert_eq!(found.ids, ids);
        let wanted = [
            (name("alice"), name("bob")),
            (AccountKey::Id(5), name("carol")),
            (name("dave"), AccountKey::Id(7)),
            (AccountKey::Others, name("nobody")),
        ];
        let wanted = wanted.map(|(from, to)| NameRule { from, to });
        assert_eq!(found.names, wanted);
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for word in [
            "",
            "1",
            "a",
            ":",
            "a:",
            ":b",
            "a:*",
            "*:*",
            "a:b:c",
            "a:b:3",
            "99999999999:b",
            "-a:b",
            "a:b c:",
            "0-99:b",
            "adm*:b",
            "a?:b",
            "[ab]:c",
            "a:b*",
            "a:4294967295",
            "4294967295:b",
            "5:4294967295",
            "*:4294967295",
            "4294967290:0:6",
        ] {
            assert!(rules(&[word]).is_err(), "{word:?}");
        }
        assert!(project_rules(&["a:7".to_owned()]).is_err());
        assert!(project_rules(&["5:7".to_owned()]).is_ok());
        assert!(rules(&["4294967290:0:5"]).is_ok());
    }

    #[test]
    fn a_file_has_a_rule_on_each_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("map");
        std::fs::write(&file, "# people\nalice bob\n 5:6 # one\n\n").unwrap();
        let found = rules(&[&format!("@{}", file.display())]).unwrap();
        assert_eq!((found.ids.len(), found.names.len()), (1, 1));
        std::fs::write(&file, "alice bob carol\n").unwrap();
        let why = rules(&[&format!("@{}", file.display())]).unwrap_err();
        assert!(why.contains("line 1"), "{why}");
    }
}
