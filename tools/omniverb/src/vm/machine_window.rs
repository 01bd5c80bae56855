//! Makes a machine's window: a memory file that a Linux guest sees as `/dev/daxN.0`.
//!
//! In: a name and a size. Out: the file, of that size for ever, with an *info block* where the
//! guest's kernel looks for it on plugged-in memory (`drivers/nvdimm/pfn.h`): what follows is a
//! device and no disk, mapped in pages of 4 KiB. Behind it the data part begins, which is what the
//! guest sees, with a head by which the agent knows it.

use anyhow::{Context, ensure};
use omniverb_session::body::Extent;
use omniverb_session::pair_window::{self, OF_ANOTHER, PairNames, WindowOwner};
use omniverb_session::vm::{MachineName, WindowHead};
use omniverb_sys::{memfd, random};
use rustix::io::{pread, pwrite};
use std::os::fd::{AsFd, OwnedFd};

/// Granularity of sizes: the least that can be plugged into a machine.
pub(super) const STEP: u64 = 2 << 20;
const PAGE: u64 = 4096;
/// Where the info block is.
pub(super) const INFO_OFFSET: u64 = 4096;
/// Where the data part begins.
pub(super) const DATA_OFFSET: u64 = 8192;
const INFO_BYTES: usize = 4096;
const SIGNATURE: &[u8; 16] = b"NVDIMM_DAX_INFO\0";
/// The version of the format that the kernel reads, with [`MINOR`].
const MAJOR: u16 = 1;
const MINOR: u16 = 4;
/// The kernel keeps what it notes of each page in the guest's memory, not in the window.
const NOTES_IN_MEMORY: u32 = 1;
/// Bytes of such a note.
const NOTE_BYTES: u16 = 64;

/// A window, and which part of it the guest sees.
pub(super) struct Window {
    pub(super) file: OwnedFd,
    pub(super) data: Extent,
    pub(super) head: WindowHead,
}

impl Window {
    /// A window of so many bytes, for the machine of this name.
    pub(super) fn new(name: MachineName, bytes: u64) -> anyhow::Result<Window> {
        Window::made("omniverb-window", bytes, |bytes| {
            WindowHead::new(name, random::number(), bytes)
        })
    }

    /// A window of so many bytes that this machine shares with a neighbour, and what it is called.
    /// It has no number yet.
    pub(super) fn pair(&self, bytes: u64) -> anyhow::Result<Window> {
        let name = new_name();
        Window::made("omniverb-pair", bytes, |bytes| pair_window::head(&self.head, name, bytes))
    }

    /// A pair window of another machine's. That one's guest may have changed its head: it is read
    /// here, once. If it has no name, or one that is `known` to be another window's, this one gets
    /// a name of its own, so that it is not found: that harms only the two machines.
    pub(super) fn of_another(
        file: OwnedFd,
        known: impl FnOnce(u64) -> bool,
    ) -> anyhow::Result<Window> {
        let bytes = memfd::size(file.as_fd()).context("cannot read the size of the window")?;
        ensure!(
            bytes > 0 && bytes.is_multiple_of(STEP),
            "the size of a window has to be a multiple of 2 MiB"
        );
        let (data, mut head) = (data(bytes), [0; WindowHead::BYTES]);
        let read = pread(&file, &mut head, data.offset).context("cannot read a window")?;
        ensure!(read == head.len(), "cannot read a window");
        let head = WindowHead::of(&head);
        let called = pair_window::called(&head).filter(|called| !known(*called));
        let head = WindowHead { number: called.unwrap_or_else(new_name), ..head };
        Ok(Window { file, data, head })
    }

    /// Writes into this machine's own window that pair window `number` is that one, before any
    /// neighbour has it: so no neighbour can write its name into another one.
    pub(super) fn tell(&self, number: u8, pair: &Window, whose: WindowOwner) -> anyhow::Result<()> {
        let at = DATA_OFFSET + PairNames::offset_of(number) as u64;
        let mark = if whose == WindowOwner::Another { OF_ANOTHER } else { 0 };
        put(&self.file, at, &(pair.head.number | mark).to_ne_bytes())
    }

