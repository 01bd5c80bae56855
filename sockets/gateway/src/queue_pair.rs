//! Posts WRITEs into the other gateway's memory, and letters, on one queue pair.
#![allow(unsafe_code, reason = "functions of C")]

use crate::cm_id::{CmId, call};
use crate::limits::{READ, RECEIVES, REQUESTS, REQUESTS_OF_LETTER, SENDS, UNREAD};
use crate::rdma_libraries::rdma;
use core::ffi::c_int;
use core::ops::Range;
use core::ptr::null_mut;
use omniverb_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE, IBV_WR_SEND, ibv_comp_channel, ibv_context_ops, ibv_cq, ibv_mr, ibv_pd,
    ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_send_wr_rdma,
    ibv_send_wr_target, ibv_sge, ibv_wc,
};
use omniverb_formats::gateway_message::{GatewayMessage, LONGEST, Sent};
use omniverb_ring::{UserMemory, Window, WordMemory};
use std::io;
use std::os::fd::BorrowedFd;

/// Room for a letter; letters do not share cache lines.
const PLACE: usize = LONGEST.next_multiple_of(64);
/// In a request's name: it is a receive.
const RECEIVE: u64 = 1 << 32;

/// Memory that the device may read and write.
pub(crate) struct MemoryRegion {
    mr: *mut ibv_mr,
    window: Window,
}

impl MemoryRegion {
    fn new(pd: *mut ibv_pd, window: Window, access: u32) -> io::Result<Self> {
        let (start, access) = (window.address() as *mut core::ffi::c_void, access as c_int);
        // SAFETY: an open domain, and memory that is there as long as the window.
        let mr = unsafe { (rdma().ibv_reg_mr)(pd, start, window.len(), access) };
        if mr.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self { mr, window }) }
    }

    fn piece(&self, piece: Range<usize>) -> ibv_sge {
        // SAFETY: registered.
        let lkey = unsafe { (*self.mr).lkey };
        let addr = (self.window.address() + piece.start) as u64;
        ibv_sge { addr, length: piece.len() as u32, lkey }
    }

    /// How another host writes it.
    pub(crate) fn remote(&self) -> ibv_send_wr_rdma {
        // SAFETY: registered.
        let rkey = unsafe { (*self.mr).rkey };
        ibv_send_wr_rdma { remote_addr: self.window.address() as u64, rkey }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: once; nothing is under way any more.
        unsafe { (rdma().ibv_dereg_mr)(self.mr) };
    }
}

/// What goes when a connection's queue pair does, in this order.
struct Resources {
    pd: *mut ibv_pd,
    comp_channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
}

impl Drop for Resources {
    fn drop(&mut self) {
        // SAFETY: made in this file; the queue pair and all regions are gone, events are
        // acknowledged.
        unsafe {
            if !self.cq.is_null() {
                (rdma().ibv_destroy_cq)(self.cq);
            }
            if !self.comp_channel.is_null() {
                (rdma().ibv_destroy_comp_channel)(self.comp_channel);
            }
            (rdma().ibv_dealloc_pd)(self.pd);
        }
    }
}

/// See the file's head.
pub(crate) struct QueuePair {
    qp: Qp,
    letters: MemoryRegion,
    resources: Resources,
    /// Places of letters that may be sent, with how many requests are done when each is.
    free: Vec<usize>,
    covers: [usize; SENDS],
    /// Requests since the last letter, and those that are not done.
    since: usize,
    posted: usize,
    /// Letters that the other one has not said to have read, and those of his that were read here.
    unread: u32,
    read: u32,
    is_broken: bool,
}

// SAFETY: verbs are for any thread.
unsafe impl Send for QueuePair {}

/// The queue pair: it goes first.
struct Qp {
    id: CmId,
    qp: *mut ibv_qp,
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: once; the identifier goes after it.
        unsafe { (rdma().rdma_destroy_qp)(self.id.raw()) };
    }
}

fn made<T>(it: *mut T) -> io::Result<*mut T> {
    if it.is_null() { Err(io::Error::last_os_error()) } else { Ok(it) }
}

