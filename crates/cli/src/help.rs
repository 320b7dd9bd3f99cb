//! What `-h` shows: one screen per verb, and the verbs in groups. `--help`, man pages and the reference show everything.
use clap::Command;
use std::ffi::OsString;
use std::fmt::Write;

/// The verbs by purpose.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Copy", &["copy", "sync", "snapshot"]),
    ("Verify", &["verify", "sum", "manifest"]),
    (
        "Jobs",
        &[
            "jobs", "status", "top", "wait", "logs", "pause", "resume", "retry", "cancel",
            "errors", "history", "cleanup", "standby",
        ],
    ),
    ("Several hosts", &["submit", "broker", "mover", "agent", "bench"]),
    ("Setup", &["doctor", "config", "completions", "man"]),
];

/// Verbs that share one line.
const OF_OTHER_TOOLS: (&[&str], &str) =
    (&["cp", "mcp", "msum"], "Copy, or compute digests, with the options of GNU cp or mutil");

/// The common options of each verb. A verb that is not listed here shows all of its options.
const SHORT: [(&str, &[&str]); 12] = [
    (
        "copy",
        &[
            "target-directory",
            "no-target-directory",
            "dry-run",
            "itemize",
            "exclude",
            "update",
            "verify",
            "bwlimit",
        ],
    ),
    ("sync", &["delete", "max-delete", "dry-run", "itemize", "exclude", "checksum"]),
    ("verify", &["level", "repair", "manifest", "exclude"]),
    ("sum", &["check", "hash-type", "tag", "exclude", "threads"]),
    ("create", &["share", "label", "exclude", "dry-run", "bwlimit"]),
    ("bench", &["time", "json", "streams", "encrypt", "congestion", "relay"]),
    ("submit", &["local", "ssh", "slurm", "movers", "template"]),
    ("mover", &["broker", "allow-root", "allow-verb", "threads", "label"]),
    (
        "cp",
        &[
            "archive",
            "recursive",
            "force",
            "no-clobber",
            "preserve",
            "update",
            "verbose",
            "target-directory",
        ],
    ),
    ("mcp", &["archive", "recursive", "force", "no-clobber", "update", "threads", "print-hash"]),
    (
        "prune",
        &[
            "keep-last",
            "keep-hourly",
            "keep-daily",
            "keep-weekly",
            "keep-monthly",
            "keep-within",
            "dry-run",
        ],
    ),
    ("msum", &["check", "hash-type", "threads", "quiet"]),
];

/// Usage lines of verbs whose operands clap cannot tell apart.
const USAGE: [(&str, &str); 9] = [
    (
        "agent",
        "dmover agent --install [USER@]HOST [OPTIONS]\n       dmover agent --check [USER@]HOST[:PATH] [OPTIONS]\n       \
         dmover agent --make-identity | --show-identity [--identity FILE]\n       dmover agent --trust dmover://HOST[:PORT] [OPTIONS]\n       \
         dmover agent --listen FILE",
    ),
    (
        "cleanup",
        "dmover cleanup [OPTIONS] JOB…\n       dmover cleanup [OPTIONS] --all\n       dmover cleanup [OPTIONS] --older-than DURATION",
    ),
    ("standby", "dmover standby [OPTIONS] JOB"),
    ("copy", "dmover copy [OPTIONS] SOURCE… DEST\n       dmover copy [OPTIONS] -t DIR SOURCE…"),
    ("sync", "dmover sync [OPTIONS] SOURCE DEST"),
    (
        "verify",
        "dmover verify [OPTIONS] SOURCE DEST\n       dmover verify [OPTIONS] --manifest FILE DEST",
    ),
    ("create", "dmover snapshot create [OPTIONS] SOURCE DIR"),
    ("cp", "dmover cp [OPTIONS] SOURCE… DEST\n       dmover cp [OPTIONS] -t DIRECTORY SOURCE…"),
    ("mcp", "dmover mcp [OPTIONS] SOURCE… DEST\n       dmover mcp [OPTIONS] -t DIRECTORY SOURCE…"),
];

