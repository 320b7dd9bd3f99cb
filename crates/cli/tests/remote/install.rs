//! `dmover agent --install` and `--check`.
use dmover_testkit::lanes::lines::parse_lines;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::far;

#[test]
fn a_program_is_installed_checked_and_replaced_by_force_only() {
    let far = far!();
    let run = far.agent(&["--check", "far"]).expect_code(2);
    assert!(run.stderr.contains("the host 'far' has no dmover in PATH"), "{}", run.stderr);
    assert!(run.stderr.contains("hint: put it there by 'dmover agent --install far'"));

    let run = far.agent(&["--install", "far"]).expect_code(0);
    let installed = far.home(".local/bin/dmover");
    let wanted = format!("is at {} on 'far' (", installed.display());
    assert!(run.stderr.contains(&wanted), "{}", run.stderr);
    assert!(run.stderr.contains("SHA-256 is equal"), "{}", run.stderr);
    let names = std::fs::read_dir(far.home(".local/bin")).unwrap();
    assert_eq!(names.count(), 1, "only the program is there");

    let run = far.agent(&["--check", "far"]).expect_code(0);
    let text = run.text();
    for words in ["round trip", "protocol", "a directory", &installed.display().to_string()] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let run = far.agent(&["--install", "root@far"]).expect_code(0);
    assert!(run.stderr.contains("'root@far' already has this program"), "{}", run.stderr);

    far.place(".local/bin/dmover", "#!/bin/sh\nprintf 'dmover \\033[2J'\n");
    let run = far.agent(&["--install", "far"]).expect_code(2);
    assert!(run.stderr.contains("(dmover \\033[2J)"), "{}", run.stderr);

    far.place(".local/bin/dmover", "#!/bin/sh\necho dmover 0.0.9\n");
    let run = far.agent(&["--install", "far"]).expect_code(2);
    assert!(run.stderr.contains("has another dmover at ~/.local/bin/dmover (dmover 0.0.9)"));
    assert!(std::fs::metadata(&installed).unwrap().len() < 100, "it was replaced");
    let run = far.agent(&["--install", "far", "--force"]).expect_code(0);
    assert!(run.stderr.contains("instead of dmover 0.0.9"), "{}", run.stderr);
    far.agent(&["--check", "far"]).expect_code(0);
}

#[test]
fn a_home_directory_without_space_keeps_what_it_had() {
    let far = far!("ulimit -f 1; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"");
    far.place(".local/bin/dmover", "#!/bin/sh\necho dmover 0.0.9\n");
    let run = far.agent(&["--install", "far", "--force"]);
    assert!(matches!(run.code(), Some(2 | 6)), "{}", run.tell());
    assert!(run.stderr.contains("error: ") && run.stderr.contains("'far'"), "{}", run.stderr);
    let names = std::fs::read_dir(far.home(".local/bin")).unwrap();
    assert_eq!(names.count(), 1, "a temporary is left");
    let kept = std::fs::read_to_string(far.home(".local/bin/dmover")).unwrap();
    assert!(kept.ends_with("0.0.9\n"), "{kept}");
}

#[test]
fn paths_reach_the_host_as_they_are() {
    let far = far!();
    far.link_program();
    for name in [
        "a:b",
        "a b",
        "it's \"so\"",
        "$HOME `id`",
        "new\nline",
        "-n",
        "*",
        "\\",
        "[::1]:x",
        "\u{fc}",
    ] {
        for path in [far.home(name), name.into()] {
            std::fs::create_dir_all(far.home(name)).unwrap();
            let place = [OsStr::new("far:"), path.as_os_str()].map(OsStr::as_bytes).concat();
            let run = far.agent(&[
                OsStr::new("--json"),
                OsStr::new("--check"),
                OsStr::from_bytes(&place),
            ]);
            let run = run.expect_code(0);
            let line = parse_lines(&run.stdout).unwrap().remove(0);
            assert_eq!(line.text("kind"), "directory", "{name:?}: {line:?}");
            assert_eq!(line.path(), path);
            assert!(line.flag("writable"));
        }
    }
    std::fs::write(far.home("file"), "x").unwrap();
    let run = far.agent(&["--check", "far:~/file"]).expect_code(0);
    assert!(run.text().contains("a file"), "{}", run.text());
    let run = far.agent(&["--check", "far:no/such"]).expect_code(2);
    assert!(run.stderr.contains("'far:no/such' does not exist"), "{}", run.stderr);
    assert!(run.text().contains("nothing"), "{}", run.text());
}

#[test]
fn an_agent_with_an_odd_path_can_be_named() {
    let far = far!();
    let odd = "o'd \"d:$x/\ndmover";
    far.place(odd, format!("#!/bin/sh\nexec {} \"$@\"\n", super::PROGRAM));
    let absolute = far.home(odd);
    for named in [absolute.as_os_str(), OsStr::new(&format!("~/{odd}"))] {
        let words = [OsStr::new("--check"), OsStr::new("far"), OsStr::new("--agent"), named];
        far.agent(&words).expect_code(0);
    }
    let run = far.agent(&["--check", "far", "--agent", "/no/such"]).expect_code(2);
    assert!(run.stderr.contains("there is no '/no/such' at the host 'far'"), "{}", run.stderr);
}
