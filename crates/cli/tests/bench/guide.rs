//! The commands of a guide in `docs/`, as a reader types them.

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Here, to its end.
    Shell,
    /// Here, as long as the guide is followed.
    Background,
    /// On the controller of a Slurm.
    Slurm,
}

/// A command and the exit code that the guide promises.
#[derive(Debug)]
pub struct Step {
    pub place: Place,
    pub script: String,
    pub code: i32,
}

/// Commands of blocks that begin with "```sh", and comments `<!-- test: … -->`: what users do in between.
pub fn steps(guide: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut place = None;
    for line in guide.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            place = match kind {
                "sh" => Some(Place::Shell),
                "sh background" => Some(Place::Background),
                "sh slurm" => Some(Place::Slurm),
                _ => None,
            };
        } else if let Some(place) = place {
            steps.push(step(place, line));
        } else if let Some(script) = line.strip_prefix("<!-- test: ") {
            let script = script.strip_suffix(" -->").expect("a comment on one line");
            steps.push(step(Place::Shell, script));
        }
    }
    steps
}

fn step(place: Place, line: &str) -> Step {
    let (script, code) = match line.split_once(" # exit code ") {
        Some((script, code)) => (script, code.parse().expect("a number")),
        None => (line, 0),
    };
    Step { place, script: script.to_owned(), code }
}
