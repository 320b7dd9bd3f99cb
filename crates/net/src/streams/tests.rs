//! Pools over sockets of this host, and over TLS, with streams that fail.
use super::StreamOptions;
use super::dial::Dialer;
use super::handshake;
use super::identity::Identity;
use super::pool::Pool;
use super::shared::{End, Transport};
use crate::connection::Link;
use dmover_model::Protected;
use dmover_wire::streams::{Compression, Protection};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const WITHIN: Duration = Duration::from_secs(10);

fn transport(socket: UnixStream) -> Transport {
    let closes = socket.try_clone().expect("clone");
    Transport {
        input: Box::new(socket.try_clone().expect("clone")),
        output: Box::new(socket),
        close: Box::new(move || drop(closes.shutdown(Shutdown::Both))),
        socket: None,
        is_in_ssh: false,
    }
}

/// Two pools whose spare streams lead to each other, and what ends the spare ones.
fn pools(compression: Compression) -> ([Pool; 2], UnixStream) {
    let (one, other) = UnixStream::pair().expect("sockets");
    let ends = one.try_clone().expect("clone");
    (
        [one, other].map(|end| Pool::new(transport(end), PATIENCE, compression).expect("threads")),
        ends,
    )
}

fn join(pools: &[Pool; 2]) -> UnixStream {
    let (one, other) = UnixStream::pair().expect("sockets");
    let ends = one.try_clone().expect("clone");
    pools[0].add(transport(one)).expect("threads");
    pools[1].add(transport(other)).expect("threads");
    ends
}

fn links(pools: [Pool; 2]) -> [Link; 2] {
    pools.map(|pool| pool.link(Box::new(|_| ()), (Protected::Nothing, Protected::Ssh)))
}

/// Sends random bytes in both directions while streams fail, and returns whether they arrive.
fn exchange(seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let compression = [Compression::Auto, Compression::Always, Compression::Never];
    let compression = compression[rng.random_range(0..3)];
    let ([one, other], _spare) = pools(compression);
    let both = [one, other];
    let count = rng.random_range(1..5);
    let mut streams: Vec<UnixStream> = (0..count).map(|_| join(&both)).collect();
    let contents: [Vec<u8>; 2] = std::array::from_fn(|_| {
        let length = rng.random_range(0..3 << 20);
        // Parts of it can be compressed.
        let most = [4, 255][rng.random_range(0..2)];
        (0..length).map(|_| rng.random_range(0..=most)).collect()
    });
    let steps: Vec<usize> = (0..2000).map(|_| rng.random_range(1..=100_000)).collect();
    let links = links([both[0].clone(), both[1].clone()]);
    thread::scope(|scope| {
        let mut readers = Vec::new();
        for ((link, own), other) in links.into_iter().zip(&contents).zip(contents.iter().rev()) {
            let Link { mut input, mut output, hang_up, .. } = link;
            let steps = &steps;
            scope.spawn(move || {
                let mut rest = &own[..];
                for step in steps.iter().cycle() {
                    if rest.is_empty() {
                        break;
                    }
                    let (now, later) = rest.split_at(rest.len().min(*step));
                    output.write_all(now).expect("send");
                    rest = later;
                }
            });
            let wanted = other.len();
            readers.push(scope.spawn(move || {
                let mut read = vec![0; wanted];
                input.read_exact(&mut read).expect("receive");
                (read, input, hang_up)
            }));
        }
        for _ in 0..rng.random_range(0..20) {
            if rng.random_bool(0.5) && !streams.is_empty() {
                let ends = streams.swap_remove(rng.random_range(0..streams.len()));
                let _ = ends.shutdown(Shutdown::Both);
            } else {
                streams.push(join(&both));
            }
            for _ in 0..rng.random_range(0..200) {
                thread::yield_now();
            }
        }
        let ends: Vec<_> = readers.into_iter().map(|reader| reader.join().expect("read")).collect();
        for ((read, _, _), wanted) in ends.iter().zip(contents.iter().rev()) {
            assert!(read == wanted, "seed {seed}: other bytes came");
        }
    });
}

#[test]
fn what_is_sent_arrives_whatever_streams_fail() {
    for seed in 0..40 {
        exchange(seed);
    }
}

/// A stream that takes everything and delivers nothing.
fn swallow(pool: &Pool) -> UnixStream {
    let (one, other) = UnixStream::pair().expect("sockets");
    pool.add(transport(one)).expect("threads");
    let mut swallows = other.try_clone().expect("clone");
    thread::spawn(move || io::copy(&mut swallows, &mut io::sink()));
    other
}

