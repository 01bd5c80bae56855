//! Plays the application whose memory a trial writes and reads.

use omniverb_link::record::{IMMEDIATE, LAST, PLACED};
use omniverb_link::{Endpoint, Request, Response};
use omniverb_ring::{UserMemory, Window, WordMemory};
use omniverb_sys::mapping::Access;
use omniverb_sys::{Extent, memfd};
use omniverb_terms::Rkey;
use std::collections::VecDeque;

pub(super) const PAGES: usize = 6;
pub(super) const BYTES: usize = PAGES * 4096;
pub(super) const START: u64 = 0x1_0000;
/// The region begins and ends within a page.
pub(super) const SKEW: usize = 100;
pub(super) const KEY: Rkey = Rkey(5);
/// Where all messages are received.
pub(super) const INBOX: usize = 9000;

/// A request of the one application, as the other one must see it.
pub(super) enum Seen {
    /// A SEND: when it has been received the memory is as it was when it was posted.
    Message(Vec<u8>),
    /// Immediate data of a WRITE of so many bytes, likewise.
    Immediate(Vec<u8>, u64),
}

/// The application whose memory it is.
pub(super) struct Owner {
    pub(super) memory: Window,
    pub(super) seen: VecDeque<Seen>,
    /// Where the rest of a WRITE goes, and its length.
    write: Option<(usize, usize)>,
    /// Bytes of the READ at the head that are out.
    read: usize,
    pub(super) records: u64,
}

impl Owner {
    pub(super) fn new(memory: Window) -> Owner {
        Owner { memory, seen: VecDeque::new(), write: None, read: 0, records: 0 }
    }

    /// Serves up to `most` requests.
    pub(super) fn serve(&mut self, application: &mut Endpoint, most: u64) {
        for _ in 0..most {
            let Some((request, record)) = application.next_request().unwrap() else { break };
            match request {
                Request::Send { .. } => {
                    let Some(Seen::Message(was)) = self.seen.pop_front() else { panic!("SEND") };
                    self.place(application, &record, INBOX);
                    assert!(self.contents() == was, "a SEND was overtaken, or overtook");
                }
                Request::WriteFirst { flags, address, rkey, total, .. } => {
                    assert!(rkey == KEY && self.write.is_none());
                    let at = (address - START) as usize;
                    assert!(at >= SKEW && at + total as usize <= BYTES - SKEW);
                    self.records += 1;
                    if flags & PLACED != 0 {
                        self.immediate(total);
                    } else {
                        self.write = Some((at, total as usize));
                        self.more(application, &record, flags, total);
                    }
                }
                Request::WriteMore { flags, .. } => {
                    let total = 0; // immediate data of long messages is not checked here
                    self.more(application, &record, flags, total);
                }
                Request::Read { address, length, .. }
                | Request::ReadAgain { address, length, .. } => {
                    if !self.answer(application, (address - START) as usize, length as usize) {
                        break;
                    }
                }
                other => panic!("{other:?}"),
            }
            application.pass_request(&record);
        }
        application.publish_requests();
    }

    fn more(
        &mut self,
        application: &Endpoint,
        record: &omniverb_ring::Record,
        flags: u32,
        total: u64,
    ) {
        let (at, left) = self.write.take().expect("a WRITE under way");
        self.place(application, record, at);
        let left = left.checked_sub(record.length).expect("too long");
        if flags & LAST == 0 {
            self.write = Some((at + record.length, left));
        } else {
            assert_eq!(left, 0, "too short");
            if flags & IMMEDIATE != 0 {
                self.immediate(total);
            }
        }
    }

    fn place(&self, application: &Endpoint, record: &omniverb_ring::Record, at: usize) {
        let mut bytes = vec![0; record.length];
        UserMemory::lend_mut(&mut bytes, |target| application.request_payload(record, 0, target));
        UserMemory::lend(&bytes, |source| self.memory.fill(at, source));
    }

    fn immediate(&mut self, total: u64) {
        let Some(Seen::Immediate(was, length)) = self.seen.pop_front() else { panic!("immediate") };
        assert!(total == 0 || total == length, "{total} bytes, not {length}");
        assert!(self.contents() == was, "immediate data before or behind the wrong data");
    }

    fn answer(&mut self, application: &mut Endpoint, at: usize, length: usize) -> bool {
        loop {
            let chunk = (length - self.read).min(700);
            let last = self.read + chunk == length;
            let mut bytes = vec![0; chunk];
            let from = at + self.read;
            UserMemory::lend_mut(&mut bytes, |target| self.memory.drain(from, target));
            let response = Response::ReadData { last };
            if !UserMemory::lend(&bytes, |b| application.send_response(&response, b)).unwrap() {
                return false;
            }
            self.read += chunk;
            if last {
                self.read = 0;
                return true;
            }
        }
    }

    pub(super) fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        UserMemory::lend_mut(&mut bytes, |target| self.memory.drain(0, target));
        bytes
    }
}

/// Pages with these contents, and the whole ones of the region for the engine.
pub(super) fn pages(contents: &[u8], holes: bool) -> (Window, Window) {
    let file = memfd::create("trial", BYTES as u64).unwrap();
    let extent = Extent::new(file, 0, BYTES as u64);
    let ours = extent.map(Access::ReadWrite).unwrap();
    for (index, page) in contents.chunks(4096).enumerate() {
        if !holes || page.iter().any(|byte| *byte != 0) {
            UserMemory::lend(page, |page| ours.fill(index * 4096, page));
        }
    }
    let theirs = extent.map(Access::ReadWrite).unwrap();
    let whole = theirs.part(4096, BYTES - 2 * 4096).unwrap();
    (ours, whole)
}