const ALL_OPTIONS: &str = "-h shows the most common options, --help all of them";

/// Hides options that do not fit on a screen from `-h`.
pub(crate) fn shaped(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|verb| verb.get_name().into()).collect();
    let overview = overview(&command);
    let command =
        names.into_iter().fold(command, |command, name| command.mut_subcommand(name, of_verb));
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} dmover VERB [OPTION]… [OPERAND]…\n\n{overview}\
         'dmover VERB -h' shows the common options of a verb, 'dmover VERB --help' all of them.{{after-help}}"
    ))
}

/// Turns 'dmover help VERB' into 'dmover VERB -h', which fits a screen; clap would show everything.
pub(crate) fn as_flag(words: Vec<OsString>) -> Vec<OsString> {
    let verbs = match &words[..] {
        [_, help, verbs @ ..] if help == "help" => verbs,
        _ => return words,
    };
    if verbs.iter().any(|verb| verb.as_encoded_bytes().starts_with(b"-")) {
        return words;
    }
    let flag = OsString::from("-h");
    words[..1].iter().chain(verbs).cloned().chain([flag]).collect()
}

fn of_verb(verb: Command) -> Command {
    let below: Vec<String> = verb.get_subcommands().map(|verb| verb.get_name().into()).collect();
    let verb = below.into_iter().fold(verb, |verb, name| verb.mut_subcommand(name, of_verb));
    let verb = match USAGE.iter().find(|(name, _)| *name == verb.get_name()) {
        Some((_, usage)) => verb.override_usage(*usage),
        None => verb,
    };
    let Some((_, shown)) = SHORT.iter().find(|(name, _)| *name == verb.get_name()) else {
        return verb;
    };
    let examples = verb.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    verb.after_help(format!("{examples}{ALL_OPTIONS}")).mut_args(|arg| {
        let is_shown =
            arg.is_positional() || arg.get_long().is_some_and(|long| shown.contains(&long));
        arg.hide_short_help(!is_shown)
    })
}

fn overview(command: &Command) -> String {
    let mut text = String::new();
    for (title, verbs) in GROUPS {
        let _ = writeln!(text, "{title}:");
        for verb in verbs.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:<12}{about}", verb.get_name());
        }
    }
    let (verbs, about) = OF_OTHER_TOOLS;
    let _ = writeln!(text, "{}: {about}\n", verbs.join(", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All verbs, with those below them.
    fn verbs(command: &Command) -> Vec<&Command> {
        let below = command.get_subcommands().filter(|verb| verb.get_name() != "help");
        below.flat_map(|verb| std::iter::once(verb).chain(verbs(verb))).collect()
    }

    #[test]
    fn short_help_fits_a_screen() {
        let mut command = crate::command();
        command.build();
        let mut all = verbs(&command);
        all.push(&command);
        for verb in all {
            let text = verb.clone().render_help().to_string();
            assert!(
                text.lines().count() <= 40,
                "{}: {}\n{text}",
                verb.get_name(),
                text.lines().count()
            );
        }
    }

    #[test]
    fn every_name_is_one() {
        let mut command = crate::command();
        command.build();
        let grouped = GROUPS.iter().map(|(_, verbs)| *verbs).chain([OF_OTHER_TOOLS.0]);
        let grouped: Vec<&str> = grouped.flatten().copied().collect();
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            assert!(grouped.contains(&verb.get_name()), "{} is in no group", verb.get_name());
        }
        let all = verbs(&command);
        for (name, _) in USAGE {
            assert!(all.iter().any(|verb| verb.get_name() == name), "no verb {name}");
        }
        for (name, shown) in SHORT {
            let verb = all.iter().find(|verb| verb.get_name() == name).unwrap();
            for long in shown {
                let is_it = |arg: &clap::Arg| arg.get_long() == Some(long);
                assert!(verb.get_arguments().any(is_it), "{name} has no --{long}");
            }
        }
    }
}
