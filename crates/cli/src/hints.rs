//! Messages for options and verbs of cp, rsync and rclone, and for bad values from the environment.
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

use crate::config::{environment, long_name, variable_of};

const NAME_THE_VERB: &str =
    "name the verb first, as in: dmover copy SOURCE DEST, dmover sync SOURCE DEST";

/// Message and hint for an error that dmover explains better than clap.
pub(crate) fn for_error(error: &clap::Error) -> Option<(String, String)> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    if error.kind() == ErrorKind::InvalidSubcommand {
        let typed = text(ContextKind::InvalidSubcommand)?;
        let verb = called();
        if verb.get_name() != "dmover" {
            let shown = verb.get_subcommands().filter(|command| !command.is_hide_set());
            let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
            let message = format!("'dmover {}' has no command '{typed}'", verb.get_name());
            return Some((message, format!("its commands are {}", names.join(", "))));
        }
        let message = format!("dmover has no verb '{typed}'");
        if let Some(hint) = verb_for(typed) {
            return Some((message, hint.to_owned()));
        }
        let names: Vec<String> =
            verb.get_subcommands().map(|verb| verb.get_name().into()).collect();
        let is_near =
            |name: &&String| name.len() > 2 && strsim::damerau_levenshtein(name, typed) == 1;
        return Some(match names.iter().find(is_near) {
            Some(name) => (message, format!("there is the verb '{name}'")),
            None => (message, NAME_THE_VERB.into()),
        });
    }
    let argument = text(ContextKind::InvalidArg)?;
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let verb = called();
            // A word of `--help` or `--version` that is mistyped gets the parser's suggestion.
            let is_mistyped = error.get(ContextKind::SuggestedArg).is_some();
            if verb.get_name() == "dmover" && argument.starts_with('-') && !is_mistyped {
                let message = format!("'{argument}' comes before the verb");
                return Some((message, NAME_THE_VERB.into()));
            }
            if verb.get_name() == "submit" && !argument.starts_with('-') {
                let message = format!("'{argument}' is no option of submit");
                let hint = "put '--' before the job: dmover submit OPTIONS -- VERB SOURCE DEST";
                return Some((message, hint.into()));
            }
            if argument == "--broker" && verb.get_name() == "create" {
                let message = "'dmover snapshot create' does not support --broker yet";
                let hint = "omit --broker; then this process creates the snapshot";
                return Some((message.into(), hint.into()));
            }
            let hint = habit(argument, &verb)?;
            Some((
                format!("'dmover {}' has no option '{argument}'", verb.get_name()),
                hint.to_owned(),
            ))
        }
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let value = text(ContextKind::InvalidValue)?;
            let long = long_name(argument)?;
            let variable = variable_of(long);
            let from_variable = environment(&variable).is_some_and(|set| set == *value);
            // If the command line has the same value, the error may be there and not in the variable.
            let typed = std::env::args_os().any(|word| word.to_string_lossy().ends_with(value));
            let why = std::error::Error::source(error).map(|e| format!(": {e}"));
            let message = format!("${variable} is '{value}'{}", why.unwrap_or_default());
            let hint = format!("this variable sets --{long}; correct it or unset it");
            (from_variable && !typed).then_some((message, hint))
        }
        ErrorKind::ArgumentConflict => {
            let prior = text(ContextKind::PriorArg)?;
            let variable = [argument, prior].into_iter().find_map(|shown| {
                let long = long_name(shown)?;
                let typed = std::env::args_os()
                    .any(|word| word.to_string_lossy().starts_with(&format!("--{long}")));
                Some(variable_of(long)).filter(|name| !typed && environment(name).is_some())
            })?;
            let message = format!("'{argument}' cannot be used with '{prior}'");
            Some((
                message,
                format!("${variable} sets one of them; unset the variable for this command"),
            ))
        }
        _ => None,
    }
}

/// Options that take the place of operands.
const OPERANDS: [&str; 4] = ["target-directory", "read-stdin", "files-from", "manifest"];

