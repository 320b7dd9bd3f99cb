//! How many fields and methods a type may have: one that has more is what everything hangs on.
use std::collections::BTreeMap;

use super::rust::Method;
use super::{Finding, SourceFile};

const FIELDS_MAX: usize = 15;
const METHODS_MAX: usize = 40;

/// Types that may have more: the crate, the type, and why.
const REASONS: &[(&str, &str, &str)] = &[
    ("cli", "CpArgs", "one field for each option of the command"),
    ("cli", "MoverArgs", "one field for each option of the command"),
    ("cli", "SubmitArgs", "one field for each option of the command"),
    ("cli", "SyncArgs", "one field for each option of the command"),
    ("cli", "VerifyArgs", "one field for each option of the command"),
    ("engine", "JobOffer", "a message: what a mover in another process must know"),
    ("engine", "JobReport", "the report of a job, as it is printed"),
    ("journal", "JobStatus", "a file: one field for each key of `status.json`"),
    ("local", "Facts", "what was found out about a file system, one question a field"),
    ("memory", "Profile", "what a file system can do, one ability a field"),
    ("memory", "User", "one method for each system call"),
    ("model", "CopyPolicy", "the policy of a job, as `--print-job` shows it"),
    ("observe", "MoverView", "one field for each column of the display"),
];

/// A type: the crate, the file that defines it, its name.
type Key<'a> = (&'a str, &'a str, &'a str);

/// What a type has.
#[derive(Debug, Default)]
struct Size {
    line: usize,
    fields: usize,
    methods: usize,
}

/// All types outside tests.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let (sizes, unclear) = sizes(files);
    let is_large = |size: &Size| size.fields > FIELDS_MAX || size.methods > METHODS_MAX;
    let has_reason = |of: &str, name: &str| REASONS.iter().any(|(o, n, _)| (*o, *n) == (of, name));
    let large =
        sizes.iter().filter(|((of, _, name), size)| is_large(size) && !has_reason(of, name));
    let mut findings: Vec<Finding> = large
        .map(|((_, path, name), size)| {
            let Size { line, fields, methods } = size;
            let what = format!(
                "{name} has {fields} fields and {methods} methods, at most {FIELDS_MAX} and \
                 {METHODS_MAX}: give groups of fields types of their own, or write the reason"
            );
            Finding { path: (*path).to_owned(), line: *line, what }
        })
        .collect();
    findings.extend(unclear.into_iter().map(|(file, method)| {
        let what = format!("two types of this crate are called {}: rename one", method.of);
        Finding::new(file, method.line, what)
    }));
    let is_present = |of: &str| sizes.keys().any(|(o, ..)| *o == of);
    for (of, name, _) in REASONS.iter().filter(|(of, ..)| is_present(of)) {
        let is_needed =
            sizes.iter().any(|((o, _, n), size)| (o, n) == (of, name) && is_large(size));
        if !is_needed {
            let what = format!("{of}::{name} needs no reason");
            findings.push(Finding::of_tree("xtask/src/tidy/types.rs", &what));
        }
    }
    findings
}

/// The sizes of all types. Methods in other files count for the only type of that name in the crate.
///
/// Also returns the methods that may be of one type or another.
fn sizes(files: &[SourceFile]) -> (BTreeMap<Key<'_>, Size>, Vec<(&SourceFile, &Method)>) {
    let mut unclear = Vec::new();
    let sources = || {
        files.iter().filter_map(|file| {
            let of = file.path.strip_prefix("crates/")?.split('/').next()?;
            let is_source = file.path.contains("/src/") && !file.is_test();
            Some((file, of, file.rust().filter(|_| is_source)?))
        })
    };
    let mut sizes: BTreeMap<Key<'_>, Size> = BTreeMap::new();
    for (file, of, rust) in sources() {
        for found in rust.types.iter().filter(|found| !rust.in_test(found.line)) {
            let size = Size { line: found.line, fields: found.fields, methods: 0 };
            sizes.insert((of, &file.path, &found.name), size);
        }
    }
    let mut files_of: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (of, path, name) in sizes.keys() {
        files_of.entry((of, name)).or_default().push(path);
    }
    for (file, of, rust) in sources() {
        for method in rust.methods.iter().filter(|method| !rust.in_test(method.line)) {
            let defined = files_of.get(&(of, method.of.as_str())).map_or(&[][..], Vec::as_slice);
            let here = defined.iter().find(|path| **path == file.path);
            let only = if let [only] = defined { Some(only) } else { None };
            let path = here.or(only);
            if let Some(size) =
                path.and_then(|path| sizes.get_mut(&(of, *path, method.of.as_str())))
            {
                size.methods += 1;
            } else if !defined.is_empty() {
                unclear.push((file, method));
            }
        }
    }
    (sizes, unclear)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, String)]) -> Vec<String> {
        let files: Vec<SourceFile> =
            files.iter().map(|(path, text)| SourceFile::new(path, text)).collect();
        check(&files).iter().map(ToString::to_string).collect()
    }

    fn fields(count: usize) -> String {
        let fields: Vec<String> = (0..count).map(|n| format!(" f{n}: u8,\n")).collect();
        format!("struct S {{\n{}}}\n", fields.concat())
    }

    fn methods(count: usize) -> String {
        let methods: Vec<String> = (0..count).map(|n| format!(" fn f{n}(&self) {{}}\n")).collect();
        format!("impl S {{\n{}}}\n", methods.concat())
    }

    #[test]
    fn types_with_many_fields_are_found() {
        assert_eq!(findings(&[("crates/a/src/a.rs", fields(15))]), [""; 0]);
        assert_eq!(findings(&[("crates/a/src/a.rs", fields(16))]).len(), 1);
        assert_eq!(findings(&[("crates/a/tests/a.rs", fields(16))]), [""; 0]);
    }

    #[test]
    fn methods_in_all_files_count() {
        let both = |more| {
            let (one, other) = (fields(1) + &methods(20), methods(more));
            findings(&[("crates/a/src/a.rs", one), ("crates/a/src/b.rs", other)])
        };
        assert_eq!(both(20), [""; 0]);
        assert_eq!(both(21).len(), 1);
    }

    #[test]
    fn types_of_one_name_are_counted_apart() {
        let one = || fields(1) + &methods(30);
        assert_eq!(
            findings(&[("crates/a/src/a.rs", one()), ("crates/a/src/b.rs", one())]),
            [""; 0]
        );
    }

    #[test]
    fn methods_of_unclear_types_are_found() {
        let files = ["a", "b", "c"].map(|name| format!("crates/a/src/{name}.rs"));
        let texts = [fields(1), fields(1), methods(2)];
        let all: Vec<_> = files.iter().map(String::as_str).zip(texts).collect();
        assert_eq!(findings(&all).len(), 2);
    }

    #[test]
    fn a_reason_that_is_not_needed_is_found() {
        let found = findings(&[("crates/observe/src/a.rs", fields(1))]);
        assert_eq!(found, ["xtask/src/tidy/types.rs:1: observe::MoverView needs no reason"]);
    }
}
