//! TCP connections: how they are set up for a long line, and what the kernel knows of them.
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

pub use dmover_sys::socket::TcpInfo;

/// What waits in the kernel without having been sent, at most. More would only be bound to one stream of several, however
/// slow it becomes.
const UNSENT_BYTES: u32 = 128 << 10;
/// Bytes that one call passes on at most.
const FORWARDED_AT_ONCE: usize = 256 << 10;
/// The buffer for a short line.
const LITTLE_BYTES: u64 = 256 << 10;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// How connections are set up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuning {
    /// The congestion control, by the kernel's name; `None`: the kernel's choice.
    pub congestion: Option<String>,
    /// Bytes of the buffers in each direction; `None`: the kernel's choice, unless its limit for explicit buffers is larger.
    pub buffer_bytes: Option<u32>,
    /// The address that connections come from.
    pub from: Option<std::net::IpAddr>,
}

/// The limits of the kernel for buffers of sockets.
fn sysctl(name: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The size to ask for, if that gives more than the kernel would take by itself: it doubles what is asked for (socket(7)), and
/// does not adapt it later.
fn explicit_send_buffer() -> Option<u32> {
    let most = sysctl("core/wmem_max").first().copied().unwrap_or(0);
    let by_itself = sysctl("ipv4/tcp_wmem").get(2).copied().unwrap_or(u64::MAX);
    (2 * most > by_itself).then(|| u32::try_from(most).unwrap_or(u32::MAX))
}

impl Tuning {
    /// Before the connection is there: buffers decide how large a window may be announced.
    fn prepare(&self, socket: &Socket) -> io::Result<()> {
        if let Some(bytes) = self.buffer_bytes {
            socket.set_recv_buffer_size(bytes as usize)?;
            socket.set_send_buffer_size(bytes as usize)?;
        } else if let Some(bytes) = explicit_send_buffer() {
            socket.set_send_buffer_size(bytes as usize)?;
        }
        self.choose_congestion(&SockRef::from(socket))
    }

    fn choose_congestion(&self, socket: &SockRef<'_>) -> io::Result<()> {
        let Some(name) = &self.congestion else { return Ok(()) };
        socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
            io::Error::new(error.kind(), format!("congestion control '{name}': {error}"))
        })
    }
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
}

/// Connects to an address within this time.
///
/// # Errors
/// Nobody accepts there, or an option is not permitted.
pub fn connect(address: SocketAddr, tuning: &Tuning, within: Duration) -> io::Result<TcpStream> {
    let socket = new_socket(address)?;
    tuning.prepare(&socket)?;
    if let Some(from) = tuning.from {
        socket.bind(&SocketAddr::new(from, 0).into())?;
    }
    socket.connect_timeout(&address.into(), within)?;
    let stream = TcpStream::from(socket);
    accepted(&stream, tuning)?;
    Ok(stream)
}

/// Listens at an address. Accepting waits no longer than `patience`.
///
/// # Errors
/// The address is in use, or an option is not permitted.
pub fn listen(address: SocketAddr, tuning: &Tuning, patience: Duration) -> io::Result<TcpListener> {
    let socket = new_socket(address)?;
    tuning.prepare(&socket)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    // accept(2) keeps to it, as socket(7) says.
    socket.set_read_timeout(Some(patience))?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Sets up a connection for a stream of data: small messages are sent at once, and little waits in the kernel.
///
/// # Errors
/// The connection has ended.
pub fn accepted(stream: &TcpStream, tuning: &Tuning) -> io::Result<()> {
    let socket = SockRef::from(stream);
    // A route may have chosen another one for a connection that was accepted.
    tuning.choose_congestion(&socket)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT_BYTES)
}

/// Has a connection that is passed on take little ahead, if its line is short: what waits here cannot go another way, although the
/// sender may have faster ones.
pub fn take_little_ahead(stream: &TcpStream) {
    let Some(known) = info(stream) else { return };
    // For 10 Gbit/s.
    let on_its_way = u64::from(known.round_trip_us) * 1_250;
    if on_its_way < LITTLE_BYTES {
        // Without it more waits, and all is right.
        let _ = SockRef::from(stream).set_recv_buffer_size(LITTLE_BYTES as usize);
    }
}

/// Has the kernel ask from time to time whether the other side is there, and end the connection if it is not.
///
/// # Errors
/// The connection has ended.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (idle, every) = (Duration::from_mins(1), Duration::from_secs(15));
    let asks = socket2::TcpKeepalive::new().with_time(idle).with_interval(every).with_retries(8);
    SockRef::from(stream).set_tcp_keepalive(&asks)
}

/// The user whose program listens at a port of this host (proc_net(5)); `None`: there is none.
///
/// # Errors
/// The kernel does not tell.
pub fn listener_of(port: u16) -> io::Result<Option<u32>> {
    /// The state of a socket that listens.
    const LISTENS: &str = "0A";
    let wanted = format!(":{port:04X}");
    let mut tables = vec![std::fs::read_to_string("/proc/self/net/tcp")?];
    // Without IPv6 there is none.
    tables.extend(std::fs::read_to_string("/proc/self/net/tcp6"));
    let mut lines = tables.iter().flat_map(|table| table.lines().skip(1));
    Ok(lines.find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(1)?.ends_with(&wanted) && *fields.get(3)? == LISTENS;
        listens.then(|| fields.get(7)?.parse().ok()).flatten()
    }))
}

/// Waits until the other side has ended a connection, at most so long.
pub fn wait_for_end(stream: &TcpStream, within: Duration) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: within.subsec_nanos().into() };
    // A signal only shortens the wait.
    let _ = poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], Some(&limit));
}

/// Passes on what comes on one connection to another one, until the first one ends. The bytes stay in the kernel.
///
/// # Errors
/// One of the connections has failed.
pub fn forward(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    // The usual size is enough, but costs more calls.
    let _ = fcntl_setpipe_size(&input, FORWARDED_AT_ONCE);
    let flags = SpliceFlags::MOVE;
    loop {
        let mut waiting = match splice(from, None, &input, None, FORWARDED_AT_ONCE, flags) {
            Ok(0) => return Ok(()),
            Ok(moved) => moved,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        while waiting > 0 {
            match splice(&output, None, to, None, waiting, flags) {
                Ok(moved) => waiting -= moved,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// What the kernel knows of a connection; `None`: it has ended.
pub fn info(stream: &TcpStream) -> Option<TcpInfo> {
    dmover_sys::socket::tcp_info(stream).ok()
}

/// The congestion control of a connection.
pub fn congestion(stream: &TcpStream) -> Option<String> {
    let name = SockRef::from(stream).tcp_congestion().ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
}

/// The buffers of a connection: for what is sent, and for what is received.
pub fn buffers(stream: &TcpStream) -> Option<(usize, usize)> {
    let socket = SockRef::from(stream);
    Some((socket.send_buffer_size().ok()?, socket.recv_buffer_size().ok()?))
}
