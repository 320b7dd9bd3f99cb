//! The far side: greets, and serves requests until the connection is over.
use dmover_model::Protected;
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::thread;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::{Arc, PoisonError, mpsc};

use crate::connection::{Broken, Channel, Connection, Link, SILENCE, Terms};
use crate::hello::{Hello, NoHello, Refusal};
use crate::streams::{Carrier, Listening};

/// What an agent does for the other side. One agent serves one root.
pub trait Service: Send + Sync {
    /// Answers one request, on a thread of its own: receives what else the other side sends on the channel, and sends
    /// the answers. The caller ends the channel.
    ///
    /// # Errors
    /// What the channel said; or [`Broken::Cancelled`] with words for the other side.
    fn serve(&self, request: &[u8], channel: &Arc<Channel>) -> Result<(), Broken>;
}

/// What an agent does.
pub enum Role<'a> {
    /// It answers the requests of the other side.
    Serves(Arc<dyn Service>),
    /// The other side answers, and this one asks, on a connection that lasts as long as this function.
    Asks(Box<dyn FnOnce(Connection) + 'a>),
}

/// How an agent has ended.
#[derive(Debug)]
pub enum AgentEnd {
    /// The other side did not greet: it is no dmover.
    NoHello(NoHello),
    /// It greeted, and was refused, as it knows.
    Refused(Refusal),
    /// The connection is over.
    Over(Broken),
    /// The greeting could not be sent, or a thread could not be started.
    Io(std::io::Error),
}

/// Serves one connection. `own`: the greeting of this side; `addresses`: those of this host by which the other side may reach
/// it; `make`: what this side does for the other one.
///
/// It returns when the connection is over, also if threads still hang in system calls; the process has to end then.
pub fn run(
    mut input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
    (mut own, addresses): (Hello, Vec<String>),
    make: impl FnOnce(&Hello) -> Result<Role<'_>, Refusal>,
) -> AgentEnd {
    let (sender, greeted) = mpsc::channel();
    let reader = thread::Builder::new().name("net-hello".into()).spawn(move || {
        let hello = Hello::read(&mut input);
        let _ = sender.send((hello, input));
    });
    if let Err(error) = reader {
        return AgentEnd::Io(error);
    }
    let (peer, input) = match greeted.recv_timeout(SILENCE) {
        Ok((Ok(peer), input)) => (peer, input),
        Ok((Err(why), _)) => return AgentEnd::NoHello(why),
        Err(_) => return AgentEnd::Over(Broken::Silent(SILENCE)),
    };
    let role = match own.protocols.common(peer.protocols) {
        Some(_) => make(&peer),
        // The other side makes its own words of the numbers.
        None => Err(Refusal {
            message: format!(
                "dmover {} at {} does not work with dmover {}",
                own.version, own.host, peer.version
            ),
            hint: "use one version on both hosts".into(),
        }),
    };
    // The side that greets first chooses it for both.
    own.silence_ms = peer.silence_ms;
    own.refusal = role.as_ref().err().cloned();
    own.serves = matches!(role, Ok(Role::Asks(_)));
    let listening = match (&peer.offer, &role) {
        (Some(offer), Ok(_)) => {
            let (answer, listening) = Listening::start(offer, addresses, peer.host == own.host);
            own.answer = Some(answer);
            listening
        }
        _ => None,
    };
    if let Err(error) = own.write(&mut output) {
        return AgentEnd::Io(error);
    }
    // Nothing to end: the process ends, and ssh with it.
    let carrier = Carrier {
        input: Box::new(input),
        output: Box::new(output),
        hang_up: Box::new(|_| ()),
        protected: Protected::Ssh,
    };
    let mut terms = own.terms_with(&peer);
    let link = match listening {
        None => carrier.alone(),
        Some(listening) => match listening.go_on(carrier, &mut terms) {
            Ok(link) => link,
            Err(error) => return AgentEnd::Io(error),
        },
    };
    match role {
        Err(refusal) => AgentEnd::Refused(refusal),
        Ok(Role::Serves(service)) => match Serving::begin(link, terms, service) {
            Ok(serving) => AgentEnd::Over(serving.wait()),
            Err(error) => AgentEnd::Io(error),
        },
        Ok(Role::Asks(ask)) => match Connection::asking(link, terms) {
            Ok(connection) => {
                ask(connection);
                AgentEnd::Over(Broken::Closed)
            }
            Err(error) => AgentEnd::Io(error),
        },
    }
}

