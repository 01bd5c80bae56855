//! Defines what a host of a queue pair has to offer: the application's pages, as far as it may
//! reach them by itself.

use omniverb_link::Endpoint;
use omniverb_terms::Rkey;
use omniverb_wire::{PacketPosition, WriteRun};

/// `IBV_ACCESS_REMOTE_WRITE`.
pub const REMOTE_WRITE: u32 = 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`.
pub const REMOTE_READ: u32 = 1 << 2;

/// The bytes that a peer wants to reach.
#[derive(Clone, Copy)]
pub struct Target {
    /// R_Key of their region.
    pub key: Rkey,
    /// The application's address of the first.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
}

/// An application's pages. `now` is in nanoseconds of links' time; `access` are bits of
/// `IBV_ACCESS_*`; `(target, offset)` is a whole message, and where in it the bytes are.
pub trait MappedPages: Default {
    /// Whether a whole message can be executed here.
    fn reach(&mut self, endpoint: &Endpoint, target: Target, access: u32) -> bool;

    /// Whether the application's own region is here, all of it, for it to send from.
    fn has(&mut self, endpoint: &Endpoint, key: Rkey) -> bool;

    /// Writes the part of a message that `stands` there in it, `offset` bytes behind its beginning;
    /// its last bytes, if they are the message's, become visible last. False: it has to take the
    /// other way, and nothing that counts was written.
    fn write(
        &mut self,
        endpoint: &Endpoint,
        place: (Target, u64),
        data: &[u8],
        stands: PacketPosition,
        now: u64,
    ) -> bool;

    /// Writes a run, likewise; the message goes on behind it.
    fn write_run(
        &mut self,
        endpoint: &Endpoint,
        place: (Target, u64),
        run: &WriteRun<'_>,
        now: u64,
    ) -> bool;

    /// Reads, likewise. False: what is in `bytes` now does not count.
    fn read(
        &mut self,
        endpoint: &Endpoint,
        place: (Target, u64),
        bytes: &mut [u8],
        now: u64,
    ) -> bool;

    /// Reads what the application sends from its own region, `bytes` in all, into pieces that
    /// follow each other. False: what is in them does not count.
    fn gather<'a>(
        &mut self,
        endpoint: &Endpoint,
        place: (Target, u64),
        pieces: impl Iterator<Item = &'a mut [u8]>,
        bytes: usize,
        now: u64,
    ) -> bool;
}

/// None: all operations travel through the link, to the application's own library.
#[derive(Debug, Default)]
pub struct NoPages;

impl MappedPages for NoPages {
    fn reach(&mut self, _: &Endpoint, _: Target, _: u32) -> bool {
        false
    }

    fn has(&mut self, _: &Endpoint, _: Rkey) -> bool {
        false
    }

    fn write(
        &mut self,
        _: &Endpoint,
        _: (Target, u64),
        _: &[u8],
        _: PacketPosition,
        _: u64,
    ) -> bool {
        false
    }

    fn write_run(&mut self, _: &Endpoint, _: (Target, u64), _: &WriteRun<'_>, _: u64) -> bool {
        false
    }

    fn read(&mut self, _: &Endpoint, _: (Target, u64), _: &mut [u8], _: u64) -> bool {
        false
    }

    fn gather<'a>(
        &mut self,
        _: &Endpoint,
        _: (Target, u64),
        _: impl Iterator<Item = &'a mut [u8]>,
        _: usize,
        _: u64,
    ) -> bool {
        false
    }
}
