//! Which arguments name a place on this host, and which name one on another host.
use dmover_model::{Fatal, PathBytes};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Bytes that ssh_config(5) may put into a command of a shell (`ProxyCommand`, `%h` and `%r`); OpenSSH 9.6 refuses them as well.
const FOR_SHELLS: &[u8] = b"'`\"$\\;&<>|(){}";
/// What begins the name of a place at an agent that listens.
const SCHEME: &[u8] = b"dmover://";
/// The port of an agent that listens, unless another one is named.
pub const AGENT_PORT: u16 = 2812;
/// Words before `://` that belong to other programs.
const SCHEMES: [&[u8]; 10] =
    [b"ssh", b"sftp", b"scp", b"rsync", b"ftp", b"http", b"https", b"s3", b"nfs", b"file"];

/// One end of a job, as an argument names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A path on this host.
    Local(PathBytes),
    /// A path on another host.
    Remote(RemotePath),
}

/// A path on a host that ssh reaches, or at which an agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePath {
    /// The host and the user there; the first one if there are several.
    pub host: RemoteHost,
    /// More hosts at which the same file system has the same path.
    pub others: Vec<RemoteHost>,
    /// The path there; a relative one is below the home directory of the user. Never empty.
    pub path: PathBytes,
    /// The whole argument, for messages.
    pub typed: PathBytes,
}

/// A host that ssh reaches, or at which an agent listens: a name of DNS or of ssh_config(5), or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteHost {
    /// The user to log in as; `None`: ssh, or the agent, decides.
    pub user: Option<String>,
    /// The name or address, without brackets.
    pub name: String,
    /// The port at which an agent listens; `None`: ssh starts the agent.
    pub port: Option<u16>,
}

impl Endpoint {
    /// Reads an argument by the rules of scp(1) and rsync(1): with a colon before the first slash it names another host.
    ///
    /// # Errors
    /// A refusal: the argument names another host, but not in a way that can be used.
    pub fn parse(argument: &OsStr) -> Result<Self, Fatal> {
        let typed = argument.as_bytes();
        let refuse = |why: &str, hint: &str| Err(refused(typed, why, hint));
        if let Some(rest) = typed.strip_prefix(SCHEME) {
            let slash = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            let (place, path) = rest.split_at(slash);
            let path = match path {
                // As for ssh: a relative path is below the home directory.
                [b'/', b'~', below @ ..] if below.is_empty() || below[0] == b'/' => {
                    below_home(&path[1..])
                }
                path => path,
            };
            return Self::there(typed, place, path);
        }
        let Some((place, path)) = split(typed) else {
            return Ok(Self::Local(PathBytes(typed.to_vec())));
        };
        if SCHEMES.contains(&place) && path.starts_with(b"//") {
            return refuse("is a URL", "name a place on another host as host:/path");
        }
        if path.starts_with(b":") {
            let hint = "name a place on another host as host:/path, an IPv6 address in brackets as \
                [fe80::1]:/path, and a file here as ./a::b";
            return refuse(
                "has two colons, as for a daemon of rsync, which dmover cannot use",
                hint,
            );
        }
        Self::there(typed, place, below_home(path))
    }

    /// A path at hosts whose names commas separate.
    fn there(typed: &[u8], place: &[u8], path: &[u8]) -> Result<Self, Fatal> {
        let refuse = |why: &str, hint: &str| Err(refused(typed, why, hint));
        let mut hosts = Vec::new();
        for place in place.split(|byte| *byte == b',') {
            let host = if typed.starts_with(SCHEME) {
                RemoteHost::of_agent(typed, place)?
            } else {
                RemoteHost::of_bytes(typed, place)?
            };
            if hosts.contains(&host) {
                return refuse("names a host twice", "name each host once");
            }
            hosts.push(host);
        }
        let others = hosts.split_off(1);
        let host = hosts.remove(0);
        match path {
            b"" if typed.starts_with(SCHEME) => refuse(
                "has no path after the host",
                "name one: dmover://host/path, or dmover://host/~ for the home directory",
            ),
            b"" => refuse(
                "has no path after the host",
                "name one: host:/path, or host:. for the home directory",
            ),
            path if path.starts_with(b"~") => refuse(
                "names the home directory of another user",
                "name that directory by its full path",
            ),
            path if path.contains(&0) => refuse("has a zero byte", "correct the path"),
            path => Ok(Self::Remote(RemotePath {
                host,
                others,
                path: PathBytes(path.to_vec()),
                typed: PathBytes(typed.to_vec()),
            })),
        }
    }
}

