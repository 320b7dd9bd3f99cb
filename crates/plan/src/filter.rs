//! Include and exclude rules, sizes and ages: which entries take part.
use dmover_model::{EntryKind, FilterRule, Metadata, Record, Selection, Timestamp, TreePath};
use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A rule that cannot be used.
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
    matcher: GlobMatcher,
}

impl Filter {
    /// Compiles the rules.
    ///
    /// # Errors
    /// The first pattern that is not a glob.
    pub fn new(selection: &Selection) -> Result<Self, PatternError> {
        Ok(Self {
            rules: selection.rules.iter().map(Rule::new).collect::<Result<_, _>>()?,
            min_size_bytes: selection.min_size_bytes,
            max_size_bytes: selection.max_size_bytes,
            newer_than: selection.newer_than,
            older_than: selection.older_than,
        })
    }

    /// Whether any rule could leave out a directory.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether everything takes part, whatever its name, size or age.
    pub fn admits_all(&self) -> bool {
        let bounds = [self.min_size_bytes, self.max_size_bytes];
        let ages = [self.newer_than, self.older_than];
        !self.has_rules() && bounds.iter().all(Option::is_none) && ages.iter().all(Option::is_none)
    }

    /// Whether the entry at `path` (below the source, joined by `/`) takes part.
    pub fn admits(&self, path: &[u8], metadata: &Metadata) -> bool {
        let directory = metadata.kind == EntryKind::Directory;
        self.admits_name(path, directory)
            && (metadata.kind != EntryKind::File || self.admits_file(metadata))
    }

    /// Whether any rule is about more than the last name of a path.
    pub fn has_path_rules(&self) -> bool {
        self.rules.iter().any(|rule| rule.whole_path)
    }

    /// Whether an entry of a manifest takes part, with every directory that it is in.
    pub fn admits_record(&self, record: &Record) -> bool {
        self.admits_below(&record.path, &record.body.metadata())
    }

    /// Whether an entry takes part, and every directory that it is in.
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

    /// Whether size and age of a file are within the bounds.
    fn admits_file(&self, file: &Metadata) -> bool {
        self.min_size_bytes.is_none_or(|min| file.size >= min)
            && self.max_size_bytes.is_none_or(|max| file.size <= max)
            && self.newer_than.is_none_or(|t| file.mtime >= t)
            && self.older_than.is_none_or(|t| file.mtime < t)
    }

    /// Whether the rules let an entry at `path` take part.
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
        let fail = |reason: String| PatternError { pattern: rule.pattern.clone(), reason };
        let directories_only = rule.pattern.ends_with('/') && rule.pattern.len() > 1;
        let body = rule.pattern.strip_suffix('/').filter(|_| directories_only);
        let body = body.unwrap_or(&rule.pattern);
        let (anchored, body) = body.strip_prefix('/').map_or((false, body), |rest| (true, rest));
        if body.is_empty() {
            return Err(fail("matches nothing".into()));
        }
        let whole_path = anchored || body.contains('/');
        let glob = if whole_path && !anchored { format!("**/{body}") } else { body.to_owned() };
        let built = GlobBuilder::new(&glob).literal_separator(true).backslash_escape(true).build();
        let matcher = built.map_err(|e| fail(e.kind().to_string()))?.compile_matcher();
        Ok(Self { include: rule.include, directories_only, whole_path, matcher })
    }

    fn matches(&self, path: &[u8], last: &[u8], directory: bool) -> bool {
        let subject = if self.whole_path { path } else { last };
        (directory || !self.directories_only)
            && self.matcher.is_match(Path::new(OsStr::from_bytes(subject)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[&str]) -> Filter {
        let rules = rules
            .iter()
            .map(|r| FilterRule { include: r.starts_with('+'), pattern: r[1..].into() })
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
        let rules = vec![FilterRule { include: false, pattern: "a[".into() }];
        let error = Filter::new(&Selection { rules, ..Selection::default() }).unwrap_err();
        assert!(error.to_string().contains("'a['"));
    }
}
