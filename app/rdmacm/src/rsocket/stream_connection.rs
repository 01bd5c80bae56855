//! A connection that carries a stream: what completes changes it, and what the program asks of it
//! becomes requests.
//!
//! The peer writes into the receive buffer and into our lists, nowhere else; what it says of that
//! comes as immediate data, and is checked in [`flow`](super::flow_control) before anything is
//! read.

use omniverb_abi::*;
use omniverb_terms::Errno;

use super::buffer_settings::{INLINE_MAX, Settings};
use super::flow_control::{PieceLength, ReadMode, Receiver, Sender, StreamPiece};
use super::iomap::IoMaps;
use super::iovec::IovecCursor;
use super::queue_pair::{Payload, QpDemands, Queues};
use super::registered_memory::{LentMemory, Memory};
use super::wire_format::{
    BYTE_ORDER, HELLO_BYTES, Hello, MAP_BYTES, Message, PLACE_BYTES, PLACES, RemoteBuffer,
    RemoteMap,
};

/// Kinds of requests, in the upper half of their numbers; the lower half is how many bytes.
const RECEIVE: u64 = 0;
const PIECE: u64 = 1;
const CONTROL: u64 = 2;
const DISCONNECT: u64 = 3;

fn number(kind: u64, bytes: u32) -> u64 {
    kind << 32 | u64::from(bytes)
}

/// The queues and the memory of a stream, whose peer is not known yet.
pub(crate) struct StreamEndpoint {
    queues: Queues,
    send: Memory,
    receive: Memory,
    /// Where the peer writes places and maps.
    lists: Memory,
    settings: Settings,
    pd: *mut ibv_pd,
}

// SAFETY: libibverbs's objects are for any thread.
unsafe impl Send for StreamEndpoint {}

impl StreamEndpoint {
    /// Makes them.
    ///
    /// # Safety
    /// `id` is live, has a device and no queue pair, and outlives this.
    pub(crate) unsafe fn new(
        id: *mut rdma_cm_id,
        settings: &Settings,
    ) -> Result<StreamEndpoint, Errno> {
        let settings = settings.within_bounds();
        let inline = settings.inline.max(MAP_BYTES as u32);
        let (send, receive) = (settings.send_queue, settings.receive_queue);
        let wanted = QpDemands { service: IBV_QPT_RC, send, receive, inline };
        let theirs = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let lists = PLACES * PLACE_BYTES + usize::from(settings.maps) * MAP_BYTES;
        // SAFETY: the caller's promise; the identifier's protection domain is there as long as it.
        let ends = unsafe {
            let queues = Queues::new(id, &wanted)?;
            let pd = (*id).pd;
            StreamEndpoint {
                queues,
                send: Memory::new(pd, settings.send_bytes as usize, IBV_ACCESS_LOCAL_WRITE)?,
                receive: Memory::new(pd, settings.receive_bytes as usize, theirs)?,
                lists: Memory::new(pd, lists, theirs)?,
                settings,
                pd,
            }
        };
        for _ in 0..receive {
            ends.queues.receive(number(RECEIVE, 0), &mut [])?;
        }
        Ok(ends)
    }

    /// What the peer is told of them.
    pub(crate) fn hello(&self) -> [u8; HELLO_BYTES] {
        let places = self.lists.place(0..PLACES * PLACE_BYTES);
        let half = self.settings.receive_bytes as usize / 2;
        let hello = Hello {
            byte_order: BYTE_ORDER,
            credits: self.settings.receive_queue,
            maps: self.settings.maps,
            list: RemoteBuffer { length: PLACES as u32, ..places },
            buffer: self.receive.place(0..half),
        };
        hello.encode()
    }
}

/// Which side may write to a buffer of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LentTo {
    /// The peer, by its offset, which it learns of.
    Peer,
    /// Neither: it is registered, and has an offset.
    Nobody,
}

/// Whether there is still a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Up,
    /// One side has ended it.
    Down,
    /// It ended by itself.
    Broken,
}

/// Directions of a connection: in, as long as neither the peer has said that nothing comes any
/// more, nor the program that it wants nothing; out, as long as the program has not said that it
/// sends nothing. Or those that the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenDirections {
    None,
    In,
    Out,
    Both,
}

impl OpenDirections {
    fn of(has_in: bool, has_out: bool) -> OpenDirections {
        match (has_in, has_out) {
            (false, false) => OpenDirections::None,
            (true, false) => OpenDirections::In,
            (false, true) => OpenDirections::Out,
            (true, true) => OpenDirections::Both,
        }
    }

    fn has_in(self) -> bool {
        matches!(self, OpenDirections::In | OpenDirections::Both)
    }

