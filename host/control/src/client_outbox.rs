//! Queues messages to one client's socket, in order, and never blocks.
//!
//! Messages that do not fit the socket stay here, up to a bound; a client that lets more pile up is
//! dropped.

use crate::live_token_count::{Bytes, CountedBytes, Tally, Token};
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, encode};
use omniverb_sys::deferred_close::CloseQueue;
use omniverb_sys::{memfd, seqpacket};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Budget: messages kept for one socket. A process that looks at none stays below whatever others
/// do: each link of its quota is made, told of by a capture, and closed; a doorbell for each may
/// end; its peers may ask for pages, and each extent is to be taken back
/// (`omniverb_tenancy::Limits`).
const MESSAGES_MAX: usize = 4 * 16_384 + 2 * 4096;

/// Budget: descriptors kept for one socket: they count against the daemon's own limit.
const DESCRIPTORS_MAX: usize = 4096;

/// 512-byte blocks of a file that takes well below a millisecond to free.
const LARGE_BLOCKS: i64 = (4 << 20) / 512;

/// A descriptor on its way to one client or two.
pub(crate) type Parcel = Arc<OwnedFd>;

/// A message to a client, with the descriptors that it brings.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    message: Message,
    files: Vec<Parcel>,
}

impl Letter {
    /// A message with which no descriptors go.
    pub(crate) fn of(message: impl Into<Message>) -> Letter {
        Letter::with(message, Vec::new())
    }

    /// The message, which the caller may change.
    pub(crate) fn message_mut(&mut self) -> &mut Message {
        &mut self.message
    }

    pub(crate) fn with(message: impl Into<Message>, files: Vec<Parcel>) -> Letter {
        Letter { message: message.into(), files }
    }
}

/// How sending went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Everything is in the socket.
    All,
    /// The rest waits for room in the socket.
    Room,
    /// The rest waits for clients to take descriptors out of their sockets.
    Descriptors,
    /// The client is gone, or lets too much pile up.
    Over,
}

/// A message that waits for room.
#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    parcels: Vec<Parcel>,
    /// For each parcel one here and one in what all such outboxes have.
    _tokens: Vec<[Token; 2]>,
    /// Of what all outboxes take, and this one.
    _bytes: [CountedBytes; 2],
}

/// Bytes that a message takes beside its own: its place in the queue, which may have twice the
/// places that it needs, and the overhead of the allocator and of descriptors.
const OVERHEAD: usize = 2 * size_of::<Waiting>() + 96;
/// Places that an empty outbox keeps.
const SPARE: usize = 64;

/// What waits for room.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: VecDeque<Waiting>,
    /// Descriptors that wait here, and in all outboxes that share this.
    descriptors: Tally,
    of_all: Arc<Tally>,
    /// Bytes of messages here, and in all outboxes.
    bytes: Bytes,
    bytes_of_all: Bytes,
    /// Takes large files whose last descriptor may be ours.
    bin: Option<CloseQueue>,
}

impl Outbox {
    /// An outbox whose descriptors count in `of_all`, too, and its messages' bytes in
    /// `bytes_of_all`.
    pub(crate) fn new(bin: CloseQueue, of_all: Arc<Tally>, bytes_of_all: Bytes) -> Outbox {
        let mut outbox = Outbox::default();
        (outbox.of_all, outbox.bytes_of_all, outbox.bin) = (of_all, bytes_of_all, Some(bin));
        outbox
    }

    /// Bytes of memory that messages take here.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Descriptors that wait in this one and in all that share the sum.
    pub(crate) fn descriptors_of_all(&self) -> usize {
        self.of_all.count()
    }

    /// Sends a message, now or later.
    pub(crate) fn push(&mut self, to: BorrowedFd<'_>, tag: u64, letter: Letter) -> Sent {
        let Letter { message, files: parcels } = letter;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(tag, &message, &mut bytes);
        if self.waiting.is_empty() {
            match attempt(to, &bytes[..length], &parcels) {
                Sent::Room | Sent::Descriptors => {}
                done => {
                    self.let_go(parcels);
                    return done;
                }
            }
        }
        let descriptors = self.descriptors.count() + parcels.len();
        if self.waiting.len() >= MESSAGES_MAX || descriptors > DESCRIPTORS_MAX {
            self.let_go(parcels);
            return Sent::Over;
        }
        let bytes = bytes[..length].to_vec();
        let token = |_: &Parcel| [self.descriptors.token(), self.of_all.token()];
        let _tokens = parcels.iter().map(token).collect();
        let taken = bytes.len() + OVERHEAD;
        let _bytes = [self.bytes.take(taken), self.bytes_of_all.take(taken)];
        self.waiting.push_back(Waiting { bytes, parcels, _tokens, _bytes });
        self.flush(to)
    }

