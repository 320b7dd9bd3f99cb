//! A line between two hosts delays, limits, loses and falls silent, and leaves nothing.
// A test looks paths up as a user's script would.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, reason = "tests stop")]

use std::num::NonZeroU64;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dmover_testkit::cluster::{Cluster, DelayLine, FarHost, Host, LineOptions, Piece, needs};
use dmover_testkit::skip;

/// Sends every datagram back.
const ECHO: &str = r"
import socket, sys
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind((sys.argv[1], 7))
while True:
    data, peer = own.recvfrom(65536)
    own.sendto(data, peer)
";

/// Waits for the echo of a first datagram (a limit of 0 tries: it does not), sends more at once, and prints how many came
/// back, the fastest round trip, and how long it took until the last one, in seconds.
const PROBE: &str = r"
import select, socket, sys, time
address, tries, count, size, patience = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.connect((address, 7))
def receive(seconds):
    ready, _, _ = select.select([own], [], [], seconds)
    if not ready:
        return None
    try:
        return own.recv(65536)
    except ConnectionRefusedError:
        # Nobody listens yet.
        time.sleep(0.02)
        return None
for _ in range(tries):
    try:
        own.send(b'first')
    except ConnectionRefusedError:
        time.sleep(0.02)
    if receive(0.5):
        break
else:
    assert not tries, 'no echo'
begin, sent = time.monotonic(), {}
for number in range(count):
    sent[number] = time.monotonic()
    own.send(b'%8d' % number + bytes(size - 8))
echoed, fastest, last = 0, 1e9, 0
while echoed < count:
    data = receive(patience)
    if data is None:
        break
    now = time.monotonic()
    if data != b'first':
        echoed += 1
        fastest, last = min(fastest, now - sent[int(data[:8])]), now - begin
print(echoed, fastest, last)
";

/// Receives a stream from the first that connects, and prints its digest.
const SINK: &str = r"
import hashlib, socket, sys
own = socket.create_server((sys.argv[1], 9))
peer, _ = own.accept()
digest = hashlib.sha256()
while data := peer.recv(1 << 20):
    digest.update(data)
print(digest.hexdigest())
";

/// Sends a stream, and prints its digest.
const STREAM: &str = r"
import hashlib, random, socket, sys, time
data = random.Random(1).randbytes(int(sys.argv[2]))
while True:
    try:
        own = socket.create_connection((sys.argv[1], 9))
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
own.sendall(data)
print(hashlib.sha256(data).hexdigest())
";

/// Sends datagrams to the echo, ten with each call, and prints how many came back.
const TOGETHER: &str = r"
import socket, sys
SOL_UDP, UDP_SEGMENT, SIZE = 17, 103, 1200
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.connect((sys.argv[1], 7))
own.setsockopt(SOL_UDP, UDP_SEGMENT, SIZE)
sent, echoed = set(), set()
def receive(seconds):
    own.settimeout(seconds)
    try:
        while len(echoed) < len(sent):
            echoed.add(own.recv(65536))
    except TimeoutError:
        pass
