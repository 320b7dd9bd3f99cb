//! Hosts that cannot be used: one line that says what failed and at which end, one that says what to do.
use super::{FUTURE, PROGRAM, far};
use dmover_testkit::lanes::run::Run;

#[track_caller]
fn assert_refused(run: &Run, code: i32, message: &str, hint: &str) {
    assert_eq!(run.code(), Some(code), "{}", run.tell());
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", run.stderr);
    let wanted = format!("dmover: error: {message}");
    assert!(lines[0].starts_with(&wanted), "{}\n{wanted}", run.stderr);
    assert!(lines[1].starts_with("  hint: ") && lines[1].contains(hint), "{}", run.stderr);
}

#[test]
fn hosts_that_are_not_reached_are_temporary_trouble() {
    let far = far!();
    far.link_program();
    let run = far.agent(&["--check", "no-such-host.invalid:/x"]);
    let message = "cannot find the address of the host 'no-such-host.invalid': ssh: Could not";
    assert_refused(&run, 6, message, "~/.ssh/config");
    let run = far.agent_by(&far.ssh("-p 9"), &["--check", "far:/x"]);
    assert_refused(
        &run,
        6,
        "the host 'far' refuses connections: ssh: connect to host",
        "sshd runs",
    );
    let run = far.agent_by(&far.ssh("-p 9"), &["--install", "far"]);
    assert_refused(
        &run,
        6,
        "the host 'far' refuses connections: ssh: connect to host",
        "sshd runs",
    );
    far.cluster.host("far").cut_link().unwrap();
    let run = far.agent_by(&far.ssh("-o ConnectTimeout=1"), &["--check", "far:/x"]);
    assert_refused(&run, 6, "the host 'far' does not answer: ssh: connect to host", "firewall");
}

#[test]
fn logins_that_are_refused_need_the_user() {
    let far = far!();
    far.link_program();
    let (key, none) = (far.bench.at("other_key"), far.bench.at("no_keys"));
    far.bench.sh("ssh-keygen -q -t ed25519 -N '' -f other_key; touch no_keys");
    let other = format!("-o IdentityFile={} -F /dev/null", key.display());
    let known = far.server.known_hosts_path();
    let other = format!(
        "ssh {other} -o IdentitiesOnly=yes -o BatchMode=yes -o UserKnownHostsFile={}",
        known.display()
    );
    let address = far.cluster.host("far").address().to_string();
    let run = far.agent_by(&other, &["--check", &format!("root@{address}:/x")]);
    let message = format!("the host 'root@{address}' refuses the login: ");
    assert_refused(&run, 2, &message, "check the user and the key");

    let strange = far.ssh(&format!("-o UserKnownHostsFile={}", none.display()));
    let run = far.agent_by(&strange, &["--check", "far:/x"]);
    assert_refused(
        &run,
        2,
        "ssh does not know the key of the host 'far'",
        "log in once by 'ssh far'",
    );

    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    std::fs::write(&none, format!("far,{address} {public}")).unwrap();
    let run = far.agent_by(&strange, &["--check", "far:/x"]);
    assert_refused(&run, 2, "the key of the host 'far' has changed", "ssh-keygen -R far");
}

#[test]
fn programs_that_are_no_agent_are_told_apart() {
    let far = far!();
    let program = far.home(".local/bin/dmover");
    let shown = program.display();
    let install = "dmover agent --install far";

    let run = far.agent(&["--check", "far:/x"]);
    assert_refused(&run, 2, "the host 'far' has no dmover in PATH or at ~/.local/bin/", install);

    far.place(".local/bin/dmover", FUTURE);
    let run = far.agent(&["--check", "far:/x"]);
    let message = "dmover 9.9 at the host 'far' does not work with dmover ";
    assert_refused(&run, 2, message, "--install far --force");

    far.place(".local/bin/dmover", FUTURE.replace("9.9'", "9\\0129'"));
    let run = far.agent(&["--check", "far:/x"]);
    let message = "dmover 9\\0129 at the host 'far' does not work with dmover ";
    assert_refused(&run, 2, message, "--install far --force");

    far.place(
        ".local/bin/dmover",
        "#!/bin/sh\necho \"error: dmover has no verb 'agent'\" >&2; exit 2\n",
    );
    let run = far.agent(&["--check", "far:/x"]);
    let message = format!("'{shown}' at the host 'far' is a dmover without 'agent'");
    assert_refused(&run, 2, &message, "--install far --force");

    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let run = far.agent(&["--check", "far:/x"]);
    let message = format!("cannot run '{shown}' at the host 'far': ");
    assert_refused(&run, 2, &message, "chmod +x");

    // The program of another machine: the number of the machine is at byte 18 (elf(5)).
    let mut foreign = std::fs::read(PROGRAM).unwrap();
    foreign.truncate(4096);
    foreign[18..20].copy_from_slice(&[0xf3, 0]);
    far.place(".local/bin/dmover", foreign);
    let run = far.agent(&["--check", "far:/x"]);
    let message = format!("'{shown}' at the host 'far' does not run on Linux ");
    assert_refused(&run, 2, &message, "--agent PATH");

    far.place(".local/bin/dmover", "#!/bin/sh\nprintf 'a\\033[2Jb\\rc' >&2; exit 1\n");
    let run = far.agent(&["--check", "far:/x"]);
    let message = format!("'{shown}' at the host 'far' ended without a greeting: a\\033[2Jb\\015c");
    assert_refused(&run, 2, &message, "dmover --version");

    far.place(".local/bin/dmover", "#!/bin/sh\necho no memory >&2; exit 1\n");
    let run = far.agent(&["--check", "far:/x"]);
    let message = format!("'{shown}' at the host 'far' ended without a greeting: no memory");
    assert_refused(&run, 2, &message, "dmover --version");
}

#[test]
fn arguments_that_name_no_host_are_refused_before_ssh() {
    let far = far!();
    for (argument, message, hint) in [
        ("far:", "'far:' has no path after the host", "host:."),
        ("far::x", "'far::x' has two colons", "in brackets"),
        ("-oProxyCommand=touch x:/a", "", ""),
        ("fa r:/x", "'fa r:/x' has a blank in the name of the host", "./name"),
        ("fe80::1:/x", "'fe80::1:/x' has two colons", "[fe80::1]:/path"),
    ] {
        let run = far.agent_by("touch started", &[format!("--check={argument}")]);
        if message.is_empty() {
            assert_eq!(run.code(), Some(2), "{}", run.tell());
        } else {
            assert_refused(&run, 2, message, hint);
        }
        assert!(!far.bench.exists("started") && !far.bench.exists("x"));
    }
    let run = far.agent_by("/no/such/ssh", &["--check", "far:/x"]);
    assert_refused(&run, 2, "cannot run '/no/such/ssh': No such file", "OpenSSH");
}
