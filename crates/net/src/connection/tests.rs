//! Connections over socket pairs.
use super::*;
use dmover_schedule::thread;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

fn link(stream: &UnixStream) -> Link {
    let [input, output, ends] = [(); 3].map(|()| stream.try_clone().unwrap());
    let hang_up: HangUp = Box::new(move |_| {
        let _ = ends.shutdown(Shutdown::Both);
    });
    Link { input: Box::new(input), output: Box::new(output), hang_up, report: None }
}

/// Both sides; each request runs on a thread of its own.
pub(super) fn pair(
    terms: Terms,
    serve: impl Fn(Channel, Vec<u8>) + Send + Sync + Clone + 'static,
) -> (Connection, Connection) {
    let (here, there) = UnixStream::pair().unwrap();
    let accept = move |channel, message| {
        let serve = serve.clone();
        thread::spawn(move || serve(channel, message));
    };
    let far = Connection::answering(link(&there), terms, accept).unwrap();
    (Connection::asking(link(&here), terms).unwrap(), far)
}

/// One side, and the bare stream of the other one.
fn against_bytes(terms: Terms) -> (Connection, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    there.set_read_timeout(Some(PATIENCE)).unwrap();
    (Connection::asking(link(&here), terms).unwrap(), there)
}

#[allow(clippy::needless_pass_by_value, reason = "as all that serve a request here")]
fn echo(channel: Channel, message: Vec<u8>) {
    let _ = channel.send(&message);
    while let Ok(Some(message)) = channel.receive() {
        let _ = channel.send(&message);
    }
    let _ = channel.finish();
}

fn small() -> Terms {
    Terms { own_window: WINDOW_MIN, peer_window: WINDOW_MIN, ..Terms::default() }
}

/// Fails when something hangs, instead of hanging as well.
#[track_caller]
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(PATIENCE).expect("it hangs, or has panicked")
}