    /// Sends what there is room for.
    pub(crate) fn flush(&mut self, to: BorrowedFd<'_>) -> Sent {
        while let Some(next) = self.waiting.pop_front() {
            match attempt(to, &next.bytes, &next.parcels) {
                Sent::All => {
                    self.let_go(next.parcels);
                    if self.waiting.is_empty() && self.waiting.capacity() > SPARE {
                        self.waiting = VecDeque::new();
                    }
                }
                not_yet => {
                    self.waiting.push_front(next);
                    return not_yet;
                }
            }
        }
        Sent::All
    }

    /// Drops all that waits, because the client will not take it.
    pub(crate) fn give_up(&mut self) {
        for next in std::mem::take(&mut self.waiting) {
            self.let_go(next.parcels);
        }
    }

    /// Drops files. The last reference to a large one may be ours if its receiver has closed it
    /// already, and freeing its pages takes long.
    fn let_go(&self, parcels: Vec<Parcel>) {
        let Some(bin) = &self.bin else { return };
        for file in parcels.into_iter().filter_map(Arc::into_inner) {
            if is_large(&file) {
                bin.put(file);
            }
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Whether it takes long to free a file's pages. Asks no file system but that of memory files.
fn is_large(file: &OwnedFd) -> bool {
    memfd::seals(file.as_fd()).is_ok()
        && fstat(file).is_ok_and(|status| status.st_blocks > LARGE_BLOCKS)
}

fn attempt(to: BorrowedFd<'_>, bytes: &[u8], parcels: &[Parcel]) -> Sent {
    let descriptors: Vec<BorrowedFd<'_>> = parcels.iter().map(|parcel| parcel.as_fd()).collect();
    match seqpacket::try_send(to, bytes, &descriptors).map_err(|e| Errno::from_io_error(&e)) {
        Ok(()) => Sent::All,
        Err(Some(Errno::AGAIN)) => Sent::Room,
        // Too many descriptors of ours are in sockets, unread (without privilege there is a limit).
        Err(Some(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM)) => Sent::Descriptors,
        Err(_) => Sent::Over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::body::GidsChanged;

    /// Of one outbox, and of all that share the sum.
    #[test]
    fn waiting_descriptors_count_until_sent_or_dropped() {
        let (of_all, bytes) = (Arc::new(Tally::default()), Bytes::default());
        let bin = CloseQueue::new().unwrap();
        let mut boxes = [(); 2].map(|()| Outbox::new(bin.clone(), of_all.clone(), bytes.clone()));
        let pairs = [(); 2].map(|()| seqpacket::pair().unwrap());
        let parcels: Vec<Parcel> =
            (0..2).map(|_| Arc::new(memfd::create("parcel", 4096).unwrap())).collect();
        for (outbox, (ours, _)) in boxes.iter_mut().zip(&pairs) {
            while outbox.waiting.len() < 3 {
                let message = GidsChanged { reserved: 0 };
                outbox.push(ours.as_fd(), 0, Letter::with(message, parcels.clone()));
            }
            assert_eq!(outbox.descriptors.count(), 6);
        }
        assert_eq!(of_all.count(), 12);
        assert_eq!(bytes.count(), boxes[0].bytes() + boxes[1].bytes());
        assert!(boxes[0].bytes() >= 3 * OVERHEAD);
        let [mut one, other] = boxes;
        drop(other);
        assert_eq!((of_all.count(), bytes.count()), (6, one.bytes()));
        let (ours, theirs) = &pairs[0];
        while !one.is_empty() {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            seqpacket::receive(theirs.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking)
                .unwrap();
            one.flush(ours.as_fd());
        }
        assert_eq!((one.descriptors.count(), of_all.count(), bytes.count()), (0, 0, 0));
    }

    #[test]
    fn a_client_that_does_not_read_is_dropped_and_order_is_kept() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let mut outbox = Outbox::default();
        let message = |n: u64| Message::from(GidsChanged { reserved: n });
        let letter = |n: u64| Letter::of(message(n));
        let mut pushed = 0;
        let mut waited = false;
        while pushed < 5000 {
            match outbox.push(ours.as_fd(), pushed, letter(pushed)) {
                Sent::All => {}
                Sent::Room => waited = true,
                other => panic!("{other:?}"),
            }
            pushed += 1;
        }
        assert!(waited && !outbox.is_empty());
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        for expected in 0..pushed {
            let (length, _) =
                seqpacket::receive(theirs.as_fd(), &mut buffer, seqpacket::BlockingMode::Blocking)
                    .unwrap();
            let (tag, found) = omniverb_session::decode(&buffer[..length]).unwrap();
            assert_eq!((tag, found), (expected, message(expected)));
            outbox.flush(ours.as_fd());
        }
        assert!(outbox.is_empty());
        let flood =
            (0..2 * MESSAGES_MAX).any(|_| outbox.push(ours.as_fd(), 0, letter(0)) == Sent::Over);
        assert!(flood);
        drop(theirs);
        assert_eq!(Outbox::default().push(ours.as_fd(), 0, letter(0)), Sent::Over);
    }
}
