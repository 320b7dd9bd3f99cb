//! Draws the screen of `dmover top`. Everything that a colour shows is also shown in words.
use dmover_journal::{JobFile, JobPhase, JobStatus};
use dmover_model::{ErrorClass, units};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

use super::model::{self, Model};
use crate::print::{connection, grouped};
use dmover_job::quote::quoted;

const KEYS: &str = " q quit   ↑↓ job   a all jobs   s sort movers   p pause or resume";

/// So many connections to other hosts are shown.
const LINES_MAX: usize = 3;

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let listed = model.listed().len() as u16;
    let lines = model.shown().map_or(0, |(_, status)| status.connections.len().min(LINES_MAX));
    let parts = Layout::vertical([
        Constraint::Length(listed.clamp(1, 8) + 1),
        Constraint::Length(7 + lines as u16),
        Constraint::Length(4),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [jobs, job, rates, movers, keys] = parts.areas(frame.area());
    draw_jobs(frame, jobs, model);
    match model.shown() {
        Some((file, status)) => {
            draw_job(frame, job, (file, status), model.is_chosen);
            draw_rates(frame, rates, model, file);
            draw_movers(frame, movers, model, status);
        }
        None => {
            let words =
                "No job in this state directory. 'dmover copy' and 'dmover sync' start jobs.";
            frame.render_widget(Paragraph::new(words), job);
        }
    }
    let line = model.note.as_ref().map_or(Line::from(KEYS), |note| {
        Line::from(vec![Span::from(KEYS), Span::from("   "), Span::from(note.as_str()).bold()])
    });
    frame.render_widget(Paragraph::new(line).reversed(), keys);
}

fn style_of(phase: JobPhase) -> Style {
    match phase {
        JobPhase::Running | JobPhase::Watching | JobPhase::Finished => Style::new().green(),
        JobPhase::Paused => Style::new().yellow(),
        JobPhase::Stopped | JobPhase::Cancelled | JobPhase::Died => Style::new().red(),
    }
}

fn heading(titles: &[&'static str]) -> Row<'static> {
    let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    Row::new(titles.to_vec()).style(style)
}

fn per_second(rate: f64) -> String {
    format!("{}/s", units::format_iec(rate.max(0.0) as u64))
}

fn draw_jobs(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let shown = model.shown().map(|(file, _)| file.job.as_str());
    let row = |(file, status): &&(JobFile, JobStatus)| {
        let rate = model.rates(&file.job).and_then(|all| all.back().copied()).unwrap_or_default();
        let errors: u64 = status.errors.values().sum();
        let is_shown = shown == Some(file.job.as_str());
        let rate = if status.phase.has_process() { rate } else { (0, 0) };
        let cells = vec![
            Line::from(format!("{}{}", if is_shown { "> " } else { "  " }, file.job)),
            Line::styled(status.phase.word(), style_of(status.phase)),
            Line::from(file.verb.clone()),
            Line::from(per_second(rate.0 as f64)),
            Line::from(format!("{}/s", grouped(rate.1))),
            Line::from(grouped(errors)),
            Line::from(file.label.clone().unwrap_or_else(|| quoted(&file.destination.0))),
        ];
        Row::new(cells)
    };
    let widths = [
        Constraint::Length(14),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(8),
        Constraint::Min(10),
    ];
    let titles = ["  job", "state", "verb", "bytes", "entries", "errors", "label or destination"];
    let listed = model.listed();
    frame.render_widget(Table::new(listed.iter().map(row), widths).header(heading(&titles)), area);
}

fn draw_job(
    frame: &mut Frame<'_>,
    area: Rect,
    (file, status): (&JobFile, &JobStatus),
    is_chosen: bool,
) {
    let get = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let sources: Vec<String> = file.sources.iter().map(|source| quoted(&source.0)).collect();
    let seconds = (status.updated_ms - status.begun_ms).max(0) as u64 / 1000;
    let errors: Vec<String> = status
        .errors
        .iter()
        .map(|(word, count)| {
            let class = ErrorClass::ALL.iter().find(|class| class.word() == word);
            let advice = class.map_or("", |class| class.advice());
            format!("{word} {}: {advice}", grouped(*count))
        })
        .collect();
    let errors = if errors.is_empty() { "none".into() } else { errors.join("; ") };
    let (bytes, entries) = model::moved(status);
    let mut lines = vec![
        Line::from(format!("{} {}", sources.join(" "), quoted(&file.destination.0))),
        Line::from(format!(
            "{} so far, {} tasks left, {} retries, {} leases lost",
            units::format_duration(seconds),
            grouped(status.tasks_left),
            grouped(get("retries")),
            grouped(get("leases_expired")),
        )),
        Line::from(format!(
            "entries: {} found, {} done; bytes: {} found, {} done",
            grouped(get("entries_found")),
            grouped(entries),
            units::format_iec(get("bytes_found")),
            units::format_iec(bytes),
        )),
        Line::from(format!("limit: {}", status.limit.as_deref().unwrap_or("not known yet"))),
        Line::from(format!("errors: {errors}")),
    ];
    lines.extend(
        status.connections.iter().take(LINES_MAX).map(|(source, known)| {
            Line::from(format!("line: {}", connection::words(source, known)))
        }),
    );
    let label = file.label.as_deref().map_or(String::new(), |label| format!(" [{label}]"));
    let why = match (is_chosen, status.phase.has_process()) {
        (true, true) => ", the last running job",
        (true, false) => ", the last job; no job is running",
        (false, _) => "",
    };
    let title = format!(" {} {}{label}{why} ", file.verb, file.job);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), area);
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, model: &Model, file: &JobFile) {
    let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]);
    let [left, right] = halves.areas(area);
    let all: Vec<(u64, u64)> = model.rates(&file.job).into_iter().flatten().copied().collect();
    let last = all.last().copied().unwrap_or_default();
    let bytes = format!(" bytes per second: {} ", units::format_iec(last.0));
    let entries = format!(" entries per second: {} ", grouped(last.1));
    let values = [all.iter().map(|rate| rate.0).collect(), all.iter().map(|rate| rate.1).collect()];
    for ((area, title), values) in [(left, bytes), (right, entries)].into_iter().zip(values) {
        let values: Vec<u64> = values;
        // The newest value is at the right edge.
        let room = usize::from(area.width.saturating_sub(2));
        let shown = values[values.len().saturating_sub(room)..].to_vec();
        let block = Block::bordered().title(title);
        frame.render_widget(Sparkline::default().data(shown).block(block), area);
    }
}