impl Endpoint {
    /// Reads an argument that may also name a host alone: the host, and the path if there is one.
    ///
    /// # Errors
    /// A refusal: the argument names another host, but not in a way that can be used, or several. `hint`: what to do then.
    pub fn host_of(argument: &OsStr, hint: &str) -> Result<(RemoteHost, Option<PathBytes>), Fatal> {
        let rest = argument.as_bytes().strip_prefix(SCHEME);
        if rest.is_some_and(|place| !place.contains(&b'/')) {
            return Ok((RemoteHost::parse(argument)?, None));
        }
        match Self::parse(argument)? {
            Self::Remote(remote) => {
                let remote = remote.one_host(hint)?;
                Ok((remote.host, Some(remote.path)))
            }
            Self::Local(path) if path.0.contains(&b'/') => {
                let message = format!("'{}' is a path of this host", path.to_path().display());
                Err(Fatal::refused(message, "name a host, HOST:PATH or dmover://HOST/PATH"))
            }
            Self::Local(_) => Ok((RemoteHost::parse(argument)?, None)),
        }
    }
}

impl RemotePath {
    /// All its hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &RemoteHost> {
        std::iter::once(&self.host).chain(&self.others)
    }

    /// The host, where there can be only one.
    ///
    /// # Errors
    /// A refusal: several are named. `hint`: what the user can do.
    pub fn one_host(self, hint: &str) -> Result<Self, Fatal> {
        if self.others.is_empty() {
            return Ok(self);
        }
        Err(refused(&self.typed.0, "names several hosts, and only SOURCE may be on several", hint))
    }
}

impl RemoteHost {
    /// Reads `[user@]host`, for arguments that are nothing else.
    ///
    /// # Errors
    /// A refusal: it cannot be the name of a host.
    pub fn parse(argument: &OsStr) -> Result<Self, Fatal> {
        let typed = argument.as_bytes();
        match typed.strip_prefix(SCHEME) {
            Some(place) => {
                let place = place.strip_suffix(b"/").unwrap_or(place);
                if place.contains(&b'/') {
                    return Err(refused(typed, "has a path", "name the host alone: dmover://host"));
                }
                Self::of_agent(typed, place)
            }
            None => Self::of_bytes(typed, typed),
        }
    }

    /// Reads `host[:port]` of a host at which an agent listens.
    fn of_agent(typed: &[u8], place: &[u8]) -> Result<Self, Fatal> {
        let last = place.iter().rposition(|byte| *byte == b':');
        // The colons of an address in brackets are its own.
        let last = last.filter(|at| !place[*at..].contains(&b']'));
        let (name, port) = match last {
            Some(at) => (&place[..at], Some(&place[at + 1..])),
            None => (place, None),
        };
        let port = match port.map(|digits| String::from_utf8_lossy(digits).parse::<u16>()) {
            None => AGENT_PORT,
            Some(Ok(port @ 1..)) => port,
            Some(_) => {
                let hint = "name one from 1 to 65535, and an IPv6 address in brackets";
                return Err(refused(typed, "has no port after the colon", hint));
            }
        };
        if name.contains(&b':') && !name.starts_with(b"[") {
            let hint = "write [address] or [address]:port";
            return Err(refused(typed, "has an IPv6 address without brackets", hint));
        }
        let host = Self::of_bytes(typed, name)?;
        if host.user.is_some() {
            let hint = "omit it: the agent knows from the certificate which user that is";
            return Err(refused(typed, "names a user", hint));
        }
        Ok(Self { port: Some(port), ..host })
    }

    fn of_bytes(typed: &[u8], place: &[u8]) -> Result<Self, Fatal> {
        let refuse = |why: &str, hint: &str| Err(refused(typed, why, hint));
        let here = "name a file here as ./name if its name has a colon";
        // As ssh does, because names of users may have an '@'.
        let (user, name) = match place.iter().rposition(|byte| *byte == b'@') {
            Some(at) => (Some(&place[..at]), &place[at + 1..]),
            None => (None, place),
        };
        let name = match name {
            [b'[', inner @ .., b']'] if inner.contains(&b':') => inner,
            name => name,
        };
        if name.is_empty() {
            return refuse("has no host", here);
        }
        if user == Some(b"") {
            return refuse("has no user before the '@'", "name one, or omit the '@'");
        }
        if let Some(why) = unusable(name, b"") {
            return refuse(&format!("has {why} in the name of the host"), here);
        }
        if name.iter().any(|byte| b"[]/,".contains(byte)) {
            return refuse("has no name of a host", here);
        }
        if let Some(why) = user.and_then(unusable_user) {
            return refuse(&format!("has {why} in the name of the user"), here);
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Self { user: user.map(text), name: text(name), port: None })
    }

