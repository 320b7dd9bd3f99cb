//! Options of rsync, cp, scp and rclone, and how dmover treats each of them.
use clap::{Arg, Command};
use std::collections::VecDeque;
use std::ffi::OsString;

mod ambiguous;
mod table;

pub use table::{Fate, HABITS, Habit, Verbs};

/// The message and the hint for an option that is refused.
pub(crate) type Refused = (String, String);

/// Translates the words of a command line: removes options that have no effect in dmover, and renames options that have
/// another name.
pub(crate) fn translate(words: &[OsString]) -> Result<Vec<OsString>, Refused> {
    let called = words.get(1).and_then(|word| word.to_str());
    let Some(verb) = Verbs::of(called.unwrap_or_default()) else { return Ok(words.to_vec()) };
    let mut command = crate::command();
    command.build();
    let Some(definition) = command.find_subcommand(verb.name()) else { return Ok(words.to_vec()) };
    let translated = words[..2].to_vec();
    let left = words[2..].iter().cloned().collect();
    Translation { verb, definition, left, translated }.run()
}

struct Translation<'a> {
    verb: Verbs,
    definition: &'a Command,
    left: VecDeque<OsString>,
    translated: Vec<OsString>,
}

impl Translation<'_> {
    fn run(mut self) -> Result<Vec<OsString>, Refused> {
        while let Some(word) = self.left.pop_front() {
            let text = word.to_str().unwrap_or_default();
            if text == "--" {
                self.translated.push(word);
                self.translated.append(&mut self.left.into());
                break;
            }
            if let Some(long) = text.strip_prefix("--") {
                let (name, value) = match long.split_once('=') {
                    Some((name, value)) => (name, Some(value)),
                    None => (long, None),
                };
                self.long(&word, name, value)?;
            } else if text.len() > 1 && text.starts_with('-') {
                self.cluster(&text[1..])?;
            } else {
                self.translated.push(word);
            }
        }
        Ok(self.translated)
    }

    fn long(&mut self, word: &OsString, name: &str, value: Option<&str>) -> Result<(), Refused> {
        let typed = format!("--{name}");
        if value.is_none() {
            ambiguous::check_long(name, self.next())?;
        }
        let Some(habit) = table::find(self.verb, &typed) else {
            let takes_value = |arg: &&Arg| {
                let names = arg.get_all_aliases().unwrap_or_default();
                (arg.get_long() == Some(name) || names.contains(&name)) && wants_word(arg)
            };
            let next = self.definition.get_arguments().find(takes_value);
            let next = next.filter(|_| value.is_none()).and_then(|_| self.left.pop_front());
            self.translated.push(word.clone());
            self.translated.extend(next);
            return Ok(());
        };
        match habit.fate {
            Fate::Ignored(_) => Ok(()),
            Fate::Means(words) => {
                self.translated.extend(words.iter().map(OsString::from));
                Ok(())
            }
            Fate::Renamed(to) => {
                self.translated
                    .push(value.map_or_else(|| to.into(), |v| format!("{to}={v}").into()));
                if value.is_none() {
                    self.translated.extend(self.left.pop_front());
                }
                Ok(())
            }
            Fate::Refused(instead) => Err(self.refusal(&typed, instead)),
        }
    }

    /// Translates letters after one dash; the text after the letter of an option with a value is that value.
    fn cluster(&mut self, letters: &str) -> Result<(), Refused> {
        let mut kept = String::from("-");
        let mut meant = Vec::new();
        let mut value = None;
        for (at, letter) in letters.char_indices() {
            let typed = format!("-{letter}");
            let is_last = at + letter.len_utf8() == letters.len();
            let next = self.next().filter(|_| is_last);
            ambiguous::check_letter(self.verb, letters, letter, next)?;
            match table::find(self.verb, &typed).map(|habit| habit.fate) {
                Some(Fate::Ignored(_)) => continue,
                Some(Fate::Means(words)) => {
                    meant.extend(words.iter().map(OsString::from));
                    continue;
                }
                Some(Fate::Refused(instead)) => return Err(self.refusal(&typed, instead)),
                Some(Fate::Renamed(to)) => {
                    let rest = &letters[at + letter.len_utf8()..];
                    let own = (!rest.is_empty()).then(|| OsString::from(rest));
                    meant.push(to.into());
                    meant.extend(own.or_else(|| self.left.pop_front()));
                    break;
                }
                None => {}
            }
            kept.push(letter);
            let is_it = |arg: &&Arg| {
                arg.get_short_and_visible_aliases().unwrap_or_default().contains(&letter)
            };
            if self.definition.get_arguments().find(is_it).is_some_and(wants_word) {
                let rest = &letters[at + letter.len_utf8()..];
                kept.push_str(rest);
                value = if rest.is_empty() { self.left.pop_front() } else { None };
                break;
            }
        }
        self.translated.append(&mut meant);
        if kept.len() > 1 {
            self.translated.push(kept.into());
        }
        self.translated.extend(value);
        Ok(())
    }

    /// The next word, if it is UTF-8.
    fn next(&self) -> Option<&str> {
        self.left.front().and_then(|word| word.to_str())
    }

    fn refusal(&self, typed: &str, instead: &str) -> Refused {
        (format!("'dmover {}' has no option '{typed}'", self.verb.name()), instead.to_owned())
    }
}