    /// Pair window `number` is to be taken out: the machine does not find it again.
    pub(super) fn forget(&self, number: u8) -> anyhow::Result<()> {
        put(&self.file, DATA_OFFSET + PairNames::offset_of(number) as u64, &[0; 8])
    }

    fn made(
        what: &str,
        bytes: u64,
        head: impl FnOnce(u64) -> WindowHead,
    ) -> anyhow::Result<Window> {
        ensure!(
            bytes > 0 && bytes.is_multiple_of(STEP),
            "the size of a window has to be a multiple of 2 MiB"
        );
        let data = data(bytes);
        let head = head(data.length);
        let file = memfd::create(what, bytes).context("cannot make a window")?;
        let info = info_block(bytes, bytes, [random::number(), random::number()]);
        put(&file, INFO_OFFSET, &info)?;
        put(&file, DATA_OFFSET, &head.written())?;
        Ok(Window { file, data, head })
    }
}

/// A random name for a pair window.
fn new_name() -> u64 {
    (random::number() & !OF_ANOTHER).max(1)
}

/// Which part of a window of so many bytes the guest sees.
pub(super) fn data(bytes: u64) -> Extent {
    Extent { offset: DATA_OFFSET, length: bytes.saturating_sub(DATA_OFFSET) }
}

/// How many windows a machine shares with neighbours, and of how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbours {
    /// Those that it is started with.
    pub(crate) count: u8,
    /// With those that are plugged in while it runs.
    pub(crate) most: u8,
    pub(crate) bytes: u64,
}

pub(super) fn put(file: &OwnedFd, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
    let written = pwrite(file, bytes, offset).context("cannot write to a window")?;
    ensure!(written == bytes.len(), "cannot write to a window");
    Ok(())
}

