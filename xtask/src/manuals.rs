//! Man pages and completions, from the one definition of the command line.
use anyhow::{Context, Result};
use clap_complete::Shell;
use std::path::Path;

/// Writes a man page for the program and one for each verb.
pub fn man(directory: &Path) -> Result<()> {
    make(directory)?;
    let command = dmover_cli::command();
    clap_mangen::generate_to(command, directory).context("cannot write the man pages")
}

/// Writes the completion of each shell.
pub fn completions(directory: &Path) -> Result<()> {
    make(directory)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let mut command = dmover_cli::command();
        clap_complete::generate_to(shell, &mut command, "dmover", directory)
            .with_context(|| format!("cannot write the completion of {shell}"))?;
    }
    Ok(())
}

fn make(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
