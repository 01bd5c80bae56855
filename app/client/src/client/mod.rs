//! The client: all that this process has besides the device, and how to reach the daemon.
//!
//! The parts are objects of their own, each in a file beside this folder; what joins them is here.

mod adopt_and_withdraw_pages;
mod capture_tracing;
mod carried_links;
mod daemon_events;
mod device_sharing;
mod explain_unreachable_peer;
mod library_mapping_of_region;
mod link_attachment;
mod memory_registration;
mod multicast_attach_calls;
mod multicast_group_requests;
mod open_shared_qp;
mod page_take_back_requests;
mod pages_granted_to_peers;
mod progress_thread;
mod qp_lifecycle;
mod requests_to_map_peer_pages;
mod resume_after_restart;
mod shared_qp_open_requests;
mod shared_qp_openers;
mod sibling_library_calls;
mod vm_page_pinning;
mod xrc_hidden_qps;
mod xrc_srqs_of_other_processes;

pub use self::device_sharing::{ExportOffer, is_command_file};
pub use self::memory_registration::{REGIONS_MAX, RegistrationRequest};
pub use self::open_shared_qp::OpenedQp;
pub use self::sibling_library_calls::DaemonAnswer;
pub use self::xrc_srqs_of_other_processes::Membership;

use self::multicast_group_requests::MulticastGroups;
use self::pages_granted_to_peers::GrantedPages;
use crate::daemon_caller_trait::DaemonCaller;
use crate::daemon_messages_with_fds::MessageWithFiles;
use crate::daemon_session::{self, Session};
use crate::vnic_description::{NoDevice, VirtualNic};
use crate::{
    carried_connections, deferred_daemon_calls, device_import, device_platform, fork,
    peer_doorbells, peer_mappings, region_extents_by_rkey, sibling_library_event_subscribers,
    xrc_domain_discovery,
};
use crate::{
    link_trace_writer, progress_thread_state, qp_statistics_area, queue_pair_records, shared_qp,
    sibling_library_fds,
};
use omniverb_device::Shared;
use omniverb_session::Message;
use omniverb_session::body::{GidEntry, QueryGids};
use omniverb_sys::{lock, try_lock};
use omniverb_terms::Errno;
use std::sync::{Arc, Mutex, RwLock, Weak};

/// This process's side of everything.
pub struct Client {
    /// What all objects of the device share; each new object names it.
    pub shared: Arc<Shared>,
    pub(crate) session: Arc<Session>,
    nic: RwLock<VirtualNic>,
    statistics: qp_statistics_area::Area,
    pub(crate) qps: Arc<queue_pair_records::QueuePairs>,
    /// What peers may reach, and what of it lies on files of a daemon's.
    pages: Arc<GrantedPages>,
    pub(crate) groups: MulticastGroups,
    pub(crate) bells: Arc<peer_doorbells::PeerDoorbells>,
    pub(crate) progress: Arc<progress_thread_state::Progress>,
    /// Connections over a network that this process carries itself.
    pub(crate) carried: Arc<carried_connections::CarriedConnections>,
    /// Calls to the daemon that no thread of the application waits for.
    calls: Arc<deferred_daemon_calls::DeferredCalls>,
    /// Descriptors of other libraries that the progress thread looks after.
    watches: sibling_library_fds::Watches,
    /// Other libraries that are told what is theirs of what the daemon tells.
    subscribers: sibling_library_event_subscribers::Subscribers,
    /// What of peers is mapped here.
    mapped: peer_mappings::PeerMappings,
    /// Its parts of XRC domains, where others find it.
    places: xrc_domain_discovery::DomainMembers,
    /// Processes that have queue pairs of ours open.
    openers: shared_qp::Openers,
    /// Listens to processes with which a device is shared.
    service: Arc<device_import::PeerSocketThread>,
    /// What processes have that import ours.
    exporter: Arc<device_import::Exporter>,
    /// What is mapped of those whose we import.
    imported: Arc<device_import::ImportBudget>,
    /// Itself, for the threads it starts.
    me: Weak<Client>,
    pub(crate) tracing: link_trace_writer::TraceRing,
    /// Which process made it; see [`fork::generation`].
    generation: u64,
}

static CLIENT: Mutex<Option<Arc<Client>>> = Mutex::new(None);

