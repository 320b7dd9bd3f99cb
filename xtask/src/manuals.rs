//! Man pages and completions as files, as the program prints them.
use anyhow::{Context, Result};
use dmover_cli::Manual;
use std::path::Path;

/// Writes a man page for the program and one for each verb.
pub fn man(directory: &Path) -> Result<()> {
    write(directory, dmover_cli::man_pages().context("cannot make the man pages")?)
}

/// Writes the completion of each shell.
pub fn completions(directory: &Path) -> Result<()> {
    write(directory, dmover_cli::completions())
}

fn write(directory: &Path, manuals: Vec<Manual>) -> Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    for Manual { file, text } in manuals {
        let path = directory.join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn every_verb_has_a_man_page_and_every_shell_a_completion() {
        let directory = tempfile::tempdir().unwrap();
        man(directory.path()).unwrap();
        let pages = names(directory.path());
        assert!(pages.contains(&"dmover.1".to_owned()), "{pages:?}");
        for verb in dmover_cli::command().get_subcommands() {
            assert!(pages.contains(&format!("dmover-{}.1", verb.get_name())), "{pages:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        completions(directory.path()).unwrap();
        assert_eq!(names(directory.path()), ["_dmover", "dmover.bash", "dmover.fish"]);
    }
    /// Runs a program on a file and answers what it said; `None` if the program is missing.
    fn output(program: &str, arguments: &[&str], file: &Path) -> Option<(bool, String)> {
        let output = Command::new(program).args(arguments).arg(file).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }

    #[test]
    fn the_man_pages_are_good_for_a_man_page_reader() {
        let directory = tempfile::tempdir().unwrap();
        man(directory.path()).unwrap();
        for page in names(directory.path()) {
            let arguments = ["-T", "utf8", "-W", "error"];
            let Some((good, text)) = output("mandoc", &arguments, &directory.path().join(&page))
            else {
                dmover_testkit::skip!("mandoc is missing");
            };
            assert!(good, "{page}: {text}");
            // Bold is printed over itself: N, backspace, N.
            assert!(text.contains("N\u{8}NA\u{8}AM\u{8}M"), "{page}: {text}");
        }
    }

    #[test]
    fn the_completions_are_good_for_their_shells() {
        let directory = tempfile::tempdir().unwrap();
        completions(directory.path()).unwrap();
        let (good, text) = output("bash", &["-n"], &directory.path().join("dmover.bash")).unwrap();
        assert!(good, "{text}");
        // Other shells are read where they are installed; nothing of ours depends on them.
        for (shell, file) in [("zsh", "_dmover"), ("fish", "dmover.fish")] {
            if let Some((good, text)) = output(shell, &["-n"], &directory.path().join(file)) {
                assert!(good, "{shell}: {text}");
            }
        }
    }
}