fn draw_movers(frame: &mut Frame<'_>, area: Rect, model: &Model, status: &JobStatus) {
    if status.movers.is_none() {
        let words = "The movers of this job are threads of its own process.";
        frame.render_widget(Paragraph::new(words), area);
        return;
    }
    let movers = model.movers(status);
    let row = |mover: &&dmover_observe::MoverView| {
        let silent =
            (mover.silent_s >= 10.0).then(|| format!("no message for {:.0} s", mover.silent_s));
        let words = mover.remarks().into_iter().chain(silent).collect::<Vec<_>>().join("; ");
        let cells = vec![
            Line::from(mover.name()),
            Line::from(mover.tasks.to_string()),
            Line::from(per_second(mover.bytes_per_s)),
            Line::from(format!("{:.0}/s", mover.entries_per_s)),
            Line::from(mover.limit.clone().unwrap_or_default()),
            Line::styled(words, Style::new().yellow()),
        ];
        Row::new(cells)
    };
    let widths = [
        Constraint::Length(26),
        Constraint::Length(6),
        Constraint::Length(12),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Min(10),
    ];
    let title = format!(" {} movers by {} ", movers.len(), model.sort.word());
    let titles = ["mover", "tasks", "bytes", "entries", "limit", ""];
    let table = Table::new(movers.iter().map(row), widths).header(heading(&titles));
    frame.render_widget(table.block(Block::new().title(title)), area);
}

#[cfg(test)]
mod tests {
    use super::super::model::Sort;
    use super::*;
    use dmover_model::PathBytes;
    use dmover_observe::MoverView;
    use dmover_schedule::time::Instant;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn job(id: &str, phase: JobPhase, second: i64) -> (JobFile, JobStatus) {
        let file = JobFile {
            job: id.into(),
            verb: "sync".into(),
            sources: vec![PathBytes(b"/old/home".to_vec())],
            destination: PathBytes(b"/new/home".to_vec()),
            ..JobFile::default()
        };
        let bytes = (second as u64) << 30;
        let mover = |host: &str, slow: Option<&str>| MoverView {
            host: host.into(),
            pid: 7,
            tasks: if host == "io2" { 4 } else { 2 },
            bytes_per_s: if host == "io1" { 5e8 } else { 5e7 },
            slow: slow.map(str::to_owned),
            ..MoverView::default()
        };
        let status = JobStatus {
            phase,
            begun_ms: 0,
            updated_ms: second * 1000,
            tasks_left: 1234,
            counters: [("bytes_copied".into(), bytes), ("files_copied".into(), 9)].into(),
            errors: [("permission".into(), 3)].into(),
            limit: Some("source (90 % of the movers' time reading)".into()),
            movers: Some(vec![mover("io1", None), mover("io2", Some("9.8 times slower"))]),
            ..JobStatus::default()
        };
        (file, status)
    }

    fn screen(model: &Model) -> String {
        let mut terminal = Terminal::new(TestBackend::new(110, 30)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn jobs_rates_movers_and_errors_are_on_the_screen() {
        let mut model = Model::new(None);
        for second in 1..5 {
            let all = vec![
                job("aaaa", JobPhase::Running, second),
                job("bbbb", JobPhase::Paused, 1),
                job("cccc", JobPhase::Finished, 1),
            ];
            model.see(all, Instant::now());
        }
        let shown = screen(&model);
        for words in [
            "> aaaa",
            "  bbbb",
            "paused",
            "1.00 GiB/s",
            "1,234 tasks left",
            "io1/7",
            "io2/7",
            "9.8 times slower",
            "permission 3",
            "limit: source (90 %",
            "q quit",
        ] {
            assert!(shown.contains(words), "'{words}' is missing:\n{shown}");
        }
        assert!(!shown.contains("cccc"), "it has ended:\n{shown}");
        model.shows_all = true;
        model.step(2);
        assert!(screen(&model).contains("> cccc"));
        model.step(9);
        model.step(-1);
        assert!(screen(&model).contains("> bbbb"));
    }

    #[test]
    fn movers_are_sorted_as_asked() {
        let (_, status) = job("aaaa", JobPhase::Running, 1);
        let first = |sort| {
            let mut model = Model::new(None);
            model.sort = sort;
            model.movers(&status)[0].host.clone()
        };
        assert_eq!(
            [first(Sort::Name), first(Sort::Rate), first(Sort::Tasks)],
            ["io1", "io1", "io2"]
        );
    }

    #[test]
    fn nothing_and_a_small_terminal_are_no_fault() {
        let mut model = Model::new(Some("zzzz".into()));
        assert!(screen(&model).contains("No job in this state directory"));
        model.see(vec![job("aaaa", JobPhase::Died, 1)], Instant::now());
        assert!(screen(&model).contains("died"));
        let mut terminal = Terminal::new(TestBackend::new(20, 5)).unwrap();
        terminal.draw(|frame| draw(frame, &model)).unwrap();
    }
}