/// A connection on which this side answers requests. Dropping it ends the connection.
pub(crate) struct Serving {
    connection: Connection,
    workers: Arc<Workers>,
}

impl Serving {
    pub fn begin(link: Link, terms: Terms, service: Arc<dyn Service>) -> std::io::Result<Self> {
        let workers = Workers { service, jobs: Mutex::default(), changed: Condvar::new() };
        let workers = Arc::new(workers);
        let accept = {
            let workers = Arc::clone(&workers);
            move |channel, request| workers.take(channel, request)
        };
        let connection = Connection::answering(link, terms, accept)?;
        Ok(Self { connection, workers })
    }

    /// Waits until the connection ends, and returns the reason.
    pub fn wait(&self) -> Broken {
        self.connection.wait()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.workers.end();
    }
}

/// Threads that serve requests: as many as requests are in progress, so that none waits for another one.
struct Workers {
    service: Arc<dyn Service>,
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(Arc<Channel>, Vec<u8>)>,
    idle: usize,
    are_over: bool,
}

impl Workers {
    fn take(self: &Arc<Self>, channel: Channel, request: Vec<u8>) {
        let mut jobs = lock(&self.jobs);
        jobs.waiting.push_back((Arc::new(channel), request));
        if jobs.idle >= jobs.waiting.len() {
            self.changed.notify_one();
            return;
        }
        let workers = Arc::clone(self);
        let named = thread::Builder::new().name("net-serve".into());
        if let Err(error) = named.spawn(move || workers.work()) {
            let last = jobs.waiting.pop_back();
            drop(jobs);
            if let Some((channel, _)) = last {
                channel.cancel(&format!("cannot start a thread: {error}"));
            }
        }
    }

    fn work(&self) {
        while let Some((channel, request)) = self.next() {
            match self.service.serve(&request, &channel) {
                Ok(()) => drop(channel.finish()),
                Err(Broken::Cancelled(words)) => channel.cancel(&words),
                Err(_) => {}
            }
        }
    }

    fn next(&self) -> Option<(Arc<Channel>, Vec<u8>)> {
        let mut jobs = lock(&self.jobs);
        loop {
            if jobs.are_over {
                return None;
            }
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            jobs.idle += 1;
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.idle -= 1;
        }
    }

