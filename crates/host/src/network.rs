//! Network interfaces of this host, as proc_net_dev(5) and sysfs have them.
use std::net::IpAddr;
use std::path::Path;

/// What an interface has carried since it is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its speed, in Mbit a second, if it has one and that is known.
    pub mbit_per_s: Option<u64>,
    /// Bytes that it has received.
    pub received_bytes: u64,
    /// Bytes that it has sent.
    pub sent_bytes: u64,
}

/// The interfaces that this process can use, but for the one that leads nowhere.
pub fn interfaces() -> Vec<Interface> {
    let text = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let mut all = parse(&text);
    for interface in &mut all {
        let path = Path::new("/sys/class/net").join(&interface.name).join("speed");
        // EINVAL and -1 are what interfaces without a speed say.
        let speed = std::fs::read_to_string(path).ok();
        interface.mbit_per_s = speed.and_then(|speed| speed.trim().parse().ok());
    }
    all
}

/// The addresses of this host that lead to it from elsewhere. Those that hold in one network segment only are left out.
pub fn addresses() -> Vec<IpAddr> {
    let is_of_use = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    };
    let found = if_addrs::get_if_addrs().unwrap_or_default();
    found.iter().map(if_addrs::Interface::ip).filter(is_of_use).collect()
}

fn parse(text: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> =
            numbers.split_whitespace().map(|number| number.parse().unwrap_or(0)).collect();
        // Eight numbers each way, of which the bytes are the first.
        let (received_bytes, sent_bytes) = (*numbers.first()?, *numbers.get(8)?);
        let name = name.trim().to_owned();
        (name != "lo").then_some(Interface { name, mbit_per_s: None, received_bytes, sent_bytes })
    };
    text.lines().filter_map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_interfaces_are_read_from_their_columns() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n    \
                    lo: 77 1 0 0 0 0 0 0 77 1 0 0 0 0 0 0\n  \
                    ib0:123456 7 0 0 0 0 0 0 654 3 0 0 0 0 0 0\n";
        let all = parse(text);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(
            (&all[0].name[..], all[0].received_bytes, all[0].sent_bytes),
            ("ib0", 123_456, 654)
        );
        assert!(parse("").is_empty() && parse("x: 1 2").is_empty());
    }
}
