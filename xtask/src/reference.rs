//! The reference of the command line in Markdown.
use clap::{Arg, ArgAction, Command};
use std::fmt::Write;

use crate::page::heading;

/// The page for a whole program: its verbs, their arguments, defaults and environment variables.
pub fn command_line(mut command: Command) -> String {
    command.build();
    let mut page = heading("Command line");
    page.push_str(&describe(&command));
    page.push_str("| verb | what it does |\n|---|---|\n");
    for verb in verbs(&command) {
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        write(&mut page, format_args!("| [`{0}`](#{0}) | {1} |\n", verb.get_name(), cell(&about)));
    }
    page.push('\n');
    for verb in verbs(&command) {
        section(&mut page, "##", verb.get_name(), verb);
    }
    after(&mut page, &command);
    // One empty line at most between blocks and none at the end, as an editor would leave it.
    while page.contains("\n\n\n") {
        page = page.replace("\n\n\n", "\n\n");
    }
    page.trim_end().to_owned() + "\n"
}

/// A verb, then the verbs below it.
fn section(page: &mut String, marks: &str, name: &str, command: &Command) {
    write(page, format_args!("{marks} {name}\n\n"));
    page.push_str(&describe(command));
    arguments(page, marks, command);
    after(page, command);
    for verb in verbs(command) {
        section(page, &format!("{marks}#"), &format!("{name} {}", verb.get_name()), verb);
    }
}

/// What `-h` prints for the program and for each verb, on a terminal of 80 columns.
pub fn screens(mut command: Command) -> String {
    command.build();
    let mut page = String::from("Made by 'cargo xtask docs'; do not edit.\n");
    screen(&mut page, command.get_name(), &command);
    page
}

fn screen(page: &mut String, name: &str, command: &Command) {
    let text = command.clone().term_width(80).render_help().to_string();
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    write(page, format_args!("\n== {name} -h\n{}\n", lines.join("\n")));
    for verb in verbs(command) {
        screen(page, &format!("{name} {}", verb.get_name()), verb);
    }
}

fn verbs(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
}

/// The description, then the usage line.
fn describe(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    // Rendering asks for a mutable command, but changes nothing that is shown.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    format!("{}\n\n```text\n{usage}\n```\n\n", about.trim())
}

/// The arguments, under the headings that `--help` has.
fn arguments(page: &mut String, marks: &str, command: &Command) {
    let all: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    let mut headings: Vec<&str> = Vec::new();
    for arg in &all {
        if !headings.contains(&heading_of(arg)) {
            headings.push(heading_of(arg));
        }
    }
    for heading in headings {
        write(page, format_args!("{marks}# {heading}\n\n| argument | meaning |\n|---|---|\n"));
        for arg in all.iter().filter(|arg| heading_of(arg) == heading) {
            write(page, format_args!("| {} | {} |\n", signature(arg), meaning(arg)));
        }
        page.push('\n');
    }
}

fn heading_of(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or(if arg.is_positional() { "Arguments" } else { "Options" })
}

/// The spellings and the value, as code.
fn signature(arg: &Arg) -> String {
    let mut spellings = Vec::new();
    spellings.extend(arg.get_short().map(|short| format!("-{short}")));
    spellings
        .extend(arg.get_visible_short_aliases().into_iter().flatten().map(|s| format!("-{s}")));
    spellings.extend(arg.get_long().map(|long| format!("--{long}")));
    spellings.extend(arg.get_visible_aliases().into_iter().flatten().map(|a| format!("--{a}")));
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let value = match arg.get_value_names() {
        Some(names) => names.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" "),
        None => format!("<{}>", arg.get_id()),
    };
    if arg.is_positional() {
        let dots = if arg.get_num_args().is_some_and(|n| n.max_values() > 1) { "…" } else { "" };
        return format!("`{value}{dots}`");
    }
    if takes_value && let Some(last) = spellings.last_mut() {
        let optional = arg.get_num_args().is_some_and(|n| n.min_values() == 0);
        let joined = if optional { format!("[={value}]") } else { format!("={value}") };
        // A flag without a long name is followed by a blank.
        let joined = if last.starts_with("--") { joined } else { format!(" {value}") };
        last.push_str(&joined);
    }
    spellings.iter().map(|spelling| format!("`{spelling}`")).collect::<Vec<_>>().join(", ")
}

