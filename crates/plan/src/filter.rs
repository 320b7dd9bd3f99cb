//! Include and exclude rules, sizes and ages: they decide which entries belong to the job.
use dmover_model::{EntryKind, FilterRule, Metadata, Record, Selection, Timestamp, TreePath};

use crate::wild::{self, Begin};

/// An invalid rule.
#[derive(Debug, thiserror::Error)]
#[error("pattern '{pattern}': {reason}")]
pub struct PatternError {
    pattern: String,
    reason: String,
}

/// Compiled rules of a [`Selection`].
#[derive(Debug, Default)]
pub struct Filter {
    rules: Vec<Rule>,
    min_size_bytes: Option<u64>,
    max_size_bytes: Option<u64>,
    newer_than: Option<Timestamp>,
    older_than: Option<Timestamp>,
}

#[derive(Debug)]
struct Rule {
    include: bool,
    directories_only: bool,
    whole_path: bool,
    is_wild: bool,
    pattern: Vec<u8>,
    begin: Begin,
    from_top: bool,
    suffix: bool,
}

impl Filter {
    /// Compiles the rules.
    ///
    /// # Errors
    /// The first pattern that is not valid.
    pub fn new(selection: &Selection) -> Result<Self, PatternError> {
        Ok(Self {
            rules: selection.rules.iter().map(Rule::new).collect::<Result<_, _>>()?,
            min_size_bytes: selection.min_size_bytes,
            max_size_bytes: selection.max_size_bytes,
            newer_than: selection.newer_than,
            older_than: selection.older_than,
        })
    }

    /// Whether any rule could exclude a directory.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether every entry belongs to the job, whatever its name, size or age.
    pub fn admits_all(&self) -> bool {
        let bounds = [self.min_size_bytes, self.max_size_bytes];
        let ages = [self.newer_than, self.older_than];
        !self.has_rules() && bounds.iter().all(Option::is_none) && ages.iter().all(Option::is_none)
    }

    /// Whether the entry at `path` (below the source, joined by `/`) belongs to the job.
    pub fn admits(&self, path: &[u8], metadata: &Metadata) -> bool {
        let directory = metadata.kind == EntryKind::Directory;
        self.admits_name(path, directory)
            && (metadata.kind != EntryKind::File || self.admits_file(metadata))
    }

    /// Whether any rule depends on more than the last component of a path.
    pub fn has_path_rules(&self) -> bool {
        self.rules.iter().any(|rule| rule.whole_path)
    }

    /// Whether an entry of a manifest and all directories above it belong to the job.
    pub fn admits_record(&self, record: &Record) -> bool {
        self.admits_below(&record.path, &record.body.metadata())
    }

    /// Whether an entry and all directories above it belong to the job.
    pub fn admits_below(&self, path: &TreePath, own: &Metadata) -> bool {
        let admits = |path: &TreePath, metadata: &Metadata| {
            path.is_root() || self.admits(path.as_bytes(), metadata)
        };
        let directory = Metadata { kind: EntryKind::Directory, ..own.clone() };
        let mut above = path.split_last().map(|(above, _)| above);
        while let Some(path) = above.filter(|_| self.has_rules()) {
            if !admits(&path, &directory) {
                return false;
            }
            above = path.split_last().map(|(above, _)| above);
        }
        admits(path, own)
    }

    /// Whether the size and age of a file are within the limits.
    fn admits_file(&self, file: &Metadata) -> bool {
        self.min_size_bytes.is_none_or(|min| file.size >= min)
            && self.max_size_bytes.is_none_or(|max| file.size <= max)
            && self.newer_than.is_none_or(|t| file.mtime >= t)
            && self.older_than.is_none_or(|t| file.mtime < t)
    }

    /// Whether the rules include an entry at `path`.
    pub fn admits_name(&self, path: &[u8], directory: bool) -> bool {
        let last = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        self.rules
            .iter()
            .find(|rule| rule.matches(path, last, directory))
            .is_none_or(|rule| rule.include)
    }
}

impl Rule {
    fn new(rule: &FilterRule) -> Result<Self, PatternError> {
        let whole = &rule.pattern.0[..];
        let fail = |reason: &str| PatternError {
            pattern: String::from_utf8_lossy(whole).into_owned(),
            reason: reason.into(),
        };
        let body = whole.strip_suffix(b"/").filter(|body| !body.is_empty());
        let directories_only = body.is_some();
        let body = body.unwrap_or(whole);
        let anchored = body.starts_with(b"/");
        let pattern = if anchored { &body[1..] } else { body };
        if pattern.is_empty() {
            return Err(fail("matches nothing"));
        }
        let has = |two: &[u8]| pattern.windows(two.len()).any(|window| window == two);
        let is_wild = pattern.iter().any(|byte| b"*?[".contains(byte));
        if is_wild && !is_closed(pattern) {
            return Err(fail("unclosed bracket or unknown character class"));
        }
        let slashes = pattern.split(|byte| *byte == b'/').count() - 1;
        let crosses = has(b"**");
        // A pattern that begins with two stars matches from the start on, also what lies there.
        let from_top = !anchored && pattern.starts_with(b"**");
        let begin = match () {
            () if anchored || from_top => Begin::Start,
            () if crosses => Begin::Anywhere,
            () => Begin::Last(slashes + 1),
        };
        let whole_path = anchored || slashes > 0 || crosses;
        let (pattern, suffix) = (pattern.to_vec(), crosses && pattern.ends_with(b"***"));
        let include = rule.include;
        Ok(Self {
            include,
            directories_only,
            whole_path,
            is_wild,
            pattern,
            begin,
            from_top,
            suffix,
        })
    }

