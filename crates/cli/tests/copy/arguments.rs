//! Where entries go: cp's rules for arguments, and what is remembered between runs.

use std::os::unix::ffi::OsStrExt;

use super::bench::append;
use super::{Bench, snapshot};

/// A bench with the tree `tree`, the file `file` and the directory `there`.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("tree/one", "1");
    bench.write("tree/sub/two", "22");
    bench.write("file", "333");
    bench.sh("mkdir there");
    bench
}

#[test]
fn a_target_that_is_absent_is_meant_as_the_name() {
    let bench = bench();
    bench.copy("tree new").expect_code(0);
    bench.assert_same("tree", "new");
    bench.copy("file other").expect_code(0);
    assert_eq!(bench.read("other"), "333");
}

#[test]
fn an_existing_directory_is_copied_into() {
    let bench = bench();
    bench.copy("tree there").expect_code(0);
    bench.assert_same("tree", "there/tree");
    bench.copy("file there").expect_code(0);
    assert_eq!(bench.read("there/file"), "333");
    bench.copy("tree/ there/").expect_code(0);
    bench.assert_same("tree", "there/tree");
}

#[test]
fn the_same_command_goes_to_the_same_place_again() {
    let bench = bench();
    bench.copy("tree new").expect_code(0);
    bench.write("tree/three", "late");
    bench.copy("tree new").expect_code(0);
    bench.assert_same("tree", "new");
    assert!(!bench.exists("new/tree"), "the second run went inside");
}

#[test]
fn the_same_command_goes_inside_again() {
    let bench = bench();
    bench.copy("tree there").expect_code(0);
    bench.copy("tree there").expect_code(0);
    bench.assert_same("tree", "there/tree");
    assert!(!bench.exists("there/tree/tree"), "the second run went one deeper");
}

#[test]
fn a_directory_that_somebody_put_there_since_is_a_new_situation() {
    let bench = bench();
    bench.copy("tree new").expect_code(0);
    bench.sh("mv new old; mkdir new");
    bench.copy("tree new").expect_code(0);
    bench.assert_same("tree", "new/tree");
}

#[test]
fn the_spelling_of_a_path_does_not_make_another_job() {
    let bench = bench();
    bench.copy("tree new").expect_code(0);
    bench.copy("./tree ./new").expect_code(0);
    assert!(!bench.exists("new/tree"));
    let absolute = [bench.at("tree"), bench.at("there/../new")];
    bench.copy_words(&absolute).expect_code(0);
    assert!(!bench.exists("new/tree"));
}

#[test]
fn upper_case_t_means_exactly_that_name() {
    let bench = bench();
    bench.copy("-T tree there").expect_code(0);
    bench.assert_same("tree", "there");
    bench.copy("-T tree there").expect_code(0);
    bench.assert_same("tree", "there");
    bench.copy("-T file there/x").expect_code(0);
    assert_eq!(bench.read("there/x"), "333");
}

#[test]
fn lower_case_t_names_the_directory_first() {
    let bench = bench();
    bench.copy("-t there tree file").expect_code(0);
    bench.assert_same("tree", "there/tree");
    assert_eq!(bench.read("there/file"), "333");
    bench.copy("--target-directory=there tree file").expect_code(0);
    bench.assert_same("tree", "there/tree");
    assert!(!bench.exists("there/tree/tree"));
}

#[test]
fn several_sources_go_into_a_directory() {
    let bench = bench();
    bench.copy("tree file there").expect_code(0);
    bench.assert_same("tree", "there/tree");
    assert_eq!(bench.read("there/file"), "333");
}

#[test]
fn a_source_named_twice_is_copied_once() {
    let bench = bench();
    bench.copy("file file there").expect_code(0);
    assert_eq!(bench.read("there/file"), "333");
}

