//! Options for hosts that ssh reaches.
use clap::{Args, ValueEnum};
use dmover_net::RemoteHost;
use std::ffi::OsString;
use std::net::IpAddr;

/// Options for hosts that ssh reaches.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Other hosts")]
pub struct RemoteArgs {
    /// Path of dmover on HOST of HOST:PATH (default: ~/.local/bin/dmover, else from PATH)
    #[arg(long, value_name = "PATH")]
    pub agent: Option<OsString>,
    /// ssh command, with options
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub ssh_command: String,
    /// Number of data streams beside ssh, or auto; 0: all data goes through ssh
    #[arg(long, value_name = "COUNT", default_value = "auto", value_parser = streams)]
    pub streams: StreamsArg,
    /// Protection of data streams
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t)]
    pub encrypt: EncryptArg,
    /// Ports on which HOST may listen for data streams; 0: any
    #[arg(long, value_name = "PORT[-PORT]", default_value = "50000-51000", value_parser = ports)]
    pub data_ports: (u16, u16),
    /// Name or address of HOST for data streams (default: as ssh reaches it); of two hosts, that of SOURCE; may be repeated
    #[arg(long, value_name = "ADDRESS", value_parser = data_address)]
    pub data_address: Vec<String>,
    /// Host that passes data streams on, or several from the first to the last; ssh reaches them. Repeated: other ways
    #[arg(long, value_name = "HOST[,HOST...]", value_parser = relays)]
    pub relay: Vec<Relays>,
    /// Address of this host that data streams come from; if SOURCE and DEST are on other hosts, of that of DEST; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub data_from: Vec<IpAddr>,
    /// TCP congestion control of data streams, such as bbr
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Whether data streams are compressed (Zstandard)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t, num_args = 0..=1,
        require_equals = true, default_missing_value = "always")]
    pub compress: CompressArg,
    /// Size of the TCP buffers of each data stream (default: automatic)
    #[arg(long, value_name = "SIZE", value_parser = window)]
    pub window: Option<u32>,
    /// How long to wait for HOST if it cannot be reached any more
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = patience)]
    pub reconnect_for: u64,
}

/// Relays, from the first to the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relays(pub Vec<RemoteHost>);

fn relays(text: &str) -> Result<Relays, String> {
    let host = |name: &str| RemoteHost::parse(name.as_ref()).map_err(|error| error.to_string());
    text.split(',').map(host).collect::<Result<_, _>>().map(Relays)
}

fn data_address(text: &str) -> Result<String, String> {
    // An address of IPv6 has more colons.
    if text.is_empty() || text.matches(':').count() == 1 {
        return Err("must be a name or an address; --data-ports says which ports".into());
    }
    Ok(text.to_owned())
}

/// How many data streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamsArg {
    /// More on a line that loses packets.
    Auto,
    /// So many.
    Count(u32),
}

fn streams(text: &str) -> Result<StreamsArg, String> {
    const MOST: u32 = dmover_net::streams::STREAMS_MAX;
    match (text, text.parse()) {
        ("auto", _) => Ok(StreamsArg::Auto),
        (_, Ok(count)) if count <= MOST => Ok(StreamsArg::Count(count)),
        _ => Err(format!("must be auto, or a number from 0 to {MOST}")),
    }
}

/// When data streams are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum CompressArg {
    /// While that is faster, which is measured all the time
    #[default]
    Auto,
    /// Also if that is slower
    Always,
    /// Not at all
    Never,
}

/// What protects data streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum EncryptArg {
    /// TLS 1.3: nobody on the way reads or changes anything
    #[default]
    Full,
    /// Nobody on the way changes anything, but everything can be read
    Integrity,
    /// Only the checksum of TCP
    None,
}

fn patience(text: &str) -> Result<u64, String> {
    let least = dmover_net::streams::PATIENCE_MIN;
    match super::duration(text)? {
        time if u128::from(time) < least.as_millis() => {
            Err(format!("must be at least {} s", least.as_secs()))
        }
        time => Ok(time),
    }
}

/// The smallest and the largest buffers that make sense.
const WINDOWS: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

fn window(text: &str) -> Result<u32, String> {
    let bytes = super::size(text)?;
    if WINDOWS.contains(&bytes) { Ok(bytes as u32) } else { Err("must be from 64K to 1G".into()) }
}

fn ports(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse::<u16>().map_err(|_| format!("'{text}' is no port"));
    let (first, last) = (port(first)?, port(last)?);
    match (first, last) {
        (0, 0) => Ok((0, 0)),
        (0, _) => Err("port 0 is not in a range".into()),
        (first, last) if first > last => Err("the first port is larger than the last".into()),
        ports => Ok(ports),
    }
}