    fn matches(&self, path: &[u8], last: &[u8], directory: bool) -> bool {
        if self.directories_only && !directory {
            return false;
        }
        if !self.is_wild {
            // A backslash is a byte like any other where nothing is wild.
            let rest = path.strip_suffix(&self.pattern[..]);
            let at_start = |rest: &[u8]| rest.is_empty();
            return match self.begin {
                Begin::Start => rest.is_some_and(at_start),
                _ => rest.is_some_and(|rest| at_start(rest) || rest.ends_with(b"/")),
            };
        }
        let subject = if self.whole_path { path } else { last };
        let suffix = self.suffix && directory;
        if !self.from_top && !suffix {
            return wild::matches(&self.pattern, subject, self.begin);
        }
        // `**/` matches at the top as well, and `/***` the directory itself.
        let before: &[u8] = if self.from_top { b"/" } else { b"" };
        let after: &[u8] = if suffix { b"/" } else { b"" };
        wild::matches(&self.pattern, &[before, subject, after].concat(), self.begin)
    }
}

/// Whether every bracket set of a pattern is closed. rsync(1) treats a rule with an open set as one that matches
/// nothing.
fn is_closed(pattern: &[u8]) -> bool {
    let mut rest = pattern;
    while let [byte, after @ ..] = rest {
        rest = match byte {
            b'\\' => after.get(1..).unwrap_or_default(),
            b'[' => match wild::end_of_set(after) {
                Some(after) => after,
                None => return false,
            },
            _ => after,
        };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::PathBytes;

    fn filter(rules: &[&str]) -> Filter {
        let rules = rules
            .iter()
            .map(|r| FilterRule {
                include: r.starts_with('+'),
                pattern: PathBytes(r.as_bytes()[1..].to_vec()),
            })
            .collect();
        Filter::new(&Selection { rules, ..Selection::default() }).unwrap()
    }

    #[test]
    fn the_first_match_wins() {
        let f = filter(&["+keep.o", "-*.o"]);
        assert!(f.admits_name(b"a/keep.o", false));
        assert!(!f.admits_name(b"a/x.o", false));
        assert!(f.admits_name(b"a/x.c", false));
    }

    #[test]
    fn anchors_slashes_and_directories() {
        let f = filter(&["-/top", "-sub/x", "-tmp/", "-deep/**/z"]);
        assert!(!f.admits_name(b"top", false));
        assert!(f.admits_name(b"a/top", false));
        assert!(!f.admits_name(b"a/sub/x", false));
        assert!(f.admits_name(b"a/sub/y/x", false));
        assert!(f.admits_name(b"a/tmp", false));
        assert!(!f.admits_name(b"a/tmp", true));
        assert!(!f.admits_name(b"deep/a/b/z", false));
    }

    #[test]
    fn names_that_are_not_utf8_match() {
        assert!(!filter(&["-a?b"]).admits_name(b"d/a\xffb", false));
        assert!(!filter(&["-*"]).admits_name(b"\xff\n", false));
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let rules = vec![FilterRule { include: false, pattern: PathBytes(b"a[".to_vec()) }];
        let error = Filter::new(&Selection { rules, ..Selection::default() }).unwrap_err();
        assert!(error.to_string().contains("'a['"));
    }

    #[test]
    fn patterns_mean_what_they_mean_to_rsync() {
        // Each line was tried with rsync 3.5: pattern, path, whether it is a directory, whether it is excluded.
        for (pattern, path, directory, out) in [
            ("/a**b", "a/x/b", false, true),
            ("/a**b", "ab", false, true),
            ("a**b", "x/a/y/b", false, true),
            ("/a*b", "a/b", false, false),
            ("**", "a/b", false, true),
            ("**/x", "x", false, true),
            ("x/**", "x", true, false),
            ("x/**", "y/x/z/w", false, true),
            ("x/***", "x", true, true),
            ("x/***", "y/x/z", false, true),
            ("[[:digit:]]", "7", false, true),
            ("[[:digit:]]", "d", false, false),
            ("[![:digit:]a-c]", "d", false, true),
            ("[^a]", "b", false, true),
            ("a?c", "a/c", false, false),
            ("??", "\u{e9}", false, true),
            ("?", "\u{e9}", false, false),
            ("{a,b}", "a", false, false),
            ("{a,b}", "{a,b}", false, true),
            ("a\\b", "a\\b", false, true),
            ("a\\*", "a*", false, true),
            ("a\\*", "ab", false, false),
            ("b/c", "a/b/c", false, true),
            ("b/c", "a/xb/c", false, false),
            ("b/*", "a/b/c", false, true),
            ("b/*", "a/b/c/d", false, false),
            ("b ", "b", false, false),
        ] {
            let excluded =
                !filter(&[&format!("-{pattern}")]).admits_name(path.as_bytes(), directory);
            assert_eq!(excluded, out, "{pattern} {path}");
        }
    }
}