impl QueuePair {
    /// Those of an identifier that has a device, with all receives posted.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn new(id: CmId) -> io::Result<Self> {
        let device = id.device();
        // SAFETY: an open device; each is taken apart if the next cannot be made.
        let made = unsafe {
            let pd = made((rdma().ibv_alloc_pd)(device))?;
            let mut all = Resources { pd, comp_channel: null_mut(), cq: null_mut() };
            all.comp_channel = made((rdma().ibv_create_comp_channel)(device))?;
            let entries = (REQUESTS + RECEIVES) as c_int;
            all.cq =
                made((rdma().ibv_create_cq)(device, entries, null_mut(), all.comp_channel, 0))?;
            all
        };
        let window = Window::private((SENDS + RECEIVES) * PLACE);
        let letters = MemoryRegion::new(made.pd, window, IBV_ACCESS_LOCAL_WRITE)?;
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: made.cq,
            recv_cq: made.cq,
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: REQUESTS as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: live, and of that device.
        call(unsafe { (rdma().rdma_create_qp)(id.raw(), made.pd, &mut attr) })?;
        // SAFETY: it has one now.
        let qp = unsafe { (*id.raw()).qp };
        let qp = Qp { id, qp };
        let (free, covers) = ((0..SENDS).collect(), [0; SENDS]);
        let (since, posted, unread, read) = (0, 0, 0, 0);
        let is_broken = false;
        let queue_pair = Self {
            qp,
            letters,
            resources: made,
            free,
            covers,
            since,
            posted,
            unread,
            read,
            is_broken,
        };
        (0..RECEIVES).try_for_each(|place| queue_pair.post_receive(place))?;
        rustix::io::ioctl_fionbio(queue_pair.completion_fd(), true)?;
        Ok(queue_pair)
    }

    /// The connection that it is a queue pair of.
    pub(crate) fn id(&self) -> &CmId {
        &self.qp.id
    }

    /// Readable when there is something to be polled, if that was asked for.
    pub(crate) fn completion_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as this.
        unsafe { BorrowedFd::borrow_raw((*self.resources.comp_channel).fd) }
    }

    /// Has the other host write memory.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn register(&self, window: Window) -> io::Result<MemoryRegion> {
        MemoryRegion::new(
            self.resources.pd,
            window,
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        )
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: live, and so is its device.
        unsafe { &(*(*self.qp.qp).context).ops }
    }

    fn post_receive(&self, place: usize) -> io::Result<()> {
        let start = (SENDS + place) * PLACE;
        let mut ours = self.letters.piece(start..start + PLACE);
        let (wr_id, next) = (RECEIVE | place as u64, null_mut());
        let mut request = ibv_recv_wr { wr_id, next, sg_list: &mut ours, num_sge: 1 };
        let (post, mut bad) = (self.ops().post_recv.ok_or(io::ErrorKind::Unsupported)?, null_mut());
        // SAFETY: a queue pair of ours; the place is in memory that outlives it.
        verb(unsafe { post(self.qp.qp, &mut request, &mut bad) })
    }

    fn post(&mut self, mut ours: ibv_sge, mut request: ibv_send_wr) -> io::Result<()> {
        (request.sg_list, request.num_sge) = (&mut ours, 1);
        let (post, mut bad) = (self.ops().post_send.ok_or(io::ErrorKind::Unsupported)?, null_mut());
        // SAFETY: a queue pair of ours; what is named stays until it is done.
        verb(unsafe { post(self.qp.qp, &mut request, &mut bad) })?;
        self.since += 1;
        self.posted += 1;
        Ok(())
    }

    /// There is room for a letter, and what may have to be written before it.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
            && self.unread < UNREAD
            && self.posted + REQUESTS_OF_LETTER <= REQUESTS
    }

    /// Copies a piece of ours to the same place of the other's; a letter comes behind it.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn write(
        &mut self,
        piece: Range<usize>,
        ours: &MemoryRegion,
        mut theirs: ibv_send_wr_rdma,
    ) -> io::Result<()> {
        theirs.remote_addr = theirs.remote_addr.wrapping_add(piece.start as u64);
        let mut request = empty(IBV_WR_RDMA_WRITE);
        request.wr = ibv_send_wr_target { rdma: theirs };
        self.post(ours.piece(piece), request)
    }

    /// Sends a letter, for which there is room.
    ///
    /// # Errors
    /// There is none, or the connection has ended.
    pub(crate) fn send(&mut self, letter: GatewayMessage) -> io::Result<()> {
        let place = self.free.pop().ok_or(io::ErrorKind::WouldBlock)?;
        let sent = Sent { letter, read: core::mem::take(&mut self.read) };
        let mut bytes = [0; LONGEST];
        let length = sent.encode(&mut bytes);
        let start = place * PLACE;
        UserMemory::lend(&bytes[..length], |bytes| self.letters.window.fill(start, bytes));
        let mut request = empty(IBV_WR_SEND);
        (request.wr_id, request.send_flags) = (place as u64, IBV_SEND_SIGNALED);
        self.post(self.letters.piece(start..start + length), request)?;
        self.covers[place] = core::mem::take(&mut self.since);
        self.unread += u32::from(letter != GatewayMessage::Read);
        Ok(())
    }

    /// What has come: letters go into `into`. Whether there was anything.
    ///
    /// # Errors
    /// The connection has ended, or the other one says what is no letter; once all that came before
    /// was handed over.
    pub(crate) fn poll(&mut self, into: &mut Vec<GatewayMessage>) -> io::Result<bool> {
        let broken = || io::Error::from(io::ErrorKind::ConnectionReset);
        if self.is_broken {
            return Err(broken());
        }
        let mut done = [ibv_wc::default(); 16];
        let poll = self.ops().poll_cq.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: live; room for so many.
        let count = unsafe { poll(self.resources.cq, done.len() as c_int, done.as_mut_ptr()) };
        let done = &done[..usize::try_from(count).unwrap_or(0)];
        let outcome = done.iter().try_for_each(|one| self.take(one, into));
        let owes = self.read >= READ && !self.free.is_empty();
        let is_well = outcome.is_ok() && (!owes || self.send(GatewayMessage::Read).is_ok());
        self.is_broken = !is_well;
        if !is_well && into.is_empty() { Err(broken()) } else { Ok(!done.is_empty()) }
    }

    fn take(&mut self, done: &ibv_wc, into: &mut Vec<GatewayMessage>) -> io::Result<()> {
        if done.status != IBV_WC_SUCCESS {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if done.wr_id & RECEIVE == 0 {
            let place = done.wr_id as usize % SENDS;
            self.posted -= core::mem::take(&mut self.covers[place]);
            self.free.push(place);
            return Ok(());
        }
        let place = (done.wr_id & !RECEIVE) as usize % RECEIVES;
        let mut bytes = [0; PLACE];
        let said = &mut bytes[..(done.byte_len as usize).min(PLACE)];
        let start = (SENDS + place) * PLACE;
        UserMemory::lend_mut(said, |to| self.letters.window.drain(start, to));
        let Sent { letter, read } = Sent::decode(said).ok_or(io::ErrorKind::InvalidData)?;
        self.unread = self.unread.checked_sub(read).ok_or(io::ErrorKind::InvalidData)?;
        if letter != GatewayMessage::Read {
            self.read += 1;
            into.push(letter);
        }
        self.post_receive(place)
    }

    /// The next thing that comes is told. It is looked once more after this.
    pub(crate) fn request_notification(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: open, and places for two pointers; the channel does not wait. What was told is
        // acknowledged.
        unsafe {
            while (rdma().ibv_get_cq_event)(self.resources.comp_channel, &mut cq, &mut context) == 0
            {
                (rdma().ibv_ack_cq_events)(cq, 1);
            }
            if let Some(notify) = self.ops().req_notify_cq {
                notify(self.resources.cq, 0);
            }
        }
    }

    /// All that was posted is done.
    pub(crate) fn is_done(&self) -> bool {
        self.free.len() == SENDS
    }
}

fn empty(opcode: u32) -> ibv_send_wr {
    // SAFETY: pointers and numbers: zero is valid for all.
    let mut request: ibv_send_wr = unsafe { core::mem::zeroed() };
    request.opcode = opcode;
    request
}

/// For verbs, which return what went wrong.
fn verb(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}
