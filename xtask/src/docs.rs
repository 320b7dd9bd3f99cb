//! Reference pages made from code: what the program says of itself cannot differ from what it does.
use anyhow::{Context, Result, bail};
use dmover_cli::Fate;
use dmover_model::ErrorClass;
use dmover_observe::Counter;
use std::fmt::Write;

use crate::page::heading;
use crate::{reference, tidy};

/// Writes the pages, or compares them with what is committed.
pub fn run(check: bool) -> Result<()> {
    let mut stale = Vec::new();
    for (path, text) in pages()? {
        let file = crate::root().join(path);
        if !check {
            std::fs::write(&file, text).with_context(|| format!("cannot write {path}"))?;
        } else if std::fs::read_to_string(&file).ok().as_deref() != Some(text.as_str()) {
            stale.push(path);
        }
    }
    if !stale.is_empty() {
        bail!("differ from the code: {}; run 'cargo xtask docs'", stale.join(", "));
    }
    Ok(())
}

fn pages() -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("docs/cli.md", reference::command_line(dmover_cli::command())),
        ("docs/coming-from-rsync.md", habits()),
        ("docs/counters.md", counters()),
        ("docs/errors.md", errors()),
        ("xtask/snapshots/help.txt", reference::screens(dmover_cli::command())),
        ("xtask/snapshots/texts.txt", tidy::texts()?),
    ])
}

fn habits() -> String {
    let mut page = heading("Coming from rsync, cp, scp and rclone");
    page.push_str(
        "`dmover sync SOURCE DEST` does what `rsync -aHAXS --numeric-ids SOURCE/ DEST/` does: contents go to contents, with or without a\n\
         slash, and everything is kept. `dmover copy SOURCE DEST` does what `cp -a SOURCE DEST` does. `dmover cp` takes the options of cp.\n\n\
         Rules are written as for rsync, mean the same and count in the order of the command line: `--include`, `--exclude`, `--filter`\n\
         (`+`, `-`, `include`, `exclude`, `merge`, `.`, `!`), and files of them (`--include-from`, `--exclude-from`). Rule files in each\n\
         directory (`:`, `dir-merge`, `-F`), rules for one side (`hide`, `show`, `protect`, `risk`) and modifiers are refused. What a rule\n\
         excludes is neither copied nor deleted.\n\n\
         The options below are those of other tools that dmover does not have under the same name. *Ignored*: it is accepted and has no\n\
         effect, for the reason given. *Is*: it is another option here. *Refused*: the command ends with 2, does nothing, and says what to\n\
         type. All other options of dmover are in [cli.md](cli.md); an option that is in neither list is refused.\n\n\
         | option | verb | |\n|---|---|---|\n",
    );
    for habit in dmover_cli::HABITS {
        let names: Vec<String> = habit.names.iter().map(|name| format!("`{name}`")).collect();
        let fate = match habit.fate {
            Fate::Ignored(why) => format!("ignored: {why}"),
            Fate::Means(words) => format!("is `{}`", words.join(" ")),
            Fate::Renamed(to) => format!("is `{to}`"),
            Fate::Refused(instead) => format!("refused: {instead}"),
        };
        row(&mut page, &[&names.join(" "), habit.verbs.name(), &fate]);
    }
    page
}

fn counters() -> String {
    let mut page = heading("Counters");
    page.push_str(
        "Everything that a job counts. The summary, the progress line and JSON (`counters` in `status` \
         and\n`summary`) take their numbers from here; sizes are bytes.\n\n\
         | counter | what it counts |\n|---|---|\n",
    );
    for counter in Counter::ALL {
        row(&mut page, &[&format!("`{}`", counter.name()), counter.describe()]);
    }
    page
}

fn errors() -> String {
    let mut page = heading("Error classes");
    page.push_str(
        "An entry that fails is named with the class of its failure; a bad entry never stops a job. In \
         JSON the\nword is the field `class` of an `error`. Interrupted calls and time-outs are retried whatever the \
         class.\n\n\
         | class | retried at once | pauses the job when frequent | only the source's doing (exit code 4) \
         | what to do |\n\
         |---|---|---|---|---|\n",
    );
    for class in ErrorClass::ALL {
        let yes = |answer: bool| if answer { "yes" } else { "" };
        let cells = [
            &format!("`{}`", class.word()),
            yes(class.retryable(0)),
            yes(class.systemic()),
            yes(class.source_moved_on()),
            class.advice(),
        ];
        row(&mut page, &cells);
    }
    page
}

fn row(page: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.trim().replace('|', "\\|")).collect();
    writeln!(page, "| {} |", cells.join(" | ")).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_and_class_has_a_row() {
        assert_eq!(counters().matches("\n| `").count(), Counter::ALL.len());
        assert_eq!(errors().matches("\n| `").count(), ErrorClass::ALL.len());
        assert!(errors().contains("| `vanished` |"));
    }

    #[test]
    fn a_bar_does_not_end_a_cell() {
        let mut page = String::new();
        row(&mut page, &["a|b", " c"]);
        assert_eq!(page, "| a\\|b | c |\n");
    }
}
