//! Running as a user without privilege: what cannot be kept is said, what can be is done.

use dmover_testkit::lanes::check::lying_files;
use dmover_testkit::skip;

use super::Bench;
use super::bench::{NOBODY, is_root, pattern};

/// A bench for somebody who owns the directory and nothing else; none if this is not root.
fn bench() -> Option<Bench> {
    is_root().then(|| Bench::new().unprivileged())
}

/// Whose file it is.
fn owner(bench: &Bench, path: &str) -> String {
    bench.sh(&format!("stat -c %u {path}")).trim().to_owned()
}

#[test]
fn owners_that_cannot_be_kept_are_a_counted_note_and_no_failure() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.sh("mkdir s; echo 1 > s/theirs; echo 2 > s/mine; chmod 644 s/*; chmod 755 s; chown 65534:65534 s/mine");
    let run = bench.copy("s d").expect_code(0);
    let said = run.said().unwrap();
    assert_eq!(owner(&bench, "d/theirs"), NOBODY.to_string());
    assert_eq!(bench.read("d/theirs"), "1\n");
    assert!(said.summary.unwrap().number("owners_not_kept").unwrap() >= 1, "{}", run.tell());
    assert!(said.errors.is_empty() && said.losses.is_empty());
}

#[test]
fn set_id_bits_are_dropped_with_the_owner() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.sh("mkdir s; echo 1 > s/theirs; chmod 6755 s/theirs; echo 2 > s/mine; chown 65534:65534 s/mine; chmod 4755 s/mine; chmod 755 s");
    let run = bench.copy("s d").expect_code(0);
    assert_eq!(bench.mode("d/theirs"), 0o755);
    assert_eq!(bench.mode("d/mine"), 0o4755, "one's own program keeps it");
    let summary = run.said().unwrap().summary.unwrap();
    assert_eq!(summary.number("set_ids_dropped"), Some(1), "{}", run.tell());
}

/// Who may write into a file of another user may not change its mode, and may remove it from an own directory.
#[test]
fn a_file_that_cannot_be_closed_before_it_is_written_into_stays() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.sh("mkdir -m 755 s; echo new > s/f; chmod 644 s/f; mkdir d; echo their old content > d/f; chmod 666 d/f
        chown 65534:65534 d");
    let run = bench.copy("-T --inplace --overwrite=always s d").expect_code(3);
    let said = run.said().unwrap();
    assert_eq!(said.errors.len(), 1, "{}", run.tell());
    assert_eq!(said.errors[0].text("class"), "denied");
    assert_eq!(bench.read("d/f"), "their old content\n", "{}", run.tell());
    assert_eq!(owner(&bench, "d/f"), "0");
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_arrives() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.sh("mkdir -p s/closed s/open; echo 1 > s/secret; chmod 600 s/secret; echo 2 > s/open/a; echo 3 > s/closed/b
        chmod 700 s/closed; chmod 644 s/open/a; chmod 755 s s/open");
    let run = bench.copy("s d").expect_code(3);
    let said = run.said().unwrap();
    let mut named: Vec<_> = said
        .errors
        .iter()
        .map(|line| {
            assert_eq!(line.text("class"), "denied", "{line:?}");
            line.path().file_name().unwrap().to_string_lossy().into_owned()
        })
        .collect();
    named.sort_unstable();
    assert_eq!(named, ["closed", "secret"], "{}", run.tell());
    assert_eq!(bench.read("d/open/a"), "2\n");
    assert!(!bench.exists("d/secret"));
}

#[test]
fn own_directories_without_write_permission_are_filled_and_closed_again() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.sh("mkdir -p s/ro/deep; echo 1 > s/ro/deep/f; echo 2 > s/ro/g; chmod 444 s/ro/g; chmod 500 s/ro/deep; chmod 555 s/ro
        chown -R 65534:65534 s");
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
    bench.sh("chmod 755 s/ro/deep; echo more > s/ro/deep/new; chown 65534:65534 s/ro/deep/new; chmod 500 s/ro/deep; echo longer > s/ro/g");
    bench.copy("s d").expect_code(0);
    bench.assert_same("s", "d");
    assert_eq!(bench.mode("d/ro/deep"), 0o500);
}

#[test]
fn a_directory_of_somebody_else_that_may_be_written_is_filled() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.sh("mkdir s shared; echo 1 > s/f; chmod 644 s/f; chmod 755 s; chmod 777 shared");
    let run = bench.copy("s shared").expect_code(0);
    assert_eq!(bench.read("shared/s/f"), "1\n", "{}", run.tell());
    let run = bench.copy("-T s shared");
    assert_eq!(bench.read("shared/f"), "1\n", "{}", run.tell());
    // Mode and times of a directory of somebody else cannot be set, which has to be said.
    assert_ne!(run.code(), Some(2), "{}", run.tell());
}

#[test]
fn chunks_links_and_odd_modes_work_without_privilege() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.write("s/large", pattern(3_000_000));
    bench.sh("ln s/large s/twin; echo 1 > s/none; chmod 000 s/none; chmod 400 s/large; mkfifo s/p; ln -s nowhere s/l
        setfattr -n user.x -v 1 s/p 2>/dev/null || true; setfacl -m u:99:r s/large; chown -hR 65534:65534 s");
    let run = bench.copy("--split-size=1M s d").expect_code(3);
    let said = run.said().unwrap();
    assert_eq!(said.errors.len(), 1, "a file of mode 000 cannot be read: {}", run.tell());
    bench.sh("rm s/none");
    bench.copy("--split-size=1M s d").expect_code(0);
    bench.assert_same("s", "d");
    assert_eq!(lying_files(&bench.at("s"), &bench.at("d")).unwrap(), Vec::<String>::new());
}

#[test]
fn devices_and_capabilities_of_a_source_are_said_to_be_missing() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.sh(
        "mkdir s; mknod s/null c 1 3; echo 1 > s/ping; setcap cap_net_raw+ep s/ping 2>/dev/null \
        || setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 s/ping
        chmod 644 s/*; chmod 755 s",
    );
    let run = bench.copy("s d").expect_code(3);
    let said = run.said().unwrap();
    assert_eq!(said.errors.len(), 1, "{}", run.tell());
    assert!(said.errors[0].path().ends_with("null") && said.errors[0].text("class") == "denied");
    let summary = said.summary.unwrap();
    let told = summary.number("privileged_attributes").unwrap() + summary.number("losses").unwrap();
    assert!(told >= 1, "{}", run.tell());
    assert_eq!(bench.read("d/ping"), "1\n");
    // A person is told as well, without asking.
    let run = bench.dmover("copy --overwrite=always s/ping other").expect_code(0);
    assert!(run.stderr.contains("  privileged  1 (attributes not copied"), "{}", run.tell());
}

#[test]
fn an_owner_that_is_demanded_and_cannot_be_set_is_a_loss() {
    let Some(bench) = bench() else { skip!("needs root to become somebody else") };
    bench.sh("mkdir s; echo 1 > s/own; chown -R 65534:65534 s");
    bench.copy("--preserve=owner,mode,times s d").expect_code(0);
    bench.assert_same("s", "d");
    bench.sh("echo 2 > s/theirs; chown 0:0 s/theirs; chmod 644 s/theirs");
    let run = bench.copy("--preserve=owner,mode,times s e").expect_code(3);
    let losses = run.said().unwrap().losses;
    assert_eq!(losses.len(), 1, "{}", run.tell());
    assert!(losses[0].path().ends_with("theirs") && losses[0].text("kind") == "owner");
    assert_eq!(bench.read("e/theirs"), "2\n");
}