#[test]
fn a_stream_that_delivers_nothing_stops_no_other_one() {
    let ([one, other], _spare) = pools(Compression::Auto);
    let _dead = swallow(&one);
    let both = [one, other];
    let _alive = join(&both);
    let [from, to] = links(both);
    let sent = vec![9; 4 << 20];
    let (mut output, wanted) = (from.output, sent.clone());
    let sender = thread::spawn(move || {
        output.write_all(&sent).expect("send");
        output
    });
    let mut read = vec![0; wanted.len()];
    let (done, waiting) = mpsc::channel();
    let mut input = to.input;
    thread::spawn(move || {
        let result = input.read_exact(&mut read);
        let _ = done.send((result.map(|()| read), input));
    });
    let (read, _input) = waiting.recv_timeout(Duration::from_mins(1)).expect("it hangs");
    assert!(read.expect("receive") == wanted);
    drop(sender.join());
}

#[test]
fn the_end_of_the_other_process_is_noticed() {
    let ([one, other], spare) = pools(Compression::Auto);
    let both = [one, other];
    let stream = join(&both);
    let [_one, to] = links(both);
    let mut input = to.input;
    let reader = thread::spawn(move || input.read(&mut [0; 1]));
    // As the kernel does for a process that ends.
    for socket in [&stream, &spare] {
        socket.shutdown(Shutdown::Both).expect("shut down");
    }
    assert_eq!(reader.join().expect("read").expect("the end"), 0);
}

#[test]
fn streams_go_on_without_the_spare_one() {
    let ([one, other], spare) = pools(Compression::Auto);
    let both = [one, other];
    let _stream = join(&both);
    spare.shutdown(Shutdown::Both).expect("shut down");
    let [from, to] = links(both);
    let (mut output, mut input) = (from.output, to.input);
    output.write_all(b"words").expect("send");
    let mut read = [0; 5];
    input.read_exact(&mut read).expect("receive");
    assert_eq!(&read, b"words");
}

