//! Batch scripts. They hold options and one command, which runs dmover again; nothing else is left to the shell.
use std::ffi::OsString;
use std::fmt::Write;

use super::{Shape, shell_line};

/// The warning comes this many seconds before the time limit, which is enough to stop a job in order.
const WARNING_S: u32 = 120;

/// A batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// Slurm, with sbatch.
    Slurm,
    /// OpenPBS and related systems, with qsub.
    Pbs,
}

/// The resources that a batch job requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the job.
    pub name: String,
    /// Nodes, and movers on each.
    pub shape: Shape,
    /// The time limit, in the format of the batch system.
    pub time: Option<String>,
    /// The partition or queue.
    pub partition: Option<String>,
    /// The account to charge.
    pub account: Option<String>,
    /// Licenses, for example of gateways.
    pub licenses: Option<String>,
    /// Generic resources of nodes.
    pub gres: Option<String>,
    /// Processors for each mover.
    pub cpus: Option<u32>,
    /// The path of the output.
    pub output: Option<String>,
    /// Further options, unchanged.
    pub further: Vec<String>,
    /// Whether each node is an independent job: an array.
    pub apart: bool,
    /// The command on the first node: dmover and its arguments.
    pub command: Vec<OsString>,
}

impl Request {
    /// Checks that no value can end an option line or start another one.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub fn check(&self, system: System) -> Result<(), String> {
        let own =
            [&self.time, &self.partition, &self.account, &self.licenses, &self.gres, &self.output];
        let words = own.into_iter().flatten().chain([&self.name]);
        for word in words {
            if word.is_empty() || word.contains(|c: char| c.is_whitespace() || c.is_control()) {
                return Err(format!("'{}' is not allowed in a batch script", word.escape_debug()));
            }
        }
        if let Some(line) = self.further.iter().find(|line| line.contains(char::is_control)) {
            return Err(format!("'{}' is not allowed in a batch script", line.escape_debug()));
        }
        if system == System::Pbs && (self.licenses.is_some() || self.gres.is_some()) {
            return Err("PBS has no --licenses and no --gres".into());
        }
        Ok(())
    }

    /// The script for a batch system.
    pub fn render(&self, system: System) -> Vec<u8> {
        let mut text = match system {
            System::Slurm => self.slurm(),
            System::Pbs => self.pbs(),
        }
        .into_bytes();
        text.extend(b"exec ");
        text.extend(shell_line(&self.command));
        text.push(b'\n');
        text
    }

    fn slurm(&self) -> String {
        let mut text = String::from("#!/bin/bash\n");
        let mut option = |option: &str| {
            let _ = writeln!(text, "#SBATCH {option}");
        };
        let places = self.shape.places.unwrap_or(1);
        option(&format!("--job-name={}", self.name));
        if self.apart {
            option(&format!("--array=1-{places}"));
            option("--nodes=1");
        } else {
            option(&format!("--nodes={places}"));
        }
        option(&format!("--ntasks-per-node={}", self.shape.each));
        for (name, value) in [
            ("cpus-per-task", self.cpus.map(|cpus| cpus.to_string())),
            ("time", self.time.clone()),
            ("partition", self.partition.clone()),
            ("account", self.account.clone()),
            ("licenses", self.licenses.clone()),
            ("gres", self.gres.clone()),
            ("output", self.output.clone()),
        ] {
            if let Some(value) = value {
                option(&format!("--{name}={value}"));
            }
        }
        option("--requeue");
        option("--open-mode=append");
        option(&format!("--signal=B:USR1@{WARNING_S}"));
        for further in &self.further {
            option(further);
        }
        text
    }

    fn pbs(&self) -> String {
        let Shape { places, each } = self.shape;
        let places = places.unwrap_or(1);
        let cpus = each * self.cpus.unwrap_or(1);
        let mut text = String::from("#!/bin/bash\n");
        let mut option = |option: &str| {
            let _ = writeln!(text, "#PBS {option}");
        };
        option(&format!("-N {}", self.name));
        if self.apart {
            option(&format!("-l select=1:ncpus={cpus}:mpiprocs={each}"));
            // PBS knows no array of one.
            if places > 1 {
                option(&format!("-J 1-{places}"));
            }
        } else {
            option(&format!("-l select={places}:ncpus={cpus}:mpiprocs={each}"));
            option("-l place=scatter");
        }
        for (name, value) in [
            ("-l walltime=", &self.time),
            ("-q ", &self.partition),
            ("-A ", &self.account),
            ("-o ", &self.output),
        ] {
            if let Some(value) = value {
                option(&format!("{name}{value}"));
            }
        }
        option("-r y");
        option("-j oe");
        for further in &self.further {
            option(further);
        }
        // A job of PBS begins in the home directory.
        text.push_str("cd \"$PBS_O_WORKDIR\" || exit\n");
        text
    }
}

