//! Holds the state behind an identifier, from its making to its end.

use core::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard};

use omniverb_abi::{ibv_ece, ibv_qp_init_attr, rdma_cm_id, rdma_event_channel};
use omniverb_session::cm::{CmAddress, CmIdResolved};
use omniverb_sys::lock;
use omniverb_terms::Errno;

use crate::addrinfo::AddrinfoList;
use crate::{device, event_channel, id_registry, process_id_across_fork};

/// The C struct and what lies behind it.
#[repr(C)]
pub(crate) struct IdShell {
    pub(crate) id: rdma_cm_id,
    /// Its number in the registry.
    pub(crate) token: u64,
    state: Mutex<State>,
    /// An event was acknowledged.
    acknowledged: Condvar,
    /// Made by this process, and not by one that was forked to make it.
    pub(crate) process: i32,
}

/// When calls return that have something done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// At once: what becomes of it is an event on the program's channel.
    Asynchronous,
    /// When it is done; the channel is the identifier's own.
    Synchronous,
}

impl Operation {
    /// With a channel of the program's, or without one (null).
    pub(crate) fn with(channel: *mut rdma_event_channel) -> Operation {
        if channel.is_null() { Operation::Synchronous } else { Operation::Asynchronous }
    }
}

/// What is known of an identifier beside what the program sees.
pub(crate) struct State {
    pub(crate) operation: Operation,
    /// Events that the program has acknowledged.
    completed: u32,
    /// It has an address already: options cannot change how that is shared.
    pub(crate) is_bound: bool,
    pub(crate) resolved: ResolutionState,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
    /// From `rdma_getaddrinfo`: goes in front of what `rdma_connect` is given.
    pub(crate) connect: Vec<u8>,
    pub(crate) answer: ConnectAnswer,
    /// The program has been told that the peer has ended the connection.
    pub(crate) is_left_by_peer: bool,
    /// For queue pairs of `rdma_get_request`.
    pub(crate) queue_pair: Option<QueuePairWanted>,
    pub(crate) options: Options,
    /// Options of the queue pair, and of the peer's, as it said.
    pub(crate) local_ece: ibv_ece,
    pub(crate) remote_ece: ibv_ece,
    pub(crate) names: AddrinfoState,
    pub(crate) groups: Vec<JoinedGroup>,
    /// Joins so far: an event of one that was left is not taken for the next one's.
    pub(crate) joins: u64,
    /// Holds the device's default protection domain.
    pub(crate) has_device: bool,
}

/// How far the way to the peer is known.
#[derive(Clone, Copy)]
pub(crate) enum ResolutionState {
    Nothing,
    Address(CmIdResolved),
    Route,
}

/// What became of our request for a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectAnswer {
    /// Nothing yet, or there was none.
    None,
    /// The peer has answered.
    Came,
    /// It has, and then the queue pair could not be connected: the program is told of nothing else
    /// that comes of it.
    Useless,
}

/// What has become of `rdma_resolve_addrinfo`.
pub(crate) enum AddrinfoState {
    /// It was not called, or the program has what was found.
    Nothing,
    UnderWay,
    Found(AddrinfoList),
}

/// Attributes, kept as the program gave them.
#[derive(Clone, Copy)]
pub(crate) struct QueuePairWanted(pub(crate) ibv_qp_init_attr);

// SAFETY: pointers of the program's, handed back to it.
unsafe impl Send for QueuePairWanted {}

/// `rdma_set_option`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) tos: u8,
    pub(crate) ack_timeout: u8,
    /// `CM_*` bits.
    pub(crate) flags: u32,
}

/// What part an identifier's queue pair has in a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupRole {
    /// It sends to it, and is not attached.
    SendsOnly,
    /// It is to be attached, if there is one.
    Receives,
    /// It is attached: leaving detaches it.
    Attached,
}