    fn has_out(self) -> bool {
        matches!(self, OpenDirections::Out | OpenDirections::Both)
    }

    /// Those of them that are not among these.
    fn without(self, gone: OpenDirections) -> OpenDirections {
        let (has_in, has_out) = (self.has_in(), self.has_out());
        OpenDirections::of(has_in && !gone.has_in(), has_out && !gone.has_out())
    }
}

/// A connection: what either side lets the other write, and what is under way.
pub(crate) struct Stream {
    ends: StreamEndpoint,
    peer: Hello,
    sender: Sender,
    receiver: Receiver,
    maps: IoMaps,
    link: ConnectionState,
    open: OpenDirections,
    /// Which entry of our list the peer writes next.
    next_target: usize,
    /// Which entry of its list we write next.
    next_place: u32,
}

impl Stream {
    /// The peer has said hello.
    pub(crate) fn new(ends: StreamEndpoint, peer: Hello) -> Stream {
        let settings = &ends.settings;
        let inline = settings.inline.min(ends.queues.inline);
        let queue = u32::from(settings.send_queue);
        let sender = Sender::new(settings.send_bytes, queue, inline, peer.buffer, peer.credits);
        let receiver = Receiver::new(settings.receive_bytes, settings.receive_queue);
        Stream {
            sender,
            receiver,
            maps: IoMaps::new(peer.maps, settings.maps),
            link: ConnectionState::Up,
            open: OpenDirections::Both,
            next_target: 1,
            next_place: 1 % peer.list.length.max(1),
            peer,
            ends,
        }
    }

    pub(crate) fn link(&self) -> ConnectionState {
        self.link
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.ends.queues
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.open.has_in() && self.link == ConnectionState::Up
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.open.has_out() && self.link == ConnectionState::Up
    }

    pub(crate) fn unread(&self) -> u32 {
        self.receiver.unread()
    }

    pub(crate) fn can_send(&self) -> bool {
        self.is_writable() && self.sender.can_send()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.is_writable() && self.sender.has_room()
    }

    pub(crate) fn can_say(&self) -> bool {
        self.is_writable() && self.sender.can_say()
    }

    pub(crate) fn has_control(&self) -> bool {
        self.sender.has_control()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sender.is_idle()
    }

    /// The connection has ended, as the connection manager knows: if the peer has not said so it is
    /// gone, and what it would have sent, too.
    pub(crate) fn mark_broken(&mut self) {
        self.broke(());
    }

    fn ended(&mut self) {
        if self.link == ConnectionState::Up {
            self.link = ConnectionState::Down;
        }
    }

    /// A request could not be posted, or failed: with that the queue pair has failed.
    fn broke<T>(&mut self, _: T) {
        if self.link == ConnectionState::Up {
            self.link = ConnectionState::Broken;
        }
    }

    /// Takes what completed, and tells the peer what it is allowed.
    pub(crate) fn progress(&mut self) {
        self.grant();
        let mut used = 0;
        // At most as many as the queues have: receives are posted again afterwards.
        while let Some(completion) = self.ends.queues.poll() {
            let is_receive = completion.wr_id >> 32 == RECEIVE;
            used += usize::from(is_receive && completion.status == IBV_WC_SUCCESS);
            if is_receive { self.received(&completion) } else { self.sent(&completion) }
        }
        for _ in 0..used {
            if self.link == ConnectionState::Up
                && let Err(errno) = self.ends.queues.receive(number(RECEIVE, 0), &mut [])
            {
                self.broke(errno);
            }
        }
        self.grant();
    }

    fn sent(&mut self, completion: &ibv_wc) {
        match completion.wr_id >> 32 {
            PIECE => self.sender.piece_is_done(completion.wr_id as u32),
            CONTROL => self.sender.control_is_done(),
            _ => {
                self.sender.control_is_done();
                self.ended();
            }
        }
        if completion.status != IBV_WC_SUCCESS {
            self.broke(());
        }
    }

    fn received(&mut self, completion: &ibv_wc) {
        // The queue pair has failed, which nothing else may tell. Orderly ends are known by now.
        if completion.status != IBV_WC_SUCCESS {
            return self.broke(());
        }
        // What comes after the end is of no interest.
        if self.link != ConnectionState::Up {
            return;
        }
        if completion.wc_flags & IBV_WC_WITH_IMM == 0 {
            return self.broke(());
        }
        match Message::decode(u32::from_be(completion.imm_data)) {
            Message::Data(bytes) => {
                if let Err(broken) = self.receiver.data(bytes) {
                    self.broke(broken);
                }
            }
            Message::Credits(until) => {
                self.sender.allow(until);
                self.look_for_target();
            }
            Message::Mapped(index) => {
                self.receiver.message();
                if index < self.ends.settings.maps {
                    let at = PLACES * PLACE_BYTES + usize::from(index) * MAP_BYTES;
                    let entry: [u8; MAP_BYTES] = self.ends.lists.read(at);
                    self.maps.borrow(index, RemoteMap::here(&entry));
                }
            }
            Message::Disconnect => self.ended(),
            Message::Shutdown if self.open.has_out() => {
                self.open = self.open.without(OpenDirections::In);
            }
            Message::Shutdown => self.ended(),
            Message::Alive | Message::Other => {}
        }
    }

