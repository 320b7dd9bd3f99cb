//! Keeps the connection with one of several hosts: makes it, and makes it again after it was lost.
use dmover_model::Fatal;
use dmover_schedule::thread;
use dmover_wire::agent::{Begin, Begun, Request};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Line;
use super::asking::begin;
use super::hosts::{Hosts, Shown};

/// The pause before a host is tried again, the first and the last one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_mins(1);

/// Makes a connection with a host. The thread that calls it lives as long as the connection.
pub type Connect = Box<dyn Fn() -> Result<Arc<dyn Line>, Fatal> + Send>;

/// Keeps the connection with a host on a thread of its own, until all are closed.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(
    hosts: &Arc<Hosts>,
    (number, connect): (usize, Connect),
    request: Begin,
) -> Result<(), Fatal> {
    let hosts = Arc::clone(hosts);
    let named = thread::Builder::new().name("source-host".into());
    let keep = move || keep(&hosts, (number, &connect), &request);
    named.spawn(keep).map_err(Fatal::Thread)?;
    Ok(())
}

fn keep(hosts: &Hosts, (number, connect): (usize, &Connect), request: &Begin) {
    let mut pause = FIRST_PAUSE;
    loop {
        match connect_once(hosts, (number, connect), request) {
            Ok(()) => {
                pause = FIRST_PAUSE;
                if !hosts.wait_until_lost(number) {
                    return;
                }
            }
            Err(why) => hosts.cannot(number, why),
        }
        if !hosts.pause(pause) {
            return;
        }
        pause = LAST_PAUSE.min(pause * 2);
    }
}

fn connect_once(
    hosts: &Hosts,
    (number, connect): (usize, &Connect),
    request: &Begin,
) -> Result<(), Fatal> {
    let line = connect()?;
    let sent = SystemTime::now();
    match begin(&*line, &Request::BeginShared(request.clone()))? {
        Begun::Root { root, clock } => {
            let times = (sent, SystemTime::now());
            hosts.join(number, line, Shown { root, clock, times })
        }
        Begun::Refused { message, hint } => Err(Fatal::refused(message, hint)),
    }
}
