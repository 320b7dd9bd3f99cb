//! A packet as the kernel passes it through a TUN device with offloads: behind a virtio-net header, and with the payload of many
//! segments behind one set of headers. A function over bytes takes some of the segments out of it.

use std::ops::Range;

/// The length of the virtio-net header that `tun.py` chooses.
pub(super) const PREFIX: usize = 10;
/// The longest packet of IPv4, behind its header.
pub(super) const FRAME_MAX: usize = PREFIX + 65_535;

// Offsets in the virtio-net header, whose numbers are in the byte order of the machine.
const FLAGS: usize = 0;
const GSO_TYPE: usize = 1;
const HDR_LEN: usize = 2;
const GSO_SIZE: usize = 4;
const CSUM_START: usize = 6;
const CSUM_OFFSET: usize = 8;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// The first segment has the flag CWR.
const GSO_ECN: u8 = 0x80;

// Offsets in the headers of IPv4, IPv6, TCP and UDP.
const V4_LENGTH: usize = 2;
const V4_ID: usize = 4;
const V4_CHECKSUM: usize = 10;
const V6_LENGTH: usize = 4;
const V6_HEADER: usize = 40;
const TCP_SEQUENCE: usize = 4;
const TCP_DATA_OFFSET: usize = 12;
const TCP_FLAGS: usize = 13;
const UDP_LENGTH: usize = 4;
const UDP_HEADER: usize = 8;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Udp,
}

/// How a packet of several segments is made up.
#[derive(Clone, Copy, Debug)]
struct Shape {
    transport: Transport,
    /// Where the header of the transport begins in the packet.
    transport_at: usize,
    /// Bytes that each segment has on the wire before its payload.
    headers: usize,
    /// Payload of a segment; the last one may have less.
    segment: usize,
    count: usize,
}

/// A packet with its virtio-net header.
#[derive(Debug)]
pub(super) struct Packet {
    frame: Vec<u8>,
    /// Only if there are several segments.
    shape: Option<Shape>,
}

impl Packet {
    /// What was read from a device.
    pub(super) fn new(frame: Vec<u8>) -> Self {
        let shape = shape(&frame);
        Self { frame, shape }
    }

    /// What is written to a device.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// How many packets a network card makes of it.
    pub(super) fn segments(&self) -> usize {
        self.shape.map_or(1, |shape| shape.count)
    }

    /// How long these segments are on the wire, headers included.
    pub(super) fn wire_bytes(&self, range: Range<usize>) -> u64 {
        let Some(Shape { headers, .. }) = self.shape else {
            return self.packet().len() as u64;
        };
        (range.len() * headers + self.payload(range).len()) as u64
    }

    /// The least number of segments, from the first on, that have so many bytes on the wire; all if there are fewer bytes.
    pub(super) fn segments_of(&self, bytes: u64) -> usize {
        let whole = self.shape.map_or(u64::MAX, |shape| (shape.headers + shape.segment) as u64);
        bytes.div_ceil(whole).min(self.segments() as u64) as usize
    }

    /// These segments as a packet of their own, with the headers that a network card gives to the first of them.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start < range.end && range.end <= self.segments(), "no such segments");
        let Some(shape) = self.shape else { return Self::new(self.frame.clone()) };
        let payload = self.payload(range.clone());
        let mut frame = Vec::with_capacity(PREFIX + shape.headers + payload.len());
        frame.extend_from_slice(&self.frame[..PREFIX + shape.headers]);
        frame.extend_from_slice(payload);
        let (prefix, packet) = frame.split_at_mut(PREFIX);
        set_prefix(prefix, &shape, &range);
        set_checksum_length(packet, prefix, self.packet().len() - packet.len());
        set_ip(packet, range.start, shape.transport_at);
        let transport = &mut packet[shape.transport_at..];
        match shape.transport {
            Transport::Tcp => set_tcp(transport, &shape, &range),
            Transport::Udp => set_be(transport, UDP_LENGTH, transport.len() as u16),
        }
        Self::new(frame)
    }

    fn packet(&self) -> &[u8] {
        &self.frame[PREFIX.min(self.frame.len())..]
    }

    fn payload(&self, range: Range<usize>) -> &[u8] {
        let Some(shape) = self.shape else { return &[] };
        let all = &self.packet()[shape.headers..];
        &all[range.start * shape.segment..(range.end * shape.segment).min(all.len())]
    }
}

