//! Calls and words that have an owner, or that have no place at all.
use super::rust::{RustSource, Use, Word};
use super::{Finding, SourceFile};

/// How a name is recognised.
enum Pattern {
    /// The path or one below it: `std::fs` also means `std::fs::File`.
    Starts(&'static str),
    /// The path or its end: `process::exit` also means `std::process::exit`.
    Ends(&'static str),
    /// A macro of that name.
    Macro(&'static str),
    /// A method without arguments.
    Method(&'static str),
    /// An attribute.
    Attribute(&'static str),
}
use Pattern::{Attribute, Ends, Macro, Method, Starts};

/// Names, where they may stand, and why nowhere else.
struct Ban {
    patterns: &'static [Pattern],
    /// Beginnings of paths in which the rule holds; empty for everywhere.
    within: &'static [&'static str],
    /// Beginnings of paths that may use the names.
    owners: &'static [&'static str],
    /// Beginnings of names that everybody may use all the same.
    except: &'static [&'static str],
    /// Whether test code may use them.
    in_tests: bool,
    why: &'static str,
}

const PURE: &[&str] =
    &["crates/model/src/", "crates/plan/src/", "crates/tree/src/", "crates/wire/src/"];
const DEVELOPMENT: [&str; 2] = ["crates/testkit/", "xtask/"];

const BANS: &[Ban] = &[
    Ban {
        patterns: &[
            Starts("std::fs"),
            Starts("std::net"),
            Starts("std::thread"),
            Starts("std::process"),
            Starts("std::env"),
            Starts("rustix"),
            Starts("libc"),
            Ends("Instant::now"),
            Ends("SystemTime::now"),
        ],
        within: PURE,
        owners: &[],
        except: &[],
        in_tests: true,
        why: "model and plan decide from their arguments: no I/O, no clock, no threads",
    },
    Ban {
        patterns: &[Starts("std::fs"), Starts("std::os::unix::fs::symlink")],
        within: &[],
        owners: &[
            "crates/sys/src/",
            "crates/host/src/",
            "crates/job/src/background.rs",
            "crates/job/src/manifest.rs",
            "crates/job/src/messages.rs",
            "crates/job/src/retry.rs",
            "crates/journal/src/",
            "crates/queue/src/address.rs",
            "crates/queue/src/broker.rs",
            "crates/queue/src/identity.rs",
            "crates/queue/src/placement",
            "crates/queue/src/secret.rs",
            "crates/queue/src/signer.rs",
            "crates/cli/src/",
            DEVELOPMENT[0],
            DEVELOPMENT[1],
        ],
        except: &[],
        in_tests: true,
        why: "std::fs follows links and works on whole paths: use dmover_sys",
    },
    Ban {
        patterns: &[Starts("rustix"), Starts("libc")],
        within: &["crates/"],
        owners: &["crates/sys/", "crates/host/", DEVELOPMENT[0]],
        except: &[],
        in_tests: true,
        why: "system calls belong to dmover_sys and dmover_host",
    },
    Ban {
        patterns: &[Starts("dmover_sys")],
        within: &["crates/cli/src/"],
        owners: &["crates/cli/src/cmd/doctor"],
        except: &[],
        in_tests: true,
        why: "the command line asks the engine; only doctor looks at file systems itself",
    },
    Ban {
        patterns: &[Ends("unsafe")],
        within: &[],
        owners: &["crates/sys/src/"],
        except: &[],
        in_tests: false,
        why: "unsafe code belongs to crates/sys/src",
    },
    Ban {
        patterns: &[Ends("async"), Ends("await")],
        within: &[],
        owners: &["crates/queue/src/", "crates/server/src/"],
        except: &[],
        in_tests: false,
        why: "file I/O runs on threads",
    },
    Ban {
        patterns: &[
            Macro("println"),
            Macro("print"),
            Macro("eprintln"),
            Macro("eprint"),
            Ends("io::stdout"),
            Ends("io::stderr"),
        ],
        within: &[],
        owners: &[
            "crates/cli/src/print",
            "crates/observe/src/log.rs",
            "crates/simulator/src/bin/",
            DEVELOPMENT[0],
            DEVELOPMENT[1],
        ],
        except: &[],
        in_tests: true,
        why: "only the printers of cli print",
    },
    Ban {
        patterns: &[Ends("process::exit"), Ends("process::abort")],
        within: &[],
        owners: &["crates/cli/src/main.rs"],
        except: &[],
        in_tests: false,
        why: "only main ends the program: return an exit code",
    },
    Ban {
        patterns: &[
            Ends("env::var"),
            Ends("env::var_os"),
            Ends("env::vars"),
            Ends("env::vars_os"),
            Ends("env::set_var"),
            Ends("env::remove_var"),
        ],
        within: &[],
        owners: &["crates/cli/src/config", DEVELOPMENT[0], DEVELOPMENT[1]],
        except: &[],
        in_tests: true,
        why: "only the configuration of cli reads the environment",
    },
    Ban {
        patterns: &[Macro("todo"), Macro("unimplemented"), Macro("dbg"), Attribute("ignore")],
        within: &[],
        owners: &[],
        except: &[],
        in_tests: false,
        why: "unfinished work does not land; a test that cannot run skips loudly",
    },
    Ban {
        patterns: &[Method("unwrap")],
        within: &[],
        owners: &[],
        except: &[],
        in_tests: true,
        why: "handle it, or say by expect() which invariant holds",
    },
];

/// Reminders that have to become issues; in two parts, so that this file passes its own rule.
const REMINDERS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X")];

/// How many lines above a wait the word "poll" may stand.
const POLL_DISTANCE: usize = 3;

/// All names and reminders in one file.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = reminders(file);
    let Some(rust) = file.rust() else { return findings };
    let is_test = |line| file.is_test() || rust.in_test(line);
    for ban in BANS.iter().filter(|ban| ban.applies_to(&file.path)) {
        for word in &rust.words {
            if ban.concerns(word) && !(ban.in_tests && is_test(word.line)) {
                let what = format!("`{}`: {}", word.name, ban.why);
                findings.push(Finding::new(file, word.line, what));
            }
        }
    }
    findings.extend(bare_sleeps(file, rust, is_test));
    findings
}

impl Ban {
    fn applies_to(&self, path: &str) -> bool {
        let within = self.within.is_empty() || starts_with_any(path, self.within);
        within && !starts_with_any(path, self.owners)
    }