    /// A path there, as an argument names it.
    pub fn place(&self, path: &PathBytes) -> PathBytes {
        let between: &[u8] = match (self.port, path.0.first()) {
            (None, _) => b":",
            (Some(_), Some(b'/')) => b"",
            (Some(_), _) => b"/~/",
        };
        PathBytes([self.shown().as_bytes(), between, &path.0].concat())
    }

    /// Names the host for messages, with the user if one was named.
    pub fn shown(&self) -> String {
        let Self { user, name, port } = self;
        match (user, port) {
            (Some(user), _) => format!("{user}@{name}"),
            (None, None) => name.clone(),
            (None, Some(port)) => format!("dmover://{}", agent_name(name, *port)),
        }
    }
}

/// The name of an agent that listens: the host, and its port if it is not the usual one.
pub(crate) fn agent_name(host: &str, port: u16) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    if port == AGENT_PORT { host } else { format!("{host}:{port}") }
}

/// The host and the path of an argument; `None`: it is a path here.
fn split(typed: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = typed.iter().position(|byte| *byte == b'/').unwrap_or(typed.len());
    let before = &typed[..slash];
    // Addresses in brackets have colons. A zone (`fe80::1%eth0`) has no slash.
    let mut begins = true;
    let mut is_address = false;
    let outside = before.iter().position(|byte| {
        is_address |= begins && *byte == b'[';
        is_address &= *byte != b']';
        begins = matches!(byte, b',' | b'@');
        *byte == b':' && !is_address
    });
    // A bracket that nothing closes is no address.
    let colon = outside.or_else(|| before.iter().position(|byte| *byte == b':'))?;
    Some((&typed[..colon], &typed[colon + 1..]))
}

/// Why a name of a host or user is refused. `but`: bytes that are fine all the same.
fn unusable(name: &[u8], but: &[u8]) -> Option<&'static str> {
    let is_for_shells = |byte: &u8| FOR_SHELLS.contains(byte) && !but.contains(byte);
    match name {
        [b'-', ..] => Some("a '-' at the beginning"),
        name if name.iter().any(u8::is_ascii_control) => Some("a control character"),
        name if std::str::from_utf8(name).is_err() => Some("bytes that are not UTF-8"),
        name if String::from_utf8_lossy(name)
            .chars()
            .any(|c| c.is_whitespace() || c.is_control()) =>
        {
            Some("a blank")
        }
        name if name.iter().any(is_for_shells) => Some("a character that shells interpret"),
        _ => None,
    }
}

/// The same for a user. `DOMAIN\user` is fine, and so is a machine's name with a dollar sign at its end; elsewhere shells
/// interpret both characters.
fn unusable_user(user: &[u8]) -> Option<&'static str> {
    let machine = user.strip_suffix(b"$").unwrap_or(user);
    let mut after = user.split(|byte| *byte == b'\\').skip(1);
    let is_domain = after.next().is_none_or(|name| !name.is_empty()) && after.next().is_none();
    unusable(user, b"\\$").or_else(|| {
        if machine.contains(&b'$') || !is_domain {
            Some("a character that shells interpret")
        } else {
            user.contains(&b'/').then_some("a slash")
        }
    })
}

/// A path without the `~/` that means the same as nothing: the directory where an agent begins.
fn below_home(path: &[u8]) -> &[u8] {
    let Some(below) = path.strip_prefix(b"~") else { return path };
    match below {
        b"" => b".",
        [b'/', rest @ ..] => {
            let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
            if slashes == rest.len() { b"." } else { &rest[slashes..] }
        }
        _ => path,
    }
}