fn shape(frame: &[u8]) -> Option<Shape> {
    let (prefix, packet) = frame.split_at_checked(PREFIX)?;
    // The kernel leaves the checksum of every packet with several segments to the card, and so says where it is.
    if prefix[FLAGS] & NEEDS_CSUM == 0 {
        return None;
    }
    let transport = match prefix[GSO_TYPE] & !GSO_ECN {
        GSO_TCPV4 | GSO_TCPV6 => Transport::Tcp,
        GSO_UDP_L4 => Transport::Udp,
        _ => return None,
    };
    let [segment, transport_at] = [GSO_SIZE, CSUM_START].map(|at| usize::from(native(prefix, at)));
    let header = match transport {
        Transport::Tcp => usize::from(packet.get(transport_at + TCP_DATA_OFFSET)? >> 4) * 4,
        Transport::Udp => UDP_HEADER,
    };
    let headers = transport_at + header;
    if usize::from(native(prefix, CSUM_OFFSET)) + 2 > header {
        return None;
    }
    let payload = packet.len().checked_sub(headers)?;
    let count = if segment == 0 { 1 } else { payload.div_ceil(segment) };
    (count > 1).then_some(Shape { transport, transport_at, headers, segment, count })
}

fn set_prefix(prefix: &mut [u8], shape: &Shape, range: &Range<usize>) {
    // The kernel refuses more than the length of the packet here.
    set_native(prefix, HDR_LEN, shape.headers as u16);
    if range.start > 0 {
        prefix[GSO_TYPE] &= !GSO_ECN;
    }
    if range.len() == 1 {
        prefix[GSO_TYPE] = GSO_NONE;
        set_native(prefix, GSO_SIZE, 0);
    }
}

/// The field of the checksum has the sum of the pseudo-header so far, of which only the length changes.
fn set_checksum_length(packet: &mut [u8], prefix: &[u8], less: usize) {
    let at = usize::from(native(prefix, CSUM_START)) + usize::from(native(prefix, CSUM_OFFSET));
    // In one's complement, the complement of a number is its negative.
    let sum = fold(u32::from(be(packet, at)) + u32::from(!(less as u16)));
    set_be(packet, at, sum);
}

fn set_ip(packet: &mut [u8], first: usize, header: usize) {
    let length = packet.len();
    if packet[0] >> 4 != 4 {
        set_be(packet, V6_LENGTH, (length - V6_HEADER) as u16);
        return;
    }
    set_be(packet, V4_LENGTH, length as u16);
    set_be(packet, V4_ID, be(packet, V4_ID).wrapping_add(first as u16));
    set_be(packet, V4_CHECKSUM, 0);
    let words = packet[..header].chunks_exact(2).map(|word| u32::from(be(word, 0)));
    let sum = words.sum();
    set_be(packet, V4_CHECKSUM, !fold(sum));
}

fn set_tcp(header: &mut [u8], shape: &Shape, range: &Range<usize>) {
    let sequence = header[TCP_SEQUENCE..].first_chunk().copied().map_or(0, u32::from_be_bytes);
    let sequence = sequence.wrapping_add((range.start * shape.segment) as u32);
    header[TCP_SEQUENCE..TCP_SEQUENCE + 4].copy_from_slice(&sequence.to_be_bytes());
    if range.start > 0 {
        header[TCP_FLAGS] &= !CWR;
    }
    if range.end < shape.count {
        header[TCP_FLAGS] &= !(FIN | PSH);
    }
}