#[test]
fn a_dot_means_the_contents() {
    let bench = bench();
    bench.copy("tree/. there").expect_code(0);
    bench.assert_same("tree", "there");
    bench.copy("tree/. fresh").expect_code(0);
    bench.assert_same("tree", "fresh");
    let inside = Bench::new();
    inside.write("src/a", "a");
    inside.sh("mkdir dst");
    let source = inside.at("src");
    let inside = inside.with(|dmover| dmover.in_directory(&source));
    inside.copy(". ../dst").expect_code(0);
    inside.assert_same("src", "dst");
}

#[test]
fn flags_may_stand_between_and_after_paths_and_two_dashes_end_them() {
    let bench = bench();
    bench.copy("tree new -T -x").expect_code(0);
    bench.assert_same("tree", "new");
    bench.write("-odd", "dash");
    bench.copy("-- -odd there").expect_code(0);
    assert_eq!(bench.read("there/-odd"), "dash");
}

#[test]
fn a_name_with_any_bytes_can_be_typed() {
    let bench = bench();
    let name = std::ffi::OsStr::from_bytes(b"odd \n\xff name");
    std::fs::write(bench.at(name), "odd").unwrap();
    let words = [name, std::ffi::OsStr::from_bytes(b"copy \xfe\t")];
    let run = bench.copy_words(&words).expect_code(0);
    assert_eq!(std::fs::read(bench.at(words[1])).unwrap(), b"odd");
    let said = run.said().unwrap();
    assert_eq!(said.items[0].path().as_os_str(), name);
}

#[test]
fn a_symlink_as_source_is_copied_as_a_link_and_followed_on_demand() {
    let bench = bench();
    bench.sh("ln -s file link; ln -s tree way");
    bench.copy("link there").expect_code(0);
    assert_eq!(bench.sh("readlink there/link"), "file\n");
    bench.copy("way there").expect_code(0);
    assert_eq!(bench.sh("readlink there/way"), "tree\n");
    bench.copy("--dereference-args link followed").expect_code(0);
    assert_eq!(bench.sh("stat -c %F followed"), "regular file\n");
    bench.copy("--dereference-args way way-followed").expect_code(0);
    bench.assert_same("tree", "way-followed");
    bench.copy("way/ slash").expect_code(0);
    bench.assert_same("tree", "slash");
}

#[test]
fn a_symlink_to_a_directory_as_target_is_entered() {
    let bench = bench();
    bench.sh("ln -s there way");
    bench.copy("tree way").expect_code(0);
    bench.assert_same("tree", "there/tree");
    assert_eq!(bench.sh("readlink way"), "there\n");
}

#[test]
fn a_second_run_touches_nothing_and_a_change_is_brought_over() {
    let bench = bench();
    bench.sh("ln tree/one tree/sub/one; mkfifo tree/pipe; ln -s one tree/link");
    bench.copy("tree new").expect_code(0);
    let before = snapshot(&bench.at("new"));
    let said = bench.copy("tree new").expect_code(0).said().unwrap();
    assert_eq!(before.changes(&snapshot(&bench.at("new"))), Vec::<String>::new());
    for item in &said.items {
        assert_eq!(item.text("action"), "skipped", "{item:?}");
    }
    append(&bench.at("tree/sub/two"), "more");
    let said = bench.copy("tree new").expect_code(0).said().unwrap();
    let changed: Vec<_> = said.items.iter().filter(|i| i.text("action") != "skipped").collect();
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!(changed[0].text("action"), "replaced");
    bench.assert_same("tree", "new");
}

#[test]
fn a_source_may_be_copied_beside_itself() {
    let bench = bench();
    bench.copy("tree tree2").expect_code(0);
    bench.assert_same("tree", "tree2");
    bench.copy("tree/sub tree/sub2").expect_code(0);
    bench.assert_same("tree/sub", "tree/sub2");
}

#[test]
fn old_spellings_of_the_default_are_accepted() {
    let bench = bench();
    bench.copy("-a -r -H -A -X tree new").expect_code(0);
    bench.assert_same("tree", "new");
}