/// Whether an option takes the next word as its value.
fn wants_word(arg: &Arg) -> bool {
    let needs = arg.get_num_args().is_some_and(|range| range.min_values() > 0);
    arg.get_action().takes_values() && needs && !arg.is_require_equals_set()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match translate(&words) {
            Ok(words) => words.join(" ".as_ref()).into_string().unwrap(),
            Err((message, _)) => message,
        }
    }

    #[test]
    fn options_without_an_effect_are_removed() {
        for (typed, meant) in [
            ("dmover sync -aHAXS a b", "dmover sync --sparse=always -aHAX a b"),
            ("dmover sync -rlptgoD a b", "dmover sync -r a b"),
            ("dmover sync --numeric-ids --super a b", "dmover sync a b"),
            ("dmover sync -z a b", "dmover sync --compress=always a b"),
            ("dmover sync -az --no-z a b", "dmover sync --compress=always -a --compress=never a b"),
            ("dmover sync -avP --info=progress2 a b", "dmover sync -av a b"),
            ("dmover copy -rp a b", "dmover copy -r a b"),
            ("dmover copy --max-age 2d a b", "dmover copy --newer 2d a b"),
            ("dmover copy --max-age=2d a b", "dmover copy --newer=2d a b"),
            ("dmover sync -af -_x a b", "dmover sync --filter -_x -a a b"),
            ("dmover sync -f-_x a b", "dmover sync --filter -_x a b"),
        ] {
            assert_eq!(translated(typed), meant);
        }
    }

    #[test]
    fn values_and_operands_stay_as_they_are() {
        for line in [
            "dmover sync -j 4 --label -z a b",
            "dmover sync --exclude -p a b",
            "dmover copy -t z a b",
            "dmover copy -j4t a b",
            "dmover copy --stats a b",
            "dmover copy --stats=30s a b",
            "dmover copy -- -z -p",
            "dmover sync --bwlimit=1M -- -z b",
            "dmover sum -z a",
            "dmover",
        ] {
            assert_eq!(translated(line), line);
        }
    }

    #[test]
    fn what_would_mean_something_else_is_refused() {
        for (line, words) in [
            ("dmover sync -aR a b", "no option '-R'"),
            // cp -t takes a directory, rsync -t none.
            ("dmover copy -rt a b", "-t names the directory"),
            ("dmover copy -rt d a b", "-t names the directory"),
            ("dmover copy -rt a b --exclude *.tmp", "-t names the directory"),
            ("dmover copy -avt a b -j 4", "-t names the directory"),
            ("dmover copy -rtv a b", "-t names the directory"),
            ("dmover copy -tz a b", "-t names the directory"),
            ("dmover copy -j 4 -rt a b", "-t names the directory"),
            // cp -S takes a suffix, rsync -S none.
            ("dmover copy -S .bak a d", "no option '-S'"),
            ("dmover copy -aHAXS a d", "no option '-S'"),
            // scp takes values, rsync and cp none.
            ("dmover copy -o Compression=no a d", "no option '-o'"),
            ("dmover copy -rD server a d", "no option '-D'"),
            ("dmover copy -rP 2222 a d", "scp -P takes a port"),
            // rsync and rclone take values, cp and rsync none.
            ("dmover copy -rf +_x a d", "rsync -f takes a filter rule"),
            ("dmover copy -f -_x a d", "rsync -f takes a filter rule"),
            ("dmover copy -f merge,rules a d", "rsync -f takes a filter rule"),
            ("dmover copy -f ! a d", "rsync -f takes a filter rule"),
            ("dmover copy --stats 30s a d", "rclone --stats takes a value"),
            ("dmover copy --info progress2 a d", "rsync --info takes a value"),
            ("dmover sync --info progress2 a d", "rsync --info takes a value"),
        ] {
            let said = translated(line);
            assert!(said.contains(words), "{line}: {said}");
        }
        assert_eq!(translated("dmover copy -R a b"), "dmover copy -R a b");
    }

    #[test]
    fn letters_with_two_meanings_stay_where_the_next_word_is_an_operand() {
        for (typed, meant) in [
            ("dmover copy -rf a b", "dmover copy -r a b"),
            ("dmover copy -rf ./s_x b", "dmover copy -r ./s_x b"),
            ("dmover copy -rf ._x show_x b", "dmover copy -r ._x show_x b"),
            ("dmover copy -rP a2 b", "dmover copy -r a2 b"),
            ("dmover copy -Pr 22 b", "dmover copy -r 22 b"),
            ("dmover sync -rt a b", "dmover sync -r a b"),
            ("dmover sync -oDS a b", "dmover sync --sparse=always a b"),
        ] {
            assert_eq!(translated(typed), meant);
        }
    }
}