/// A sum of 16-bit numbers in one's complement.
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn native(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn set_native(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

fn be(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set_be(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: usize = 101;
    /// Four segments, the last of which is short.
    const PAYLOAD: usize = 3 * SEGMENT + 17;
    const SEQUENCE: u32 = 0xffff_ff80;
    const ID: u16 = 0xfffe;

    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Tcp4,
        Tcp6,
        Udp4,
        Udp6,
    }

    const KINDS: [Kind; 4] = [Kind::Tcp4, Kind::Tcp6, Kind::Udp4, Kind::Udp6];

    impl Kind {
        fn is_tcp(self) -> bool {
            matches!(self, Self::Tcp4 | Self::Tcp6)
        }

        fn is_v4(self) -> bool {
            matches!(self, Self::Tcp4 | Self::Udp4)
        }

        fn protocol(self) -> u8 {
            if self.is_tcp() { 6 } else { 17 }
        }

        fn ip_header(self) -> usize {
            // IPv4 with four bytes of options.
            if self.is_v4() { 24 } else { 40 }
        }

        fn addresses(self) -> Vec<u8> {
            let length = if self.is_v4() { 8 } else { 32 };
            (0..length).map(|number| number * 7 + 3).collect()
        }
    }

    fn payload() -> Vec<u8> {
        (0..PAYLOAD).map(|number| (number * number / 3) as u8).collect()
    }

    /// The checksum of RFC 1071, in the arithmetic of remainders instead of carries.
    fn checksum(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|word| {
            u64::from(word[0]) * 256 + u64::from(word.get(1).copied().unwrap_or_default())
        });
        let sum: u64 = words.sum();
        let remainder = sum % 65_535;
        // Zero has two forms; a sum of anything but zeros is the other one.
        0xffff - if remainder == 0 && sum > 0 { 0xffff } else { remainder as u16 }
    }

    fn pseudo_header(kind: Kind, length: usize) -> Vec<u8> {
        let mut bytes = kind.addresses();
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend([0, 0, 0, kind.protocol()]);
        bytes
    }

    /// The header and payload of the transport with a checksum of zero.
    fn transport(kind: Kind, range: &Range<usize>) -> Vec<u8> {
        let payload = payload();
        let begin = range.start * SEGMENT;
        let payload = &payload[begin..PAYLOAD.min(range.end * SEGMENT)];
        let mut bytes = vec![0x12, 0x34, 0x56, 0x78];
        if kind.is_tcp() {
            bytes.extend(SEQUENCE.wrapping_add(begin as u32).to_be_bytes());
            bytes.extend([9, 9, 9, 9]);
            let mut flags = 0x10;
            if range.start == 0 {
                flags |= 0x80;
            }
            if range.end == 4 {
                flags |= 0x09;
            }
            // 32 bytes of header, with a time stamp.
            bytes.extend([0x80, flags, 1, 2, 0, 0, 0, 0]);
            bytes.extend([1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
        } else {
            bytes.extend((8 + payload.len() as u16).to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend(payload);
        bytes
    }

    fn checksum_at(kind: Kind) -> usize {
        if kind.is_tcp() { 16 } else { 6 }
    }

    fn ip(kind: Kind, first: usize, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        if kind.is_v4() {
            bytes.extend([0x46, 0]);
            bytes.extend((24 + length as u16).to_be_bytes());
            bytes.extend(ID.wrapping_add(first as u16).to_be_bytes());
            bytes.extend([0x40, 0, 64, kind.protocol(), 0, 0]);
            bytes.extend(kind.addresses());
            bytes.extend([7, 4, 4, 0]);
            let sum = checksum(&bytes);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            bytes.extend([0x60, 0, 0, 0]);
            bytes.extend((length as u16).to_be_bytes());
            bytes.extend([kind.protocol(), 64]);
            bytes.extend(kind.addresses());
        }
        bytes
    }

    /// These segments as one packet, with a complete checksum.
    fn complete(kind: Kind, range: &Range<usize>) -> Vec<u8> {
        let mut transport = transport(kind, range);
        let summed = [pseudo_header(kind, transport.len()), transport.clone()].concat();
        let at = checksum_at(kind);
        transport[at..at + 2].copy_from_slice(&checksum(&summed).to_be_bytes());
        [ip(kind, range.start, transport.len()), transport].concat()
    }

    fn prefix(kind: Kind, range: &Range<usize>, hdr_len: usize) -> Vec<u8> {
        let gso = match kind {
            _ if range.len() == 1 => 0,
            Kind::Tcp4 if range.start == 0 => 0x81,
            Kind::Tcp4 => 1,
            Kind::Tcp6 if range.start == 0 => 0x84,
            Kind::Tcp6 => 4,
            Kind::Udp4 | Kind::Udp6 => 5,
        };
        let size = if range.len() == 1 { 0 } else { SEGMENT };
        let numbers = [hdr_len, size, kind.ip_header(), checksum_at(kind)];
        let numbers = numbers.into_iter().flat_map(|number| (number as u16).to_ne_bytes());
        [1, gso].into_iter().chain(numbers).collect()
    }

    /// All segments, as the kernel passes them: the field of the checksum has the sum of the pseudo-header.
    fn large(kind: Kind) -> Packet {
        let mut transport = transport(kind, &(0..4));
        let sum = !checksum(&pseudo_header(kind, transport.len()));
        let at = checksum_at(kind);
        transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        // The kernel says how much is in one piece of memory, which may be more than the headers.
        let prefix = prefix(kind, &(0..4), 200);
        Packet::new([prefix, ip(kind, 0, transport.len()), transport].concat())
    }

    /// Completes a checksum as a network card does.
    fn finish(packet: &Packet) -> Vec<u8> {
        let (prefix, bytes) = packet.frame().split_at(PREFIX);
        let [start, offset] = [6, 8].map(|at| u16::from_ne_bytes([prefix[at], prefix[at + 1]]));
        let [start, offset] = [start, offset].map(usize::from);
        let mut bytes = bytes.to_vec();
        let sum = checksum(&bytes[start..]);
        bytes[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn ranges() -> impl Iterator<Item = Range<usize>> {
        (0..4).flat_map(|start| (start + 1..=4).map(move |end| start..end))
    }

    #[test]
    fn every_part_is_what_its_sender_would_have_sent_alone() {
        for kind in KINDS {
            let large = large(kind);
            assert_eq!(large.segments(), 4);
            assert_eq!(finish(&large), complete(kind, &(0..4)));
            for range in ranges() {
                let part = large.part(range.clone());
                let what = format!("{kind:?} {range:?}");
                assert_eq!(part.segments(), range.len(), "{what}");
                assert_eq!(finish(&part), complete(kind, &range), "{what}");
                let headers = if kind.is_tcp() { 32 } else { 8 } + kind.ip_header();
                assert_eq!(part.frame()[..PREFIX], prefix(kind, &range, headers), "{what}");
            }
        }
    }

    #[test]
    fn a_part_of_a_part_is_a_part_of_the_whole() {
        for kind in KINDS {
            let tail = large(kind).part(1..4);
            assert_eq!(tail.part(1..3).frame(), large(kind).part(2..4).frame());
            assert_eq!(tail.part(0..1).frame(), large(kind).part(1..2).frame());
            let last = tail.part(2..3);
            assert_eq!(last.part(0..1).frame(), last.frame());
        }
    }

    #[test]
    fn each_segment_has_its_headers_on_the_wire() {
        for kind in KINDS {
            let large = large(kind);
            for range in ranges() {
                let alone = range.clone().map(|number| complete(kind, &(number..number + 1)).len());
                assert_eq!(large.wire_bytes(range.clone()), alone.sum::<usize>() as u64);
                let part = large.part(range.clone());
                assert_eq!(part.wire_bytes(0..range.len()), large.wire_bytes(range));
            }
        }
    }

    #[test]
    fn the_segment_that_reaches_a_number_of_bytes_is_the_last_one() {
        let large = large(Kind::Tcp4);
        let two = large.wire_bytes(0..2);
        let counts = [0, 1, two - 1, two, two + 1, u64::MAX].map(|bytes| large.segments_of(bytes));
        assert_eq!(counts, [0, 1, 2, 2, 3, 4]);
        let one = large.part(0..1);
        assert_eq!([0, 1, u64::MAX].map(|bytes| one.segments_of(bytes)), [0, 1, 1]);
    }

    #[test]
    fn what_has_no_segments_is_one_packet() {
        let mut alone = large(Kind::Tcp4).part(0..1).frame().to_vec();
        assert_eq!(Packet::new(alone.clone()).wire_bytes(0..1), (alone.len() - PREFIX) as u64);
        // Headers that contradict the packet.
        alone[GSO_TYPE] = GSO_TCPV4;
        for (size, start) in [(0, 24), (10, 60_000), (60_000, 24), (10, 400)] {
            set_native(&mut alone, GSO_SIZE, size);
            set_native(&mut alone, CSUM_START, start);
            assert_eq!(Packet::new(alone.clone()).segments(), 1);
        }
        assert_eq!(Packet::new(vec![0; PREFIX]).wire_bytes(0..1), 0);
        assert_eq!(Packet::new(Vec::new()).wire_bytes(0..1), 0);
    }
}
