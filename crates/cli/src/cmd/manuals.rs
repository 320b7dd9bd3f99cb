//! `dmover man` and `dmover completions`.
use dmover_model::ExitCode as Code;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::run::exit;
use crate::args::{CompletionsArgs, ManArgs};
use crate::manuals::{Manual, completion, man_pages};
use crate::print::{data, failure};
use crate::signals;

/// Prints the completion of a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> ExitCode {
    print(&completion(args.shell))
}

/// Shows a man page on a terminal, and prints its source anywhere else.
pub(crate) fn man(args: &ManArgs) -> ExitCode {
    let wanted = args.verbs.iter().fold("dmover".to_owned(), |name, verb| name + "-" + verb);
    let wanted = wanted + ".1";
    let pages = match man_pages() {
        Ok(pages) => pages,
        Err(error) => {
            failure(&format!("cannot generate the man page: {error}"), "");
            return exit(Code::Fatal);
        }
    };
    let Some(page) = pages.into_iter().find(|page| page.file == wanted) else {
        let message = format!("unknown verb '{}'", args.verbs.join(" "));
        failure(&message, "'dmover -h' lists the verbs");
        return exit(Code::Usage);
    };
    if crate::print::is_terminal() { show(&page) } else { print(&page) }
}

fn print(manual: &Manual) -> ExitCode {
    let mut out = data();
    match out.write_all(&manual.text).and_then(|()| out.flush()) {
        Ok(()) => exit(Code::Done),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            signals::raise_again(signal_hook::consts::SIGPIPE)
        }
        Err(error) => {
            failure(&format!("cannot write to standard output: {error}"), "check for free space");
            exit(Code::Fatal)
        }
    }
}

/// Replaces this process by man(1), so that only its pager receives the signals of the terminal.
fn show(page: &Manual) -> ExitCode {
    let error = match dmover_host::memory::file(&page.text) {
        Ok(source) => Command::new("man").args(["-l", "-"]).stdin(source).exec(),
        Err(error) => error,
    };
    let name = page.file.trim_end_matches(".1").replace("dmover-", "").replace('-', " ");
    let verb = if name == "dmover" { String::new() } else { format!(" {name}") };
    let hint = format!("'dmover{verb} --help' shows the same without man(1)");
    failure(&format!("cannot run man(1): {error}"), &hint);
    exit(Code::Fatal)
}
