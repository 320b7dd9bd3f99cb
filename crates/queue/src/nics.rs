//! The network interfaces of this host.
use dmover_host::network::{Interface, interfaces};
use dmover_observe::NicView;

/// The traffic of the network interfaces of this host.
pub fn nics() -> Vec<NicView> {
    let view = |Interface { name, mbit_per_s, received_bytes, sent_bytes }| NicView {
        name,
        mbit_per_s,
        received_bytes,
        sent_bytes,
    };
    interfaces().into_iter().map(view).collect()
}
