//! Defaults for options from configuration files and the environment.
//!
//! Flags win over `DMOVER_<FLAG>`, which wins over the user's file, which wins over the system's file.
use clap::error::{ContextKind, ContextValue, ErrorKind as Wrong};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use dmover_schedule::sync::OnceLock;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::habits::{Refused, translate};

/// The file for all users of a host.
const SYSTEM_FILE: &str = "/etc/dmover/config.toml";

/// Why the command line cannot be parsed.
#[derive(Debug)]
pub(crate) enum ParseError {
    /// An error of clap (also help and version).
    Clap(clap::Error),
    /// A configuration file is wrong.
    Config(String),
    /// An option means something else in another tool.
    Habit(Refused),
}

/// A value from a file.
#[derive(Debug, Clone)]
struct Setting {
    values: Vec<String>,
    file: PathBuf,
}

type Settings = BTreeMap<String, Setting>;

/// The sections that a file may have, each of which holds defaults of the verb.
pub(crate) const SECTIONS: [&str; 2] = ["copy", "sync"];

/// Settings by section.
type Sections = BTreeMap<String, Settings>;

/// Reads an environment variable; the only place that does.
#[allow(clippy::disallowed_methods)]
pub(crate) fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Whether the user's locale has UTF-8 (locale(7)).
pub(crate) fn speaks_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(environment);
    let locale = locale.unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The variable that passes the user's command line to a job of `submit`.
pub(crate) const SUBMITTED_AS: &str = "DMOVER_SUBMITTED_AS";

/// What a user at another host, for whom this process runs a job, has typed.
struct TypedElsewhere {
    words: Vec<OsString>,
    host: String,
}

static TYPED_ELSEWHERE: OnceLock<TypedElsewhere> = OnceLock::new();

/// Sets the command line of a user at another host, and what it calls this host.
pub(crate) fn typed_elsewhere(words: Vec<OsString>, host: String) {
    // A process runs one such job.
    let _ = TYPED_ELSEWHERE.set(TypedElsewhere { words, host });
}

/// What the user of this job calls this host, if the user is at another one.
pub(crate) fn host_as_typed() -> Option<&'static str> {
    TYPED_ELSEWHERE.get().map(|typed| &*typed.host)
}

/// The command line that the user typed. A job of `submit` runs with another one, which names its temporary broker.
pub(crate) fn words_as_typed() -> Vec<OsString> {
    if let Some(typed) = TYPED_ELSEWHERE.get() {
        return typed.words.clone();
    }
    let Some(typed) = environment(SUBMITTED_AS) else { return std::env::args_os().collect() };
    let words = typed.as_bytes().split(|byte| *byte == b' ');
    words.map(|word| OsString::from_vec(dmover_model::percent_decode(word))).collect()
}

/// The variable and the value that pass the command line of this process to a job that it starts.
pub(crate) fn as_submitted() -> (OsString, OsString) {
    let words = words_as_typed();
    let words: Vec<_> =
        words.iter().map(|word| dmover_model::percent_encode(word.as_bytes())).collect();
    (SUBMITTED_AS.into(), words.join(" ").into())
}

/// Parses the command line over the defaults of files and environment.
pub(crate) fn parse(arguments: &[OsString]) -> Result<ArgMatches, ParseError> {
    let arguments = &translate(arguments).map_err(ParseError::Habit)?;
    let settings = read_files(arguments)?;
    let parsed = command_over(&settings, &beaten(arguments)).try_get_matches_from(arguments.iter());
    parsed.map_err(|error| match blamed(&settings, arguments, &error) {
        Some(message) => ParseError::Config(message),
        None => ParseError::Clap(error),
    })
}

/// Parses a command line alone: that of a user at another host, whose files and variables are not here.
pub(crate) fn parse_alone(arguments: &[OsString]) -> Result<ArgMatches, ParseError> {
    let arguments = translate(arguments).map_err(ParseError::Habit)?;
    crate::command().try_get_matches_from(arguments).map_err(ParseError::Clap)
}

/// The message for a wrong value in a configuration file. `None`: the wrong value is on the command line or in a variable.
fn blamed(sections: &Sections, arguments: &[OsString], error: &clap::Error) -> Option<String> {
    let (long, value, why) = unusable_value(error)?;
    let typed = format!("--{long}");
    let is_typed = |word: &OsString| word.to_string_lossy().starts_with(&typed);
    if arguments.iter().any(is_typed) || environment(&variable_of(long)).is_some() {
        return None;
    }
    let section = arguments.iter().find_map(|word| sections.get_key_value(word.to_str()?));
    let (section, settings) = section?;
    let setting = settings.get(long).filter(|setting| setting.values.iter().any(|v| v == value))?;
    Some(format!("{}: '{long}' in [{section}] is '{value}'{why}", setting.file.display()))
}

