//! Owners that are mapped, and directories with names like those of temporaries.
use super::Bench;
use dmover_testkit::skip;

#[test]
fn mapped_owners_are_no_difference_in_the_list() {
    if !super::bench::is_root() {
        skip!("needs root to give files away");
    }
    let bench = Bench::new();
    bench.sh("mkdir -p a/d; echo x > a/f; chown 1000:1000 a/f a/d");
    bench.dmover("sync -q --usermap=1000:2000 a b").expect_code(0);
    assert_eq!(bench.sh("stat -c %u b/f b/d"), "2000\n2000\n");
    let run = bench.dmover("sync -i --usermap=1000:2000 a b").expect_code(0);
    assert_eq!(run.text(), "", "{}", run.tell());
}

#[test]
fn a_directory_with_the_name_of_a_temporary_goes_when_its_source_is_gone() {
    let bench = Bench::new();
    let name = ".dmover-0123456789ab-0123456789abcdef-0123456789abcdef";
    bench.sh(&format!("mkdir -p a/{name} a/d/{name}; echo x > a/{name}/f; echo y > a/d/{name}/g"));
    bench.dmover("sync -q a b").expect_code(0);
    assert_eq!(bench.sh("diff -r a b || true"), "");
    bench.sh(&format!("rm -rf a/{name} a/d/{name}"));
    bench.dmover("sync -q --delete=during a b").expect_code(0);
    assert_eq!(bench.sh("diff -r a b || true"), "");
}
