//! Login shells that are not as they should be.
use super::{Far, far};

#[track_caller]
fn assert_text_is_named(far: &Far, text: &str) {
    far.link_program();
    let run = far.agent(&["--check", "far:/"]).expect_code(2);
    let wanted = format!("error: the login shell at the host 'far' prints text: '{text}'");
    assert!(run.stderr.contains(&wanted), "{}", run.stderr);
    assert!(run.stderr.contains("'ssh far true' must print nothing"), "{}", run.stderr);
}

#[test]
fn a_shell_that_prints_a_banner_is_named() {
    let run = "exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"";
    let far = far!(&format!("echo; echo 'Welcome to far!'; echo 'Have fun.'; {run}"));
    assert_text_is_named(&far, "Welcome to far!");
}

#[test]
fn an_account_without_a_shell_is_named() {
    let far = far!("echo 'This account is currently not available.'; exit 1");
    assert_text_is_named(&far, "This account is currently not available.");
}

#[test]
fn a_shell_that_runs_nothing_is_named() {
    let far = far!("exit 0");
    far.link_program();
    let run = far.agent(&["--check", "far:/"]).expect_code(2);
    let wanted = "the login shell at the host 'far' runs no command: exit code 0";
    assert!(run.stderr.contains(wanted), "{}", run.stderr);
}

#[test]
fn banners_on_standard_error_do_no_harm_and_are_logged() {
    let far = far!("echo 'Be warned!' >&2; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"");
    far.link_program();
    let run = far.agent(&["--check", "far:/"]).expect_code(0);
    assert!(run.stderr.is_empty(), "{}", run.stderr);
    let run = far.agent(&["-v", "--check", "far:/"]).expect_code(0);
    assert!(run.stderr.contains("Be warned!"), "{}", run.stderr);
}
