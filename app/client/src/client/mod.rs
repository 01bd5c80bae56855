//! The client: all that this process has besides the device, and how to reach the daemon.
//!
//! The parts are objects of their own, each in a file beside this folder; what joins them is here.

mod admitting;
mod captures;
mod events;
mod explaining;
mod groups;
mod handing_over;
mod hidden;
mod importing;
mod lending;
mod links;
mod mapping;
mod objects;
mod openers;
mod opening;
mod pinning;
mod registering;
mod resume;
mod second;
mod taking_back;
mod turning;

pub use self::handing_over::Membership;
pub use self::importing::{Offer, is_command_file};
pub use self::opening::OpenedQp;
pub use self::registering::{REGIONS_MAX, Wish};
pub use self::second::Answer;

use crate::delivered::Delivered;
use crate::nic::{NoDevice, VirtualNic};
use crate::session::{self, Session};
use crate::{audience, bells, calls, environment, fork, host, imports, keys, mapped, places};
use crate::{opened, progress, queue_pairs, statistics, taking, tracing, watches};
use omniverb_device::Shared;
use omniverb_session::Message;
use omniverb_session::body::{GidEntry, QueryGids};
use omniverb_sys::{lock, try_lock};
use omniverb_terms::Errno;
use std::sync::{Arc, Mutex, RwLock, Weak};

/// This process's side of everything.
pub struct Client {
    /// What all objects of the device share; whoever makes one names it.
    pub shared: Arc<Shared>,
    session: Session,
    nic: RwLock<VirtualNic>,
    statistics: statistics::Area,
    pub(crate) qps: queue_pairs::QueuePairs,
    /// What peers may reach, and what of it lies on files of a daemon's.
    keys: keys::Keys,
    bells: bells::Bells,
    progress: Arc<progress::Progress>,
    /// Calls to the daemon that nobody of the application waits for.
    calls: Arc<calls::Calls>,
    /// What is taken back from peers.
    taking: Arc<taking::Taking>,
    /// Descriptors of other libraries that the progress thread looks after.
    watches: watches::Watches,
    /// Other libraries that are told what is theirs of what the daemon tells.
    audience: audience::Audience,
    /// What of peers is mapped here.
    mapped: mapped::Mapped,
    /// Its parts of XRC domains, where others find it.
    places: Mutex<Vec<Arc<places::Place>>>,
    /// Processes that have queue pairs of ours open.
    openers: opened::Openers,
    /// Listens to processes with which a device is shared.
    service: Arc<imports::Service>,
    /// What those have who import ours.
    exporter: Arc<imports::Exporter>,
    /// What is mapped of those whose we import.
    imported: Arc<imports::Budget>,
    /// Whoever attaches or detaches a queue pair has its turn.
    pub(crate) attaching: Mutex<()>,
    /// Itself, for the threads it starts.
    me: Weak<Client>,
    tracing: tracing::Tracing,
    /// Which process made it; see [`fork::generation`].
    generation: u64,
    /// The environment says that no pages of this process are to be granted.
    keeps_pages: bool,
}

static CLIENT: Mutex<Option<Arc<Client>>> = Mutex::new(None);

/// This process is about to fork: takes all pages back from peers, and moves none until it has.
extern "C" fn before_fork() {
    keys::hold_pages();
    if let Some(client) = Client::existing() {
        client.withdraw_before_fork();
    }
}

/// This process has forked, or could not.
extern "C" fn after_fork() {
    keys::let_pages_move();
}

impl Client {
    /// The process's client; connects on first use.
    ///
    /// # Errors
    /// [`NoDevice`].
    pub fn get() -> Result<Arc<Client>, NoDevice> {
        fork::install(before_fork, after_fork);
        let mut slot = lock(&CLIENT);
        if let Some(client) = &*slot
            && client.is_ours()
        {
            return Ok(client.clone());
        }
        let client = Client::connect()?;
        if let Some(parents) = slot.replace(client.clone()) {
            // A forked child's copy: its windows are not here (ours may be where they were), and
            // the numbers of its descriptors may be somebody else's by now.
            std::mem::forget(parents);
        }
        Ok(client)
    }

    /// The process's client, if it has one and nobody is making one.
    fn existing() -> Option<Arc<Client>> {
        try_lock(&CLIENT)?.clone().filter(|client| client.is_ours())
    }

    /// Another client, for this call's caller alone.
    pub(crate) fn connect() -> Result<Arc<Client>, NoDevice> {
        let session::First { session, nic, daemon, area } = Session::connect()?;
        omniverb_sys::spare_fds::keep();
        let area = statistics::Area::new(&area).map_err(NoDevice::Resources)?;
        let progress = progress::Progress::new().map_err(NoDevice::Resources)?;
        let bells = bells::Bells::new().map_err(NoDevice::Resources)?;
        let service = Arc::<imports::Service>::default();
        let shared = Shared::new(Box::new(host::ProcessHost::new(progress.clone())));
        shared.set_daemon(daemon);
        Ok(Arc::new_cyclic(|me: &Weak<Client>| Client {
            shared,
            session,
            nic: RwLock::new(nic),
            statistics: area,
            qps: Default::default(),
            keys: keys::Keys::default(),
            bells,
            watches: watches::Watches::new(progress.ears.clone()),
            audience: Default::default(),
            progress,
            calls: Arc::default(),
            taking: Arc::default(),
            mapped: mapped::Mapped::default(),
            places: Mutex::default(),
            openers: Default::default(),
            exporter: imports::Exporter::new(service.clone(), me.clone()),
            service,
            imported: Arc::default(),
            attaching: Mutex::default(),
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

    /// The vNIC, as the daemon described it when this process came to it.
    pub fn nic(&self) -> VirtualNic {
        *self.nic.read().unwrap_or_else(|e| e.into_inner())
    }

    /// The GID table as it is now.
    ///
    /// # Errors
    /// errno: of the call, or `EPROTO` for an answer that is none.
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
        self.call_with_files(message).map(|answer| answer.said)
    }

    /// The same, with the files that belong to the answer.
    fn call_with_files(&self, message: &Message) -> Result<Delivered<Message>, Errno> {
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

    /// Has this done by the thread for it.
    fn have_called(&self, call: calls::Call) {
        self.calls.ask(&self.me, call);
    }

    /// Whether there is a daemon, as far as we know.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn is_connected(&self) -> bool {
        self.session.events().is_some()
    }

    /// Whether there is somewhere to write traces.
    #[cfg(test)]
    pub(crate) fn is_tracing(&self) -> bool {
        self.tracing.tracer().is_some()
    }

    /// Whether each peer process may wake us.
    #[cfg(test)]
    pub(crate) fn heard_bells(&self) -> Vec<bool> {
        self.bells.heard()
    }
}
