//! Places where movers can be started, and the address of the broker for each.
use dmover_model::Fatal;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::launcher::Post;
use super::shell_line;
use crate::{Address, Identity, JoinFile};

/// The time limit of ssh for connecting.
const CONNECT_S: u32 = 15;
/// The interval of ssh keep-alives; a silent connection is closed after four of them.
const ALIVE_S: u32 = 15;

/// Where movers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Site {
    /// On this host.
    Local {
        /// Number of movers.
        movers: u32,
    },
    /// On hosts over ssh.
    Ssh {
        /// Host names for ssh.
        hosts: Vec<String>,
        /// Movers on each host.
        each: u32,
        /// The ssh command with its options.
        ssh: Vec<OsString>,
    },
    /// Movers that the user starts separately.
    Elsewhere,
    /// On the nodes of the present Slurm job.
    Srun {
        /// Number of nodes.
        nodes: u32,
        /// Movers on each node.
        each: u32,
        /// Processors for each mover.
        cpus: Option<u32>,
    },
    /// On the nodes of the present PBS job: one mover for each line of its node file.
    Pbsdsh,
}

/// A broker that already exists.
#[derive(Debug, Clone)]
pub struct Given {
    /// Its address or join file, as the user gave it.
    pub word: OsString,
    /// The content of the join file.
    pub join: Vec<u8>,
}

impl Given {
    /// Reads the join file, if it is one. `insecure`: connections in clear text are allowed; `identity`: the user whose
    /// offers movers accept if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or must not be used.
    pub fn new(word: &OsStr, insecure: bool, identity: &Identity) -> Result<Self, Fatal> {
        Address::of_word(word, insecure)?;
        let is_url = |text: &str| text.starts_with("nats://") || text.starts_with("tls://");
        let join = match word.to_str() {
            Some(url) if is_url(url) => {
                let url = url.to_owned();
                let signers = vec![identity.signer()];
                let mover_seed = Some(identity.of_movers()?.seed()?);
                let join = JoinFile { url, signers, mover_seed, ..JoinFile::default() };
                serde_json::to_vec(&join).unwrap_or_default()
            }
            _ => {
                let mut join = JoinFile::read(Path::new(word))?;
                // Movers elsewhere have no key of this user, who need not be the one of the broker.
                if !join.signers.contains(&identity.signer()) {
                    join.signers.push(identity.signer());
                }
                serde_json::to_vec(&join).unwrap_or_default()
            }
        };
        Ok(Self { word: word.to_owned(), join })
    }
}

/// The broker for movers.
#[derive(Debug, Clone)]
pub enum BrokerPlace {
    /// One that already exists.
    Given(Given),
    /// One that is started for the job.
    Own {
        /// The directory for its data.
        state: PathBuf,
        /// The address that movers connect to.
        listen: IpAddr,
    },
}

impl Site {
    /// The posts to start. `program`: the path of dmover on those hosts; `options`: options for movers besides the
    /// broker.
    pub(super) fn posts(
        &self,
        program: &Path,
        options: &[OsString],
        broker: &Given,
        logs: &Path,
    ) -> Vec<Post> {
        let mover = |broker: &OsStr| {
            let mut words: Vec<OsString> = vec![program.into(), "mover".into(), "--broker".into()];
            words.push(broker.to_owned());
            words.extend(options.iter().cloned());
            words
        };
        // The credentials go through standard input: every user can see command lines, and another host need not have
        // the file. The end of the input tells a mover that it is not needed any more.
        let mut fed = mover(OsStr::new("-"));
        fed.push("--until-eof".into());
        let feed = [&broker.join[..], b"\n"].concat();
        match self {
            Self::Local { movers } => {
                let post = |number| {
                    let name = format!("here-{number}");
                    Post::new(&name, fed.clone(), logs).fed(feed.clone())
                };
                (1..=*movers).map(post).collect()
            }
            Self::Ssh { hosts, each, ssh } => {
                let places = hosts.iter().flat_map(|host| (1..=*each).map(move |n| (host, n)));
                let post = |(host, number): (&String, u32)| {
                    let words = ssh_words(ssh, host, &fed);
                    let name = if *each > 1 { format!("{host}-{number}") } else { host.clone() };
                    Post::new(&name, words, logs).fed(feed.clone()).skipped_if_absent()
                };
                places.map(post).collect()
            }
            Self::Elsewhere => Vec::new(),
            Self::Srun { nodes, each, cpus } => {
                let words = srun_words([*nodes, *each], *cpus, &fed);
                vec![Post::new("nodes", words, logs).fed(feed)]
            }
            Self::Pbsdsh => {
                // It forwards no standard input: nodes read the file, and are stopped by a signal.
                let mut words: Vec<OsString> = vec!["pbsdsh".into(), "--".into()];
                words.extend(mover(&broker.word));
                vec![Post::new("nodes", words, logs)]
            }
        }
    }
}

