//! Commands for the login shell of another host, which may be any: sh, csh, fish.
//!
//! The shell sees `exec /bin/sh -c 'SCRIPT' dmover 'WORD'…`. Scripts are fixed, and have nothing that a shell treats
//! specially between single quotes. Words are encoded for printf(1), so that they have no such byte either.
use std::fmt::Write as _;

/// Finds dmover where `agent --install` puts it, so that this has an effect where an older one is in PATH, or else in PATH,
/// and runs it, with `$a`. A signal for all of the session ends the shell after dmover, which has to tell how it has ended. The last line
/// on standard error says what was found: without it, nothing that was said before can be told from what a login script says. Not
/// earlier: sshd would send the line by itself, and the greeting only when the line was acknowledged, a round trip later (Nagle's
/// algorithm).
const FIND: &str = "trap : HUP INT TERM; p=$HOME/.local/bin/dmover; \
    if [ -f \"$p\" ]; then :; else p=$(command -v dmover 2>/dev/null) || p=; fi; \
    if [ -f \"$p\" ]; then \"$p\" agent $a; c=$?; ";

/// The same with a path that the user named; a name without a slash is looked up in PATH.
const NAMED: &str = "trap : HUP INT TERM; p=$(printf \"%bx\" \"$1\"); p=${p%x}; \
    case $p in */*) ;; *) q=$(command -v \"$p\" 2>/dev/null) && p=$q ;; esac; \
    if [ -e \"$p\" ]; then \"$p\" agent $a; c=$?; ";

/// How either ends. What was said before may be half a line.
const TELL: &str = "echo >&2; echo \"dmover-agent: $p on $(uname -s -m 2>/dev/null)\" >&2; exit $c; fi; \
    echo \"dmover-agent: none\" >&2; exit 127";

/// How the agent is started that serves a connection.
const SERVES: &str = "a=--stdio; ";

/// What a line of the scripts above begins with.
pub(crate) const MARK: &str = "dmover-agent: ";

/// The command that runs the agent. `agent`: its path, if the user named one.
pub(crate) fn agent(agent: Option<&[u8]>) -> String {
    with(SERVES, agent)
}

/// The command that leads a data stream to a port of that host, on which an agent there listens.
pub(crate) fn stream_to(port: u16, agent: Option<&[u8]>) -> String {
    with(&format!("a=--stream-to={port}; "), agent)
}

fn with(how: &str, agent: Option<&[u8]>) -> String {
    match agent {
        None => command(&[how, FIND, TELL].concat(), &[]),
        Some(path) => {
            let path = path.strip_prefix(b"~/").map_or_else(
                || path.to_vec(),
                // The shell begins in the home directory. With a slash, it is not looked up in PATH.
                |below| [b"./", below].concat(),
            );
            command(&[how, NAMED, TELL].concat(), &[&path])
        }
    }
}

/// A command that runs a script of sh(1) with these words as `$1`, `$2`, …, encoded for the format `%b` of printf(1).
pub(crate) fn command(script: &str, words: &[&[u8]]) -> String {
    let is_safe = |c: char| (' '..='~').contains(&c) && !"'!\\".contains(c);
    debug_assert!(script.chars().all(is_safe), "{script}");
    let mut command = format!("exec /bin/sh -c '{script}' dmover");
    for word in words {
        command.push_str(" '");
        for byte in *word {
            if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
                command.push(char::from(*byte));
            } else {
                let _ = write!(command, "\\0{byte:03o}");
            }
        }
        command.push('\'');
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Output};

    /// The shells of users that are here.
    fn shells() -> Vec<&'static str> {
        let all = ["sh", "bash", "dash", "ksh", "zsh", "csh", "tcsh", "fish"];
        let is_here = |shell: &&str| Command::new(shell).args(["-c", "exit 0"]).status().is_ok();
        all.into_iter().filter(is_here).collect()
    }

    fn run(shell: &str, command: &str, home: &Path, path: &str) -> Output {
        let mut run = Command::new(shell);
        run.arg("-c").arg(command).env("HOME", home).env("PATH", path).current_dir(home);
        run.output().unwrap()
    }

    /// A program that says how it was called, and fails if it can.
    fn place(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "#!/bin/sh\necho \"$0 $*\"\n! [ -e fails ]\n").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn words_reach_the_script_through_every_shell() {
        let home = tempfile::tempdir().unwrap();
        let all: Vec<u8> = (1..=255).collect();
        let script = "printf \"%b\" \"$1\"; printf \"%b\" \"$2\"";
        for shell in shells() {
            for word in [&all[..], b"a b", b"it's", b"$HOME `id` \\n !x", b"\n\n", b"-n", b""] {
                let output =
                    run(shell, &command(script, &[word, b"."]), home.path(), "/usr/bin:/bin");
                assert_eq!(output.stdout, [word, b"."].concat(), "{shell}: {word:?}");
            }
        }
    }

    #[test]
    fn the_agent_is_found_in_path_and_before_that_in_the_home_directory() {
        let home = tempfile::tempdir().unwrap();
        let bin = home.path().join("b in");
        let path = format!("{}:/usr/bin:/bin", bin.display());
        for shell in shells() {
            let _ = std::fs::remove_dir_all(home.path().join(".local"));
            let _ = std::fs::remove_dir_all(&bin);
            let output = run(shell, &agent(None), home.path(), &path);
            assert_eq!(output.status.code(), Some(127), "{shell}");
            assert_eq!(output.stderr, b"dmover-agent: none\n", "{shell}");
            for installed in [bin.join("dmover"), home.path().join(".local/bin/dmover")] {
                place(&installed);
                let output = run(shell, &agent(None), home.path(), &path);
                let shown = installed.display();
                let said = String::from_utf8(output.stdout).unwrap();
                assert_eq!(said, format!("{shown} agent --stdio\n"), "{shell}");
                assert!(output.status.success(), "{shell}");
                std::fs::write(home.path().join("fails"), "").unwrap();
                let output = run(shell, &agent(None), home.path(), &path);
                let noted = String::from_utf8(output.stderr).unwrap();
                assert!(
                    noted.starts_with(&format!("\n{MARK}{shown} on Linux ")),
                    "{shell}: {noted}"
                );
                assert_eq!(output.status.code(), Some(1), "{shell}");
                std::fs::remove_file(home.path().join("fails")).unwrap();
            }
        }
    }

    #[test]
    fn a_named_agent_may_have_any_name() {
        let home = tempfile::tempdir().unwrap();
        for name in ["a b", "it's", "$x`id`", "new\nline\n", "\u{fc}\\!", "-n", "%s"] {
            let name = OsStr::from_bytes(name.as_bytes());
            let absolute = home.path().join("d").join(name);
            place(&absolute);
            for shell in shells() {
                let relative = [b"~/d/", name.as_bytes()].concat();
                for named in [absolute.as_os_str().as_bytes(), &relative] {
                    let output = run(shell, &agent(Some(named)), home.path(), "/usr/bin:/bin");
                    let said = String::from_utf8_lossy(&output.stdout);
                    assert!(said.ends_with(" agent --stdio\n"), "{shell} {named:?}: {output:?}");
                }
            }
        }
        let output = run("sh", &agent(Some(b"/no/such")), home.path(), "/usr/bin:/bin");
        assert_eq!(output.status.code(), Some(127));
    }
}
