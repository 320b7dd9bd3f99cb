//! How long files and functions may be.
use super::{Finding, SourceFile};

const SOURCE_LINES_MAX: usize = 800;
const TEST_LINES_MAX: usize = 1500;
const FUNCTION_LINES_MAX: usize = 100;

/// Documents that a newcomer reads to the end, with the lines they may have.
const DOCUMENTS: &[(&str, usize)] = &[("README.md", 120), ("CONTRIBUTING.md", 100)];

/// The file, and each function in it.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let lines = file.text.lines().count();
    let mut findings = Vec::new();
    if let Some(max) = lines_max(file)
        && lines > max
    {
        let what = format!("{lines} lines, at most {max}: split it by subject");
        findings.push(Finding::new(file, lines, what));
    }
    match &file.rust {
        None => {}
        Some(Err(why)) => findings.push(Finding::new(file, 1, format!("not Rust: {why}"))),
        Some(Ok(rust)) => {
            for function in rust.functions.iter().filter(|f| f.length > FUNCTION_LINES_MAX) {
                let what = format!(
                    "fn {} has {} lines, at most {FUNCTION_LINES_MAX}: split it",
                    function.name, function.length
                );
                findings.push(Finding::new(file, function.line, what));
            }
        }
    }
    findings
}

/// Documents that have to exist.
pub fn check_missing(files: &[SourceFile]) -> Vec<Finding> {
    let missing = DOCUMENTS.iter().filter(|(name, _)| !files.iter().any(|f| f.path == *name));
    missing.map(|(name, _)| Finding::of_tree(name, "is missing")).collect()
}

fn lines_max(file: &SourceFile) -> Option<usize> {
    if let Some((_, max)) = DOCUMENTS.iter().find(|(name, _)| *name == file.path) {
        return Some(*max);
    }
    let extension = std::path::Path::new(&file.path).extension()?;
    let is_source = ["rs", "py", "sh"].iter().any(|source| extension == *source);
    is_source.then_some(if file.is_test() { TEST_LINES_MAX } else { SOURCE_LINES_MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&SourceFile::new(path, text)).len()
    }

    #[test]
    fn long_files_are_found() {
        let line = "// x\n";
        assert_eq!(count("crates/a/src/a.rs", &line.repeat(800)), 0);
        assert_eq!(count("crates/a/src/a.rs", &line.repeat(801)), 1);
        assert_eq!(count("crates/a/tests/a.rs", &line.repeat(1500)), 0);
        assert_eq!(count("crates/a/src/a/tests.rs", &line.repeat(1501)), 1);
        assert_eq!(count("README.md", &"x\n".repeat(121)), 1);
        assert_eq!(count("CONTRIBUTING.md", &"x\n".repeat(101)), 1);
        assert_eq!(count("docs/cli.md", &"x\n".repeat(2000)), 0);
    }

    #[test]
    fn long_functions_are_found() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        assert_eq!(count("crates/a/src/a.rs", &function(100)), 0);
        assert_eq!(count("crates/a/src/a.rs", &function(101)), 1);
        assert_eq!(count("crates/a/src/a.rs", &format!("m! {{ {} }}", function(101))), 1);
    }

    #[test]
    fn what_does_not_parse_is_found() {
        assert_eq!(count("crates/a/src/a.rs", "fn f( {"), 1);
    }

    #[test]
    fn missing_documents_are_found() {
        assert_eq!(check_missing(&[SourceFile::new("README.md", "")]).len(), 1);
    }
}