fn ssh_words(ssh: &[OsString], host: &str, mover: &[OsString]) -> Vec<OsString> {
    let mut words = ssh.to_vec();
    for option in [
        "BatchMode=yes".to_owned(),
        format!("ConnectTimeout={CONNECT_S}"),
        format!("ServerAliveInterval={ALIVE_S}"),
        "ServerAliveCountMax=4".to_owned(),
    ] {
        words.extend(["-o".into(), option.into()]);
    }
    words.extend(["-T".into(), "--".into(), host.into()]);
    // The other side gives it to a shell.
    let command = [b"exec ".as_slice(), &shell_line(mover)].concat();
    words.push(OsString::from_vec(command));
    words
}

fn srun_words([nodes, each]: [u32; 2], cpus: Option<u32>, mover: &[OsString]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["srun".into()];
    // One mover that ends takes no other along, and srun says which node has said what.
    for option in ["--kill-on-bad-exit=0", "--wait=0", "--label", "--unbuffered"] {
        words.push(option.into());
    }
    words.push(format!("--nodes={nodes}").into());
    words.push(format!("--ntasks={}", nodes * each).into());
    words.push(format!("--ntasks-per-node={each}").into());
    if let Some(cpus) = cpus {
        // Since 22.05, srun does not know of this option of sbatch.
        words.push(format!("--cpus-per-task={cpus}").into());
    }
    words.extend(mover.iter().cloned());
    words
}

/// The address of this host on the route to another host. Nothing is sent.
///
/// # Errors
/// The host has no address, or there is no route to it.
pub fn address_towards(host: &str) -> Result<IpAddr, Fatal> {
    let fail = |error: &dyn std::fmt::Display| {
        let message = format!("no address of this host reaches '{host}': {error}");
        Fatal::unavailable(
            message,
            "name one of this host's addresses with --listen, or --interface",
        )
    };
    let unknown = |error: &dyn std::fmt::Display| {
        let message = format!("cannot find the address of the host '{host}': {error}");
        Fatal::unavailable(message, "check how it is spelled; 'getent hosts NAME' looks it up")
    };
    let mut addresses = (host, 9).to_socket_addrs().map_err(|error| unknown(&error))?;
    let address = addresses.next().ok_or_else(|| unknown(&"it has none"))?;
    let any = match address.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let own = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    own.map(|own| own.ip()).map_err(|error| fail(&error))
}

/// The standard output of a short command. `None`: it failed, or does not exist here.
fn ask(words: &[&OsStr]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first address of an interface such as `ib0`.
///
/// # Errors
/// It has no address.
pub fn address_of_interface(name: &str) -> Result<IpAddr, Fatal> {
    let words = ["ip", "-oneline", "address", "show", "scope", "global", "dev", name];
    let said = ask(&words.map(OsStr::new)).unwrap_or_default();
    first_address(&said).ok_or_else(|| {
        let message = format!("--interface {name}: it has no address on this host");
        Fatal::refused(message, "'ip address' lists interfaces and their addresses")
    })
}

/// The address in `2: ib0    inet 10.1.2.3/16 brd …`.
fn first_address(said: &str) -> Option<IpAddr> {
    let mut found = said.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip_while(|word| !word.starts_with("inet"));
        words.next()?;
        words.next()?.split('/').next()?.parse().ok()
    });
    found.next()
}

