//! What cannot be meant is refused before anything begins.
use super::Bench;

#[test]
fn what_cannot_be_meant_ends_with_2() {
    let bench = Bench::new();
    bench.sh("mkdir s");
    for (line, words) in [
        ("submit -- copy s d", "--local"),
        ("submit --local", "no job given"),
        ("submit --local --", "no job given"),
        ("submit --local --ssh a -- copy s d", "cannot be used with"),
        ("submit --local -- cp s d", "'cp' cannot run on movers"),
        ("submit --local -- submit --local -- copy s d", "'submit' cannot run on movers"),
        ("submit --local -- copy --nonsense s d", "--nonsense"),
        ("submit --local -- copy --delete s d", "copy never deletes"),
        ("submit --local -- copy --broker x s d", "--broker cannot be used after"),
        ("submit --local -- copy --detach s d", "--detach cannot be used after"),
        ("submit --local --print -- copy s d", "--print needs --slurm or --pbs"),
        ("submit --local --movers 0 -- copy s d", "N:PER_NODE"),
        ("submit --local --movers x -- copy s d", "N:PER_NODE"),
        ("submit --local --broker nowhere -- copy s d", "nowhere"),
        ("submit --local --broker x --listen 127.0.0.1 -- copy s d", "cannot be used with"),
        ("submit --local --interface no-such -- copy s d", "it has no address on this host"),
        ("submit --ssh a,,b -- copy s d", "empty name"),
        ("submit --ssh=-oProxyCommand=x -- copy s d", "is not the name of a host"),
        ("submit --allocation --state-dir b -- copy s d", "--allocation works only inside"),
        ("submit --slurm --state-dir b --print -- copy --no-state s d", "--no-state"),
        (
            "submit --slurm --state-dir b --print -- copy --state-dir x s d",
            "--state-dir cannot be used after",
        ),
        ("submit --slurm --state-dir b --print -- copy --files-from - s d", "no standard input"),
        ("submit --pbs --state-dir b --print --gres x -- copy s d", "PBS has no --licenses"),
        (
            "submit --slurm --state-dir b --print --time= -- copy s d",
            "is not allowed in a batch script",
        ),
    ] {
        let run = bench.dmover(line).expect_code(2);
        assert!(run.stderr.contains(words), "{line}: {}", run.stderr);
        assert!(!bench.exists("d"), "{line}");
    }
    bench.sh("mkdir -p used/jobs/x");
    let run = bench.dmover("submit --slurm --state-dir used --print -- copy s d").expect_code(2);
    assert!(run.stderr.contains("it already has jobs that belong to one host"), "{}", run.stderr);
}

#[test]
fn scripts_are_printed_as_they_are_submitted() {
    let bench = Bench::new();
    let words =
        ["submit", "--slurm", "--print", "--state-dir", "st", "--movers=4:2", "--time=1:00:00"];
    let further = ["--licenses=gw:2", "--gres=dtn:1", "--with=--exclusive", "--retry-for=1m"];
    let job = ["--", "copy", "--bwlimit=1M", "a b", "it's"];
    let run = bench.dmover.run(words.into_iter().chain(further).chain(job)).unwrap().expect_code(0);
    let (program, place) = (bench.dmover.program().display(), bench.at("st"));
    let wanted = format!(
        "#!/bin/bash\n#SBATCH --job-name=dmover\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=2\n\
         #SBATCH --time=1:00:00\n#SBATCH --licenses=gw:2\n#SBATCH --gres=dtn:1\n#SBATCH --requeue\n\
         #SBATCH --open-mode=append\n#SBATCH --signal=B:USR1@120\n#SBATCH --exclusive\n\
         exec {program} submit --allocation --state-dir {} --retry-for 60000ms -- \
         copy --bwlimit=1M 'a b' 'it'\\''s'\n",
        place.display()
    );
    assert_eq!(run.text(), wanted);
    for system in ["slurm", "pbs"] {
        let run = bench.dmover(&format!("submit --template {system}")).expect_code(0);
        assert_eq!(run.text().lines().count(), 6);
    }
}
