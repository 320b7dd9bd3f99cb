//! Nothing in the repository names the machine that it was written on, or where that machine gets
//! its packages from.
use super::{Finding, SourceFile};

/// Directories at the root of a file system that only a developer's machine has. Without their
/// slashes, so that this file passes its own rule.
const PRIVATE: &[&str] = &["work", "home", "root"];

/// Parts of the names of package registries; joined with a dot.
const HOSTS: &[(&str, &str)] = &[
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "org"),
    ("deb.debian", "org"),
    ("proxy.golang", "org"),
    ("repo.maven.apache", "org"),
    ("repo1.maven", "org"),
    ("static.crates", "io"),
    ("index.crates", "io"),
];

/// How the lock file names the public registry; any other source of a package is a finding.
const PUBLIC_SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Every line of the file.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let mut found = |what: String| findings.push(Finding::new(file, index + 1, what));
        for name in PRIVATE {
            if names_directory(line, name) {
                found(format!("names a path of a developer's machine (/{name}/)"));
            }
        }
        for (name, domain) in HOSTS {
            let host =
                if domain.is_empty() { (*name).to_owned() } else { format!("{name}.{domain}") };
            if line.contains(&host) {
                found(format!("names a package registry ({host})"));
            }
        }
        if file.path == "Cargo.lock"
            && line.starts_with("source = ")
            && !line.contains(PUBLIC_SOURCE)
        {
            found("a package that is not from the public registry".to_owned());
        }
    }
    findings
}

/// Whether `/name/` stands at the start of an absolute path.
fn names_directory(line: &str, name: &str) -> bool {
    let needle = format!("/{name}/");
    line.match_indices(&needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.}/".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&SourceFile::new(path, text)).len()
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for name in PRIVATE {
            assert_eq!(count("docs/a.md", &format!("see /{name}/me/file")), 1);
            assert_eq!(count("a.sh", &format!("x=\"/{name}/me\"")), 1);
            assert_eq!(
                count("a.rs", &format!("target/{name}/x ./{name}/y $d/{name}s /{name}y/")),
                0
            );
        }
    }

    #[test]
    fn registries_are_found() {
        assert_eq!(count("a.sh", &format!("pip install -i https://{}.{}/x", "pypi", "org")), 1);
        let source = "source = \"sparse+https://mirror.example/index/\"\n";
        assert_eq!(count("Cargo.lock", source), 1);
        assert_eq!(count("Cargo.lock", &format!("source = \"{PUBLIC_SOURCE}\"\n")), 0);
    }
}
