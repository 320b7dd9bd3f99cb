//! Links between documents lead somewhere.
use std::path::{Component, Path, PathBuf};

use super::{Finding, SourceFile};

/// Every relative link of a Markdown file names a file or directory of the repository.
pub fn check(file: &SourceFile, files: &[SourceFile]) -> Vec<Finding> {
    if Path::new(&file.path).extension().is_none_or(|e| e != "md") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, target) in targets(&file.text) {
        if target.contains("://") || target.starts_with("mailto:") || target.starts_with('#') {
            continue;
        }
        let path = target.split('#').next().unwrap_or_default();
        if !exists(&file.path, path, files) {
            findings.push(Finding::new(
                file,
                line,
                format!("the link to '{target}' leads nowhere"),
            ));
        }
    }
    findings
}

/// The targets of `[text](target)` and `[label]: target`, outside code.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") || start.starts_with("~~~") {
            in_code = !in_code;
        }
        if in_code || line.starts_with("    ") {
            continue;
        }
        let prose = without_code_spans(line);
        let mut rest = prose.as_str();
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let end = rest.find(')').unwrap_or(rest.len());
            // A title may follow: [text](target "title").
            if let Some(target) = rest[..end].split_whitespace().next() {
                found.push((index + 1, target.trim_matches(['<', '>']).to_owned()));
            }
        }
        if let Some((label, target)) = prose.split_once("]: ")
            && label.starts_with('[')
            && let Some(target) = target.split_whitespace().next()
        {
            found.push((index + 1, target.to_owned()));
        }
    }
    found
}

/// The line without what stands between backquotes.
fn without_code_spans(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Whether a link from the file `from` to `to` names a file of the tree or a directory in it.
fn exists(from: &str, to: &str, files: &[SourceFile]) -> bool {
    let base = Path::new(from).parent().unwrap_or(Path::new(""));
    let Some(path) = normal(&base.join(to)) else { return false };
    files.iter().any(|file| Path::new(&file.path).starts_with(&path))
}

/// The path without `.` and `..`; `None` if it leaves the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if !normal.pop() => return None,
            Component::CurDir | Component::ParentDir => {}
            Component::Normal(name) => normal.push(name),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> usize {
        let files = ["docs/a.md", "README.md", "crates/cli/src/lib.rs", "LICENSE-MIT"]
            .map(|path| SourceFile::new(path, ""));
        check(&SourceFile::new("docs/b.md", text), &files).len()
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        for link in
            ["a.md", "./a.md#part", "../README.md", "../crates/cli", "#here", "..", "<a.md>"]
        {
            assert_eq!(broken(&format!("see [x]({link}) there")), 0, "{link}");
        }
        assert_eq!(broken("[x]: https://example.invalid/\n[y](mailto:me)"), 0);
        assert_eq!(broken("```\n[x](gone.md)\n```\nand `[x](gone.md)`"), 0);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        for link in ["gone.md", "../../README.md", "/README.md", "../LICENSE", "a.md/b"] {
            assert_eq!(broken(&format!("see [a](a.md) and [x]({link} \"title\")")), 1, "{link}");
        }
        assert_eq!(broken("[x]: gone.md"), 1);
    }
}