    fn end(&self) {
        let mut jobs = lock(&self.jobs);
        jobs.are_over = true;
        jobs.waiting.clear();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::Protocols;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    struct Echo;
    impl Service for Echo {
        fn serve(&self, request: &[u8], channel: &Arc<Channel>) -> Result<(), Broken> {
            match request {
                b"hang" => loop {
                    std::thread::park();
                },
                b"panic" => panic!("on request"),
                b"no" => Err(Broken::Cancelled("not this".into())),
                words => channel.send(words),
            }
        }
    }

    fn start(
        own: Hello,
        make: impl FnOnce(&Hello) -> Result<Role<'_>, Refusal> + Send + 'static,
    ) -> (UnixStream, mpsc::Receiver<AgentEnd>) {
        let (here, there) = UnixStream::pair().unwrap();
        let (sender, ended) = mpsc::channel();
        thread::spawn(move || {
            let input = there.try_clone().unwrap();
            sender.send(run(input, there, (own, Vec::new()), make)).unwrap();
        });
        (here, ended)
    }

    fn connect(mut here: UnixStream, own: &Hello) -> (Hello, Connection) {
        own.write(&mut here).unwrap();
        let peer = Hello::read(&mut here).unwrap();
        let [input, output] = [(); 2].map(|()| Box::new(here.try_clone().unwrap()));
        let hang_up = Box::new(move |_| drop(here.shutdown(Shutdown::Both)));
        let link = Link { input, output, hang_up, report: None };
        let connection = Connection::asking(link, own.terms_with(&peer)).unwrap();
        (peer, connection)
    }

    fn end(ended: &mpsc::Receiver<AgentEnd>) -> AgentEnd {
        ended.recv_timeout(Duration::from_mins(1)).expect("the agent does not end")
    }

    #[test]
    fn requests_are_served_and_none_waits_for_another_one() {
        let own = Hello::of_this_program("1");
        let (here, ended) = start(own.clone(), |_| Ok(Role::Serves(Arc::new(Echo))));
        let (_, connection) = connect(here, &own);
        let hanging: Vec<_> = (0..10).map(|_| connection.request(b"hang").unwrap()).collect();
        for number in 0..100u8 {
            let channel = connection.request(&[number]).unwrap();
            assert_eq!(channel.receive().unwrap().unwrap(), [number]);
            assert_eq!(channel.receive().unwrap(), None);
        }
        let refused = connection.request(b"no").unwrap().receive();
        assert_eq!(refused, Err(Broken::Cancelled("not this".into())));
        let panicked = connection.request(b"panic").unwrap().receive();
        assert!(matches!(panicked, Err(Broken::Cancelled(_))), "{panicked:?}");
        drop(hanging);
        // The agent ends although ten threads of it hang.
        connection.close();
        assert!(matches!(end(&ended), AgentEnd::Over(Broken::Closed)));
    }

    #[test]
    fn it_ends_with_the_other_side() {
        let own = Hello::of_this_program("1");
        let (here, ended) = start(own.clone(), |_| Ok(Role::Serves(Arc::new(Echo))));
        let (_, connection) = connect(here, &own);
        let _hanging = connection.request(b"hang").unwrap();
        drop(connection);
        assert!(matches!(end(&ended), AgentEnd::Over(Broken::Ended)));
    }

    #[test]
    fn it_refuses_with_words() {
        let own = Hello::of_this_program("1");
        let (mut here, ended) = start(own.clone(), |peer| {
            assert_eq!(peer.root.0, b"/x");
            Err(Refusal { message: "not here".into(), hint: "go elsewhere".into() })
        });
        let asks = Hello { root: dmover_model::PathBytes(b"/x".to_vec()), ..own };
        asks.write(&mut here).unwrap();
        let refusal = Hello::read(&mut here).unwrap().refusal.unwrap();
        assert_eq!([refusal.message, refusal.hint], ["not here", "go elsewhere"]);
        assert!(matches!(end(&ended), AgentEnd::Refused(_)));
    }

    #[test]
    fn another_protocol_is_refused_and_both_know() {
        let own = Hello::of_this_program("1");
        let (mut here, ended) = start(own.clone(), |_| panic!("it must not serve"));
        let protocols = Protocols { newest: 9, oldest: 8 };
        Hello { protocols, ..own.clone() }.write(&mut here).unwrap();
        let peer = Hello::read(&mut here).unwrap();
        assert_eq!((peer.protocols, peer.refusal.is_some()), (own.protocols, true));
        assert!(matches!(end(&ended), AgentEnd::Refused(_)));
    }

    #[test]
    fn text_is_no_greeting() {
        let (mut here, ended) = start(Hello::of_this_program("1"), |_| panic!("no"));
        here.write_all(b"ls -l\n").unwrap();
        assert!(matches!(end(&ended), AgentEnd::NoHello(NoHello::Text(_))));
        let (here, ended) = start(Hello::of_this_program("1"), |_| panic!("no"));
        drop(here);
        assert!(matches!(end(&ended), AgentEnd::NoHello(NoHello::Nothing)));
    }
}