    /// Takes the next target from the list, if the peer has written one there.
    fn look_for_target(&mut self) {
        let at = self.next_target * PLACE_BYTES;
        // The length first, since it is written last: the peer may be about to write the entry.
        let length: [u8; 4] = self.ends.lists.read(at + PLACE_BYTES - 4);
        if length == [0; 4] || self.sender.targets() >= PLACES {
            return;
        }
        let entry: [u8; PLACE_BYTES] = self.ends.lists.read(at);
        self.ends.lists.write(at, &[0; PLACE_BYTES]);
        self.sender.add_target(RemoteBuffer::here(&entry));
        self.next_target = (self.next_target + 1) % PLACES;
    }

    /// Tells the peer what it is allowed, if it should be told.
    fn grant(&mut self) {
        if self.link != ConnectionState::Up || !self.sender.has_control() {
            return;
        }
        let Some(grant) = self.receiver.grant() else { return };
        let message = Message::Credits(grant.until);
        let Some(half) = grant.half else {
            let control = self.control(message);
            return control.unwrap_or_else(|errno| self.broke(errno));
        };
        let half = half as usize;
        let bytes = self.ends.settings.receive_bytes as usize / 2;
        let entry = self.ends.receive.place(half..half + bytes).encode(self.peer.byte_order);
        let offset = u64::from(self.next_place) * PLACE_BYTES as u64;
        let list = self.peer.list;
        let to = RemoteBuffer { address: list.address.wrapping_add(offset), ..list };
        self.next_place = (self.next_place + 1) % list.length.max(1);
        self.sender.control();
        let addr = entry.as_ptr().addr() as u64;
        let mut sge = [ibv_sge { addr, length: PLACE_BYTES as u32, lkey: 0 }];
        let immediate = Some(message.encode());
        // SAFETY: inline data that is there.
        let posted = unsafe {
            self.ends.queues.write(number(CONTROL, 0), &mut sge, Payload::Inline, to, immediate)
        };
        posted.unwrap_or_else(|errno| self.broke(errno));
    }

    /// Posts a message without data.
    fn control(&mut self, message: Message) -> Result<(), Errno> {
        if !self.sender.control() {
            return Err(Errno::EAGAIN);
        }
        let kind = if message == Message::Disconnect { DISCONNECT } else { CONTROL };
        let (to, immediate) = (RemoteBuffer::default(), Some(message.encode()));
        // SAFETY: an empty list.
        unsafe {
            self.ends.queues.write(number(kind, 0), &mut [], Payload::Registered, to, immediate)
        }
    }

    /// Posts a piece of the program's data.
    ///
    /// # Safety
    /// `data` has as much.
    unsafe fn post(
        &mut self,
        piece: &StreamPiece,
        data: &mut IovecCursor<'_>,
        message: Option<Message>,
    ) -> Result<(), Errno> {
        let (number, immediate) = (number(PIECE, piece.bytes), message.map(Message::encode));
        let queues = &self.ends.queues;
        // SAFETY: the caller's promise; the buffers are as long as the piece says.
        let posted = unsafe {
            if piece.is_inline() {
                let mut place = [0; INLINE_MAX];
                data.copy_to(place.as_mut_ptr(), piece.bytes as usize);
                let addr = place.as_ptr().addr() as u64;
                let mut list = [ibv_sge { addr, length: piece.bytes, lkey: 0 }];
                queues.write(number, &mut list, Payload::Inline, piece.to, immediate)
            } else {
                for range in &piece.from {
                    self.ends.send.take_from(range, data);
                }
                let mut list = [self.ends.send.entry(&piece.from[0]), ibv_sge::default()];
                let mut count = 1;
                if !piece.from[1].is_empty() {
                    list[1] = self.ends.send.entry(&piece.from[1]);
                    count = 2;
                }
                queues.write(number, &mut list[..count], Payload::Registered, piece.to, immediate)
            }
        };
        posted.inspect_err(|&errno| self.broke(errno))
    }

