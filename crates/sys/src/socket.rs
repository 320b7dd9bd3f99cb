//! What the kernel knows of a TCP connection.
use std::os::fd::AsRawFd;

use crate::{AsFd, Result};

/// The beginning of `struct tcp_info` of linux/tcp.h, as the option `TCP_INFO` of tcp(7) fills it, in groups of equal types. Older
/// kernels fill less.
#[repr(C)]
#[derive(Default)]
struct RawInfo {
    /// From `tcpi_state` to the bits after `tcpi_rcv_wscale`.
    states: [u8; 8],
    /// From `tcpi_rto` to `tcpi_total_retrans`.
    words: [u32; 24],
    /// From `tcpi_pacing_rate` to `tcpi_bytes_received`.
    rates: [u64; 4],
    /// From `tcpi_segs_out` to `tcpi_data_segs_out`.
    segments: [u32; 6],
    /// From `tcpi_delivery_rate` to `tcpi_sndbuf_limited`.
    times: [u64; 4],
    /// From `tcpi_delivered` to `tcpi_delivered_ce`.
    delivered: [u32; 2],
    /// From `tcpi_bytes_sent` to `tcpi_bytes_retrans`.
    sent: [u64; 2],
    /// From `tcpi_dsack_dups` to `tcpi_rcv_ooopack` (Linux 5.4).
    disorder: [u32; 3],
}

/// The place of `tcpi_rtt` and `tcpi_total_retrans` among the words.
const RTT: usize = 15;
const TOTAL_RETRANS: usize = 23;
/// The place of `tcpi_bytes_acked` and `tcpi_bytes_received` among the rates.
const BYTES_ACKED: usize = 2;
const BYTES_RECEIVED: usize = 3;
/// The place of `tcpi_min_rtt`, `tcpi_data_segs_in` and `tcpi_data_segs_out` among the segments.
const MIN_RTT: usize = 3;
const DATA_SEGS_IN: usize = 4;
const DATA_SEGS_OUT: usize = 5;
/// The place of `tcpi_rcv_ooopack`.
const RCV_OOOPACK: usize = 2;

/// What the kernel knows of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpInfo {
    /// The smoothed round trip in microseconds.
    pub round_trip_us: u32,
    /// The shortest round trip in microseconds.
    pub least_round_trip_us: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// Segments with data that were sent, also those that were sent again.
    pub segments: u32,
    /// Segments with data that have come.
    pub received_segments: u32,
    /// Those of them that came out of order; 0 on kernels that do not count them.
    pub disordered_segments: u32,
    /// Bytes that the other side has acknowledged.
    pub acknowledged_bytes: u64,
    /// Bytes that have come.
    pub received_bytes: u64,
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
        round_trip_us: raw.words[RTT],
        least_round_trip_us: raw.segments[MIN_RTT],
        retransmits: raw.words[TOTAL_RETRANS],
        segments: raw.segments[DATA_SEGS_OUT],
        received_segments: raw.segments[DATA_SEGS_IN],
        disordered_segments: raw.disorder[RCV_OOOPACK],
        acknowledged_bytes: raw.rates[BYTES_ACKED],
        received_bytes: raw.rates[BYTES_RECEIVED],
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
        assert!(info.round_trip_us >= info.least_round_trip_us, "{info:?}");
        assert!(info.least_round_trip_us < 1_000_000, "{info:?}");
        assert_eq!((info.segments, info.retransmits), (1, 0), "{info:?}");
        assert_eq!((info.received_segments, info.disordered_segments), (1, 0), "{info:?}");
        // The first segment counts, which opened the connection.
        assert!((1000..=1001).contains(&info.acknowledged_bytes), "{info:?}");
        assert_eq!(info.received_bytes, 1, "{info:?}");
        let file = std::fs::File::open("/dev/null").expect("open");
        assert_eq!(tcp_info(&file), Err(crate::Errno::NOTSOCK));
    }
}