#[test]
fn invalid_data_ends_a_pool() {
    let unknown_kind = [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let never_sent = [0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    for bytes in [unknown_kind, never_sent] {
        let (one, mut other) = UnixStream::pair().expect("sockets");
        let pool = Pool::new(transport(one), PATIENCE, Compression::Auto).expect("threads");
        let mut input = pool.link(Box::new(|_| ()), (Protected::Nothing, Protected::Ssh)).input;
        other.write_all(&bytes).expect("send");
        let error = input.read(&mut [0; 1]).expect_err("invalid");
        let why = error.get_ref().and_then(|why| why.downcast_ref());
        assert!(matches!(why, Some(End::Violation(_))), "{error}");
    }
}

/// Two connected sockets of TCP.
fn tcp() -> [TcpStream; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
    [near, listener.accept().expect("accept").0]
}

/// Opens a stream between two sides, each of which knows the certificate that it is given; `None`: that of the other side.
fn open(protections: [Protection; 2], foreign: [Option<Vec<u8>>; 2]) -> [io::Result<Transport>; 2] {
    let [near, far] = tcp();
    let [client, server] = [(); 2].map(|()| Identity::make().expect("random numbers"));
    let [known_by_client, known_by_server] = foreign;
    let to_client = known_by_client.unwrap_or_else(|| server.certificate());
    let to_server = known_by_server.unwrap_or_else(|| client.certificate());
    let client = client.client(to_client).expect("certificate");
    let server = server.server(to_server).expect("certificate");
    let accepts = thread::spawn(move || handshake::accept(far, &server, protections[1], WITHIN));
    let near = handshake::connect(near, &client, protections[0], WITHIN);
    [near, accepts.join().expect("accept")]
}

#[test]
fn every_protection_carries_bytes_both_ways() {
    for protection in [Protection::Full, Protection::Integrity, Protection::None] {
        let [near, far] = open([protection; 2], [None, None]).map(|end| end.expect("open"));
        let (to_far, to_near) = (vec![1; 3 << 20], vec![2; 3 << 20]);
        thread::scope(|scope| {
            let ends = [(near, &to_far, &to_near), (far, &to_near, &to_far)];
            for (end, own, other) in ends {
                let Transport { mut input, mut output, .. } = end;
                scope.spawn(move || {
                    output.write_all(own).expect("send");
                    output.flush().expect("send");
                    output
                });
                scope.spawn(move || {
                    let mut read = vec![0; other.len()];
                    input.read_exact(&mut read).expect("receive");
                    assert!(read == *other, "{protection:?}");
                });
            }
        });
    }
}

#[test]
fn only_the_certificates_of_the_connection_are_accepted() {
    let foreign = || Some(Identity::make().expect("random numbers").certificate());
    let full = [Protection::Full; 2];
    for foreign in [[foreign(), None], [None, foreign()]] {
        let [near, far] = open(full, foreign);
        assert!(near.is_err() || far.is_err());
        assert!(far.is_err(), "the side that listens went on");
    }
}

/// Who accepts first may be somebody else, and say nothing.
#[test]
fn a_silent_stranger_delays_streams_to_another_address_by_seconds_only() {
    const STREAMS: u32 = 4;
    let right = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let port = right.local_addr().expect("bound").port();
    let stranger = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), port)).expect("bind");
    let ([near, far], _spare) = pools(Compression::Never);
    let [client, server] = [(); 2].map(|()| Identity::make().expect("random numbers"));
    let (own, other) = (client.certificate(), server.certificate());
    let server = server.server(own).expect("certificate");
    let (sender, opened) = mpsc::channel();
    thread::spawn(move || {
        // Until the stranger has been accepted, nobody answers.
        let (mut held, _) = stranger.accept().expect("accept");
        held.set_nonblocking(true).expect("set");
        for socket in right.incoming() {
            let accepted =
                handshake::accept(socket.expect("accept"), &server, Protection::Full, WITHIN);
            // The stranger has closed nothing by then.
            let mut hello = [0; 4096];
            while matches!(held.read(&mut hello), Ok(1..)) {}
            let waits = held.read(&mut hello).expect_err("nobody has given up");
            assert_eq!(waits.kind(), io::ErrorKind::WouldBlock);
            far.add(accepted.expect("the right one")).expect("threads");
            sender.send(()).expect("somebody waits");
        }
    });
    let mut options = StreamOptions::none();
    (options.settings.count, options.settings.grows) = (STREAMS, false);
    let dialer = Dialer {
        pool: near.clone(),
        config: client.client(other).expect("certificate"),
        named: vec!["127.0.0.2".into(), "127.0.0.1".into()],
        port,
        host: "far".into(),
        spare: "ssh",
        through_ssh: None,
        options,
    };
    dialer.start().expect("thread");
    for _ in 0..STREAMS {
        opened.recv_timeout(2 * WITHIN).expect("a stream");
    }
    // The side that connects learns it last.
    let end = Instant::now() + WITHIN;
    while near.streams() < STREAMS as usize && Instant::now() < end {
        thread::yield_now();
    }
    assert_eq!(near.streams(), STREAMS as usize);
}

#[test]
fn a_stream_with_less_protection_is_refused() {
    let [near, far] = open([Protection::None, Protection::Full], [None, None]);
    assert!(near.is_err() && far.is_err());
}

#[test]
fn whoever_sends_anything_else_is_refused_in_time() {
    let identity = Identity::make().expect("random numbers");
    let server = identity.server(Vec::new()).expect("certificate");
    let endless = vec![0x16; 1 << 20];
    for (sent, closes) in
        [(&b"GET / HTTP/1.1\r\n\r\n"[..], true), (&endless, true), (b"\x16", false)]
    {
        let [mut near, far] = tcp();
        let within = Duration::from_millis(300);
        let server = Arc::clone(&server);
        let accepts = thread::spawn(move || {
            handshake::accept(far, &server, Protection::Full, within)
                .err()
                .map(|error| error.kind())
        });
        // The other side may close it before all was sent.
        let _ = near.write_all(sent);
        if closes {
            let _ = near.shutdown(Shutdown::Write);
        }
        let refused = accepts.join().expect("accept");
        assert!(refused.is_some(), "{sent:?}");
        if !closes {
            assert_eq!(refused, Some(io::ErrorKind::TimedOut));
        }
    }
}

#[test]
fn the_other_side_names_few_addresses_to_connect_to() {
    for (address, is_here, may) in [
        ("192.0.2.7", false, true),
        ("2001:db8::7", false, true),
        ("127.0.0.1", false, false),
        ("127.0.0.1", true, true),
        ("::1", false, false),
        ("224.0.0.1", true, false),
        ("0.0.0.0", true, false),
        ("printer.example", true, false),
        ("", true, false),
    ] {
        assert_eq!(super::may_dial(address, is_here), may, "{address}");
    }
}
