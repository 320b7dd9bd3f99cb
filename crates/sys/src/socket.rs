//! What the kernel knows of a TCP connection.
use std::os::fd::AsRawFd;

use crate::{AsFd, Result};

/// The beginning of `struct tcp_info` of linux/tcp.h, as the option `TCP_INFO` of tcp(7) fills it. Older kernels fill less.
#[repr(C)]
#[derive(Default)]
struct RawInfo {
    // State, congestion state, retransmits, probes, backoff, options, window scales, flags.
    states: [u8; 8],
    rto: u32,
    ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    last: [u32; 4],
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
}

/// What the kernel knows of a TCP connection. Times are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpInfo {
    /// The smoothed round trip.
    pub round_trip_us: u32,
    /// The shortest round trip.
    pub least_round_trip_us: u32,
    /// The length of a segment.
    pub segment_bytes: u32,
    /// Segments that may be on their way (the congestion window).
    pub window_segments: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// Segments with data that were sent, also those that were sent again.
    pub segments: u32,
    /// How long something was to be sent.
    pub busy_us: u64,
    /// Of that: waiting for the window of the other side.
    pub limited_by_receiver_us: u64,
    /// Of that: waiting for room in the buffer of this side.
    pub limited_by_buffer_us: u64,
}

/// Asks the kernel about a TCP connection (`TCP_INFO` of tcp(7)).
///
/// # Errors
/// The descriptor is no TCP socket.
#[allow(unsafe_code)]
pub fn tcp_info(socket: impl AsFd) -> Result<TcpInfo> {
    let mut raw = RawInfo::default();
    let mut length = size_of::<RawInfo>() as libc::socklen_t;
    // SAFETY: `raw` consists of integers, so any bytes are valid, and `length` says how many the kernel may write.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut raw).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(crate::Errno::from_raw_os_error(error));
    }
    Ok(TcpInfo {
        round_trip_us: raw.rtt,
        least_round_trip_us: raw.min_rtt,
        segment_bytes: raw.snd_mss,
        window_segments: raw.snd_cwnd,
        retransmits: raw.total_retrans,
        segments: raw.data_segs_out,
        busy_us: raw.busy_time,
        limited_by_receiver_us: raw.rwnd_limited,
        limited_by_buffer_us: raw.sndbuf_limited,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_that_has_sent_something_has_a_round_trip() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        let (mut far, _) = listener.accept().expect("accept");
        near.write_all(&[1; 1000]).expect("send");
        far.read_exact(&mut [0; 1000]).expect("receive");
        far.write_all(&[1]).expect("send");
        near.read_exact(&mut [0; 1]).expect("receive");
        let info = tcp_info(&near).expect("TCP_INFO");
        assert!(info.round_trip_us > 0 && info.segment_bytes > 0, "{info:?}");
        assert!(info.segments >= 1 && info.window_segments > 0, "{info:?}");
        let file = std::fs::File::open("/dev/null").expect("open");
        assert_eq!(tcp_info(&file), Err(crate::Errno::NOTSOCK));
    }
}
