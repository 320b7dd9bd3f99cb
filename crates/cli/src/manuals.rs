//! Man pages and completions, generated from the definition of the command line.
use clap::{Command, ValueEnum};
use clap_complete::Generator;
use clap_mangen::Man;

use crate::args::ShellArg;

/// A man page or a completion script, with its file name.
#[derive(Debug)]
pub struct Manual {
    /// The name of the file.
    pub file: String,
    /// The content of the file.
    pub text: Vec<u8>,
}

/// The man pages of the program and of each verb.
pub fn man_pages() -> std::io::Result<Vec<Manual>> {
    let mut command = crate::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<Manual>) -> std::io::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        add_pages(verb, pages)?;
    }
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    pages.push(Manual { file: page.get_filename(), text });
    Ok(())
}

/// The completion scripts of all supported shells.
pub fn completions() -> Vec<Manual> {
    ShellArg::value_variants().iter().map(|shell| completion(*shell)).collect()
}

/// The completion script of one shell.
pub(crate) fn completion(shell: ShellArg) -> Manual {
    let shell = match shell {
        ShellArg::Bash => clap_complete::Shell::Bash,
        ShellArg::Fish => clap_complete::Shell::Fish,
        ShellArg::Zsh => clap_complete::Shell::Zsh,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut crate::command(), "dmover", &mut text);
    Manual { file: shell.file_name("dmover"), text }
}