/// This process is about to fork: takes all pages back from peers, and moves none until it has.
extern "C" fn before_fork() {
    region_extents_by_rkey::hold_pages();
    if let Some(client) = Client::existing() {
        client.pages.withdraw_before_fork();
    }
}

/// This process has forked, or could not.
extern "C" fn after_fork() {
    region_extents_by_rkey::let_pages_move();
}

/// This is a child that was just forked.
extern "C" fn after_fork_in_child() {
    carried_connections::close_in_child();
}

impl Client {
    /// The process's client; connects on first use.
    ///
    /// # Errors
    /// [`NoDevice`].
    pub fn get() -> Result<Arc<Client>, NoDevice> {
        fork::install(before_fork, after_fork, after_fork_in_child);
        let mut slot = lock(&CLIENT);
        if let Some(client) = &*slot
            && client.is_ours()
        {
            return Ok(client.clone());
        }
        let client = Client::connect()?;
        if let Some(parents) = slot.replace(client.clone()) {
            // A forked child's copy: its windows are not here (ours may be where they were), and
            // its descriptor numbers may mean other files by now.
            std::mem::forget(parents);
        }
        Ok(client)
    }

    /// The process's client, if it has one and no thread is making one.
    fn existing() -> Option<Arc<Client>> {
        try_lock(&CLIENT)?.clone().filter(|client| client.is_ours())
    }

    /// Another client, for this call's caller alone.
    pub(crate) fn connect() -> Result<Arc<Client>, NoDevice> {
        let daemon_session::FirstSession { session, nic, daemon, area } = Session::connect()?;
        omniverb_sys::spare_fds::keep();
        let area = qp_statistics_area::Area::new(&area).map_err(NoDevice::Resources)?;
        let progress = progress_thread_state::Progress::new().map_err(NoDevice::Resources)?;
        let bells = peer_doorbells::PeerDoorbells::new().map_err(NoDevice::Resources)?;
        let service = Arc::<device_import::PeerSocketThread>::default();
        let thread = progress.clone();
        let tell = move || thread.run(deferred_daemon_calls::DeferredCall::SettleCarried);
        let carried = carried_connections::CarriedConnections::new(tell);
        let host = device_platform::ProcessHost::new(progress.clone(), carried.clone());
        let shared = Shared::new(Box::new(host));
        shared.set_daemon(daemon);
        let (session, qps, bells) = (Arc::new(session), Arc::default(), Arc::new(bells));
        let pages = GrantedPages::new(
            shared.clone(),
            session.clone(),
            Arc::clone(&qps),
            bells.clone(),
            progress.clone(),
        );
        Ok(Arc::new_cyclic(|me: &Weak<Client>| Client {
            groups: MulticastGroups::new(qps.clone(), pages.clone()),
            exporter: device_import::Exporter::new(service.clone(), pages.me.clone()),
            pages,
            shared,
            session,
            nic: RwLock::new(nic),
            statistics: area,
            qps,
            bells,
            watches: sibling_library_fds::Watches::new(progress.daemon_listener.clone()),
            subscribers: Default::default(),
            progress,
            carried,
            calls: Arc::default(),
            mapped: peer_mappings::PeerMappings::default(),
            places: Default::default(),
            openers: Default::default(),
            service,
            imported: Arc::default(),
            me: me.clone(),
            tracing: Default::default(),
            generation: fork::generation(),
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

    /// Asks the daemon, and reconnects if it was restarted: the answer, with its files.
    fn call_with_files(&self, message: &Message) -> Result<MessageWithFiles<Message>, Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        match self.session.call(message) {
            Err(errno) if daemon_session::is_lost(errno) => {
                self.reconnect()?;
                self.session.call(message)
            }
            Err(Errno::ETIMEDOUT) => {
                self.defer(deferred_daemon_calls::DeferredCall::Settle);
                Err(Errno::ETIMEDOUT)
            }
            answer => answer,
        }
    }
}

impl DaemonCaller for Client {
    fn call(&self, message: &Message) -> Result<Message, Errno> {
        self.call_with_files(message).map(|answer| answer.said)
    }

    fn defer(&self, call: deferred_daemon_calls::DeferredCall) {
        self.calls.ask(&self.me, call);
    }
}
