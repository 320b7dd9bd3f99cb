//! What the program says of itself: help of a screen, man pages, completions.
use super::Bench;
use super::bench::PROGRAM;
use dmover_testkit::skip;

/// The verbs that the reference lists, with those below them.
fn verbs(bench: &Bench) -> Vec<String> {
    let pages = bench.dmover("man").expect_code(0).text();
    let named = pages.lines().filter_map(|line| line.strip_prefix("dmover\\-"));
    let named = named.filter_map(|line| line.strip_suffix("(1)"));
    named.map(str::to_owned).collect()
}

#[test]
fn help_of_a_verb_fits_a_screen() {
    let bench = Bench::new();
    let verbs = verbs(&bench);
    assert!(verbs.len() > 20, "{verbs:?}");
    for verb in verbs.iter().map(String::as_str).chain([""]) {
        let short = bench.dmover(&format!("{verb} -h")).expect_code(0).text();
        let help = bench.dmover(&format!("help {verb}")).expect_code(0).text();
        assert_eq!(help, short, "help {verb}");
        assert!(help.lines().count() <= 40, "help {verb}: {}", help.lines().count());
    }
    let create = bench.dmover("help snapshot create").expect_code(0).text();
    assert_eq!(create, bench.dmover("snapshot create -h").expect_code(0).text());
    let run = bench.dmover("help nothing").expect_code(2);
    assert!(run.stderr.contains("nothing"), "{}", run.tell());
}

#[test]
fn man_pages_are_printed_for_readers_of_man_pages() {
    let bench = Bench::new();
    let run = bench.dmover("man nothing").expect_code(2);
    assert!(run.stderr.contains("unknown verb 'nothing'"), "{}", run.tell());
    if bench.sh("command -v mandoc || true").is_empty() {
        skip!("mandoc is missing");
    }
    for (verb, words) in
        [("", "SUBCOMMANDS"), ("sync", "--max-delete"), ("snapshot create", "--share")]
    {
        let page =
            bench.sh(&format!("\"{PROGRAM}\" man {verb} | mandoc -T utf8 -W error | col -b"));
        let title = ["dmover"].into_iter().chain(verb.split_whitespace());
        let title = title.collect::<Vec<_>>().join("-");
        assert!(page.starts_with(&format!("{title}(1)")), "{page}");
        assert!(page.contains("NAME") && page.contains(words), "{page}");
    }
}

#[test]
fn a_terminal_gets_the_page_from_man() {
    let bench = Bench::new();
    // Another program of this name stands for one that does not know -l.
    bench.sh("mkdir none; ln -s \"$(command -v script)\" none/");
    let shown = |environment: &str| {
        let inner = format!("'{PROGRAM}' man sync");
        bench.sh(&format!("{environment} script -qec \"{inner}\" /dev/null | col -b || true"))
    };
    let without = shown("env PATH=$PWD/none");
    assert!(without.contains("cannot run man(1)"), "{without}");
    assert!(without.contains("'dmover sync --help'"), "{without}");
    if bench.sh("man -l /dev/null 2>&1 || true").contains("minimized") {
        skip!("man is left out here");
    }
    let page = shown("env MANPAGER=cat");
    assert!(page.contains("NAME") && page.contains("--max-delete"), "{page}");
    assert!(!page.contains(".SH"), "{page}");
}

#[test]
fn completions_complete() {
    let bench = Bench::new();
    let offered = |words: &str| {
        bench.sh(&format!(
            "source <(\"{PROGRAM}\" completions bash); complete -p dmover > /dev/null
             COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
             _dmover dmover \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        ))
    };
    assert_eq!(offered("dmover sy"), "sync\n");
    assert_eq!(offered("dmover sync --max-de"), "--max-delete\n");
    assert_eq!(offered("dmover completions z"), "zsh\n");
    let first = |shell: &str| bench.dmover(&format!("completions {shell}")).expect_code(0).text();
    assert!(first("zsh").starts_with("#compdef dmover"));
    assert!(first("fish").contains("complete -c dmover"));
    let run = bench.dmover("completions tcsh").expect_code(2);
    assert!(run.stderr.contains("bash, fish, zsh"), "{}", run.tell());
    bench.dmover("completions").expect_code(2);
}
