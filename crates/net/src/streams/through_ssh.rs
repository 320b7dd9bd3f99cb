//! Streams that ssh carries, where no port can be reached.
//!
//! Each has a connection of ssh of its own: one alone has a window of 2 MiB (`channels.h` of OpenSSH), which is little on a
//! long line. At the other end an agent passes the bytes on to the port on which the agent of the job listens. So both sides do the
//! same as without ssh, and prove to each other who they are.
use dmover_host::tcp;
use dmover_schedule::thread;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::shared::Transport;
use crate::endpoint::RemoteHost;
use crate::failure::Ended;
use crate::remote_command;
use crate::ssh::{Ssh, SshOptions};

/// How long the login and the handshake may take.
pub(super) const LOGIN_WITHIN: Duration = Duration::from_mins(1);
/// What is passed on at a time.
const PASSED_BYTES: usize = 256 << 10;
/// How long ssh may take to say why it ended.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// How ssh reaches a host.
#[derive(Debug)]
pub(crate) struct ThroughSsh {
    pub host: RemoteHost,
    pub options: SshOptions,
}

/// A connection of ssh to a port of a host.
pub(super) struct SshLine {
    socket: TcpStream,
    ssh: Ssh,
    host: String,
}

impl ThroughSsh {
    /// Starts ssh. The kernel kills it with the calling thread.
    pub(super) fn connect(&self, port: u16) -> io::Result<SshLine> {
        let agent = self.options.agent.as_ref().map(|path| &path.0[..]);
        let command = remote_command::stream_to(port, agent);
        let [socket, theirs] = pair()?;
        tcp::take_little_ahead(&theirs);
        let line = [theirs.try_clone()?.into(), theirs.into()];
        let ssh = Ssh::start_further(&self.host, &self.options, &command, line);
        let ssh = ssh.map_err(|error| io::Error::other(error.to_string()))?;
        Ok(SshLine { socket, ssh, host: self.host.shown() })
    }
}

impl SshLine {
    /// Makes it a stream by a handshake.
    pub fn prove(
        self,
        handshake: impl FnOnce(TcpStream) -> io::Result<Transport>,
    ) -> io::Result<Transport> {
        let Self { socket, ssh, host } = self;
        let ssh = Arc::new(ssh);
        let transport = handshake(socket).map_err(|error| {
            let status = ssh.end(REASON_WITHIN);
            let errors = ssh.errors();
            let ended = Ended { host: &host, status, errors: &errors, agent: None };
            io::Error::new(error.kind(), ended.last_line().unwrap_or(&error.to_string()))
        })?;
        let closes = transport.close;
        // ssh ends with its standard input, and at the latest when the stream is dropped.
        let close = Box::new(move || {
            closes();
            let _of_the_stream = &ssh;
        });
        Ok(Transport { close, is_in_ssh: true, ..transport })
    }
}

/// Both ends of a TCP connection within this host. A socketpair(2) would do, but all other streams are of TCP.
fn pair() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let own = TcpStream::connect(listener.local_addr()?)?;
    let address = own.local_addr()?;
    loop {
        let (other, from) = listener.accept()?;
        // Any process of this host may have been faster.
        if from == address {
            own.set_nodelay(true)?;
            other.set_nodelay(true)?;
            return Ok([own, other]);
        }
    }
}

/// Passes on what comes to a port of this host, and what comes from there back, until either side ends. So the other end of a
/// connection of ssh reaches the agent of a job.
///
/// # Errors
/// No program of this user listens there, or a connection fails.
pub fn stream_to(
    port: u16,
    input: impl Read + Send + 'static,
    output: impl Write,
) -> io::Result<()> {
    // Whoever may only run dmover here is not to reach the services of others.
    let own = dmover_host::user::effective_uid();
    if tcp::listener_of(port)? != Some(own) {
        return Err(io::Error::other("no program of this user listens there"));
    }
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_nodelay(true)?;
    tcp::take_little_ahead(&socket);
    let there = socket.try_clone()?;
    thread::Builder::new().name("net-stream".into()).spawn(move || {
        let _ = pass_on(input, &there);
        let _ = there.shutdown(Shutdown::Write);
    })?;
    pass_on(&socket, output)
}

/// io::copy() would use splice(2), which holds the lock of a pipe while it waits for the socket, so that whoever reads from the
/// pipe waits as well.
fn pass_on(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; PASSED_BYTES];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..read])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::Ipv6Addr;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn bytes_pass_in_both_directions_until_one_side_ends() {
        // As an agent does.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = thread::Builder::new().spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut came = [0; 5];
            socket.read_exact(&mut came).unwrap();
            socket.write_all(b"answer").unwrap();
            came
        });
        let mut output = Vec::new();
        stream_to(port, &b"hello"[..], &mut output).unwrap();
        assert_eq!((answers.unwrap().join().unwrap(), output), (*b"hello", b"answer".to_vec()));
    }

    #[test]
    fn everything_else_than_a_port_of_the_same_user_is_refused() {
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let refused = |port| stream_to(port, io::empty(), io::sink()).unwrap_err().to_string();
        assert_eq!(refused(closed.port()), "no program of this user listens there");
        if dmover_host::user::effective_uid() != 0 {
            eprintln!("not tested: the port of another user, which needs root");
            return;
        }
        let script = "import socket, sys\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\n\
            print(s.getsockname()[1], flush=True)\nsys.stdin.read()";
        let mut other = Command::new("python3");
        other.args(["-c", script]).uid(65_534).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut other = other.spawn().unwrap();
        let mut port = String::new();
        BufReader::new(other.stdout.take().unwrap()).read_line(&mut port).unwrap();
        assert_eq!(refused(port.trim().parse().unwrap()), "no program of this user listens there");
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