    fn concerns(&self, word: &Word) -> bool {
        let excepted = self.except.iter().any(|path| is_or_extends(&word.name, path));
        !excepted && self.patterns.iter().any(|pattern| pattern.matches(word))
    }
}

impl Pattern {
    fn matches(&self, word: &Word) -> bool {
        let (used_as, wanted) = match self {
            Starts(path) => (Use::Path, is_or_extends(&word.name, path)),
            Ends(path) => (Use::Path, ends_with(&word.name, path)),
            Macro(name) => (Use::Macro, ends_with(&word.name, name)),
            Method(name) => (Use::BareMethod, word.name == *name),
            Attribute(name) => (Use::Attribute, word.name == *name),
        };
        wanted && word.used_as == used_as
    }
}

fn is_or_extends(path: &str, start: &str) -> bool {
    path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn ends_with(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with("::"))
}

fn starts_with_any(path: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| path.starts_with(beginning))
}

/// A test that waits a fixed time is slow or flaky: it polls, and says so.
fn bare_sleeps(
    file: &SourceFile,
    rust: &RustSource,
    is_test: impl Fn(usize) -> bool,
) -> Vec<Finding> {
    let lines: Vec<&str> = file.text.lines().collect();
    let polls = |line: usize| {
        let first = line.saturating_sub(POLL_DISTANCE + 1);
        let comments = lines[first..line].iter().filter_map(|text| text.split_once("//"));
        comments.into_iter().any(|(_, comment)| comment.to_lowercase().contains("poll"))
    };
    let calls = rust.words.iter().filter(|w| w.used_as == Use::Call && ends_with(&w.name, "sleep"));
    calls
        .filter(|call| is_test(call.line) && !polls(call.line))
        .map(|call| {
            let what = "a test sleeps: poll for the condition, and say \"poll\" in a comment";
            Finding::new(file, call.line, what)
        })
        .collect()
}

fn reminders(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for word in REMINDERS.iter().filter(|word| has_word(line, word)) {
            let what = format!("{word}: finish it or file an issue");
            findings.push(Finding::new(file, index + 1, what));
        }
    }
    findings
}

