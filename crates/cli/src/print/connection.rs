//! What is known of the connection to another host, for people and for scripts.
use dmover_job::quote::quoted;
use dmover_model::{ConnectionReport, PathBytes, Protected};
use serde_json::{Map, Value};

use super::counted;
use super::json::path_fields;

/// One line without a label.
pub(crate) fn words(source: &PathBytes, known: &ConnectionReport) -> String {
    let source = quoted(&source.0);
    let protected = match known.protected {
        Protected::Ssh => return format!("{source}: through ssh, without data streams"),
        Protected::Agent => {
            return format!(
                "{source}: through the connection to the agent (TLS 1.3), without data streams"
            );
        }
        Protected::Command => {
            return format!("{source}: through the host of the command, without data streams");
        }
        Protected::SshStreams => "through ssh",
        Protected::Tls => "TLS 1.3",
        Protected::Integrity => "not encrypted, changes are noticed",
        Protected::Nothing => "NOT PROTECTED",
    };
    let streams = counted(known.streams.into(), "data stream", "data streams");
    let through = quoted(known.relays.join(" and ").as_bytes());
    let mut words = vec![if known.relays.is_empty() {
        streams
    } else {
        format!("{streams} through {through}")
    }];
    words.push(protected.into());
    if let Some(time) = known.round_trip_us {
        words.push(format!("round trip {:.1} ms", f64::from(time) / 1e3));
    }
    words.extend(known.congestion.clone());
    let ratio = known.content_bytes as f64 / known.line_bytes.max(1) as f64;
    if ratio >= 1.05 {
        words.push(format!("compressed {ratio:.1}:1"));
    }
    if known.retransmits > 0 {
        let share = known.retransmits as f64 / known.segments.max(1) as f64;
        words.push(format!("{:.3} % sent again", 100.0 * share));
    }
    if let Some(there) = known.there.filter(|there| there.retransmits > 0) {
        let share = there.retransmits as f64 / there.segments.max(1) as f64;
        words.push(format!("{:.3} % sent again there", 100.0 * share));
    }
    if known.lost_streams > 0 {
        words.push(counted(known.lost_streams, "stream was lost", "streams were lost"));
    }
    format!("{source}: {}", words.join(", "))
}

/// An object.
pub(crate) fn value(source: &PathBytes, known: &ConnectionReport) -> Value {
    let mut fields: Map<String, Value> = path_fields(&source.to_path()).collect();
    let ConnectionReport { streams, lost_streams, protected, congestion, .. } = known;
    fields.insert("streams".into(), (*streams).into());
    fields.insert("lost_streams".into(), (*lost_streams).into());
    fields.insert("relays".into(), known.relays.clone().into());
    fields.insert("protection".into(), protected.word().into());
    fields.insert("congestion".into(), congestion.clone().into());
    fields.insert("round_trip_us".into(), known.round_trip_us.into());
    fields.insert("least_round_trip_us".into(), known.least_round_trip_us.into());
    fields.insert("segments".into(), known.segments.into());
    fields.insert("retransmits".into(), known.retransmits.into());
    fields.insert("segments_there".into(), known.there.map(|there| there.segments).into());
    fields.insert("retransmits_there".into(), known.there.map(|there| there.retransmits).into());
    fields.insert("received_segments".into(), known.received_segments.into());
    fields.insert("disordered_segments".into(), known.disordered_segments.into());
    fields.insert("content_bytes".into(), known.content_bytes.into());
    fields.insert("line_bytes".into(), known.line_bytes.into());
    let (sends, receives) = known.buffers.unzip();
    fields.insert("send_buffer_bytes".into(), sends.into());
    fields.insert("receive_buffer_bytes".into(), receives.into());
    Value::Object(fields)
}