/// Message and hint for an `-h` or `-V` beside other words: in other tools they mean human-readable sizes, or a version
/// only where nothing else is to be done. A script would take help with exit code 0 for a copy.
pub(crate) fn for_help(error: &clap::Error, words: &[OsString]) -> Option<(String, String)> {
    let (letter, long, is) = match error.kind() {
        ErrorKind::DisplayHelp => ('h', "--help", "help here, not human-readable sizes"),
        ErrorKind::DisplayVersion => ('V', "--version", "the version here"),
        _ => return None,
    };
    let mut command = crate::command();
    command.build();
    let mut command = &command;
    let mut called = "dmover".to_owned();
    let (mut others, mut only_operands, mut takes_value) = (0, false, false);
    let mut cluster = None;
    for word in words.iter().skip(1).map(|word| word.to_string_lossy()) {
        if word == long && !only_operands {
            return None;
        }
        if only_operands {
            others += 1;
            continue;
        }
        if word == "--" {
            only_operands = true;
            continue;
        }
        if std::mem::take(&mut takes_value) {
            continue;
        }
        if word.starts_with('-') && word.len() > 1 {
            let short = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
            if short.is_some_and(|letters| letters.len() > 1 && letters.contains(letter)) {
                cluster.get_or_insert_with(|| word.clone().into_owned());
            }
            let is_it = |arg: &&clap::Arg| {
                let name = word.split('=').next().unwrap_or_default();
                let last = short.and_then(|letters| letters.chars().last());
                arg.get_long().is_some_and(|long| name == format!("--{long}"))
                    || (last.is_some() && arg.get_short() == last)
            };
            let Some(arg) = command.get_arguments().find(is_it) else { continue };
            let needs = arg.get_num_args().is_some_and(|range| range.min_values() > 0);
            takes_value = arg.get_action().takes_values() && needs && !word.contains('=');
            others += usize::from(arg.get_long().is_some_and(|long| OPERANDS.contains(&long)));
        } else if let Some(below) = command.find_subcommand(&*word).filter(|_| others == 0) {
            command = below;
            called = format!("{called} {word}");
        } else {
            others += 1;
        }
    }
    let typed = match (cluster, others) {
        (Some(cluster), _) => cluster,
        (None, 0) => return None,
        (None, _) => format!("-{letter}"),
    };
    let message = format!("'{typed}': -{letter} is {is}");
    Some((message, format!("omit -{letter}; only '{called} {long}' prints it")))
}

/// The same error, without suggestions that lead nowhere: a hidden option, or an option as the name of a file.
pub(crate) fn without_wrong_suggestions(mut error: clap::Error) -> clap::Error {
    let is_hidden = |word: &str| {
        let long = word.trim_start_matches('-');
        let is_it = |arg: &clap::Arg| arg.is_hide_set() && arg.get_long() == Some(long);
        crate::command().get_subcommands().any(|verb| verb.get_arguments().any(is_it))
    };
    let suggests_hidden = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(word)) => is_hidden(word),
        Some(ContextValue::Strings(words)) => words.iter().any(|word| is_hidden(word)),
        _ => false,
    };
    if suggests_hidden {
        error.remove(ContextKind::SuggestedArg);
    }
    error.remove(ContextKind::Suggested);
    error
}

/// The verb that was called. For `submit`, this is the verb after the double dash.
fn called() -> clap::Command {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let submits = words.first().is_some_and(|word| word == "submit");
    let dash = words.iter().position(|word| word == "--").filter(|_| submits);
    let mut command = crate::command();
    for word in words.iter().skip(dash.map_or(0, |dash| dash + 1)) {
        match command.find_subcommand(word).cloned() {
            Some(verb) => command = verb,
            None => break,
        }
    }
    command
}