#[test]
fn requests_from_several_threads_get_their_own_answers() {
    let (near, _far) = pair(Terms::default(), echo);
    let near = Arc::new(near);
    in_time(move || {
        let threads: Vec<_> = (0..8u32)
            .map(|thread| {
                let near = Arc::clone(&near);
                thread::spawn(move || {
                    for number in 0..50u32 {
                        let words = format!("{thread} {number}").into_bytes();
                        let channel = near.request(&words).unwrap();
                        channel.send(b"more").unwrap();
                        channel.finish().unwrap();
                        assert_eq!(channel.receive().unwrap().unwrap(), words);
                        assert_eq!(channel.receive().unwrap().unwrap(), b"more");
                        assert_eq!(channel.receive().unwrap(), None);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(near.is_over().is_none());
        assert!(lock(&near.shared.channels).open.is_empty(), "channels are left");
    });
}

#[test]
fn more_bytes_than_a_window_pass_in_both_directions() {
    let (near, _far) = pair(small(), echo);
    in_time(move || {
        let channel = Arc::new(near.request(b"").unwrap());
        let sends = Arc::clone(&channel);
        let total = 40 * (PAYLOAD_MAX / 4);
        let sender = thread::spawn(move || {
            for number in 0..40u8 {
                sends.send(&vec![number; PAYLOAD_MAX / 4]).unwrap();
            }
            sends.finish().unwrap();
        });
        assert_eq!(channel.receive().unwrap().unwrap(), b"");
        let mut received = 0;
        while let Some(message) = channel.receive().unwrap() {
            assert!(message.iter().all(|byte| usize::from(*byte) == received / message.len()));
            received += message.len();
        }
        assert_eq!(received, total);
        sender.join().unwrap();
    });
}

#[test]
fn the_longest_messages_fit_the_smallest_window() {
    let (near, _far) = pair(small(), echo);
    in_time(move || {
        let channel = near.request(&vec![1; PAYLOAD_MAX]).unwrap();
        for _ in 0..10 {
            channel.send(&vec![2; PAYLOAD_MAX]).unwrap();
            assert_eq!(channel.receive().unwrap().unwrap().len(), PAYLOAD_MAX);
        }
    });
}

#[test]
fn a_channel_that_nobody_reads_stops_no_other_one() {
    let (near, _far) = pair(small(), |channel, message| match &message[..] {
        // It sends as much as it may, and more.
        b"much" => while channel.send(&vec![7; PAYLOAD_MAX]).is_ok() {},
        _ => echo(channel, message),
    });
    in_time(move || {
        let slow = near.request(b"much").unwrap();
        for _ in 0..20 {
            let other = near.request(&[1; 1000]).unwrap();
            assert_eq!(other.receive().unwrap().unwrap(), [1; 1000]);
        }
        for _ in 0..20 {
            assert_eq!(slow.receive().unwrap().unwrap().len(), PAYLOAD_MAX);
        }
        drop(slow);
        near.close();
    });
}

#[test]
fn a_dropped_channel_stops_its_sender() {
    let (said, heard) = mpsc::channel();
    let said = Mutex::new(said);
    let said = Arc::new(said);
    let (near, _far) = pair(small(), move |channel, _| {
        let end = loop {
            match channel.send(&[7; 1000]) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        lock(&said).send(end).unwrap();
    });
    let channel = near.request(b"").unwrap();
    channel.receive().unwrap();
    channel.cancel("enough");
    let end = heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(end, Broken::Cancelled("enough".into()));
    in_time(move || {
        // The place is free when the other side has answered.
        while !lock(&near.shared.channels).open.is_empty() {
            std::thread::yield_now();
        }
        assert!(near.is_over().is_none());
    });
}

#[test]
fn a_cancelled_channel_keeps_what_came_before() {
    let (near, _far) = pair(small(), |channel, _| {
        channel.send(b"a part").unwrap();
        channel.cancel("the rest is not there");
    });
    in_time(move || {
        let channel = near.request(b"").unwrap();
        assert_eq!(channel.receive().unwrap().unwrap(), b"a part");
        let end = channel.receive().unwrap_err();
        assert_eq!(end, Broken::Cancelled("the rest is not there".into()));
    });
}

#[test]
fn no_more_channels_are_open_than_may_be() {
    let terms = Terms { channels_max: 4, ..Terms::default() };
    let (near, far) = pair(terms, echo);
    let near = Arc::new(near);
    in_time(move || {
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let near = Arc::clone(&near);
                thread::spawn(move || {
                    for _ in 0..20 {
                        let channel = near.request(b"x").unwrap();
                        assert!(channel.receive().unwrap().is_some());
                        channel.finish().unwrap();
                        assert!(channel.receive().unwrap().is_none());
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(far.is_over().is_none(), "{:?}", far.is_over());
    });
}

#[test]
fn a_place_is_not_taken_before_the_last_frame_of_its_channel_is_written() {
    let terms = Terms { channels_max: 1, ..Terms::default() };
    // It does not wait for the end of the other side.
    let (near, far) = pair(terms, |channel, _| drop(channel.finish()));
    let near = Arc::new(near);
    in_time(move || {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let near = Arc::clone(&near);
                thread::spawn(move || {
                    for _ in 0..200 {
                        let channel = near.request(b"x").unwrap();
                        assert!(channel.receive().unwrap().is_none());
                        match thread % 2 {
                            0 => channel.finish().unwrap(),
                            _ => channel.cancel("enough"),
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(far.is_over().is_none(), "{:?}", far.is_over());
    });
}

#[test]
fn an_answer_is_waited_for_no_longer_than_wanted() {
    let (near, _far) = pair(Terms::default(), |channel, message| match &message[..] {
        b"hang" => while let Ok(Some(_)) = channel.receive() {},
        _ => echo(channel, message),
    });
    in_time(move || {
        let channel = near.request(b"hang").unwrap();
        assert_eq!(channel.receive_within(Duration::from_millis(50)), None);
        let channel = near.request(b"x").unwrap();
        assert_eq!(channel.receive_within(PATIENCE), Some(Ok(Some(b"x".to_vec()))));
        channel.finish().unwrap();
        assert_eq!(channel.receive_within(PATIENCE), Some(Ok(None)));
    });
}

#[test]
fn the_end_of_the_other_side_ends_every_wait() {
    let (near, far) = pair(small(), |channel, _| {
        let _ = channel.receive();
    });
    let near = Arc::new(near);
    let channel = near.request(b"").unwrap();
    let waits = Arc::clone(&near);
    let waiting = thread::spawn(move || (channel.receive(), waits.wait()));
    drop(far);
    in_time(move || {
        let (received, why) = waiting.join().unwrap();
        assert_eq!(received, Err(why.clone()));
        assert_eq!(why, Broken::Ended);
        assert_eq!(near.request(b"").unwrap_err(), Broken::Ended);
    });
}

#[test]
fn a_clean_end_is_told_from_a_lost_connection() {
    let (near, far) = pair(Terms::default(), echo);
    near.close();
    assert_eq!(in_time(move || far.wait()), Broken::Closed);
    let (near, far) = pair(Terms::default(), echo);
    drop(near);
    assert_eq!(in_time(move || far.wait()), Broken::Ended);
}

#[test]
fn a_silent_link_is_noticed_and_heartbeats_keep_a_quiet_one() {
    let terms = Terms { silence: Duration::from_millis(500), ..Terms::default() };
    let began = Instant::now();
    let (near, mut there) = against_bytes(terms);
    assert_eq!(in_time(move || near.wait()), Broken::Silent(terms.silence));
    assert!(began.elapsed() >= terms.silence);
    // What it sent meanwhile: heartbeats, then the end.
    let mut sent = Vec::new();
    there.read_to_end(&mut sent).unwrap();
    assert!(sent.len() >= 16 && sent.iter().all(|byte| *byte == 0), "{sent:?}");

    // Each side hears only heartbeats of the other one.
    let terms = Terms { silence: Duration::from_secs(2), ..Terms::default() };
    let (near, far) = pair(terms, echo);
    let (tell, ended) = mpsc::channel();
    thread::spawn(move || tell.send(near.wait()));
    assert!(ended.recv_timeout(terms.silence * 3 / 2).is_err(), "the connection has ended");
    assert!(far.is_over().is_none());
}

#[test]
fn a_link_that_takes_nothing_is_noticed_in_the_middle_of_a_message() {
    let terms = Terms { silence: Duration::from_millis(80), ..Terms::default() };
    let (near, there) = against_bytes(terms);
    let end = in_time(move || {
        let channel = near.request(b"").unwrap();
        loop {
            if let Err(end) = channel.send(&vec![1; PAYLOAD_MAX]) {
                return end;
            }
        }
    });
    assert_eq!(end, Broken::Silent(terms.silence));
    drop(there);
}

#[test]
fn invalid_data_ends_the_connection_with_a_reason() {
    let frame = |kind: u8, length: u32, channel: u64, payload: &[u8]| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([kind, 0, 0, 0]);
        bytes.extend(channel.to_le_bytes());
        bytes.extend(payload);
        bytes
    };
    for (bytes, wanted) in [
        (vec![0xff; 16], "a message is of an unknown kind"),
        (frame(2, u32::MAX, 1, b""), "a message has a wrong length"),
        (frame(1, 0, 1, b""), "a request comes from the side that answers"),
        (frame(2, 1, 5, b"x"), "a message comes before its channel"),
        (frame(0, 0, 1, b""), "a message has a wrong channel"),
        (frame(4, 4, 1, &[255; 4]), "a window grows"),
        ([frame(3, 0, 1, b""), frame(3, 0, 1, b"")].concat(), "a channel ends twice"),
        (
            [frame(3, 0, 1, b""), frame(2, 1, 1, b"x")].concat(),
            "a message is larger than its window",
        ),
    ] {
        let (near, mut there) = against_bytes(Terms::default());
        let channel = near.request(b"").unwrap();
        there.write_all(&bytes).unwrap();
        assert_eq!(in_time(move || near.wait()), Broken::Violation(wanted), "{bytes:?}");
        drop(channel);
    }
}

#[test]
fn a_sender_beyond_its_window_is_cut_off() {
    let (near, mut there) = against_bytes(small());
    let channel = near.request(b"").unwrap();
    for _ in 0..2 {
        write_frame(&mut there, Kind::Message, 1, &vec![1; PAYLOAD_MAX]).unwrap();
    }
    // The window is full; a message of no bytes takes some of it, too.
    write_frame(&mut there, Kind::Message, 1, &[]).unwrap();
    let why = in_time(move || near.wait());
    assert_eq!(why, Broken::Violation("a message is larger than its window"));
    drop(channel);
}

#[test]
fn a_stream_that_is_cut_anywhere_ends_the_connection() {
    let mut stream = Vec::new();
    write_frame(&mut stream, Kind::Message, 1, b"some words").unwrap();
    write_frame(&mut stream, Kind::Credit, 1, &[0; 4]).unwrap();
    write_frame(&mut stream, Kind::End, 1, &[]).unwrap();
    for length in 0..=stream.len() {
        let (near, mut there) = against_bytes(Terms::default());
        let channel = near.request(b"").unwrap();
        there.write_all(&stream[..length]).unwrap();
        there.shutdown(Shutdown::Both).unwrap();
        let (end, received) = in_time(move || {
            let mut received = 0;
            while let Ok(Some(_)) = channel.receive() {
                received += 1;
            }
            (near.wait(), received)
        });
        assert_eq!(end, Broken::Ended, "{length}");
        assert_eq!(received, usize::from(length >= 26), "{length}");
    }
}