/// A script for a user to save, edit and submit: six lines, in which the shell on the first node expands the wildcards.
pub fn template(system: System) -> &'static str {
    match system {
        System::Slurm => {
            "#!/bin/bash\n\
             #SBATCH --nodes=4 --time=24:00:00 --requeue --open-mode=append --signal=B:USR1@120\n\
             SRC=/path/of/the/source/root\n\
             REL='run* calibration/2026-*'\n\
             DST=/path/of/the/destination STATE=/path/that/all/nodes/see\n\
             cd \"$SRC\" && exec dmover submit --allocation --state-dir \"$STATE\" -- copy -t \"$DST\" -- $REL\n"
        }
        System::Pbs => {
            "#!/bin/bash\n\
             #PBS -r y -j oe -l walltime=24:00:00 -l select=4:ncpus=1:mpiprocs=1 -l place=scatter\n\
             SRC=/path/of/the/source/root\n\
             REL='run* calibration/2026-*'\n\
             DST=/path/of/the/destination STATE=/path/that/all/nodes/see\n\
             cd \"$SRC\" && exec dmover submit --allocation --state-dir \"$STATE\" -- copy -t \"$DST\" -- $REL\n"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        let command = ["/opt/dmover", "submit", "--allocation", "--", "copy", "a b", "/new"];
        Request {
            name: "dmover".into(),
            shape: Shape { places: Some(8), each: 2 },
            time: Some("24:00:00".into()),
            partition: Some("data".into()),
            account: Some("p42".into()),
            licenses: Some("gateway:4".into()),
            gres: Some("dtn:1".into()),
            cpus: Some(4),
            output: None,
            further: vec!["--exclusive".into()],
            apart: false,
            command: command.map(OsString::from).to_vec(),
        }
    }

    fn text(request: &Request, system: System) -> String {
        String::from_utf8(request.render(system)).unwrap()
    }

    #[test]
    fn a_script_for_slurm_has_every_option_once() {
        let wanted = "#!/bin/bash\n\
            #SBATCH --job-name=dmover\n\
            #SBATCH --nodes=8\n\
            #SBATCH --ntasks-per-node=2\n\
            #SBATCH --cpus-per-task=4\n\
            #SBATCH --time=24:00:00\n\
            #SBATCH --partition=data\n\
            #SBATCH --account=p42\n\
            #SBATCH --licenses=gateway:4\n\
            #SBATCH --gres=dtn:1\n\
            #SBATCH --requeue\n\
            #SBATCH --open-mode=append\n\
            #SBATCH --signal=B:USR1@120\n\
            #SBATCH --exclusive\n\
            exec /opt/dmover submit --allocation -- copy 'a b' /new\n";
        assert_eq!(text(&request(), System::Slurm), wanted);
    }

    #[test]
    fn movers_apart_are_an_array() {
        let plain = Request {
            time: None,
            partition: None,
            account: None,
            licenses: None,
            gres: None,
            cpus: None,
            further: Vec::new(),
            apart: true,
            ..request()
        };
        let script = text(&plain, System::Slurm);
        assert!(script.contains("\n#SBATCH --array=1-8\n#SBATCH --nodes=1\n"), "{script}");
        assert!(script.contains("\n#SBATCH --requeue\n"), "{script}");
        let script = text(&plain, System::Pbs);
        assert!(
            script.contains("\n#PBS -l select=1:ncpus=2:mpiprocs=2\n#PBS -J 1-8\n"),
            "{script}"
        );
        let one = Request { shape: Shape { places: Some(1), each: 1 }, ..plain };
        assert!(!text(&one, System::Pbs).contains("-J"));
    }

    #[test]
    fn a_script_for_pbs_has_a_select_statement() {
        let plain = Request { licenses: None, gres: None, further: Vec::new(), ..request() };
        let wanted = "#!/bin/bash\n\
            #PBS -N dmover\n\
            #PBS -l select=8:ncpus=8:mpiprocs=2\n\
            #PBS -l place=scatter\n\
            #PBS -l walltime=24:00:00\n\
            #PBS -q data\n\
            #PBS -A p42\n\
            #PBS -r y\n\
            #PBS -j oe\n\
            cd \"$PBS_O_WORKDIR\" || exit\n\
            exec /opt/dmover submit --allocation -- copy 'a b' /new\n";
        assert_eq!(text(&plain, System::Pbs), wanted);
        assert!(plain.check(System::Pbs).is_ok());
        assert!(request().check(System::Pbs).unwrap_err().contains("--licenses"));
    }

    #[test]
    fn nothing_begins_a_line_of_its_own() {
        for wrong in ["", "a b", "a\n#SBATCH --uid=0", "a\tb"] {
            let bad = Request { partition: Some(wrong.into()), ..request() };
            assert!(bad.check(System::Slurm).is_err(), "{wrong:?}");
        }
        let bad = Request { further: vec!["--a\nrm x".into()], ..request() };
        assert!(bad.check(System::Slurm).is_err());
        assert!(request().check(System::Slurm).is_ok());
    }

    #[test]
    fn templates_have_six_lines() {
        for system in [System::Slurm, System::Pbs] {
            let lines: Vec<&str> = template(system).lines().collect();
            assert_eq!(lines.len(), 6, "{lines:?}");
            assert!(lines[5].contains("-- $REL"), "the shell there expands it: {lines:?}");
        }
    }
}
