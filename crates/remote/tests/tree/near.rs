//! Both sides of a connection in this process.
use dmover_model::{AttributeSet, Fatal, FollowLinks, Metadata, PathBytes};
use dmover_net::agent::Service;
use dmover_net::connection::{Broken, CHANNELS_MAX, Channel, Connection, Link};
use dmover_net::hello::Hello;
use dmover_remote::{Introduction, Line, Opening, RemoteSource, TreeService, WithHead};
use dmover_wire::agent::{ContentPart, Request, UNKNOWN_REQUEST, encode_content};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An agent of a version without walks.
#[derive(Debug)]
struct Older(TreeService);

impl Service for Older {
    fn serve(&self, request: &[u8], channel: &Arc<Channel>) -> Result<(), Broken> {
        if let Ok(Request::Walk { .. }) = dmover_wire::decode(request) {
            return Err(Broken::Cancelled(UNKNOWN_REQUEST.into()));
        }
        self.0.serve(request, channel)
    }
}

/// An agent whose file system may stop to answer.
struct Hanging {
    service: Arc<dyn Service>,
    hangs: Arc<AtomicBool>,
    stale: Arc<Mutex<Option<Metadata>>>,
}

impl Service for Hanging {
    fn serve(&self, request: &[u8], channel: &Arc<Channel>) -> Result<(), Broken> {
        if let Some(metadata) = self.stale.lock().unwrap().clone()
            && let Ok(Request::Content { range, .. }) = dmover_wire::decode(request)
        {
            let length = range.end.min(metadata.size).saturating_sub(range.start);
            for _ in 0..length.div_ceil(1 << 16) {
                channel.send(&encode_content(&ContentPart::Data(vec![b'?'; 1 << 16])))?;
            }
            return channel.send(&encode_content(&ContentPart::<Vec<u8>>::End(metadata)));
        }
        let until = Instant::now() + Duration::from_mins(2);
        while self.hangs.load(SeqCst) && Instant::now() < until {
            // Longer than a test lasts: poll.
            std::thread::sleep(Duration::from_millis(20));
        }
        self.service.serve(request, channel)
    }
}

/// A connection that counts requests.
#[derive(Debug)]
pub struct Near {
    connection: Connection,
    stream: UnixStream,
    requests: AtomicUsize,
    hangs: Arc<AtomicBool>,
    stale: Arc<Mutex<Option<Metadata>>>,
}

impl Near {
    /// Connects with an agent for a root.
    pub fn to(root: &Path) -> Arc<Self> {
        Self::with(root, CHANNELS_MAX)
    }

    /// The same with so many channels.
    pub fn with(root: &Path, channels_max: u32) -> Arc<Self> {
        Self::with_service(root, channels_max, |path| Arc::new(TreeService::new(path)))
    }

    /// Connects with an agent that does not know walks.
    pub fn to_older(root: &Path) -> Arc<Self> {
        Self::with_service(root, CHANNELS_MAX, |path| Arc::new(Older(TreeService::new(path))))
    }

    /// Connects with an agent that serves third hosts as well.
    pub fn to_introduced(root: &Path) -> Arc<Self> {
        Self::with_service(root, CHANNELS_MAX, |path| {
            let (hello, addresses) = (Hello::of_this_program("1"), Vec::new());
            Arc::new(TreeService::new(path).introduced(Introduction { hello, addresses }))
        })
    }

    fn with_service(
        root: &Path,
        channels_max: u32,
        service: fn(PathBytes) -> Arc<dyn Service>,
    ) -> Arc<Self> {
        let (stream, there) = UnixStream::pair().unwrap();
        let mut own = Hello { channels_max, ..Hello::of_this_program("1") };
        let hangs = Arc::new(AtomicBool::new(false));
        let stale: Arc<Mutex<Option<Metadata>>> = Arc::default();
        std::thread::spawn({
            let (own, hangs, stale) = (own.clone(), Arc::clone(&hangs), Arc::clone(&stale));
            move || {
                let input = there.try_clone().unwrap();
                dmover_net::agent::run(input, there, (own, Vec::new()), |peer| {
                    let service = service(peer.root.clone());
                    Ok(dmover_net::agent::Role::Serves(Arc::new(Hanging { service, hangs, stale })))
                })
            }
        });
        own.root = PathBytes::from(root.as_os_str());
        own.write(&mut &stream).unwrap();
        let peer = Hello::read(&mut &stream).unwrap();
        let [input, output, ends] = [(); 3].map(|()| stream.try_clone().unwrap());
        let hang_up = Box::new(move |_| drop(ends.shutdown(Shutdown::Both)));
        let link = Link { input: Box::new(input), output: Box::new(output), hang_up, report: None };
        let connection = Connection::asking(link, own.terms_with(&peer)).unwrap();
        Arc::new(Self { connection, stream, requests: AtomicUsize::new(0), hangs, stale })
    }

    /// Cuts the connection, as a network does.
    pub fn cut(&self) {
        self.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// The file system at the other side does not answer any more.
    pub fn hang(&self) {
        self.hangs.store(true, SeqCst);
    }

    /// The other side sends other content from now on, and says that it is of this version.
    pub fn be_stale(&self, metadata: Metadata) {
        *self.stale.lock().unwrap() = Some(metadata);
    }

    /// How many requests were sent since the last call.
    pub fn requests(&self) -> usize {
        self.requests.swap(0, SeqCst)
    }
}

impl Line for Near {
    fn request(&self, message: &[u8]) -> Result<Channel, Broken> {
        self.requests.fetch_add(1, SeqCst);
        self.connection.request(message)
    }

    fn request_ahead(&self, message: &[u8]) -> Result<Option<Channel>, Broken> {
        let sent = self.connection.request_ahead(message);
        self.requests.fetch_add(usize::from(matches!(sent, Ok(Some(_)))), SeqCst);
        sent
    }

    fn is_over(&self) -> Option<Broken> {
        self.connection.is_over()
    }

    fn fatal(&self, why: &Broken) -> Fatal {
        Fatal::unavailable(format!("lost: {why}"), "again")
    }
}

/// The name of the root in a job.
pub fn display(root: &Path) -> PathBytes {
    PathBytes([b"host:", root.as_os_str().as_encoded_bytes()].concat())
}

/// How the tests open a tree.
pub fn opening(root: &Path, follow: FollowLinks) -> Opening {
    Opening {
        display: display(root),
        follow,
        preserve: AttributeSet::all(),
        with_head: WithHead::Content,
    }
}

/// Opens a tree, and the connection below it.
pub fn open(root: &Path, follow: FollowLinks) -> (RemoteSource, Arc<Near>) {
    let near = Near::to(root);
    (read(&near, opening(root, follow)).unwrap(), near)
}

/// Opens the tree of a connection.
pub fn read(near: &Arc<Near>, opening: Opening) -> Result<RemoteSource, Fatal> {
    let line: Arc<dyn Line> = near.clone();
    RemoteSource::open(line, opening)
}

/// A tree that follows no links.
pub fn plain(root: &Path) -> (RemoteSource, Arc<Near>) {
    open(root, FollowLinks::Never)
}

/// An empty directory in memory.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}
