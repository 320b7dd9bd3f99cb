//! Which paths of a command are on other hosts.
use dmover_model::PathBytes;
use dmover_net::Endpoint;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{Unusable, unusable};

/// Whether a path is on another host.
pub(crate) fn is_remote(path: &PathBytes) -> Result<bool, Unusable> {
    match Endpoint::parse(OsStr::from_bytes(&path.0)) {
        Ok(endpoint) => Ok(matches!(endpoint, Endpoint::Remote(_))),
        Err(error) => Err(Unusable { message: error.to_string(), hint: error.hint().into() }),
    }
}

/// Whether the sources are on other hosts: all of them, or none.
pub(super) fn sources_are_remote(sources: &[PathBytes]) -> Result<bool, Unusable> {
    let remote = sources.iter().map(is_remote).collect::<Result<Vec<_>, _>>()?;
    let count = remote.iter().filter(|is_remote| **is_remote).count();
    match sources.len() {
        all if count == all => Ok(count > 0),
        _ if count == 0 => Ok(false),
        _ => {
            let hint = "run one command for those here, and one for those on other hosts";
            Err(unusable("some sources are on this host and some on others", hint))
        }
    }
}

/// Refuses a path on another host where only this host will do.
pub(super) fn refuse_remote(path: &PathBytes, why: &'static str) -> Result<(), Unusable> {
    if is_remote(path)? {
        let shown = path.to_path().display().to_string();
        return Err(unusable(format!("'{shown}' is on another host"), why));
    }
    Ok(())
}
