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

/// A command and what the guide promises of it.
#[derive(Debug)]
pub struct Step {
    pub place: Place,
    pub script: String,
    pub code: i32,
    /// Lines that are quoted from its output.
    pub quoted: Vec<String>,
}

impl Step {
    fn new(place: Place, line: &str) -> Self {
        let (script, code) = match line.split_once(" # exit code ") {
            Some((script, code)) => (script, code.parse().expect("a number")),
            None => (line, 0),
        };
        Self { place, script: script.to_owned(), code, quoted: Vec::new() }
    }

    /// Quoted lines that the output does not have, numbers and names of files aside.
    pub fn missing_in(&self, output: &str) -> Vec<&str> {
        let lines: Vec<_> = output.lines().map(shape).collect();
        let is_missing = |line: &&str| !lines.contains(&shape(line));
        self.quoted.iter().map(String::as_str).filter(is_missing).collect()
    }
}

/// What a line says whatever its numbers, units and names of files are.
fn shape(line: &str) -> String {
    let word = |word: &str| match word {
        "B" | "KiB" | "MiB" | "GiB" | "TiB" => "unit".to_owned(),
        _ if word.contains(|c: char| c.is_ascii_digit() || c == '/') => "#".to_owned(),
        _ => word.to_owned(),
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// Commands of blocks that begin with "```sh", with what blocks that begin with "```output" quote of the last one's
/// output; and comments `<!-- test: … -->`: what users do in between.
pub fn steps(guide: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut block = None;
    let mut begun = String::new();
    for line in guide.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            block = Some(kind).filter(|kind| !kind.is_empty());
        } else if let Some(script) = line.strip_prefix("<!-- test: ") {
            let script = script.strip_suffix(" -->").expect("a comment on one line");
            steps.push(Step::new(Place::Shell, script));
        } else if block == Some("output") {
            steps.last_mut().expect("a command before its output").quoted.push(line.to_owned());
        } else if let Some(place) = block.and_then(place) {
            begun.push_str(line.trim_start());
            if begun.ends_with('\\') {
                begun.pop();
            } else {
                steps.push(Step::new(place, &std::mem::take(&mut begun)));
            }
        }
    }
    steps
}

fn place(block: &str) -> Option<Place> {
    match block {
        "sh" => Some(Place::Shell),
        "sh background" => Some(Place::Background),
        "sh slurm" => Some(Place::Slurm),
        _ => None,
    }
}