fn refused(typed: &[u8], why: &str, hint: &str) -> Fatal {
    Fatal::refused(format!("'{}' {why}", String::from_utf8_lossy(typed)), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(argument: &[u8]) -> Result<Endpoint, Fatal> {
        Endpoint::parse(OsStr::from_bytes(argument))
    }

    #[track_caller]
    fn remote(argument: &str) -> (Option<String>, String, Vec<u8>) {
        match parse(argument.as_bytes()) {
            Ok(Endpoint::Remote(RemotePath { host, others, path, typed })) => {
                assert!(others.is_empty());
                assert_eq!(typed.0, argument.as_bytes());
                (host.user, host.name, path.0)
            }
            other => panic!("{argument}: {other:?}"),
        }
    }

    fn of(user: &str, host: &str, path: &str) -> (Option<String>, String, Vec<u8>) {
        let user = Some(user.to_owned()).filter(|user| !user.is_empty());
        (user, host.to_owned(), path.as_bytes().to_vec())
    }

    #[test]
    fn a_colon_before_the_first_slash_names_a_host() {
        for (argument, wanted) in [
            ("h:/a", of("", "h", "/a")),
            ("h:a:b", of("", "h", "a:b")),
            ("ann@h.example:a b/c'd", of("ann", "h.example", "a b/c'd")),
            ("a@b@h:/", of("a@b", "h", "/")),
            ("DOM\\ann@h:x", of("DOM\\ann", "h", "x")),
            ("DOM\\pc$@h:x", of("DOM\\pc$", "h", "x")),
            ("[::1]:/a", of("", "::1", "/a")),
            ("ann@[fe80::1%eth0]:a", of("ann", "fe80::1%eth0", "a")),
            ("h:~/a", of("", "h", "a")),
            ("h:~//a", of("", "h", "a")),
            ("h:~", of("", "h", ".")),
            ("h:~/", of("", "h", ".")),
            ("h:.", of("", "h", ".")),
            ("h: a", of("", "h", " a")),
            ("h:-a\n", of("", "h", "-a\n")),
            ("h:[::1]:a", of("", "h", "[::1]:a")),
        ] {
            assert_eq!(remote(argument), wanted, "{argument:?}");
        }
    }

    #[test]
    fn several_hosts_may_have_one_path() {
        for (argument, wanted) in [
            ("a,b:/x", &["a", "b"][..]),
            ("ann@a,b,ben@c:x", &["ann@a", "b", "ben@c"]),
            ("[::1],[fe80::1%eth0]:/x", &["::1", "fe80::1%eth0"]),
            ("a,ann@[::1]:/x", &["a", "ann@::1"]),
            ("ann@[::1],b:/x", &["ann@::1", "b"]),
        ] {
            let Ok(Endpoint::Remote(RemotePath { host, others, .. })) = parse(argument.as_bytes())
            else {
                panic!("{argument}");
            };
            let all: Vec<_> = [host].iter().chain(&others).map(RemoteHost::shown).collect();
            assert_eq!(all, wanted, "{argument}");
        }
        assert!(matches!(parse(b"a,b/c:/x"), Ok(Endpoint::Local(_))));
    }

    #[test]
    fn everything_else_is_a_path_here() {
        for argument in
            ["a", "/a:b", "./a:b", "a/b:c", "../x:y", "", ".", "[a]", "a@b", "~/a:b", "a/h:/x"]
        {
            let wanted = Endpoint::Local(PathBytes(argument.into()));
            assert_eq!(parse(argument.as_bytes()).unwrap(), wanted, "{argument:?}");
        }
        assert_eq!(parse(b"\xff\xfe").unwrap(), Endpoint::Local(PathBytes(vec![0xff, 0xfe])));
    }

    #[test]
    fn names_that_ssh_might_misread_are_refused() {
        for (argument, why) in [
            (&b"h:"[..], "no path"),
            (b"ann@h:", "no path"),
            (b":/a", "no host"),
            (b"ann@:/a", "no host"),
            (b"@h:/a", "no user"),
            (b"a,:/a", "no host"),
            (b"a,,b:/a", "no host"),
            (b"a,b,a:/a", "a host twice"),
            (b"h::module", "two colons"),
            (b"::1:/a", "two colons"),
            (b"fe80::1:/a", "two colons"),
            (b"-oProxyCommand=x:/a", "'-' at the beginning in the name of the host"),
            (b"-l@h:/a", "'-' at the beginning in the name of the user"),
            (b"h st:/a", "a blank"),
            (b"h\nx:/a", "a control character"),
            (b"a b@h:/a", "a blank"),
            (b"h;id:/a", "shells interpret"),
            (b"`id`@h:/a", "shells interpret"),
            (b"$HOME@h:/a", "shells interpret"),
            (b"a$b$@h:/a", "shells interpret"),
            (b"pc$$@h:/a", "shells interpret"),
            (b"a\\b\\c@h:/a", "shells interpret"),
            (b"ann\\@h:/a", "shells interpret"),
            (b"h\xff:/a", "not UTF-8"),
            ("h\u{a0}x:/a".as_bytes(), "a blank"),
            (b"[h]:/a", "no name of a host"),
            (b"h:~ann/a", "home directory of another user"),
            (b"ssh://h/a", "is a URL"),
        ] {
            let error = parse(argument).expect_err(&String::from_utf8_lossy(argument));
            assert!(error.to_string().contains(why), "{error}");
            assert!(!error.hint().is_empty());
            assert_eq!(error.exit_code().code(), 2);
        }
    }

    #[test]
    fn agents_that_listen_are_named_by_urls() {
        let there = |text: &str| match parse(text.as_bytes()) {
            Ok(Endpoint::Remote(remote)) => {
                let hosts: Vec<_> =
                    remote.hosts().map(|host| (host.name.clone(), host.port)).collect();
                (hosts, String::from_utf8(remote.path.0).unwrap())
            }
            other => panic!("{text}: {other:?}"),
        };
        let at = |name: &str, port| (name.to_owned(), Some(port));
        assert_eq!(there("dmover://h/a:b"), (vec![at("h", 2812)], "/a:b".into()));
        assert_eq!(there("dmover://h:70/"), (vec![at("h", 70)], "/".into()));
        assert_eq!(there("dmover://[fe80::1]:70/x"), (vec![at("fe80::1", 70)], "/x".into()));
        assert_eq!(there("dmover://[::1]/~/x"), (vec![at("::1", 2812)], "x".into()));
        assert_eq!(there("dmover://h/~"), (vec![at("h", 2812)], ".".into()));
        assert_eq!(there("dmover://h/~x"), (vec![at("h", 2812)], "/~x".into()));
        assert_eq!(there("dmover://a,b:70/x"), (vec![at("a", 2812), at("b", 70)], "/x".into()));
        for (wrong, why) in [
            ("dmover://h", "no path"),
            ("dmover:///x", "has no host"),
            ("dmover://ann@h/x", "names a user"),
            ("dmover://h:0/x", "no port"),
            ("dmover://h:/x", "no port"),
            ("dmover://h:70000/x", "no port"),
            ("dmover://h,h/x", "twice"),
            ("dmover://-h/x", "'-' at the beginning"),
        ] {
            let error = parse(wrong.as_bytes()).expect_err(wrong).to_string();
            assert!(error.contains(why), "{error}");
        }
        let host = |text: &str| RemoteHost::parse(OsStr::new(text)).unwrap().shown();
        for named in ["dmover://h", "dmover://h:70", "dmover://[::1]", "dmover://[::1]:70"] {
            assert_eq!(host(named), named);
        }
        assert_eq!(host("dmover://h:2812/"), "dmover://h");
    }

    #[test]
    fn a_host_alone_is_read_as_well() {
        let host = |text: &str| RemoteHost::parse(OsStr::new(text));
        assert_eq!(host("ann@h").unwrap().shown(), "ann@h");
        assert_eq!(host("[::1]").unwrap().name, "::1");
        assert_eq!(host("::1").unwrap().name, "::1");
        assert!(host("-h").is_err() && host("").is_err() && host("h/x").is_err());
        assert!(host("../ann@h").is_err() && host("a/b@h").is_err() && host("a,b").is_err());
    }

    proptest! {
        #[test]
        fn what_is_accepted_keeps_its_bytes(argument in proptest::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(&b":/@[]~.-h a"[..])], 0..24)) {
            match parse(&argument) {
                Ok(Endpoint::Local(path)) => prop_assert_eq!(path.0, argument),
                Ok(Endpoint::Remote(remote)) => {
                    prop_assert!(argument.ends_with(&remote.path.0) || remote.path.0 == b".");
                    prop_assert!(!remote.path.0.is_empty() && !remote.path.0.starts_with(b"~"));
                    prop_assert!(!remote.host.name.starts_with('-'));
                    prop_assert!(!remote.host.user.as_deref().unwrap_or_default().starts_with('-'));
                    let both = remote.host.shown();
                    prop_assert!(!both.chars().any(|c| c.is_whitespace() || c.is_control()));
                }
                Err(error) => prop_assert_eq!(error.exit_code().code(), 2),
            }
        }

        #[test]
        fn a_path_after_a_slash_is_always_here(tail in proptest::collection::vec(any::<u8>(), 0..16)) {
            for start in [&b"/"[..], b"./", b"../"] {
                let argument = [start, &tail].concat();
                prop_assert_eq!(parse(&argument).unwrap(), Endpoint::Local(PathBytes(argument)));
            }
        }

        #[test]
        fn any_path_reaches_the_host(path in proptest::collection::vec(1u8.., 1..16)) {
            prop_assume!(!path.starts_with(b"~") && !path.starts_with(b":"));
            let argument = [b"ann@h:", &path[..]].concat();
            let Ok(Endpoint::Remote(remote)) = parse(&argument) else { panic!() };
            prop_assert_eq!(remote.path.0, path);
        }
    }
}
