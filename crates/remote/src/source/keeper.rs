//! Keeps the connection with one of several hosts: makes it, and makes it again after it was lost.
use dmover_model::Fatal;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use dmover_wire::agent::{Begin, Begun, BegunShared};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Line;
use super::asking::begin_shared;
use super::hosts::{Hosts, Kept, Shown};

/// The pause before a host is tried again, the first and the last one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_mins(1);

/// After a connection that has lasted so long, the host is tried again at once.
const LASTED: Duration = Duration::from_mins(1);
/// How long a host may take to show its root.
const BEGIN_WITHIN: Duration = Duration::from_mins(1);

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
        let began = Instant::now();
        match connect_once(hosts, (number, connect), request) {
            Ok(()) if hosts.keep(number) == Kept::End => return,
            Ok(()) => {}
            Err(why) => hosts.cannot(number, why),
        }
        if began.elapsed() > LASTED {
            pause = FIRST_PAUSE;
        }
        if hosts.pause(number, pause) == Kept::End {
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
    let BegunShared { begun, mounts } = begin_shared(&*line, request, BEGIN_WITHIN)?;
    match begun {
        Begun::Root { root, clock } => {
            let times = (sent, SystemTime::now());
            hosts.join(number, line, Shown { root, mounts, clock, times });
            Ok(())
        }
        Begun::Refused { message, hint } => Err(Fatal::refused(message, hint)),
    }
}