/// The help, then values, default and environment variable.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
    let mut parts = vec![cell(&help.unwrap_or_default())];
    if !matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        return parts.remove(0);
    }
    let code = |words: Vec<String>| {
        words.iter().map(|word| format!("`{}`", cell(word))).collect::<Vec<_>>().join(", ")
    };
    let values = arg.get_possible_values();
    let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
    if !values.is_empty() && !arg.is_hide_possible_values_set() {
        if values.iter().any(|value| value.get_help().is_some()) {
            parts.extend(values.iter().map(|value| {
                let help = value.get_help().map(ToString::to_string).unwrap_or_default();
                format!("`{}`: {}", cell(value.get_name()), cell(&help))
            }));
        } else {
            let names = values.iter().map(|value| value.get_name().to_owned()).collect();
            parts.push(format!("Values: {}", code(names)));
        }
    }
    let defaults = arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned());
    let defaults: Vec<String> = defaults.collect();
    if !defaults.is_empty() && !arg.is_hide_default_value_set() {
        parts.push(format!("Default: {}", code(defaults)));
    }
    if let Some(variable) = arg.get_env() {
        parts.push(format!("Environment: `{}`", variable.to_string_lossy()));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("<br>")
}

/// What stands below the arguments in `--help`.
fn after(page: &mut String, command: &Command) {
    let text = command.get_after_long_help().or(command.get_after_help());
    if let Some(text) = text {
        write(page, format_args!("```text\n{}\n```\n\n", text.to_string().trim_end()));
    }
}

/// Text that fits into a table.
fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|").replace("\n\n", "<br>").replace('\n', " ")
}

fn write(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::builder::PossibleValue;

    fn page() -> String {
        let jobs = Arg::new("jobs").short('j').long("jobs").value_name("N").default_value("4");
        let levels = [PossibleValue::new("low").help("A bit"), PossibleValue::new("high")];
        let level = Arg::new("level").long("level").value_parser(levels);
        let mode =
            Arg::new("mode").long("mode").value_parser(["a", "b"]).env("TEST_MODE").help("x|y");
        let quiet = Arg::new("quiet").short('q').action(ArgAction::Count).help("Say less");
        let paths = Arg::new("paths").value_name("PATH").num_args(1..);
        let limits = jobs.help("How many\nat once").help_heading("Limits");
        let below = Command::new("again").about("Copy once more");
        let verb =
            Command::new("copy").about("Copy things").args([limits, mode, level, quiet, paths]);
        let verb = verb.subcommand(below);
        let hidden = Command::new("secret").hide(true);
        let command = Command::new("tool").about("Does it").after_help("Exit codes:\n  0  done");
        command_line(command.subcommand(verb).subcommand(hidden))
    }

    #[test]
    fn arguments_are_listed_with_what_they_take() {
        let page = page();
        for line in [
            "| [`copy`](#copy) | Copy things |",
            "### Limits",
            "| `-j`, `--jobs=<N>` | How many at once<br>Default: `4` |",
            "| `--mode=<mode>` | x\\|y<br>Values: `a`, `b`<br>Environment: `TEST_MODE` |",
            "| `--level=<level>` | `low`: A bit<br>`high`:  |",
            "| `-q` | Say less |",
            "| `<PATH>…` |  |",
            "Exit codes:\n  0  done",
            "### copy again\n\nCopy once more",
        ] {
            assert!(page.contains(line), "no {line:?} in\n{page}");
        }
    }

    #[test]
    fn hidden_verbs_stay_hidden() {
        assert!(!page().contains("secret"));
        assert!(page().ends_with("```\n"));
    }
}