    /// Sends as much as can be sent now.
    ///
    /// # Safety
    /// As [`IovecCursor::copy_to`].
    pub(crate) unsafe fn send(
        &mut self,
        data: &mut IovecCursor<'_>,
        steps: &mut PieceLength,
    ) -> Result<(), Errno> {
        while self.is_writable()
            && let Some(piece) = self.sender.next(data.left(), steps)
        {
            // SAFETY: the caller's promise.
            unsafe { self.post(&piece, data, Some(Message::Data(piece.bytes))) }?;
        }
        Ok(())
    }

    /// Writes as much as can be written now to a buffer that the peer lends. Whether there is one
    /// of that offset.
    ///
    /// # Safety
    /// As [`IovecCursor::copy_to`].
    pub(crate) unsafe fn write(
        &mut self,
        data: &mut IovecCursor<'_>,
        offset: &mut u64,
        steps: &mut PieceLength,
    ) -> Result<bool, Errno> {
        while self.is_writable() {
            let Some(place) = self.maps.find(*offset) else { return Ok(false) };
            let Some(piece) = self.sender.direct(data.left(), place, steps) else { break };
            *offset += u64::from(piece.bytes);
            // SAFETY: the caller's promise.
            unsafe { self.post(&piece, data, None) }?;
        }
        Ok(true)
    }

    /// Reads into the program's buffers what is there.
    ///
    /// # Safety
    /// As [`IovecCursor::copy_from`].
    pub(crate) unsafe fn read(&mut self, to: &mut IovecCursor<'_>, reading: ReadMode) {
        for range in self.receiver.read(to.left(), reading) {
            // SAFETY: the caller's promise.
            unsafe { self.ends.receive.give_to(&range, to) };
        }
        self.grant();
    }

    /// The program neither reads, or sends, nor both any more. What the peer is to be told of
    /// that, if anything.
    pub(crate) fn shut(&mut self, which: OpenDirections) -> Option<Message> {
        if self.link != ConnectionState::Up {
            return None;
        }
        let could_send = self.open.has_out();
        self.open = self.open.without(which);
        match self.open {
            OpenDirections::Out | OpenDirections::Both => None,
            OpenDirections::In => could_send.then_some(Message::Shutdown),
            OpenDirections::None => Some(Message::Disconnect),
        }
    }

    /// Tells the peer so, where there is [a request for it](Self::has_control).
    pub(crate) fn say(&mut self, message: Message) {
        self.control(message).unwrap_or_else(|errno| self.broke(errno));
    }

    /// Registers a buffer; see `riomap`.
    ///
    /// # Safety
    /// The program leaves the buffer alone as long as it is lent.
    pub(crate) unsafe fn lend(
        &mut self,
        start: *mut libc::c_void,
        bytes: usize,
        offset: u64,
        to: LentTo,
    ) -> Result<(), Errno> {
        let (index, remote) = match to {
            LentTo::Peer => (Some(self.maps.vacant()?), IBV_ACCESS_REMOTE_WRITE),
            LentTo::Nobody => (None, 0),
        };
        // SAFETY: the protection domain is the identifier's, which outlives this.
        let lent = unsafe {
            LentMemory::new(self.ends.pd, start, bytes, IBV_ACCESS_LOCAL_WRITE | remote)
        }?;
        self.maps.lend(lent, offset, index);
        Ok(())
    }

    /// Takes it back.
    pub(crate) fn take_back(&mut self, start: usize, bytes: usize) -> Result<(), Errno> {
        self.maps.take_back(start, bytes)
    }

    /// Whether the peer is yet to be told of buffers.
    pub(crate) fn has_unannounced(&self) -> bool {
        self.maps.unannounced().is_some()
    }

    /// Tells the peer of buffers, as far as that can be done now.
    pub(crate) fn announce_maps(&mut self) -> Result<(), Errno> {
        while self.is_writable()
            && let Some((index, map)) = self.maps.unannounced()
        {
            let at = u64::from(self.peer.list.length) * PLACE_BYTES as u64
                + u64::from(index) * MAP_BYTES as u64;
            let list = self.peer.list;
            let to = RemoteBuffer { address: list.address.wrapping_add(at), ..list };
            let Some(piece) = self.sender.entry(MAP_BYTES as u32, to) else { break };
            let entry = map.encode(self.peer.byte_order);
            let (iov_base, iov_len) = (entry.as_ptr().cast_mut().cast(), entry.len());
            let parts = [libc::iovec { iov_base, iov_len }];
            // SAFETY: so many bytes.
            unsafe {
                let mut data = IovecCursor::new(&parts);
                self.post(&piece, &mut data, Some(Message::Mapped(index)))?;
            }
            self.maps.mark_announced(index);
        }
        Ok(())
    }
}
