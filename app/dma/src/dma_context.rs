//! Holds what a program has from `omv_dma_init`: nodes, buffers, and listeners.
//!
//! Locks are taken in this order: the tables, a node. Nothing is waited for with either held but
//! for the device's own calls.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use libc::sockaddr_storage;
use omniverb_abi::{ibv_context, rdma_event_channel};
use omniverb_dma_announce::{AnnouncedBuffer, BUFFER_BYTES_MAX, BUFFERS_MAX, READABLE, WRITABLE};
use omniverb_sys::lock;
use omniverb_terms::Errno;

use crate::buffer_handle::BufferHandle;
use crate::cm_id::CmId;
use crate::device::Device;
use crate::errno::{EEXIST, made};
use crate::limits::{KEEP, NODES_MAX, STRANGERS_MAX};
use crate::local_buffer::LocalBuffer;
use crate::node::{ConnectionOrigin, Node};
use crate::rdma_imports;
use crate::registered_memory::Memory;
use crate::wakes_and_callbacks::{Shared, WaitMode};

/// A channel for events of connections.
pub(crate) struct Events(pub(crate) *mut rdma_event_channel);

// SAFETY: the calls of rdma_cma.h are for any thread.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Events {
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: takes nothing.
        made(unsafe { rdma_imports::rdma_create_event_channel() }).map(Events)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: all identifiers of it are gone.
        unsafe { rdma_imports::rdma_destroy_event_channel(self.0) };
    }
}

/// `struct omv_dma`. Fields go in their order.
pub struct Program {
    pub(crate) listener: Mutex<Option<CmId>>,
    pub(crate) port: u16,
    /// The device that it listened at is gone.
    removed: AtomicBool,
    /// What we connect from, if the program says it.
    pub(crate) source: Option<sockaddr_storage>,
    pub(crate) stops: AtomicBool,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
    tables: Mutex<Tables>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) device: Device,
    pub(crate) events: Events,
}

#[derive(Default)]
struct Tables {
    nodes: BTreeMap<u32, Arc<Node>>,
    latest_node: u32,
    /// Those that have connected to us, and that the program does not have yet.
    arrived: VecDeque<u32>,
    own: BTreeMap<u64, Arc<LocalBuffer>>,
    latest_serial: u64,
    /// What the program has, by address.
    handles: BTreeMap<usize, Arc<BufferHandle>>,
}

impl Program {
    pub(crate) fn new(
        events: Events,
        context: *mut ibv_context,
        listener: Option<(CmId, u16)>,
        source: Option<sockaddr_storage>,
        waits: WaitMode,
    ) -> Result<Self, Errno> {
        let (listener, port) = listener.map_or((None, 0), |(id, port)| (Some(id), port));
        Ok(Self {
            listener: Mutex::new(listener),
            port,
            removed: AtomicBool::new(false),
            source,
            stops: AtomicBool::new(false),
            thread: Mutex::default(),
            tables: Mutex::default(),
            shared: Arc::new(Shared::new(waits)?),
            // SAFETY: rdma_cm's devices stay open.
            device: unsafe { Device::new(context) }?,
            events,
        })
    }

    // ---- nodes ----

    /// A new node, which is not connected yet.
    pub(crate) fn add_node(&self, origin: ConnectionOrigin) -> Result<Arc<Node>, Errno> {
        let mut tables = lock(&self.tables);
        let is_strange = |node: &&Arc<Node>| !node.is_handed() && !node.is_gone();
        let has_room = || tables.nodes.values().filter(is_strange).count() < STRANGERS_MAX;
        if tables.nodes.len() >= NODES_MAX || (origin == ConnectionOrigin::Incoming && !has_room())
        {
            return Err(Errno::EMFILE);
        }
        let number = tables.latest_node.checked_add(1).ok_or(Errno::EMFILE)?;
        tables.latest_node = number;
        let node = Arc::new(Node::new(number, origin, self.shared.clone()));
        tables.nodes.insert(number, node.clone());
        Ok(node)
    }

    pub(crate) fn node(&self, number: u32) -> Option<Arc<Node>> {
        lock(&self.tables).nodes.get(&number).cloned()
    }

    /// The node that the program has a pointer to.
    pub(crate) fn node_at(&self, pointer: *const Node) -> Result<Arc<Node>, Errno> {
        let tables = lock(&self.tables);
        let found = tables.nodes.values().find(|node| Arc::as_ptr(node) == pointer);
        found.cloned().ok_or(Errno::EINVAL)
    }

