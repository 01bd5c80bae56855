//! What runs inside an application besides the device itself: the session with `omniverbd`, the
//! progress thread, memory keys and page grants.
//!
//! In: control verbs from the C edge (`app/ibverbs`). Out: daemon calls, and device objects that
//! then work without either. There is one [`Client`] per process, made when the program first
//! asks for devices; nothing runs or is open before that.

mod answers;
mod asking;
mod bells;
mod calls;
mod daemon;
mod ears;
mod environment;
mod errno;
mod events;
mod extents;
mod fork;
mod host;
mod keys;
mod link;
mod lock;
mod mapped;
mod memory;
pub mod notify;
mod objects;
mod progress;
mod queue_pairs;
mod resume;
mod second;
mod session;
mod statistics;
mod taking;
#[cfg(any(test, feature = "fuzz"))]
pub mod testing;
mod tracing;
mod turns;
mod watches;
mod window;

use lock::lock;
use omniverb_device::{AsyncEvent, Shared};
pub use omniverb_session::body::GidEntry;
use omniverb_session::body::QueryGids;
use omniverb_session::{Message, SOCKET_VARIABLE};
use omniverb_terms::Errno;
use session::Session;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

pub use notify::Notifier;

pub use omniverb_sys::epoll::Interest;
pub use queue_pairs::Connection;
pub use second::Answer;

/// Facts about the vNIC, from the daemon.
#[derive(Clone, Copy, Debug)]
pub struct VirtualNic {
    /// Network byte order.
    pub node_guid: [u8; 8],
    /// Quota.
    pub qp_max: u32,
    /// Quota.
    pub mr_max: u32,
    /// Quota.
    pub link_max: u32,
}

/// This process's side of everything.
pub struct Client {
    /// The device.
    pub shared: Arc<Shared>,
    session: Session,
    nic: RwLock<VirtualNic>,
    statistics: statistics::Area,
    qps: queue_pairs::QueuePairs,
    keys: Mutex<keys::Keys>,
    bells: bells::Bells,
    progress: Arc<progress::Progress>,
    /// What is taken back from peers.
    taking: Arc<taking::Taking>,
    /// Held while pages move, in either direction.
    moving: Mutex<()>,
    /// Descriptors of other libraries that the progress thread looks after.
    watches: watches::Watches,
    /// What of peers is mapped here.
    mapped: Arc<Mutex<mapped::Mapped>>,
    /// Mappings that several rights may have together.
    together: Mutex<mapped::Together>,
    /// Itself, for the threads it starts.
    me: Weak<Client>,
    tracing: tracing::Tracing,
    generation: u64,
    /// The environment says that no pages of this process are to be granted.
    keeps_pages: bool,
}

/// Where asynchronous events go: the event's kind and the object's cookie.
pub type AsyncEventSink = fn(AsyncEvent, usize);

static SINK: OnceLock<AsyncEventSink> = OnceLock::new();
static CLIENT: Mutex<Option<Arc<Client>>> = Mutex::new(None);

/// Names the receiver of asynchronous events, once.
pub fn on_async_event(sink: AsyncEventSink) {
    let _ = SINK.set(sink);
}

/// Why there is no device.
#[derive(Debug)]
pub enum NoDevice {
    /// No daemon answers at this path.
    NoDaemon(String, Errno),
    /// The daemon refused: errno.
    Refused(String, Errno),
    /// This process ran out of something: errno.
    Resources(Errno),
}

impl std::fmt::Display for NoDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |errno: &Errno| std::io::Error::from_raw_os_error(errno.raw());
        match self {
            NoDevice::NoDaemon(path, errno) => write!(
                f,
                "omniverb: no daemon at {path} ({}); start omniverbd, or run the program with \
                 'omniverb run' (see also {SOCKET_VARIABLE})",
                text(errno)
            ),
            NoDevice::Refused(path, errno) => {
                write!(f, "omniverb: the daemon at {path} refuses this process ({})", text(errno))
            }
            NoDevice::Resources(errno) => {
                write!(f, "omniverb: cannot set up a session ({})", text(errno))
            }
        }
    }
}

impl Client {
    /// The process's client; connects on first use.
    ///
    /// # Errors
    /// [`NoDevice`].
    pub fn get() -> Result<Arc<Client>, NoDevice> {
        fork::install();
        let mut slot = lock(&CLIENT);
        if let Some(client) = &*slot
            && client.is_ours()
        {
            return Ok(client.clone());
        }
        let client = Client::connect()?;
        *slot = Some(client.clone());
        Ok(client)
    }

    fn connect() -> Result<Arc<Client>, NoDevice> {
        let (session, nic, area) = Session::connect()?;
        let area = statistics::Area::new(&area).map_err(NoDevice::Resources)?;
        let progress = progress::Progress::new().map_err(NoDevice::Resources)?;
        Ok(Arc::new_cyclic(|me| Client {
            shared: Shared::new(Box::new(host::ProcessHost::new(me.clone(), progress.clone()))),
            session,
            nic: RwLock::new(nic),
            statistics: area,
            qps: Default::default(),
            keys: Mutex::default(),
            bells: Default::default(),
            watches: watches::Watches::new(progress.ears.clone()),
            progress,
            taking: Arc::default(),
            moving: Mutex::default(),
            mapped: Arc::default(),
            together: Mutex::default(),
            me: me.clone(),
            tracing: Default::default(),
            generation: fork::generation(),
            keeps_pages: environment::keeps_pages(),
        }))
    }

    /// False in a child that was forked after this client was made: the session, the links and
    /// the device belong to the parent.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Facts about the vNIC.
    pub fn nic(&self) -> VirtualNic {
        *self.nic.read().unwrap_or_else(|e| e.into_inner())
    }

    /// The GID table as it is now.
    ///
    /// # Errors
    /// errno.
    pub fn gids(&self) -> Result<Vec<GidEntry>, Errno> {
        match self.call(&QueryGids { reserved: 0 }.into())? {
            Message::Gids(gids) => {
                let count = (gids.count as usize).min(gids.entries.len());
                Ok(gids.entries[..count].to_vec())
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Asks the daemon; reconnects if it was restarted.
    fn call(&self, message: &Message) -> Result<Message, Errno> {
        self.call_with_files(message).map(|(answer, _)| answer)
    }

    /// The same, with the descriptors that come beside the answer.
    fn call_with_files(&self, message: &Message) -> Result<(Message, Vec<OwnedFd>), Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        match self.session.call(message) {
            Err(errno) if session::is_lost(errno) => {
                self.reconnect()?;
                self.session.call(message)
            }
            Err(Errno::ETIMEDOUT) => {
                self.have_called(calls::Call::Settle);
                Err(Errno::ETIMEDOUT)
            }
            answer => answer,
        }
    }
}
