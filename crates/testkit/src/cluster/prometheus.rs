//! A real Prometheus.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::daemon::{Daemon, STARTING};
use super::{Host, http};

const PORT: u16 = 9090;

/// What a [`Prometheus`] scrapes, each second, as job `test`.
#[derive(Clone, Debug)]
pub enum Scrape {
    /// Addresses with ports, known from the start.
    Targets(Vec<String>),
    /// A file, or several by a pattern, in the format of `file_sd_configs`, which may change.
    File(PathBuf),
}

/// A Prometheus on a host; dropping it kills it. It scrapes itself as job `prometheus`.
#[derive(Debug)]
pub struct Prometheus {
    daemon: Daemon,
    host: Host,
}

impl Prometheus {
    /// Starts a server and waits until it is ready to be asked.
    pub fn start(host: &Host, scrape: &Scrape) -> Result<Self> {
        let address = SocketAddr::new(host.address().into(), PORT);
        let directory = host.directory().join(format!("prometheus-{}", host.name()));
        std::fs::create_dir(&directory).with_context(|| format!("create {directory:?}"))?;
        let mut test = json!({ "job_name": "test" });
        match scrape {
            Scrape::Targets(targets) => test["static_configs"] = json!([{ "targets": targets }]),
            Scrape::File(path) => {
                test["file_sd_configs"] = json!([{ "files": [path], "refresh_interval": "1s" }]);
            }
        }
        let itself = json!({
            "job_name": "prometheus",
            "static_configs": [{ "targets": [address.to_string()] }],
        });
        // YAML takes JSON.
        let config = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s" },
            "scrape_configs": [itself, test],
        });
        let config_path = directory.join("config.yml");
        std::fs::write(&config_path, config.to_string())?;
        let mut command = host.command("prometheus");
        command.arg(format!("--config.file={}", config_path.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address={address}")).current_dir(&directory);
        let daemon = Daemon::start("prometheus", &directory.join("log"), &mut command)?;
        daemon.wait_until("ready", STARTING, || Ok(http::answers(address, "/-/ready")))?;
        Ok(Self { daemon, host: host.clone() })
    }

    /// Where it answers HTTP.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host.address().into(), PORT)
    }

    /// The value of an expression now: the `data` of the answer, with `resultType` and `result`.
    pub fn query(&self, expression: &str) -> Result<Value> {
        let path = format!("/api/v1/query?query={}", http::escaped(expression));
        self.data(&path).with_context(|| format!("query {expression:?}"))
    }

    /// The targets that it has found, as the API tells them.
    pub fn targets(&self) -> Result<Value> {
        self.data("/api/v1/targets")
    }

    fn data(&self, path: &str) -> Result<Value> {
        let (status, body) = http::get(self.address(), path)?;
        ensure!(status == 200, "status {status}: {body}");
        let mut answer: Value = serde_json::from_str(&body).with_context(|| body.clone())?;
        match answer.get_mut("data") {
            Some(data) => Ok(data.take()),
            None => bail!("no data in {body}"),
        }
    }

    /// Asks until the expression has a result, and answers its samples.
    pub fn wait_for(&self, expression: &str, limit: Duration) -> Result<Vec<Value>> {
        let mut samples = Vec::new();
        let path = format!("/api/v1/query?query={}", http::escaped(expression));
        let address = self.address();
        self.daemon.wait_until(&format!("sure of {expression:?}"), limit, || {
            let (status, body) = http::get(address, &path)?;
            ensure!(status == 200, "status {status}: {body}");
            let answer: Value = serde_json::from_str(&body)?;
            samples = answer["data"]["result"].as_array().cloned().unwrap_or_default();
            Ok(!samples.is_empty())
        })?;
        Ok(samples)
    }
}