/// For an error about an invalid value: the option (a key of the configuration file), the value, and the reason.
fn unusable_value(error: &clap::Error) -> Option<(&str, &str, String)> {
    if !matches!(error.kind(), Wrong::ValueValidation | Wrong::InvalidValue) {
        return None;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let long = long_name(text(ContextKind::InvalidArg)?)?;
    let value = text(ContextKind::InvalidValue)?;
    let why = std::error::Error::source(error).map_or_else(String::new, |e| format!(": {e}"));
    Some((long, value, why))
}

/// `bwlimit` of `--bwlimit <SIZE>`.
pub(crate) fn long_name(shown: &str) -> Option<&str> {
    shown.strip_prefix("--")?.split([' ', '=', '<', '[']).next()
}

/// Options from variables that conflict with an option on the command line, which wins.
fn beaten(arguments: &[OsString]) -> BTreeSet<String> {
    let mut command = crate::command().ignore_errors(true);
    command.build();
    let Ok(matches) = command.clone().try_get_matches_from(arguments) else {
        return BTreeSet::new();
    };
    let (mut verb, mut matches) = (&command, &matches);
    while let Some((name, below)) = matches.subcommand() {
        let Some(found) = verb.find_subcommand(name) else { break };
        (verb, matches) = (found, below);
    }
    let is_typed =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let (typed, others): (Vec<&Arg>, Vec<&Arg>) = verb.get_arguments().partition(is_typed);
    let names = |one: &Arg, other: &Arg| {
        verb.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let beaten = others.into_iter().filter_map(|other| {
        let long = other.get_long().filter(|long| environment(&variable_of(long)).is_some())?;
        let contradicted = typed.iter().any(|arg| names(arg, other) || names(other, arg));
        contradicted.then(|| long.to_owned())
    });
    beaten.collect()
}

/// The command with all defaults from files and the environment. Variables of `beaten` options do not count.
fn command_over(sections: &Sections, beaten: &BTreeSet<String>) -> Command {
    let none = Settings::new();
    let of = |section: &str| sections.get(section).unwrap_or(&none);
    let command = SECTIONS.iter().fold(crate::command(), |command, section| {
        command
            .mut_subcommand(section, |verb| verb.mut_args(|arg| overlay(arg, of(section), beaten)))
    });
    // Only variables: files have no section for these verbs.
    let varies = |verb: Command| verb.mut_args(|arg| overlay(arg, &none, beaten));
    command
        .mut_subcommand("verify", varies)
        .mut_subcommand("snapshot", |snapshot| snapshot.mut_subcommand("create", varies))
}

fn overlay(arg: Arg, settings: &Settings, beaten: &BTreeSet<String>) -> Arg {
    let Some(long) = arg.get_long().map(str::to_owned) else { return arg };
    if matches!(long.as_str(), "help" | "version" | "config" | "no-config") {
        return arg;
    }
    let mut arg =
        if beaten.contains(&long) { arg } else { arg.env(variable_of(&long)).hide_env(true) };
    if matches!(arg.get_action(), clap::ArgAction::SetTrue) {
        // A variable enables a flag unless it is empty, 0, no or false.
        arg = arg.value_parser(clap::builder::FalseyValueParser::new());
    }
    match settings.get(&long) {
        Some(setting) => arg.default_values(setting.values.clone()),
        None => arg,
    }
}

/// `--bwlimit` is `DMOVER_BWLIMIT`.
pub(crate) fn variable_of(long: &str) -> String {
    format!("DMOVER_{}", long.replace('-', "_").to_uppercase())
}

fn read_files(arguments: &[OsString]) -> Result<Sections, ParseError> {
    let mut settings = Sections::new();
    let (explicit, none) = chosen(arguments);
    if none {
        return Ok(settings);
    }
    if let Some(file) = explicit {
        merge(&mut settings, Path::new(&file), true)?;
        return Ok(settings);
    }
    merge(&mut settings, Path::new(SYSTEM_FILE), false)?;
    if let Some(directory) = user_directory() {
        merge(&mut settings, &directory.join("config.toml"), false)?;
    }
    Ok(settings)
}

/// The directory of the user's configuration; `None`: neither `$XDG_CONFIG_HOME` nor `$HOME` is set.
pub(crate) fn user_directory() -> Option<PathBuf> {
    let home = environment("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| environment("HOME").map(|home| PathBuf::from(home).join(".config")));
    Some(home?.join("dmover"))
}

/// The values of `--config` and `--no-config`, which say which files to read.
fn chosen(arguments: &[OsString]) -> (Option<OsString>, bool) {
    use std::os::unix::ffi::OsStrExt;
    let mut file = None;
    let mut none = false;
    let mut rest = arguments.iter().take_while(|a| *a != "--");
    while let Some(argument) = rest.next() {
        if argument == "--no-config" {
            none = true;
        } else if argument == "--config" {
            file = rest.next().cloned();
        } else if let Some(value) = argument.as_bytes().strip_prefix(b"--config=") {
            file = Some(std::ffi::OsStr::from_bytes(value).to_owned());
        }
    }
    (file, none)
}

fn merge(sections: &mut Sections, file: &Path, required: bool) -> Result<(), ParseError> {
    let fail = |what: &str| ParseError::Config(format!("{}: {what}", file.display()));
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        // The user may have no access to $HOME, for example after a change of user: then there are no settings.
        Err(e)
            if !required
                && matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
        {
            return Ok(());
        }
        Err(e) => return Err(fail(&e.to_string())),
    };
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| fail(&e.to_string()))?;
    for (section, content) in table {
        let toml::Value::Table(content) = content else {
            return Err(fail(&format!("'{section}' is outside a section such as [copy]")));
        };
        if !SECTIONS.contains(&&*section) {
            let known = SECTIONS.map(|known| format!("[{known}]")).join(" and ");
            return Err(fail(&format!("unknown section '[{section}]'; the sections are {known}")));
        }
        for (key, value) in content {
            let what = "must be a string, a number, a boolean or a list of these";
            let values = words(&value).ok_or_else(|| fail(&format!("'{key}' {what}")))?;
            check_key(&section, &key).map_err(|e| fail(&e))?;
            let settings = sections.entry(section.clone()).or_default();
            settings.insert(key, Setting { values, file: file.to_owned() });
        }
    }
    Ok(())
}

fn words(value: &toml::Value) -> Option<Vec<String>> {
    Some(match value {
        toml::Value::String(text) => vec![text.clone()],
        toml::Value::Integer(number) => vec![number.to_string()],
        toml::Value::Boolean(yes) => vec![yes.to_string()],
        toml::Value::Array(items) => items.iter().map(words).collect::<Option<Vec<_>>>()?.concat(),
        _ => return None,
    })
}

fn check_key(section: &str, key: &str) -> Result<(), String> {
    let command = crate::command();
    let verb = command.find_subcommand(section);
    let all: Vec<&Arg> = verb.into_iter().flat_map(Command::get_arguments).collect();
    if all.iter().any(|arg| arg.get_long() == Some(key)) {
        return Ok(());
    }
    let known = all.into_iter().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    let near =
        known.max_by(|a, b| strsim::jaro_winkler(a, key).total_cmp(&strsim::jaro_winkler(b, key)));
    Err(format!("unknown key '{key}' (did you mean '{}'?)", near.unwrap_or_default()))
}

/// One line of `dmover config show`.
#[derive(Debug)]
pub(crate) struct Shown {
    pub key: String,
    /// The value as in a configuration file. `None`: not set.
    pub value: Option<toml::Value>,
    pub origin: String,
}

/// All defaults of a verb that are in effect.
pub(crate) fn show(section: &str, file: Option<&OsString>) -> Result<Vec<Shown>, ParseError> {
    let mut arguments: Vec<OsString> = vec!["dmover".into(), section.into()];
    if let Some(file) = file {
        arguments.extend(["--config".into(), file.clone()]);
    }
    let settings = read_files(&arguments)?;
    let command = command_over(&settings, &BTreeSet::new());
    let matches = command.clone().try_get_matches_from(["dmover", section]);
    let matches = matches.map_err(ParseError::Clap)?;
    let Some((_, copy)) = matches.subcommand() else { return Ok(Vec::new()) };
    let settings = settings.get(section).cloned().unwrap_or_default();
    let arguments = command.find_subcommand(section).into_iter().flat_map(Command::get_arguments);
    let mut shown = Vec::new();
    for arg in arguments {
        let Some(long) = arg.get_long().filter(|l| !matches!(*l, "help" | "version")) else {
            continue;
        };
        let values = copy.get_raw(arg.get_id().as_str());
        let value: Vec<String> =
            values.into_iter().flatten().map(|v| v.to_string_lossy().into_owned()).collect();
        let origin = match copy.value_source(arg.get_id().as_str()) {
            Some(ValueSource::EnvVariable) => format!("${}", variable_of(long)),
            _ => match settings.get(long) {
                Some(setting) => setting.file.display().to_string(),
                None => "default".into(),
            },
        };
        shown.push(Shown { key: long.into(), value: as_toml(arg, value), origin });
    }
    Ok(shown)
}

fn as_toml(arg: &Arg, mut values: Vec<String>) -> Option<toml::Value> {
    let last = values.pop()?;
    Some(match arg.get_action() {
        clap::ArgAction::SetTrue => {
            toml::Value::Boolean(!matches!(&*last, "" | "0" | "no" | "false"))
        }
        clap::ArgAction::Append => {
            values.push(last);
            toml::Value::Array(values.into_iter().map(toml::Value::String).collect())
        }
        _ => last.parse().map_or_else(|_| toml::Value::String(last), toml::Value::Integer),
    })
}
