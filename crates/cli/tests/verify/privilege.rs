//! What a user without privilege may not set is no difference for that user, and is said; root sees it.
use super::Bench;
use super::bench::{NOBODY, PROGRAM, is_root};
use dmover_testkit::skip;

/// A tree of root's with everything that needs privilege, and its copy by somebody else. None without root.
fn copied() -> Option<Bench> {
    if !is_root() {
        return None;
    }
    let bench = Bench::new().unprivileged();
    bench.sh(
        "mkdir -p s/sub/locked; echo 1 > s/theirs; echo 2 > s/sub/mine; ln -s nowhere s/link; mkfifo s/pipe; echo 3 > s/setid
        echo 4 > s/ping; chmod 644 s/theirs s/sub/mine s/ping s/pipe; chmod 755 s s/sub s/sub/locked
        chown 65534:65534 s/sub/mine; chmod 6755 s/setid; setfattr -n trusted.x -v 1 s/ping
        setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 s/ping",
    );
    bench.copy("--manifest=m -T s t").expect_code(0);
    Some(bench)
}

/// Everything that is not NOBODY's, as find(1) counts it.
fn foreign(bench: &Bench) -> u64 {
    bench.sh("find s ! -uid 65534 | wc -l").trim().parse().unwrap()
}

#[test]
fn what_this_user_may_not_set_is_said_and_is_no_difference() {
    let Some(bench) = copied() else { skip!("needs root to become somebody else") };
    let run = bench.dmover("verify s t").expect_code(0);
    let theirs = foreign(&bench);
    assert!(theirs == 8 && run.stdout.is_empty(), "{theirs}: {}", run.tell());
    for words in [
        "no difference in 9 entries, except attributes that this user cannot set",
        "owners      8 entries have a different owner or group\n",
        "set-id bits 1 entry lacks",
        "privileged  attributes or flags missing 1 time",
        "hint: this user cannot set these",
        "--no-preserve=owner does not compare owners",
    ] {
        assert_eq!(run.stderr.matches(words).count(), 1, "{words}: {}", run.tell());
    }
    let run = bench.dmover("verify --no-preserve=owner s t").expect_code(0);
    assert!(!run.stderr.contains("owner"), "{}", run.tell());
    // Owners that were asked for by name count, and the summary says once how to leave them out.
    let run = bench.dmover("verify --preserve=owner s t").expect_code(1);
    assert_eq!(run.stderr.matches("hint: only root can set owners").count(), 1, "{}", run.tell());
    let run = bench.dmover("verify --json s t").expect_code(0);
    let lines = run.lines().unwrap();
    let summary = lines.iter().find(|line| line.is("summary")).unwrap();
    assert_eq!(summary.number("owners_not_kept"), Some(theirs));
    assert_eq!(summary.number("set_ids_dropped"), Some(1));
    assert_eq!(lines.iter().filter(|line| line.is("note")).count() as u64, theirs + 2);
    // Beside the manifest of the copy it is the same.
    let run = bench.dmover("verify --manifest=m").expect_code(0);
    assert!(run.stderr.contains("owners      8 entries"), "{}", run.tell());
    // Whoever asks for owners by name gets them compared, and root does in any case.
    assert_eq!(bench.differences("--preserve=owner s t", 1).len() as u64, theirs);
    assert_eq!(bench.differences("--preserve=all s t", 1).len() as u64, theirs);
    let seen_by_root = format!("rc=0; {PROGRAM} verify s t || rc=$?; echo rc $rc");
    let root = bench.sh(&seen_by_root);
    assert!(root.ends_with("rc 1\n"), "{root}");
    assert_eq!(root.lines().filter(|line| line.contains("owner")).count() as u64, theirs, "{root}");
    let ping = "t/ping: owner 65534:65534 instead of 0:0; xattr";
    assert!(root.lines().any(|line| line == ping), "{root}");
    assert!(root.contains("t/setid: mode 0755 instead of 6755; owner"), "{root}");
}

#[test]
fn what_this_user_could_have_set_stays_a_difference() {
    let Some(bench) = copied() else { skip!("needs root to become somebody else") };
    // A group of its own, set-id bits that are too many, other content, a mode, an attribute.
    bench.sh(
        "chgrp 0 t/sub/mine; chmod 4755 t/sub; chmod 4644 t/theirs; chmod 600 t/pipe; setfattr -n user.x -v 1 t/setid
        setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 t/setid; touch -r s t",
    );
    let expected =
        ["t/pipe: mode", "t/setid: xattr", "t/sub/mine: owner", "t/sub: mode", "t/theirs: mode"];
    assert_eq!(bench.differences("s t", 1), expected);
    let root = format!("{}/", bench.root().display());
    let differs = bench.differences("--manifest=m", 1);
    let differs: Vec<_> = differs.iter().filter_map(|line| line.strip_prefix(&root)).collect();
    assert_eq!(differs, expected, "beside the manifest");
}

#[test]
fn a_repair_by_this_user_leaves_what_it_may_not_set() {
    let Some(bench) = copied() else { skip!("needs root to become somebody else") };
    bench.sh(
        "chgrp 0 t/sub/mine; printf 9 | dd of=t/theirs conv=notrunc status=none; rm t/ping t/link",
    );
    bench.dmover("verify --repair s t").expect_code(0);
    assert_eq!(bench.read("t/theirs"), bench.read("s/theirs"));
    assert_eq!(bench.sh("stat -c %u:%g t/sub/mine").trim(), format!("{NOBODY}:{NOBODY}"));
    bench.dmover("verify s t").expect_code(0);
}
