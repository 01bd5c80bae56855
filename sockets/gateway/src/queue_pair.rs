//! Posts WRITEs into the other gateway's memory, and letters, on one queue pair.
#![allow(unsafe_code, reason = "functions of C")]

use crate::cm_id::{CmId, call};
use crate::limits::{READ, RECEIVES, REQUESTS, REQUESTS_OF_LETTER, SENDS, UNREAD};
use crate::rdma_libraries::rdma;
use crate::rdma_objects::{Owned, Ref};
use core::ffi::c_int;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use omniverb_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE, IBV_WR_SEND, ibv_comp_channel, ibv_context_ops, ibv_cq, ibv_mr, ibv_pd,
    ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_send_wr_rdma,
    ibv_send_wr_tail, ibv_send_wr_target, ibv_send_wr_tso, ibv_sge, ibv_wc,
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
    mr: Owned<ibv_mr>,
    window: Window,
}

impl MemoryRegion {
    fn new(pd: Ref<'_, ibv_pd>, window: Window, access: u32) -> io::Result<Self> {
        let (start, access) = (window.address() as *mut core::ffi::c_void, access as c_int);
        // SAFETY: memory that is there as long as the window, which goes after the region.
        let mr = unsafe { (rdma().ibv_reg_mr)(pd, start, window.len(), access) };
        Ok(Self { mr: Owned::new(mr)?, window })
    }

    fn piece(&self, piece: Range<usize>) -> ibv_sge {
        let addr = (self.window.address() + piece.start) as u64;
        ibv_sge { addr, length: piece.len() as u32, lkey: self.mr.look(|mr| mr.lkey) }
    }

    /// How another host writes it.
    pub(crate) fn remote(&self) -> ibv_send_wr_rdma {
        let rkey = self.mr.look(|mr| mr.rkey);
        ibv_send_wr_rdma { remote_addr: self.window.address() as u64, rkey }
    }
}

/// What goes when a connection's queue pair does, in this order: regions are gone by then, and
/// events acknowledged.
struct Resources {
    cq: Owned<ibv_cq>,
    comp_channel: Owned<ibv_comp_channel>,
    pd: Owned<ibv_pd>,
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
    /// Messages that the peer has not confirmed, and those of the peer that were read here.
    unread: u32,
    read: u32,
    is_broken: bool,
}

/// The queue pair: it goes first.
struct Qp {
    id: CmId,
    qp: NonNull<ibv_qp>,
}

// SAFETY: verbs are for any thread.
unsafe impl Send for Qp {}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: it has one; once.
        unsafe { (rdma().rdma_destroy_qp)(self.id.raw()) };
    }
}

impl QueuePair {
    /// Those of an identifier that has a device, with all receives posted.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn new(id: CmId) -> io::Result<Self> {
        let device = id.device().ok_or(io::ErrorKind::NotConnected)?;
        let pd = Owned::new((rdma().ibv_alloc_pd)(device))?;
        let comp_channel = Owned::new((rdma().ibv_create_comp_channel)(device))?;
        let (entries, context) = ((REQUESTS + RECEIVES) as c_int, null_mut());
        let cq = (rdma().ibv_create_cq)(device, entries, context, comp_channel.get(), 0);
        let made = Resources { cq: Owned::new(cq)?, comp_channel, pd };
        let window = Window::private((SENDS + RECEIVES) * PLACE);
        let letters = MemoryRegion::new(made.pd.get(), window, IBV_ACCESS_LOCAL_WRITE)?;
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: made.cq.get().as_ptr(),
            recv_cq: made.cq.get().as_ptr(),
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
        // SAFETY: what it names is of that device, and goes after it.
        call(unsafe { (rdma().rdma_create_qp)(id.raw(), made.pd.get(), &mut attr) })?;
        let qp = id.queue_pair().ok_or(io::ErrorKind::NotConnected)?;
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
        self.resources.comp_channel.fd(|channel| channel.fd)
    }

    /// Has the other host write memory.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn register(&self, window: Window) -> io::Result<MemoryRegion> {
        MemoryRegion::new(
            self.resources.pd.get(),
            window,
            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        )
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: live, and so is its device.
        unsafe { &(*self.qp.qp.as_ref().context).ops }
    }

    fn post_receive(&self, place: usize) -> io::Result<()> {
        let start = (SENDS + place) * PLACE;
        let mut ours = self.letters.piece(start..start + PLACE);
        let (wr_id, next) = (RECEIVE | place as u64, null_mut());
        let mut request = ibv_recv_wr { wr_id, next, sg_list: &mut ours, num_sge: 1 };
        let (post, mut bad) = (self.ops().post_recv.ok_or(io::ErrorKind::Unsupported)?, null_mut());
        // SAFETY: a queue pair of ours; the place is in memory that outlives it.
        verb(unsafe { post(self.qp.qp.as_ptr(), &mut request, &mut bad) })
    }

    fn post(&mut self, mut ours: ibv_sge, mut request: ibv_send_wr) -> io::Result<()> {
        (request.sg_list, request.num_sge) = (&mut ours, 1);
        let (post, mut bad) = (self.ops().post_send.ok_or(io::ErrorKind::Unsupported)?, null_mut());
        // SAFETY: a queue pair of ours; what is named stays until it is done.
        verb(unsafe { post(self.qp.qp.as_ptr(), &mut request, &mut bad) })?;
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
        let count = unsafe {
            poll(self.resources.cq.get().as_ptr(), done.len() as c_int, done.as_mut_ptr())
        };
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
        let Resources { cq, comp_channel, .. } = &self.resources;
        let (mut told, mut context) = (null_mut(), null_mut());
        // The channel does not wait. What was told is acknowledged.
        while (rdma().ibv_get_cq_event)(comp_channel.get(), &mut told, &mut context) == 0 {
            (rdma().ibv_ack_cq_events)(cq.get(), 1);
        }
        if let Some(notify) = self.ops().req_notify_cq {
            // SAFETY: live.
            unsafe { notify(cq.get().as_ptr(), 0) };
        }
    }

    /// All that was posted is done.
    pub(crate) fn is_done(&self) -> bool {
        self.free.len() == SENDS
    }
}

fn empty(opcode: u32) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: 0,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode,
        send_flags: 0,
        imm_data: 0,
        wr: ibv_send_wr_target { rdma: ibv_send_wr_rdma { remote_addr: 0, rkey: 0 } },
        remote_srqn: 0,
        tail: ibv_send_wr_tail { tso: ibv_send_wr_tso { hdr: null_mut(), hdr_sz: 0, mss: 0 } },
    }
}

/// For verbs, which return what went wrong.
fn verb(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}
