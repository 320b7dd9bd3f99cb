//! A destination that has one name for names that differ in case alone.
use super::Bench;
use dmover_testkit::skip;

#[test]
fn names_that_change_their_case_change_it() {
    let test = "names_that_change_their_case_change_it";
    for options in ["", "--delete", "--delete=during", "--delete=after", "--no-renames --delete"] {
        let Some((_handle, bench)) = Bench::folding() else {
            return skip::skipped(test, "no FUSE");
        };
        bench.sh("mkdir a; echo one > a/Foo; mkdir -p a/Dir/Sub; echo two > a/Dir/Sub/f; ln -s x a/Link; echo 3 > a/Linked; ln a/Linked a/Other");
        bench.sync("a faulty", 0);
        assert_eq!(bench.rsync("a", "backing"), "");
        bench
            .sh("cd a; mv Foo foo; mv Dir dir; mv dir/Sub dir/SUB; mv Link LINK; mv Linked linked");
        bench.sync(&format!("{options} a faulty"), 0);
        assert_eq!(bench.rsync("a", "backing"), "", "{options}");
        let quiet = bench.sync(&format!("{options} a faulty"), 0);
        assert_eq!(quiet.done(), [""; 0], "{options}");
        // Other content and another type with the new case.
        bench.sh("cd a; mv foo FOO; echo other > FOO; rm LINK; mkdir lInK; touch lInK/new");
        bench.sync(&format!("{options} a faulty"), 0);
        assert_eq!(bench.rsync("a", "backing"), "", "{options}");
    }
}

#[test]
fn two_names_that_are_one_there_are_told_and_neither_takes_the_others_place() {
    let test = "two_names_that_are_one_there_are_told_and_neither_takes_the_others_place";
    for options in ["", "--delete", "--delete=during", "--delete=after"] {
        let Some((_handle, bench)) = Bench::folding() else {
            return skip::skipped(test, "no FUSE");
        };
        bench.sh("mkdir a; cd a; echo 1 > x; echo 2 > X; touch -d @1000000000 x X; mkdir d; touch d/in; echo file > D");
        for round in 0..2 {
            let pass = bench.sync(&format!("{options} a faulty"), 3);
            assert!(pass.0.text().contains("name_clash"), "{options} {}", pass.0.tell());
            // Whoever came first is there as it should be.
            let there = bench.sh("cd backing; ls; cat [xX]");
            let names: Vec<&str> = there.lines().collect();
            let content = if names[1] == "x" { "1" } else { "2" };
            assert_eq!((names.len(), names[2]), (3, content), "{options} {round} {there}");
            assert_eq!(
                bench.sh("cd backing; [ -f D ] || ls d").trim(),
                bench.sh("cd backing; [ -f D ] || echo in").trim()
            );
        }
        // One of them goes: the other one stays, or comes.
        bench.sh("cd a; rm x D");
        bench.sync(&format!("{options} a faulty"), 0);
        assert_eq!(bench.sh("cat backing/X; ls backing/d"), "2\nin\n", "{options}");
    }
}