/// The host that ssh connects to, which the configuration of ssh may list under another name.
pub fn host_behind_ssh(ssh: &[OsString], host: &str) -> String {
    let mut words: Vec<&OsStr> = ssh.iter().map(OsString::as_os_str).collect();
    words.extend(["-G", "--", host].map(OsStr::new));
    let said = ask(&words).unwrap_or_default();
    let name = said.lines().find_map(|line| line.strip_prefix("hostname "));
    let plain = || host.rsplit_once('@').map_or(host, |(_, host)| host).to_owned();
    name.map_or_else(plain, |name| name.trim().to_owned())
}

/// The nodes of a Slurm job, with the addresses that Slurm has for them.
pub fn slurm_nodes(list: &str) -> Vec<String> {
    let words = ["scontrol", "show", "hostnames", list];
    let names = ask(&words.map(OsStr::new)).unwrap_or_default();
    let address = |name: &str| {
        let words = ["scontrol", "--oneliner", "show", "node", name];
        let said = ask(&words.map(OsStr::new))?;
        let mut fields = said.split_ascii_whitespace();
        fields.find_map(|field| field.strip_prefix("NodeAddr=")).map(str::to_owned)
    };
    names.lines().map(|name| address(name).unwrap_or_else(|| name.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(post: &Post) -> String {
        let words: Vec<_> = post.words().iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    fn posts(site: &Site) -> Vec<Post> {
        let broker = Given { word: "/state/join.json".into(), join: b"{secret}".to_vec() };
        site.posts(Path::new("/opt/d m"), &["-j2".into()], &broker, Path::new("/logs"))
    }

    #[test]
    fn secrets_go_through_standard_input() {
        let ssh = Site::Ssh {
            hosts: vec!["a".into(), "me@b".into()],
            each: 2,
            ssh: vec!["ssh".into(), "-F".into(), "file".into()],
        };
        for site in [Site::Local { movers: 3 }, ssh, Site::Srun { nodes: 4, each: 2, cpus: None }] {
            for post in posts(&site) {
                assert!(!shown(&post).contains("secret"), "{}", shown(&post));
                assert!(
                    shown(&post).ends_with("mover --broker - -j2 --until-eof"),
                    "{}",
                    shown(&post)
                );
            }
        }
        let posts = posts(&Site::Pbsdsh);
        assert_eq!(shown(&posts[0]), "pbsdsh -- /opt/d m mover --broker /state/join.json -j2");
    }

    #[test]
    fn ssh_asks_nobody_and_gives_up_in_time() {
        let hosts = vec!["me@b".into()];
        let site = Site::Ssh { hosts, each: 1, ssh: vec!["ssh".into()] };
        let wanted = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15 \
            -o ServerAliveCountMax=4 -T -- me@b exec '/opt/d m' mover --broker - -j2 --until-eof";
        assert_eq!(shown(&posts(&site)[0]), wanted);
    }

    #[test]
    fn srun_has_one_mover_end_without_the_others() {
        let words = shown(&posts(&Site::Srun { nodes: 3, each: 2, cpus: Some(4) })[0]);
        let wanted = "srun --kill-on-bad-exit=0 --wait=0 --label --unbuffered --nodes=3 --ntasks=6 --ntasks-per-node=2 \
            --cpus-per-task=4 /opt/d m mover --broker - -j2 --until-eof";
        assert_eq!(words, wanted);
    }

    #[test]
    fn addresses_are_found() {
        assert_eq!(address_towards("127.0.0.1").unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let error = address_towards("no such host").unwrap_err();
        assert!(error.to_string().contains("'no such host'"), "{error}");
        let said = "2: ib0    inet 10.1.2.3/16 brd 10.1.255.255 scope global ib0\\  valid_lft\n\
                    2: ib0    inet6 fe80::1/64 scope link \\ valid_lft forever\n";
        assert_eq!(first_address(said), Some([10, 1, 2, 3].into()));
        assert_eq!(first_address("nothing\n"), None);
    }
}