    /// All nodes as they are now, those that are being connected included.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.tables).nodes.values().cloned().collect()
    }

    /// Is not to be found any more.
    pub(crate) fn forget_node(&self, node: &Node) {
        lock(&self.tables).nodes.remove(&node.number);
    }

    /// Gives up connecting. The node is ended by the library's thread: rdma_cm may use the queue
    /// pair of an unconnected node, in a call of that thread's.
    pub(crate) fn give_up(&self, node: &Node) {
        if node.is_gone() {
            return self.forget_node(node);
        }
        node.handed.store(false, Ordering::Relaxed);
        self.shared.wake();
    }

    /// Of the nodes that the program does not have: ends those that were given up and those that
    /// greet for too long, and forgets those that ended. For the library's thread. How long until
    /// the next is to end, if any.
    pub(crate) fn sweep(&self) -> Option<Duration> {
        let strangers: Vec<_> = {
            let tables = lock(&self.tables);
            tables.nodes.values().filter(|node| !node.is_handed()).cloned().collect()
        };
        if strangers.is_empty() {
            return None;
        }
        let next = strangers.iter().filter_map(|node| node.await_greeting()).min();
        let mut tables = lock(&self.tables);
        let Tables { nodes, arrived, .. } = &mut *tables;
        nodes.retain(|_, node| node.is_handed() || !node.is_gone());
        arrived.retain(|number| nodes.contains_key(number));
        next
    }

    /// No peer can connect any more.
    pub(crate) fn stop_listening(&self) {
        self.removed.store(true, Ordering::Relaxed);
        self.shared.gate.notify();
    }

    /// A connection is there. In one go, so that no buffer is announced twice, or never.
    pub(crate) fn open(&self, node: &Node) {
        let mut tables = lock(&self.tables);
        let mut all: Vec<_> = tables.own.values().map(|own| own.what).collect();
        // Serials grow, whatever the identifiers are.
        all.sort_unstable_by_key(|what| what.serial);
        node.open(all.into_iter());
        if node.is_incoming() {
            tables.arrived.push_back(node.number);
        }
        drop(tables);
        self.shared.gate.notify();
    }

    /// The next node that has connected to us and is ready; `ENODEV` if none can come.
    pub(crate) fn take_arrived(&self) -> Result<Option<Arc<Node>>, Errno> {
        let mut tables = lock(&self.tables);
        let mut at = 0;
        while let Some(&number) = tables.arrived.get(at) {
            let node = tables.nodes.get(&number).cloned();
            match node.as_ref().map(|node| node.check_ready()) {
                Some(Ok(true)) => {
                    tables.arrived.remove(at);
                    return Ok(node.inspect(|node| node.handed.store(true, Ordering::Relaxed)));
                }
                Some(Ok(false)) => at += 1,
                // Ended meanwhile.
                Some(Err(_)) | None => _ = tables.arrived.remove(at),
            }
        }
        // One that greets may still get there.
        let removed = self.removed.load(Ordering::Relaxed) && tables.arrived.is_empty();
        if removed { Err(Errno::ENODEV) } else { Ok(None) }
    }

    // ---- buffers ----

    /// New memory, which all nodes are told of.
    pub(crate) fn allocate(&self, id: u64, bytes: usize, rights: u32) -> Result<usize, Errno> {
        let length = bytes as u64;
        let known = rights & !(READABLE | WRITABLE) == 0 && rights != 0;
        if !known || length == 0 || length > BUFFER_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let memory = Memory::new(self.device.pd, bytes, rights)?;
        let mut tables = lock(&self.tables);
        if tables.own.contains_key(&id) {
            return Err(EEXIST);
        }
        if tables.own.len() >= BUFFERS_MAX {
            return Err(Errno::EMFILE);
        }
        tables.latest_serial += 1;
        let (address, rkey, serial) = (memory.address(), memory.rkey(), tables.latest_serial);
        let own = Arc::new(LocalBuffer::new(
            memory,
            AnnouncedBuffer { id, serial, address, length, rkey, rights },
        ));
        tables.own.insert(id, own.clone());
        tables.nodes.values().for_each(|node| node.announce(own.what));
        Ok(tables.hand(BufferHandle::Own(own)))
    }

    /// What a node calls so; none if it has nothing of that name now.
    pub(crate) fn find(&self, node: &Arc<Node>, id: u64) -> Result<Option<usize>, Errno> {
        let Some(what) = node.find(id)? else { return Ok(None) };
        Ok(Some(lock(&self.tables).hand(BufferHandle::Remote(node.clone(), what))))
    }

    /// Gives back a buffer that the program has.
    pub(crate) fn free(&self, pointer: usize) -> Result<(), Errno> {
        let mut tables = lock(&self.tables);
        let own = match tables.handles.get(&pointer).map(|buffer| &**buffer) {
            Some(BufferHandle::Own(own)) => own.clone(),
            Some(BufferHandle::Remote(..)) => {
                tables.handles.remove(&pointer);
                return Ok(());
            }
            None => return Err(Errno::EINVAL),
        };
        if self.shared.in_callback() {
            return Err(Errno::EDEADLK);
        }
        if own.is_used() {
            return Err(Errno::EBUSY);
        }
        let serial = own.what.serial;
        tables.own.remove(&own.what.id);
        tables.handles.remove(&pointer);
        let nodes: Vec<_> = tables.nodes.values().cloned().collect();
        nodes.iter().for_each(|node| node.withdraw(serial));
        drop(tables);
        let keeps = |node: &&Arc<Node>| node.keeps(serial);
        let let_go = || (!nodes.iter().any(|node| keeps(&node))).then_some(());
        if self.shared.gate.wait(Some(KEEP), let_go).is_none() {
            nodes.iter().filter(keeps).for_each(|node| node.end(Errno::ETIMEDOUT));
        }
        Ok(())
    }

    /// Ends everything but the thread, which has ended.
    pub(crate) fn end(&self) {
        *lock(&self.listener) = None;
        self.nodes().iter().for_each(|node| node.end(Errno::ECONNRESET));
        while self.shared.call() {}
        *lock(&self.tables) = Tables::default();
    }
}

impl Tables {
    /// The program gets a buffer; its address.
    fn hand(&mut self, buffer: BufferHandle) -> usize {
        let buffer = Arc::new(buffer);
        let address = Arc::as_ptr(&buffer) as usize;
        self.handles.insert(address, buffer);
        address
    }
}
