//! `dmover cleanup --older-than`: what later runs of a command need survives it.
use super::Bench;
use super::bench::eventually;
use dmover_testkit::lanes::run::Run;

/// Removes all jobs that ended more than a millisecond ago and are not needed.
#[track_caller]
fn clean_up(bench: &Bench) -> Run {
    let is_over = || {
        let run = bench.dmover("cleanup -n --older-than 1ms").expect_code(0);
        !run.stderr.contains("no finished or cancelled job")
    };
    eventually("an old job", is_over);
    bench.dmover("cleanup --older-than 1ms").expect_code(0)
}

/// A SOURCE that is another directory now, such as an empty mount point, must not empty DEST.
#[test]
fn deletes_that_were_withheld_stay_withheld() {
    let bench = Bench::new();
    bench.sh("mkdir A; touch A/{01..40}");
    bench.dmover("sync A dst").expect_code(0);
    bench.sh("mv A A.real; mkdir A; touch A/other");
    let line = "sync --delete --max-delete=100 A dst";
    let withheld = bench.dmover(line).expect_code(3);
    assert!(withheld.stderr.contains("nothing is deleted"), "{}", withheld.tell());
    let cleaned = clean_up(&bench);
    assert!(cleaned.stderr.contains("kept 1 older job that later runs need"), "{}", cleaned.tell());
    bench.dmover(line).expect_code(3);
    assert_eq!(bench.sh("ls dst | wc -l").trim(), "41");
    // The journal says which directory SOURCE was also after a pass in which nothing went wrong.
    bench.sh("mkdir B; touch B/{01..40}");
    bench.dmover("sync B other").expect_code(0);
    clean_up(&bench);
    bench.sh("mv B B.real; mkdir B; touch B/other");
    bench.dmover("sync --delete --max-delete=100 B other").expect_code(3);
    assert_eq!(bench.sh("ls other | wc -l").trim(), "41");
}

/// A copy that made DEST updates it, and does not put SOURCE into it.
#[test]
fn a_copy_keeps_its_place() {
    let bench = Bench::new();
    bench.sh("mkdir S; echo 1 > S/f");
    for cleans in [false, true] {
        if cleans {
            let cleaned = clean_up(&bench);
            assert!(cleaned.stderr.contains("removed the record"), "{}", cleaned.tell());
            assert_eq!(bench.jobs("").len(), 0);
        }
        bench.dmover("copy S T").expect_code(0);
        assert_eq!(bench.sh("ls T"), "f\n", "{cleans}");
    }
    // What else a record has is gone, and --all removes the rest.
    clean_up(&bench);
    let jobs = bench.dmover.state_directory().join("jobs");
    let kept = bench.sh(&format!("cd {}; ls */", jobs.display()));
    assert!(kept.contains("placement") && !kept.contains(".json\n"), "{kept}");
    let dry = bench.dmover("cleanup --all -n").expect_code(0);
    assert!(dry.stderr.contains("would remove the last files of job"), "{}", dry.tell());
    bench.dmover("cleanup --all").expect_code(0);
    assert_eq!(bench.sh(&format!("ls {}", jobs.display())), "");
    bench.dmover("copy S T").expect_code(0);
    assert_eq!(bench.sh("ls T"), "S\nf\n", "all was forgotten");
}

/// What failed is listed as long as nothing was done about it.
#[test]
fn jobs_with_failures_stay() {
    let bench = Bench::new();
    bench.sh("mkdir a bad; touch a/{1..3}; mkdir bad/{1..3}; touch bad/{1..3}/x");
    bench.dmover("copy -T --label it a bad").expect_code(3);
    let cleaned = clean_up(&bench);
    assert!(cleaned.stderr.contains("kept 1 older job"), "{}", cleaned.tell());
    assert_eq!(bench.dmover("errors it").expect_code(0).text().lines().count(), 3);
    bench.sh("rm -r bad");
    bench.dmover("copy -T a bad").expect_code(0);
    clean_up(&bench);
    assert_eq!(bench.jobs("").len(), 0);
}

/// A job that is named is forgotten, whatever it protects.
#[test]
fn a_job_that_is_named_is_removed() {
    let bench = Bench::new();
    bench.sh("mkdir A; touch A/f");
    bench.dmover("sync --label it A dst").expect_code(0);
    bench.dmover("cleanup it").expect_code(0);
    assert_eq!(bench.sh(&format!("ls {}/jobs", bench.dmover.state_directory().display())), "");
}
