//! The network interfaces of this host.
use dmover_observe::NicView;
use dmover_sys::network::{Interface, interfaces};

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
