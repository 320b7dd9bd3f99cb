//! The commands that a document shows.
//!
//! - A block of ` ```sh ` has one command a line; `# exit code N` at its end says that it ends with N, not with 0.
//! - A block of ` ```console ` has commands after `$ `, each with what it prints. `^C` below a command interrupts it.
//!   `$ echo $?` and a number give the exit code of the command above. A line `…` stands for lines that are not shown.
//! - A table with the column `dmover` has commands in it; `exit code N` in the last column says how they end. Where
//!   that column begins with "Same result", the first column has a command of another tool with the same result.
//! - `<!-- test: … -->` is run by the test and not shown.

/// One thing to run, in the order of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// What happens between the commands of a reader.
    Hidden(String),
    /// What a reader types.
    Command(Command),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    pub text: String,
    /// The command of another tool that leaves the same tree.
    pub peer: Option<String>,
    /// What it prints, as the document shows it.
    pub output: Option<Vec<String>>,
    /// The line of the document, counted from 0, where that begins.
    pub output_at: usize,
    pub code: i32,
    pub interrupted: bool,
}

/// All steps, in order.
pub fn steps(document: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut fence = None;
    let mut columns: Vec<String> = Vec::new();
    for (at, line) in document.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            fence = fence.is_none().then_some(kind);
        } else if fence == Some("sh") {
            let (text, code) = line.split_once("# exit code ").unwrap_or((line, "0"));
            let text = text.trim_end().to_owned();
            let code = code.parse().expect("an exit code");
            steps.push(Step::Command(Command { text, code, ..Command::default() }));
        } else if fence == Some("console") {
            console_line(at, line, &mut steps);
        } else if let Some(script) = line.strip_prefix("<!-- test: ") {
            let script = script.strip_suffix(" -->").expect("a comment on one line");
            steps.push(Step::Hidden(script.to_owned()));
        } else if let Some(row) = line.strip_prefix('|') {
            let cells: Vec<String> = row.split('|').map(|cell| cell.trim().to_owned()).collect();
            if columns.is_empty() {
                columns = cells;
            } else if let Some(at) = columns.iter().position(|column| column == "dmover") {
                steps.extend(row_commands(&cells, at).map(Step::Command));
            }
            continue;
        }
        columns.clear();
    }
    steps
}

fn console_line(at: usize, line: &str, steps: &mut Vec<Step>) {
    let last = match steps.last_mut() {
        Some(Step::Command(command)) => Some(command),
        _ => None,
    };
    if let Some(text) = line.strip_prefix("$ ") {
        let (text, output) = (text.to_owned(), Some(Vec::new()));
        let command = Command { text, output, output_at: at + 1, ..Command::default() };
        steps.push(Step::Command(command));
        return;
    }
    let last = last.expect("output below a command");
    if line == "^C" {
        last.interrupted = true;
        last.output_at = at + 1;
        last.code = 130;
    } else if last.text == "echo $?" {
        steps.pop();
        let Some(Step::Command(command)) = steps.last_mut() else { panic!("$? of nothing") };
        command.code = line.parse().expect("an exit code");
    } else {
        last.output.as_mut().expect("a block of a console").push(line.to_owned());
    }
}

/// The commands of a row of a table.
fn row_commands(cells: &[String], at: usize) -> impl Iterator<Item = Command> {
    let remark = cells.iter().rev().find(|cell| !cell.is_empty()).cloned().unwrap_or_default();
    let code = remark.split_once("exit code ").map_or(0, |(_, rest)| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    });
    let has_peer = remark.starts_with("Same result");
    let peer = code_spans(&cells[0]).into_iter().next().filter(|_| has_peer);
    let commands = code_spans(&cells[at]).into_iter().filter(|span| span.starts_with("dmover "));
    commands.map(move |text| Command { text, peer: peer.clone(), code, ..Command::default() })
}

/// What stands between backquotes.
fn code_spans(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Commands of dmover in blocks that no test runs.
pub fn not_run(document: &str) -> Vec<String> {
    let mut fence = None;
    let mut found = Vec::new();
    for line in document.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            fence = fence.is_none().then_some(kind);
            continue;
        }
        let is_code = fence.is_some() || line.starts_with("    ");
        let is_run = matches!(fence, Some("sh" | "console"));
        let text = line.trim_start().trim_start_matches("$ ");
        if is_code && !is_run && text.starts_with("dmover ") {
            found.push(line.to_owned());
        }
    }
    found
}

/// The directory that documents are followed in; the test is in another one.
pub const HOME: &str = "/srv/ann";

/// A line without what differs from run to run: numbers, units, ids, blanks.
pub fn form(line: &str) -> String {
    let words: Vec<String> = line.replace(HOME, "").split_whitespace().map(form_of_word).collect();
    let mut line = words.join(" ");
    for unit in ["KiB", "MiB", "GiB"] {
        line = line.replace(unit, "B");
    }
    line
}

fn form_of_word(word: &str) -> String {
    let mut form = String::new();
    for part in word.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let token = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let is_id = token.len() >= 8 && token.bytes().all(|byte| byte.is_ascii_hexdigit());
        let shown = if is_id { part.replacen(token, "0", 1) } else { part.to_owned() };
        for c in shown.chars() {
            match (c.is_ascii_digit(), form.ends_with('#')) {
                (true, false) => form.push('#'),
                (true, true) => {}
                (false, true) if ",.:".contains(c) => {}
                (false, _) => form.push(c),
            }
        }
    }
    form
}

#[test]
fn documents_are_read_as_they_are_written() {
    let command = |text: &str| Command { text: text.to_owned(), ..Command::default() };
    let document = "words\n<!-- test: mkdir s -->\n```sh\ndmover a\ndmover b  # exit code 3\n```\n\
                    | cp | dmover | different |\n|---|---|---|\n| `cp x` | `dmover y` | Same result |\n\
                    | `cp -z` | `dmover z` | exit code 2 |\n\n```console\n$ dmover c\n^C\ndmover: done\n\
                    $ echo $?\n130\n$ dmover d\n```\n";
    let interrupted = Command {
        output: Some(vec!["dmover: done".into()]),
        output_at: 14,
        code: 130,
        interrupted: true,
        ..command("dmover c")
    };
    let expected = [
        command("dmover a"),
        Command { code: 3, ..command("dmover b") },
        Command { peer: Some("cp x".into()), ..command("dmover y") },
        Command { code: 2, ..command("dmover z") },
        interrupted,
        Command { output: Some(Vec::new()), output_at: 18, ..command("dmover d") },
    ]
    .map(Step::Command);
    let steps = steps(document);
    assert_eq!(steps[0], Step::Hidden("mkdir s".into()));
    assert_eq!(steps[1..], expected);
    assert_eq!(not_run("    dmover x\n```text\n$ dmover y\n```\n    cargo z\n").len(), 2);
}

#[test]
fn lines_have_the_same_form_whatever_their_numbers() {
    let line = "  copied      3,107 files; 9.31 GiB in 0:11 (867 MiB/s)";
    assert_eq!(form(line), form("  copied  12 files; 71.0 KiB in 1:00:07 (1 B/s)"));
    assert_ne!(form(line), form("  skipped     3,107 files; 9.31 GiB in 0:11 (867 MiB/s)"));
    assert_eq!(form("0123abcd01234567  sync"), "# sync");
    assert_eq!(form(".trash/1795642556-c75fc5432c02/data/12"), ".trash/#-#/data/#");
}