for call in range(int(sys.argv[2])):
    datagrams = [b'%8d' % (call * 10 + number) * (SIZE // 8) for number in range(10)]
    # The last one is shorter.
    datagrams[9] = datagrams[9][:400]
    sent.update(datagrams)
    own.send(b''.join(datagrams))
    # More at once than a socket has room for would be lost outside of the line.
    receive(0.05)
receive(2)
assert echoed <= sent, 'an echo of something else'
print(len(echoed))
";

/// Kills a process at its end.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Rig {
    _echo: Server,
    line: DelayLine,
    cluster: Cluster,
}

/// What [`PROBE`] prints.
#[derive(Debug)]
struct Echoes {
    count: u64,
    fastest: Duration,
    last: Duration,
}

/// Datagrams that are sent at once.
#[derive(Clone, Copy)]
struct Probe {
    tries: u32,
    count: u64,
    bytes: u64,
    /// How long the last one is waited for.
    patience: Duration,
}

impl Default for Probe {
    fn default() -> Self {
        Self { tries: 100, count: 1, bytes: 100, patience: Duration::from_secs(20) }
    }
}

impl Rig {
    fn start(options: &LineOptions) -> Self {
        let cluster = Cluster::new(&["near", "far"]).unwrap();
        let line = DelayLine::between(cluster.host("near"), cluster.host("far"), options).unwrap();
        let address = line.far_address().to_string();
        let mut echo = cluster.host("far").command("python3");
        echo.args(["-c", ECHO, &address]).stdin(Stdio::null());
        Self { _echo: Server(echo.spawn().unwrap()), line, cluster }
    }

    fn probe(&self, probe: Probe) -> Echoes {
        let Probe { tries, count, bytes, patience } = probe;
        let mut command = self.cluster.host("near").command("timeout");
        command.args(["-k", "1", "90", "python3", "-c", PROBE]);
        command.arg(self.line.far_address().to_string());
        command.args([u64::from(tries), count, bytes].map(|number| number.to_string()));
        let text = output(command.arg(patience.as_secs_f64().to_string()));
        let words: Vec<&str> = text.split_whitespace().collect();
        let seconds = |word: &str| Duration::from_secs_f64(word.parse().unwrap());
        Echoes {
            count: words[0].parse().unwrap(),
            fastest: seconds(words[1]),
            last: seconds(words[2]),
        }
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {} {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn has_device(host: &Host, device: &str) -> bool {
    let links = output(Command::new("ip").args(["-n", host.namespace(), "-o", "link", "show"]));
    links.contains(&format!(" {device}: "))
}

macro_rules! need {
    () => {
        if let Err(why) = needs(&[Piece::Network, Piece::Tun]) {
            skip!("{why}");
        }
    };
}

#[test]
fn a_round_trip_takes_both_delays() {
    need!();
    let delay = Duration::from_millis(40);
    let rig = Rig::start(&LineOptions { delay, ..LineOptions::default() });
    let echoes = rig.probe(Probe { count: 5, ..Probe::default() });
    assert_eq!(echoes.count, 5);
    assert!(echoes.fastest >= 2 * delay, "{echoes:?}");
    let [there, back] = rig.line.counts();
    assert!(there.packets >= 6 && back.packets >= 6, "{there:?} {back:?}");
    assert_eq!((there.lost, back.lost), (0, 0));
}

#[test]
fn a_rate_makes_packets_wait_and_a_full_queue_drops_them() {
    need!();
    let rate_bytes_per_s = NonZeroU64::new(100_000);
    let rig = Rig::start(&LineOptions { rate_bytes_per_s, ..LineOptions::default() });
    // 50 datagrams of 1000 bytes take half a second without their headers.
    let echoes = rig.probe(Probe { count: 50, bytes: 1000, ..Probe::default() });
    assert_eq!(echoes.count, 50);
    assert!(echoes.last >= Duration::from_millis(500), "{echoes:?}");
    drop(rig);
    let rig = Rig::start(&LineOptions {
        rate_bytes_per_s,
        queue_bytes: 10_000,
        ..LineOptions::default()
    });
    let echoes = rig.probe(Probe {
        count: 50,
        bytes: 1000,
        patience: Duration::from_secs(3),
        ..Probe::default()
    });
    assert!(echoes.count < 50, "{echoes:?}");
    assert!(rig.line.counts()[0].overflowed > 0);
}

#[test]
fn a_share_of_packets_is_lost() {
    need!();
    let rig = Rig::start(&LineOptions { loss: 0.2, seed: 7, ..LineOptions::default() });
    let count = 400;
    let echoes = rig.probe(Probe { count, patience: Duration::from_secs(3), ..Probe::default() });
    let [there, back] = rig.line.counts();
    assert!(echoes.count > 0 && echoes.count < count, "{echoes:?}");
    assert!(there.lost > 0 && back.lost > 0, "{there:?} {back:?}");
}

#[test]
fn a_silent_line_passes_nothing_until_it_is_switched_on() {
    need!();
    let rig = Rig::start(&LineOptions::default());
    assert_eq!(rig.probe(Probe::default()).count, 1);
    rig.line.set_silent(true);
    let before = rig.line.counts();
    let quick = Probe { tries: 0, count: 10, patience: Duration::from_secs(1), ..Probe::default() };
    assert_eq!(rig.probe(quick).count, 0);
    let after = rig.line.counts();
    assert_eq!((after[0].packets, after[1].packets), (before[0].packets, before[1].packets));
    assert!(after[0].silenced >= 10, "{after:?}");
    rig.line.set_silent(false);
    assert_eq!(rig.probe(Probe::default()).count, 1);
    rig.line.silence_after(2000);
    assert!(!rig.line.is_silent());
    assert!(rig.probe(Probe { count: 10, bytes: 1000, ..quick }).count < 10);
    assert!(rig.line.is_silent());
    // A scheduled outage, from the beginning to much later.
    let outages = vec![Duration::ZERO..Duration::from_hours(1)];
    let rig = Rig::start(&LineOptions { outages, ..LineOptions::default() });
    assert_eq!(rig.probe(quick).count, 0);
}

#[test]
fn a_stream_arrives_whole_on_a_line_that_loses_segments() {
    need!();
    let options = LineOptions { loss: 0.01, seed: 3, ..LineOptions::default() };
    let rig = Rig::start(&options);
    let address = rig.line.far_address().to_string();
    let mut sink = rig.cluster.host("far").command("timeout");
    sink.args(["-k", "1", "90", "python3", "-c", SINK, &address]);
    let sink = sink.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stream = rig.cluster.host("near").command("timeout");
    let bytes = 16 << 20;
    stream.args(["-k", "1", "90", "python3", "-c", STREAM, &address, &bytes.to_string()]);
    let sent = output(&mut stream);
    let received = sink.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(received.stdout).unwrap(), sent);
    // The kernel passes packets of up to 64 KiB; what counts are segments, with headers of at least 40 bytes.
    let there = rig.line.counts()[0];
    assert!(there.lost > 0 && there.bytes >= bytes + 40 * there.packets, "{there:?}");
    assert!(there.bytes <= 1500 * there.packets, "{there:?}");
}

#[test]
fn datagrams_that_are_sent_together_are_lost_one_by_one() {
    need!();
    let send = |rig: &Rig, calls: u64| -> u64 {
        // The first echo shows that the other side listens.
        assert!(rig.probe(Probe::default()).count <= 1);
        let mut command = rig.cluster.host("near").command("timeout");
        command.args(["-k", "1", "90", "python3", "-c", TOGETHER]);
        command.args([rig.line.far_address().to_string(), calls.to_string()]);
        output(&mut command).trim().parse().unwrap()
    };
    let rig = Rig::start(&LineOptions::default());
    assert_eq!(send(&rig, 5), 50);
    let there = rig.line.counts()[0];
    assert!(there.packets >= 50 && there.bytes <= 1500 * there.packets, "{there:?}");
    drop(rig);
    let rig = Rig::start(&LineOptions { loss: 0.2, seed: 5, ..LineOptions::default() });
    let echoed = send(&rig, 20);
    let lost: u64 = rig.line.counts().iter().map(|counts| counts.lost).sum();
    assert!((1..200).contains(&echoed) && lost >= 200 - echoed, "{echoed} {lost}");
}

#[test]
fn a_stream_falls_silent_at_the_segment_that_reaches_the_number_of_bytes() {
    need!();
    let rig = Rig::start(&LineOptions::default());
    let address = rig.line.far_address().to_string();
    let bytes = 1_000_000;
    rig.line.silence_after(bytes);
    let mut sink = rig.cluster.host("far").command("python3");
    sink.args(["-c", SINK, &address]).stdin(Stdio::null()).stdout(Stdio::null());
    let _sink = Server(sink.spawn().unwrap());
    let mut stream = rig.cluster.host("near").command("python3");
    stream.args(["-c", STREAM, &address, "16000000"]).stdin(Stdio::null());
    let _stream = Server(stream.stdout(Stdio::null()).spawn().unwrap());
    let begin = std::time::Instant::now();
    while rig.line.counts()[0].silenced == 0 {
        assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", rig.line.counts());
        // A poll: counts do not wake anything.
        std::thread::sleep(Duration::from_millis(10));
    }
    let passed: u64 = rig.line.counts().iter().map(|counts| counts.bytes).sum();
    // Both directions may pass a packet at the same time.
    assert!((bytes..bytes + 2 * 1500).contains(&passed), "{passed}");
}

#[test]
fn lines_leave_nothing_also_after_a_panic() {
    need!();
    let cluster = Cluster::new(&["near", "far"]).unwrap();
    let (near, far) = (cluster.host("near"), cluster.host("far"));
    let lay = || DelayLine::between(near, far, &LineOptions::default()).unwrap();
    let (first, second) = (lay(), lay());
    let device = first.device();
    assert_ne!(device, second.device());
    assert_ne!(first.far_address(), second.far_address());
    assert!(has_device(near, &device) && has_device(far, &device));
    drop(first);
    assert!(!has_device(near, &device) && !has_device(far, &device));
    let device = second.device();
    assert!(has_device(near, &device));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _line = second;
        panic!("this is on purpose");
    }));
    assert!(panicked.is_err());
    assert!(!has_device(near, &device) && !has_device(far, &device));
}

#[test]
fn ssh_reaches_a_far_host_over_its_line() {
    if let Some(why) = FarHost::missing() {
        skip!("{why}");
    }
    let options = LineOptions::round_trip(Duration::from_millis(20));
    let far = FarHost::start(std::path::Path::new("/bin/true"), &options).unwrap();
    let words: Vec<&str> = far.ssh_command().split(' ').collect();
    let mut ssh = Command::new(words[0]);
    ssh.args(&words[1..]).args(["far", "hostname; echo \"$SSH_CONNECTION\"; pwd"]);
    let text = output(ssh.stdin(Stdio::null()));
    let lines: Vec<&str> = text.lines().collect();
    let (near, there) = (far.line.near_address(), far.line.far_address());
    assert_eq!(lines[0], "far");
    assert!(lines[1].starts_with(&format!("{near} ")), "{text}");
    assert!(lines[1].ends_with(&format!(" {there} 22")), "{text}");
    assert_eq!(lines[2], far.home().to_str().unwrap());
    assert!(far.line.counts()[1].bytes > 1000);
}
