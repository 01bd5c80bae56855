//! The client: all that this process has besides the device, and how to reach the daemon.
//!
//! The parts are objects of their own, each in a file beside this folder; what joins them is here.

mod captures;
mod daemon_events;
mod device_export;
mod explain_qp;
mod hidden_qps;
mod link_attachment;
mod mapping_requests;
mod memory_registration;
mod multicast_groups;
mod open_shared_qp;
mod page_pinning;
mod pages_to_revoke;
mod pending_grants;
mod progress_thread;
mod qp_lifecycle;
mod resume;
mod secondary_libraries;
mod shared_qp_admission;
mod shared_qp_openers;
mod xrc_srq_links;

pub use self::device_export::{Offer, is_command_file};
pub use self::memory_registration::{REGIONS_MAX, Wish};
pub use self::open_shared_qp::OpenedQp;
pub use self::secondary_libraries::Answer;
pub use self::xrc_srq_links::Membership;

use crate::daemon_session::{self, Session};
use crate::message_descriptors::Delivered;
use crate::vnic_facts::{NoDevice, VirtualNic};
use crate::{
    deferred_tasks, device_import, device_platform, doorbells, environment, event_subscribers,
    fork, memory_keys, peer_mappings, xrc_directory,
};
use crate::{
    page_revocation, progress_state, queue_pair_records, shared_qp, statistics, trace_ring,
    watched_fds,
};
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
    pub(crate) qps: queue_pair_records::QueuePairs,
    /// What peers may reach, and what of it lies on files of a daemon's.
    keys: memory_keys::Keys,
    bells: doorbells::Bells,
    progress: Arc<progress_state::Progress>,
    /// Calls to the daemon that nobody of the application waits for.
    calls: Arc<deferred_tasks::Calls>,
    /// What is taken back from peers.
    taking: Arc<page_revocation::Taking>,
    /// Descriptors of other libraries that the progress thread looks after.
    watches: watched_fds::Watches,
    /// Other libraries that are told what is theirs of what the daemon tells.
    audience: event_subscribers::Audience,
    /// What of peers is mapped here.
    mapped: peer_mappings::Mapped,
    /// Its parts of XRC domains, where others find it.
    places: Mutex<Vec<Arc<xrc_directory::Place>>>,
    /// Processes that have queue pairs of ours open.
    openers: shared_qp::Openers,
    /// Listens to processes with which a device is shared.
    service: Arc<device_import::Service>,
    /// What those have who import ours.
    exporter: Arc<device_import::Exporter>,
    /// What is mapped of those whose we import.
    imported: Arc<device_import::Budget>,
    /// Whoever attaches or detaches a queue pair has its turn.
    pub(crate) attaching: Mutex<()>,
    /// Itself, for the threads it starts.
    me: Weak<Client>,
    tracing: trace_ring::Tracing,
    /// Which process made it; see [`fork::generation`].
    generation: u64,
    /// The environment says that no pages of this process are to be granted.
    keeps_pages: bool,
}

static CLIENT: Mutex<Option<Arc<Client>>> = Mutex::new(None);

/// This process is about to fork: takes all pages back from peers, and moves none until it has.
extern "C" fn before_fork() {
    memory_keys::hold_pages();
    if let Some(client) = Client::existing() {
        client.withdraw_before_fork();
    }
}

/// This process has forked, or could not.
extern "C" fn after_fork() {
    memory_keys::let_pages_move();
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
        let daemon_session::First { session, nic, daemon, area } = Session::connect()?;
        omniverb_sys::spare_fds::keep();
        let area = statistics::Area::new(&area).map_err(NoDevice::Resources)?;
        let progress = progress_state::Progress::new().map_err(NoDevice::Resources)?;
        let bells = doorbells::Bells::new().map_err(NoDevice::Resources)?;
        let service = Arc::<device_import::Service>::default();
        let shared = Shared::new(Box::new(device_platform::ProcessHost::new(progress.clone())));
        shared.set_daemon(daemon);
        Ok(Arc::new_cyclic(|me: &Weak<Client>| Client {
            shared,
            session,
            nic: RwLock::new(nic),
            statistics: area,
            qps: Default::default(),
            keys: memory_keys::Keys::default(),
            bells,
            watches: watched_fds::Watches::new(progress.ears.clone()),
            audience: Default::default(),
            progress,
            calls: Arc::default(),
            taking: Arc::default(),
            mapped: peer_mappings::Mapped::default(),
            places: Mutex::default(),
            openers: Default::default(),
            exporter: device_import::Exporter::new(service.clone(), me.clone()),
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
            Err(errno) if daemon_session::is_lost(errno) => {
                self.reconnect()?;
                self.session.call(message)
            }
            Err(Errno::ETIMEDOUT) => {
                self.have_called(deferred_tasks::Call::Settle);
                Err(Errno::ETIMEDOUT)
            }
            answer => answer,
        }
    }

    /// Has this done by the thread for it.
    fn have_called(&self, call: deferred_tasks::Call) {
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
