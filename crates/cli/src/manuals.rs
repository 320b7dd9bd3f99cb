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
    // What `-h` leaves out belongs here, and the generator takes only its long text otherwise.
    let whole = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let version = command.get_version().unwrap_or_default();
    let page = Man::new(whole).source(format!("dmover {version}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_every_man_page_has_a_text() {
        let mut seen = 0;
        for Manual { file, text } in man_pages().unwrap() {
            let text = String::from_utf8(text).unwrap();
            let (_, options) = text.split_once(".SH OPTIONS").unwrap_or_default();
            let options = options.split(".TP\n").skip(1);
            for option in options.take_while(|option| option.starts_with(['\\', '['])) {
                seen += 1;
                let mut lines = option.lines();
                let name = lines.next().unwrap_or_default();
                let told = lines.next().unwrap_or_default();
                assert!(!told.is_empty() && !told.starts_with('.'), "{file}: {name}: '{told}'");
            }
            let title = text.lines().find(|line| line.starts_with(".TH")).unwrap();
            assert!(
                title.contains(concat!("\"dmover ", env!("CARGO_PKG_VERSION"))),
                "{file}: {title}"
            );
        }
        assert!(seen > 300, "only {seen} options were looked at");
    }
}