/// The info block of a device of so many bytes, of which so many are used, with this number of its
/// own.
pub(super) fn info_block(bytes: u64, used: u64, uuid: [u64; 2]) -> [u8; INFO_BYTES] {
    let mut block = [0; INFO_BYTES];
    let mut put = |offset: usize, field: &[u8]| {
        block[offset..offset + field.len()].copy_from_slice(field);
    };
    put(0, SIGNATURE);
    put(16, &uuid[0].to_le_bytes());
    put(24, &uuid[1].to_le_bytes());
    // From 32 on: no parent, no flags.
    put(52, &MAJOR.to_le_bytes());
    put(54, &MINOR.to_le_bytes());
    put(56, &DATA_OFFSET.to_le_bytes());
    // Bytes that cannot be left out are noted in vain.
    let left_out = u32::try_from(bytes - used).unwrap_or(u32::MAX / STEP as u32 * STEP as u32);
    put(64, &((bytes - u64::from(left_out) - DATA_OFFSET) / PAGE).to_le_bytes());
    put(72, &NOTES_IN_MEMORY.to_le_bytes());
    // At 76: nothing is left out where it begins.
    put(80, &left_out.to_le_bytes());
    put(84, &(PAGE as u32).to_le_bytes());
    put(88, &(PAGE as u32).to_le_bytes());
    put(92, &NOTE_BYTES.to_le_bytes());
    let sum = fletcher64(&block);
    block[INFO_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    block
}

/// The sum that the kernel compares: of a block whose own sum is zero.
fn fletcher64(block: &[u8]) -> u64 {
    let (mut low, mut high) = (0_u32, 0_u64);
    for word in block.chunks_exact(4) {
        let word = word.try_into().map_or(0, u32::from_le_bytes);
        low = low.wrapping_add(word);
        high = high.wrapping_add(low.into());
    }
    (high << 32) | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_its_size_for_ever_and_names_its_owner() {
        let name = MachineName::new("web-1").unwrap();
        let window = Window::new(name, 4 * STEP).unwrap();
        assert_eq!(memfd::size(std::os::fd::AsFd::as_fd(&window.file)).unwrap(), 4 * STEP);
        let mut bytes = [0; WindowHead::BYTES];
        pread(&window.file, &mut bytes, window.data.offset).unwrap();
        let head = WindowHead::read(&bytes).unwrap();
        assert_eq!(head, window.head);
        assert_eq!(MachineName::read(&head.name), Some(name));
        assert_eq!(window.data.offset + window.data.length, 4 * STEP);
        for wrong in [0, STEP - 1, STEP + 4096] {
            assert!(Window::new(name, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_machine_knows_its_pair_windows() {
        let own = Window::new(MachineName::new("web-1").unwrap(), STEP).unwrap();
        let make = |number| {
            let pair = own.pair(2 * STEP).unwrap();
            own.tell(number, &pair, WindowOwner::Own).unwrap();
            pair
        };
        let pairs: Vec<Window> = (1..=3).map(make).collect();
        let mut bytes = [0; PairNames::BYTES];
        pread(&own.file, &mut bytes, own.data.offset + PairNames::OFFSET as u64).unwrap();
        let names = PairNames::read(&bytes);
        let numbers = pairs.iter().map(|window| {
            let mut bytes = [0; WindowHead::BYTES];
            pread(&window.file, &mut bytes, window.data.offset).unwrap();
            names.number(&WindowHead::of(&bytes))
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3].map(|n| Some((n, WindowOwner::Own))));
        assert_eq!(names.count(), 3);
    }

    #[test]
    fn another_machine_knows_it_by_the_same_name() {
        let [one, other] = ["web-1", "web-2"]
            .map(|name| Window::new(MachineName::new(name).unwrap(), STEP).unwrap());
        let pair = one.pair(2 * STEP).unwrap();
        let another = |known| {
            let file = pair.file.try_clone().unwrap();
            Window::of_another(file, |called| called == known).unwrap()
        };
        let there = another(0);
        assert_eq!((there.head, there.data), (pair.head, pair.data));
        other.tell(2, &there, WindowOwner::Another).unwrap();
        let mut bytes = [0; PairNames::BYTES];
        pread(&other.file, &mut bytes, other.data.offset + PairNames::OFFSET as u64).unwrap();
        let names = PairNames::read(&bytes);
        assert_eq!(names.number(&pair.head), Some((2, WindowOwner::Another)));
        // It has another window's name, or its guest has made something else of it: then it is not
        // found, and this machine can still have others.
        let unlike = another(pair.head.number).head;
        assert!(unlike.number != pair.head.number && pair_window::called(&unlike).is_some());
        for number in [0, OF_ANOTHER | 7] {
            let head = WindowHead { number, ..pair.head };
            pwrite(&pair.file, &head.written(), pair.data.offset).unwrap();
            assert_ne!(another(0).head.number, number);
        }
        let short = memfd::create("short", 4096).unwrap();
        assert!(Window::of_another(short, |_| false).is_err());
    }

    #[test]
    fn the_info_block_is_what_the_kernel_reads() {
        let block = info_block(128 << 20, 128 << 20, [1, 2]);
        assert_eq!(&block[..16], SIGNATURE);
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        let pages = (128 << 20) / 4096 - 2;
        assert_eq!((word(52), word(56), word(64)), (1 | 4 << 16, 8192, pages));
        assert_eq!((word(72), word(84), word(88), word(92)), (1, 4096, 4096, 64));
        // Of the same block, by the script that made the first guests' windows.
        let sum = u64::from_le_bytes(block[4088..].try_into().unwrap());
        let mut without = block;
        without[4088..].fill(0);
        assert_eq!(sum, fletcher64(&without));
        assert_eq!(fletcher64(&[1, 0, 0, 0, 2, 0, 0, 0]), 3 | 4 << 32);
    }
}