/// A hint for an option of cp or rsync, for verbs without a table of habits.
fn habit(option: &str, verb: &clap::Command) -> Option<&'static str> {
    let preserves = verb.get_arguments().any(|arg| arg.get_long() == Some("preserve"));
    let keeps_attributes = preserves && verb.get_name() != "verify";
    let selects = verb.get_arguments().any(|arg| arg.get_long() == Some("exclude"));
    Some(match option {
        "-f" if selects => "use --filter",
        "-F" if selects => {
            "dmover does not read rule files in each directory; name a file by --filter='merge FILE'"
        }
        "-m" | "--prune-empty-dirs" if selects => {
            "dmover does not prune empty directories; exclude directories by --exclude 'NAME/'"
        }
        "-C" | "--cvs-exclude" if selects => {
            "dmover has no list of names to exclude by default; use --exclude or --exclude-from"
        }
        "-p" | "-l" | "-g" | "-o" | "-D" | "-d" | "-U" | "-E" | "--perms" | "--links"
        | "--owner" | "--group" | "--times" | "--devices" | "--specials" | "--atimes"
            if keeps_attributes =>
        {
            match verb.get_name() {
                "cp" => {
                    "use -p or -a: they keep modes, owners and times, and -a links and devices as well"
                }
                _ => "omit it: modes, owners, times, links and devices are kept by default",
            }
        }
        "--one-way" if verb.get_name() == "verify" => "use --ignore-extra",
        "--size-only" if verb.get_name() == "verify" => "use --level=size",
        "-c" | "--checksum" if verb.get_name() == "verify" => {
            "omit it: content is compared by default; --level=bytes compares byte by byte"
        }
        "-a" | "-r" | "--archive" | "--recursive" if verb.get_name() == "verify" => {
            "omit it: verify compares whole trees with all attributes"
        }
        "-n" | "--dry-run" if verb.get_name() == "verify" => {
            "omit it: without --repair, verify only lists differences and changes nothing"
        }
        "-P" | "--partial" => {
            "omit it: a terminal shows progress, and the same command resumes after an interruption"
        }
        "-z" | "--compress" => "omit it: nothing is compressed between mounted file systems",
        _ => return None,
    })
}

/// A hint for the name of another tool, or of a verb of another tool.
fn verb_for(typed: &str) -> Option<&'static str> {
    Some(match typed {
        "move" | "mv" | "moveto" => {
            "dmover removes nothing at the source: run 'dmover copy', then 'dmover verify', then remove the source yourself"
        }
        "rsync" | "mirror" => "use 'dmover sync' or 'dmover copy'",
        "bisync" => "dmover syncs in one direction only; use 'dmover sync SOURCE DEST'",
        "scp" => "use 'dmover copy'",
        "copyto" => "use 'dmover copy -T', which gives DEST its name",
        "continue" => "use 'dmover resume JOB'",
        "check" | "cryptcheck" | "cmp" | "diff" | "compare" => "use 'dmover verify'",
        "hashsum" | "b3sum" | "checksum" => {
            "use 'dmover sum', with -a for another function than BLAKE3"
        }
        "md5sum" => "use 'dmover sum -a md5'",
        "sha1sum" => "use 'dmover sum -a sha1'",
        "sha256sum" => "use 'dmover sum -a sha256'",
        "ls" | "list" => "use 'dmover jobs' to list jobs, and ls or find to list files",
        "log" | "show" | "info" => {
            "use 'dmover status JOB', 'dmover logs JOB', 'dmover errors JOB' or 'dmover history JOB'"
        }
        "version" => "use 'dmover --version'",
        "cat" | "du" | "size" | "ncdu" | "tree" => {
            "dmover copies, compares and sums files; use cat, du or find to read and list them"
        }
        "completion" => "use 'dmover completions SHELL'",
        "start" | "run" | "transfer" => "use 'dmover copy' or 'dmover sync'",
        "kill" | "stop" | "abort" => "use 'dmover pause JOB' or 'dmover cancel JOB'",
        "rm" | "delete" | "purge" => {
            "dmover deletes only with 'dmover sync --delete', and only entries of DEST that SOURCE does not have"
        }
        _ => return None,
    })
}
