//! Assigns slots to windows in the device that is mapped into a running machine (decision 0048).
//!
//! The device's memory is a region that QEMU has room for, with nothing in it but mapped files.
//! First a file of the machine's own, which no other process has: the info block that the guest's
//! kernel reads, and a page with the places of windows. Behind it are places, all of one size, the
//! first for window 1. The guest's kernel is told to leave out the region behind the last one: so
//! it keeps notes of possible pages only.

use super::machine_window::{DATA_OFFSET, INFO_OFFSET, STEP, data, info_block, put};
use omniverb_session::VERSION;
use omniverb_session::body::Extent;
use omniverb_session::pair_window::PAIRS_MAX;
use omniverb_session::vm::WindowHead;
use omniverb_sys::{memfd, random};
use std::os::fd::OwnedFd;

/// The first bytes of the device's data part.
const MAGIC: [u8; 8] = *b"OMNISLOT";
/// Where the first place is: behind the machine's own file.
const BEGIN: u64 = STEP;
/// Bytes of the region at least: smaller ones are put below 4 GiB, where a guest's kernel has what
/// is no memory, and does not cache it.
const REGION_MIN: u64 = 4 << 30;

/// Places for windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// Bytes of each, info block and all.
    pub(super) bytes: u64,
    /// How many there are.
    pub(super) count: u8,
}

impl Slots {
    /// Bytes of the region: as devices have them, a power of two.
    pub(super) fn region(self) -> u64 {
        self.used().next_power_of_two().max(REGION_MIN)
    }

    /// Up to where it is used.
    fn used(self) -> u64 {
        self.start(self.count.saturating_add(1))
    }

    /// Where in the region window `number` is.
    fn start(self, number: u8) -> u64 {
        let before = u64::from(number.saturating_sub(1));
        BEGIN.saturating_add(before.saturating_mul(self.bytes))
    }

    /// Where in the region the data part of window `number` is, if it is of so many bytes.
    pub(super) fn place(self, number: u8, bytes: u64) -> Option<Extent> {
        let fits = (1..=self.count).contains(&number) && self.holds(bytes);
        let Extent { length, .. } = data(bytes);
        (fits && length > 0).then_some(Extent { offset: self.start(number), length })
    }

    /// Whether a window of so many bytes is no longer than a place.
    pub(super) fn holds(self, bytes: u64) -> bool {
        bytes <= self.bytes
    }

    /// Where in the guest's device it begins.
    pub(super) fn at(self, number: u8) -> u64 {
        self.start(number) - DATA_OFFSET
    }

    /// Bytes that a window's data part has there at most.
    pub(super) fn room(self) -> u64 {
        data(self.bytes).length
    }

    /// The file that is mapped at the beginning, of the machine with this window.
    pub(super) fn beginning(self, own: &WindowHead) -> anyhow::Result<OwnedFd> {
        let file = memfd::create("omniverb-places", BEGIN)?;
        let uuid = [random::number(), random::number()];
        put(&file, INFO_OFFSET, &info_block(self.region(), self.used(), uuid))?;
        let head = WindowHead { magic: MAGIC, bytes: self.bytes, ..*own };
        put(&file, DATA_OFFSET, &head.written())?;
        Ok(file)
    }

    /// As that says, of a device of so many bytes; `None`: it is another device.
    pub(super) fn read(head: &WindowHead, device_bytes: u64) -> Option<Slots> {
        let known = head.magic == MAGIC && head.version == VERSION;
        let bytes = head.bytes;
        if !known || bytes <= DATA_OFFSET || !bytes.is_multiple_of(STEP) {
            return None;
        }
        let all = device_bytes.checked_add(DATA_OFFSET)?.checked_sub(BEGIN)? / bytes;
        let count = u8::try_from(all.min(PAIRS_MAX.into())).ok()?;
        Some(Slots { bytes, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::vm::MachineName;
    use rustix::io::pread;

    #[test]
    fn windows_have_places_side_by_side() {
        let slots = Slots { bytes: 8 << 20, count: 60 };
        assert_eq!((slots.region(), slots.used()), (4 << 30, 482 << 20));
        let place = |number| slots.place(number, 8 << 20);
        let first = place(1).unwrap();
        assert_eq!((first.offset, first.length), (2 << 20, (8 << 20) - 8192));
        assert_eq!(place(60).unwrap().offset + (8 << 20), slots.used());
        assert_eq!((place(0), place(61)), (None, None));
        assert_eq!((slots.place(1, 10 << 20), slots.place(1, 8192)), (None, None));
        assert_eq!(slots.at(2), (10 << 20) - 8192);
        assert_eq!(slots.room(), first.length);
        let large = Slots { bytes: 128 << 20, count: 60 };
        assert_eq!(large.region(), 8 << 30);
    }

    #[test]
    fn a_guest_is_told_where() {
        let slots = Slots { bytes: 4 << 20, count: 3 };
        let own = WindowHead::new(MachineName::new("web-1").unwrap(), 7, 1 << 20);
        let file = slots.beginning(&own).unwrap();
        let mut head = [0; WindowHead::BYTES];
        pread(&file, &mut head, DATA_OFFSET).unwrap();
        let head = WindowHead::of(&head);
        let device = slots.used() - DATA_OFFSET;
        assert_eq!(Slots::read(&head, device), Some(slots));
        let fewer = Slots { count: 2, ..slots };
        assert_eq!(Slots::read(&head, device - 1), Some(fewer));
        assert_eq!(Slots::read(&head, 4096), None);
        assert_eq!(WindowHead::read(&head.written()), None, "it is no machine's own");
        assert_eq!(Slots::read(&WindowHead { bytes: 4096, ..head }, device), None);
        // The region behind the last one is left out.
        let mut info = [0; 96];
        pread(&file, &mut info, INFO_OFFSET).unwrap();
        let left = u32::from_le_bytes(info[80..84].try_into().unwrap());
        let pages = u64::from_le_bytes(info[64..72].try_into().unwrap());
        assert_eq!((u64::from(left), pages), ((4 << 30) - (14 << 20), (14 << 20) / 4096 - 2));
    }
}