/// Whether `word` stands in the line by itself.
fn has_word(line: &str, word: &str) -> bool {
    let mut parts = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts.any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in a file at `path` with that text.
    fn found(path: &str, text: &str) -> Vec<String> {
        let findings = check(&SourceFile::new(path, text));
        findings.into_iter().map(|finding| finding.to_string()).collect()
    }

    /// The statement is a finding in `bad`, and none in `good`.
    fn assert_ban(statement: &str, bad: &[&str], good: &[&str]) {
        let text = format!("fn f() {{ {statement} }}");
        for path in bad {
            assert_eq!(
                found(path, &text).len(),
                1,
                "{statement} in {path}: {:?}",
                found(path, &text)
            );
        }
        for path in good {
            assert_eq!(found(path, &text), Vec::<String>::new(), "{statement} in {path}");
        }
    }

    const ENGINE: &str = "crates/engine/src/scan.rs";
    const TEST: &str = "crates/cli/tests/copy.rs";

    #[test]
    fn file_access_belongs_to_sys() {
        let good = ["crates/sys/src/a.rs", "crates/journal/src/state.rs", TEST, "xtask/src/a.rs"];
        assert_ban("std::fs::read(x);", &[ENGINE, "crates/observe/src/a.rs"], &good);
        assert_eq!(found(ENGINE, "use std::{fs::File, io};").len(), 1);
        assert_eq!(found(ENGINE, "use std::os::unix::fs::symlink;").len(), 1);
        assert_ban(
            "rustix::fs::stat(x);",
            &[ENGINE, "crates/cli/src/a.rs"],
            &["crates/sys/src/a.rs"],
        );
    }

    #[test]
    fn model_and_plan_are_pure() {
        let (model, plan) = ("crates/model/src/a.rs", "crates/plan/src/b/c.rs");
        for statement in
            ["Instant::now();", "std::time::SystemTime::now();", "std::thread::spawn(x);"]
        {
            assert_ban(statement, &[model, plan], &[ENGINE]);
        }
        assert_eq!(found(plan, "use std::thread;").len(), 1);
        assert!(found(plan, "#[cfg(test)] mod tests { use std::fs; }").is_empty());
    }

    #[test]
    fn the_command_line_does_not_do_the_work() {
        let doctor = "crates/cli/src/cmd/doctor.rs";
        assert_ban(
            "dmover_sys::stat::stat(x);",
            &["crates/cli/src/cmd/copy.rs"],
            &[doctor, ENGINE],
        );
    }

    #[test]
    fn unsafe_belongs_to_sys() {
        let bad = [ENGINE, TEST, "crates/testkit/src/a.rs", "xtask/src/a.rs"];
        assert_ban("unsafe { g() }", &bad, &["crates/sys/src/a.rs"]);
        assert!(found(ENGINE, "#![forbid(unsafe_code)]\n// unsafe").is_empty());
    }

    #[test]
    fn nothing_is_async() {
        assert_eq!(found(ENGINE, "async fn f() { g().await }").len(), 2);
    }

    #[test]
    fn only_printers_print() {
        let good =
            ["crates/cli/src/print/text.rs", "crates/cli/src/print.rs", TEST, "xtask/src/a.rs"];
        for statement in ["println!(\"x\");", "std::eprint!(\"x\");", "let x = std::io::stdout();"]
        {
            assert_ban(statement, &[ENGINE, "crates/cli/src/cmd/copy.rs"], &good);
        }
    }

    #[test]
    fn only_main_exits() {
        let bad = [ENGINE, "crates/cli/src/cmd/copy.rs", TEST];
        assert_ban("std::process::exit(1);", &bad, &["crates/cli/src/main.rs"]);
    }

    #[test]
    fn only_the_configuration_reads_the_environment() {
        let good = ["crates/cli/src/config.rs", "crates/cli/src/config/file.rs", TEST];
        assert_ban("std::env::var_os(x);", &[ENGINE, "crates/cli/src/args.rs"], &good);
        assert_ban("env::var(x);", &[ENGINE], &good);
    }

    #[test]
    fn unfinished_work_is_found_everywhere() {
        for statement in ["todo!()", "unimplemented!()", "dbg!(x);"] {
            assert_ban(statement, &[ENGINE, TEST, "xtask/src/a.rs"], &[]);
        }
        assert_eq!(found(TEST, "#[test]\n#[ignore = \"slow\"]\nfn f() {}").len(), 1);
        for word in REMINDERS {
            assert_eq!(found(ENGINE, &format!("// {word}: later")).len(), 1);
            assert_eq!(found("scripts/a", &format!("# {word}(me)")).len(), 1);
            assert!(found("scripts/a", &format!("mktemp a.{word}{word}")).is_empty());
        }
    }

    #[test]
    fn unwrap_is_for_tests() {
        assert_ban("x.unwrap();", &[ENGINE, "xtask/src/a.rs"], &[TEST]);
        assert!(found(ENGINE, "#[cfg(test)]\nmod tests { fn f() { x.unwrap(); } }").is_empty());
        assert!(found(ENGINE, "fn f() { x.unwrap_or(1); x.expect(\"y\"); }").is_empty());
    }

    #[test]
    fn tests_poll() {
        assert_ban("std::thread::sleep(x);", &[TEST], &[ENGINE]);
        let polling =
            "fn f() {\n // Poll: the kernel tells nobody.\n while y {\n  sleep(x);\n }\n}";
        assert!(found(TEST, polling).is_empty());
        let far = format!("// poll\n{}fn f() {{ sleep(x) }}", "\n".repeat(POLL_DISTANCE));
        assert_eq!(found(TEST, &far).len(), 1);
    }
}