/// A group that was joined, or is about to be.
pub(crate) struct JoinedGroup {
    pub(crate) number: u64,
    pub(crate) address: CmAddress,
    /// Comes back with the event of joining it, as the program gave it.
    pub(crate) context: usize,
    pub(crate) part: GroupRole,
}

impl IdShell {
    /// # Safety
    /// `id` is live.
    pub(crate) unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a IdShell {
        // SAFETY: the caller's promise.
        unsafe { &*id.cast::<IdShell>() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The daemon's number.
    pub(crate) fn handle(&self) -> Result<u32, Errno> {
        id_registry::handle(self.token)
    }

    /// The program has acknowledged an event.
    pub(crate) fn event_completed(&self) {
        let mut state = self.state();
        state.completed += 1;
        // While it is locked: the waiting thread frees all this once it has seen the last of them.
        self.acknowledged.notify_all();
        drop(state);
    }

    /// Waits until the program has acknowledged so many.
    pub(crate) fn await_acknowledged(&self, count: u32) {
        let mut state = self.state();
        while state.completed < count {
            state = self.acknowledged.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// What an identifier is made with.
pub(crate) struct Kind {
    pub(crate) context: *mut c_void,
    pub(crate) space: u32,
    pub(crate) qp_type: u32,
}

/// Memory for an identifier, on a channel, or with one of its own.
pub(crate) fn allocate(
    channel: *mut rdma_event_channel,
    kind: &Kind,
) -> Result<*mut IdShell, Errno> {
    let operation = Operation::with(channel);
    let channel = if channel.is_null() { event_channel::create()? } else { channel };
    // SAFETY: pointers, numbers and addresses: zero is valid for all.
    let mut id: rdma_cm_id = unsafe { core::mem::zeroed() };
    id.channel = channel;
    id.context = kind.context;
    id.ps = kind.space;
    id.qp_type = kind.qp_type;
    let state = State {
        operation,
        completed: 0,
        is_bound: false,
        resolved: ResolutionState::Nothing,
        initiator_depth: 0,
        responder_resources: 0,
        connect: Vec::new(),
        answer: ConnectAnswer::None,
        is_left_by_peer: false,
        queue_pair: None,
        options: Options::default(),
        local_ece: ibv_ece::default(),
        remote_ece: ibv_ece::default(),
        names: AddrinfoState::Nothing,
        groups: Vec::new(),
        joins: 0,
        has_device: false,
    };
    let state = Mutex::new(state);
    let (acknowledged, process) = (Condvar::new(), process_id_across_fork::this());
    Ok(Box::into_raw(Box::new(IdShell { id, token: 0, state, acknowledged, process })))
}

/// Frees what [`allocate`] made.
///
/// # Safety
/// `shell` is not used any more.
pub(crate) unsafe fn free(shell: *mut IdShell) {
    // SAFETY: the caller's promise; it was leaked by `allocate`.
    let shell = unsafe { Box::from_raw(shell) };
    let (operation, has_device) = {
        let state = shell.state();
        (state.operation, state.has_device)
    };
    if has_device {
        device::put();
    }
    // SAFETY: made by `calloc` in this library, or null; the channel is the identifier's own.
    unsafe {
        libc::free(shell.id.route.path_rec.cast());
        if operation == Operation::Synchronous {
            event_channel::ov_rdma_destroy_event_channel(shell.id.channel);
        }
    }
}

/// Gives an identifier the device: its context, its default protection domain, its port.
///
/// # Safety
/// `id` is live.
pub(crate) unsafe fn attach(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let shell = unsafe { IdShell::of(id) };
    if shell.state().has_device {
        return Ok(());
    }
    let (verbs, pd) = device::hold()?;
    shell.state().has_device = true;
    // SAFETY: the caller's promise.
    unsafe {
        (*id).verbs = verbs;
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
        (*id).port_num = 1;
        (*id).route.addr.ibaddr.pkey = 0xffff;
    }
    Ok(())
}
