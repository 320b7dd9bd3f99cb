//! `dmover top`: shows the jobs of a state directory and their movers on a terminal.
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use dmover_job::Refusal;
use dmover_job::description::described;
use dmover_journal::{Ask, JobPhase, StateDirectory};
use dmover_model::ExitCode as Code;
use dmover_schedule::time::Instant;
use ratatui::crossterm;
use std::process::ExitCode;
use std::time::Duration;

use crate::args::TopArgs;
use crate::cmd::{jobs, run};
use crate::print::{failure, say};

mod draw;
mod model;

use model::{Model, Snapshot};

/// Reads the status of all jobs of a state directory.
fn look(state: &StateDirectory) -> Result<Snapshot, Refusal> {
    let all = dmover_job::list(state, &dmover_job::Filter::default())?;
    Ok(all.into_iter().map(|(file, status)| (file, status.unwrap_or_default())).collect())
}

/// `dmover top`.
pub(crate) fn top(args: &TopArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let found = jobs::directory(place).and_then(|state| Ok((look(&state)?, state)));
    let (first, state) = match found {
        Ok(found) => found,
        Err(refused) => return jobs::refuse(refused),
    };
    if !crate::print::is_terminal() {
        let hint = "in scripts, use 'dmover status --json'";
        failure("standard output is not a terminal", hint);
        return run::exit(Code::Usage);
    }
    let mut model = Model::new(args.job.clone());
    model.see(first, Instant::now());
    if let (None, Some((file, _))) = (&args.job, model.choose()) {
        // The screen goes when the program ends; this line stays.
        say(&format!("dmover: job {}", described(file)));
    }
    let done = ratatui::try_init().and_then(|mut terminal| {
        let done = watch(&mut terminal, &mut model, &state, Duration::from_millis(args.every));
        ratatui::restore();
        done
    });
    match done {
        Ok(()) => run::exit(Code::Done),
        Err(error) => {
            failure(&format!("cannot use the terminal: {error}"), "check the TERM variable");
            run::exit(Code::Fatal)
        }
    }
}

/// Draws the screen and handles keys, until one ends the program.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    model: &mut Model,
    state: &StateDirectory,
    every: Duration,
) -> std::io::Result<()> {
    let mut looked = Instant::now();
    loop {
        terminal.draw(|frame| draw::draw(frame, model))?;
        let left = every.saturating_sub(looked.elapsed());
        if event::poll(left)? {
            let Event::Key(key) = event::read()? else { continue };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            let ends = key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('c') if ends => return Ok(()),
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Up | KeyCode::Char('k') => model.step(-1),
                KeyCode::Down | KeyCode::Char('j') => model.step(1),
                KeyCode::Char('s') => model.sort = model.sort.next(),
                KeyCode::Char('a') => model.shows_all = !model.shows_all,
                KeyCode::Char('p') => model.note = hold(model, state),
                _ => {}
            }
            continue;
        }
        looked = Instant::now();
        match look(state) {
            Ok(snapshot) => model.see(snapshot, looked),
            Err(refused) => model.note = Some(refused.message),
        }
    }
}

/// Pauses or resumes the selected job. Returns the note for the last line.
fn hold(model: &Model, state: &StateDirectory) -> Option<String> {
    let (file, status) = model.shown()?;
    let ask = match status.phase {
        JobPhase::Running => Ask::Pause,
        JobPhase::Paused => Ask::Resume,
        _ => return Some(format!("{} is not running", file.job)),
    };
    match state.ask(&file.job, ask) {
        Ok(false) => Some(format!("{} is being cancelled", file.job)),
        Ok(true) if ask == Ask::Pause => Some(format!("pausing {}", file.job)),
        Ok(true) => Some(format!("resuming {}", file.job)),
        Err(error) => Some(format!("cannot send the request to {}: {error}", file.job)),
    }
}
