//! The offer of a job in the bucket of jobs: JSON that programs of all protocols can read.
use serde::{Deserialize, Serialize};

use crate::protocol::Protocols;
use crate::streams::StreamSettings;

/// A job in the bucket of jobs. All protocols can read the fields beside `offer`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfferRecord {
    /// The protocol of all that the run sends to every mover, which is the oldest that its coordinator speaks.
    pub protocol: u32,
    /// The version of the coordinator's program.
    pub version: String,
    /// The name of the offer.
    pub job: String,
    /// The number of the run.
    pub run: u64,
    /// The coordinator's host.
    pub host: String,
    /// The coordinator's process id.
    pub pid: u32,
    /// How long a lease is valid without renewal.
    pub lease_ms: u64,
    /// Whether movers should send their log lines.
    #[serde(default)]
    pub wants_log: bool,
    /// Labels that movers must have.
    #[serde(default)]
    pub only: Vec<(String, String)>,
    /// An [`OfferText`] as text, so that the signature covers the exact bytes.
    pub offer: serde_json::Value,
    /// The public key of the user who owns the job.
    #[serde(default)]
    pub signer: String,
    /// The signature of all other fields with that key, in base64.
    #[serde(default)]
    pub signature: String,
}

/// The offer itself with what programs of protocol 8 do not know and ignore. It is here, because the signature covers
/// it as they check it.
#[derive(Debug, Serialize)]
pub struct OfferText<'a, T: Serialize> {
    /// What a mover must know to work for the job.
    #[serde(flatten)]
    pub offer: &'a T,
    /// The newest protocol that the coordinator speaks.
    pub newest_protocol: u32,
    /// The data streams of movers to the hosts of SOURCE; `None`: SOURCE is mounted on all hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<&'a StreamSettings>,
}

/// The same, as another program reads it.
#[derive(Debug, Default, Deserialize)]
struct Newest {
    newest_protocol: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
struct FarSource {
    streams: Option<StreamSettings>,
}

impl OfferRecord {
    /// Whether a mover with these labels may work for the job.
    pub fn is_for(&self, labels: &[(String, String)]) -> bool {
        self.only.iter().all(|wanted| labels.contains(wanted))
    }

    /// The offer as text. Empty: this program cannot read it.
    pub fn text(&self) -> &str {
        self.offer.as_str().unwrap_or_default()
    }

    /// The protocols that the coordinator speaks. Only with a checked signature is this more than a claim.
    pub fn protocols(&self) -> Protocols {
        let Newest { newest_protocol } = serde_json::from_str(self.text()).unwrap_or_default();
        let newest = newest_protocol.unwrap_or_default().max(self.protocol);
        Protocols { oldest: self.protocol, newest }
    }

    /// The data streams that the user wants to the hosts of SOURCE; `None`: SOURCE is mounted on all hosts. Only with a
    /// checked signature is this more than a claim.
    pub fn streams(&self) -> Option<StreamSettings> {
        let FarSource { streams } = serde_json::from_str(self.text()).unwrap_or_default();
        streams
    }

    /// The signed bytes: the fields as they were read, independent of their formatting.
    pub fn signed(&self) -> Vec<u8> {
        let of_run = (&self.job, self.run, &self.host, self.pid, self.lease_ms);
        let rest = (self.wants_log, &self.only, self.text(), &self.signer);
        // Serialising to memory does not fail for what is in here.
        postcard::to_stdvec(&(self.protocol, &self.version, of_run, rest)).unwrap_or_default()
    }
}
