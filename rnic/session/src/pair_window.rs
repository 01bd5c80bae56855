//! Pair windows: memory that a virtual machine shares with one neighbour (decision 0039), which may
//! be another machine (0042).
//!
//! Each is a file of its own and, in the guest, a device of its own. Behind its first page, by
//! which the guest knows it, lie the bells of those who have links in it, always in the same
//! places: so whoever passes wakes on across the machine's border need not be told of any. Of the
//! two pages of a bell the second is that of the process in the machine; of two machines, in the
//! one whose window it is. Behind them lie the links.
//!
//! Which window it is that an offset is in, what goes to the machine says with the offset. Of pages
//! that are granted ([`Adopt`](crate::body::Adopt), [`Granted`](crate::body::Granted)) so does what
//! goes to anybody: whoever has let go of some says with it which window he means, a process of the
//! machine by the machine's number of that, another one by a number of its own connection's.

use crate::VERSION;
use crate::body::Extent;
use crate::codec::Message;
use crate::vm::WindowHead;

/// First bytes of a pair window's data part.
pub const PAIR_MAGIC: [u8; 8] = *b"OMNIPAIR";
/// Pair windows of one machine; they are numbered from one on.
pub const PAIRS_MAX: u8 = 60;
/// Bytes of a bell: a page for each side.
pub const BELL_BYTES: u64 = 2 * PAGE;
/// Bytes of the least data part that makes sense.
pub const DATA_BYTES_MIN: u64 = 1 << 20;

const PAGE: u64 = 4096;
/// Bytes for each of which there is a bell: those of a link, and less.
const BYTES_PER_BELL: u64 = 512 << 10;
/// Bells of one window: so many can one thread listen to.
const BELLS_MAX: u64 = 60;
/// In what a machine's window says a pair window is called: that it is another machine's.
pub const OF_ANOTHER: u64 = 1 << 63;
/// Where in an offset the number of the window stands.
const NUMBER_SHIFT: u32 = 56;

/// Why another window could not be plugged into a running machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PlugTrouble {
    /// Nobody listens where QEMU was told to.
    NoMonitor = 1,
    /// QEMU does not answer in time.
    Silent = 2,
    /// What it says makes no sense.
    Malformed = 3,
    /// It does not take the memory.
    Memory = 4,
    /// It does not take the device.
    Device = 5,
    /// The host has no memory, process or descriptor for it.
    Host = 6,
    /// Who maps windows for QEMU is gone.
    NoMapper = 7,
    /// Windows are plugged in, since the guest has no driver for those that are mapped.
    NoRegion = 8,
    /// Another machine's is longer than the places that windows have here, and there is no monitor.
    TooLong = 9,
    /// None of the guest's drivers has begun that says how windows come.
    NoDriver = 10,
}

impl PlugTrouble {
    const ALL: [PlugTrouble; 10] = {
        use PlugTrouble::{Device, Host, Memory, NoDriver, NoMapper, NoMonitor, NoRegion};
        use PlugTrouble::{Malformed, Silent, TooLong};
        [NoMonitor, Silent, Malformed, Memory, Device, Host, NoMapper, NoRegion, TooLong, NoDriver]
    };

    /// The one of this number, if there is one.
    #[must_use]
    pub fn of(number: u32) -> Option<PlugTrouble> {
        PlugTrouble::ALL.into_iter().find(|trouble| *trouble as u32 == number)
    }

    /// The text for operators.
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            PlugTrouble::NoMonitor => "QEMU has no monitor for it",
            PlugTrouble::Silent => "QEMU does not answer at its monitor",
            PlugTrouble::Malformed => "QEMU's monitor sent an unexpected message",
            PlugTrouble::Memory => "QEMU does not take the memory",
            PlugTrouble::Device => "QEMU has no place for the device",
            PlugTrouble::Host => "the host lacks the resources for it",
            PlugTrouble::NoMapper => "the mapper of windows for QEMU has ended",
            PlugTrouble::NoRegion => {
                "the guest's virtio_pmem knows no memory that is mapped: windows are plugged in"
            }
            PlugTrouble::TooLong => "another machine's window is longer than places are here",
            PlugTrouble::NoDriver => "the guest's virtio_pmem has not begun yet",
        }
    }
}

/// How many bells there are in a data part of so many bytes.
#[must_use]
pub fn bells(data_bytes: u64) -> u64 {
    (data_bytes / BYTES_PER_BELL).clamp(1, BELLS_MAX)
}

/// Where in a data part of so many bytes the bells are.
#[must_use]
pub fn bell_pages(data_bytes: u64) -> Extent {
    Extent { offset: PAGE, length: bells(data_bytes) * BELL_BYTES }
}

/// What stands behind the head of a machine's own window: what its pair windows are called. A
/// neighbour may write anything into the window that he has, its head included, but what the others
/// are called he does not know, nor what the machine's own is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairNames([u64; PAIRS_MAX as usize]);

impl PairNames {
    /// Where in the data part they are.
    pub const OFFSET: usize = 64;
    /// Where that of window `number` is: it is written before the window is plugged in.
    #[must_use]
    pub fn offset_of(number: u8) -> usize {
        PairNames::OFFSET + 8 * usize::from(number.saturating_sub(1))
    }

    /// Bytes that they have in the window's first page.
    pub const BYTES: usize = 8 * PAIRS_MAX as usize;

    /// These, of windows from number one on; all random. More than there can be are left out.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = u64>) -> PairNames {
        let mut all = [0; PAIRS_MAX as usize];
        all.iter_mut().zip(names).for_each(|(room, name)| *room = name);
        PairNames(all)
    }

    /// As they lie in the window.
    #[must_use]
    pub fn written(&self) -> [u8; PairNames::BYTES] {
        let mut bytes = [0; PairNames::BYTES];
        for (room, name) in bytes.chunks_exact_mut(8).zip(self.0) {
            room.copy_from_slice(&name.to_ne_bytes());
        }
        bytes
    }

    /// The same, read.
    #[must_use]
    pub fn read(bytes: &[u8; PairNames::BYTES]) -> PairNames {
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        PairNames::new(bytes.chunks_exact(8).map(word))
    }

    /// Whether there is a window of this number.
    #[must_use]
    pub fn has(&self, number: u8) -> bool {
        let at = usize::from(number).checked_sub(1);
        at.and_then(|at| self.0.get(at)).is_some_and(|name| *name != 0)
    }

    /// How many windows there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().filter(|name| **name != 0).count()
    }

    /// The number of the window that begins so, if it is one of them, and whose it is.
    #[must_use]
    pub fn number(&self, head: &WindowHead) -> Option<(u8, WindowOwner)> {
        let called = called(head)?;
        let at = self.0.iter().position(|name| *name & !OF_ANOTHER == called)?;
        let whose =
            if self.0[at] & OF_ANOTHER == 0 { WindowOwner::Own } else { WindowOwner::Another };
        u8::try_from(at + 1).ok().map(|number| (number, whose))
    }
}

/// Which machine's a pair window is that a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowOwner {
    /// This one's: the second page of a bell in it is this machine's.
    Own,
    /// Another one's: the first page is this machine's.
    Another,
}

/// What a pair window is called that begins so, if it is one.
#[must_use]
pub fn called(head: &WindowHead) -> Option<u64> {
    let sound = head.magic == PAIR_MAGIC && head.version == VERSION;
    (sound && (1..OF_ANOTHER).contains(&head.number)).then_some(head.number)
}

/// What a pair window of this name begins with, of a machine whose own window has this head.
#[must_use]
pub fn head(own: &WindowHead, name: u64, bytes: u64) -> WindowHead {
    WindowHead { magic: PAIR_MAGIC, version: VERSION, number: name, bytes, ..*own }
}

/// An extent of pair window `number`, as the machine is told of it.
#[must_use]
pub fn numbered(number: u8, extent: Extent) -> Extent {
    Extent { offset: extent.offset | u64::from(number) << NUMBER_SHIFT, ..extent }
}

/// The number of the pair window that an extent is said to be in; none: it is in no pair window.
#[must_use]
pub fn number(extent: &Extent) -> Option<u8> {
    let [number, ..] = extent.offset.to_be_bytes();
    (number != 0).then_some(number)
}

/// An extent without the number of a pair window: where in that it is.
#[must_use]
pub fn plain(extent: Extent) -> Extent {
    Extent { offset: extent.offset & ((1 << NUMBER_SHIFT) - 1), ..extent }
}

/// Which pair window it is about what a machine is told; none: its own. Off what is said of a link
/// the number is taken, and what is left is what a process is told. With pages it is told the
/// number, and says it when it has let go of them.
pub fn take_number(message: &mut Message) -> Option<u8> {
    match message {
        Message::LinkReady(ready) => {
            let number = number(&ready.memory);
            (ready.memory, ready.bell_memory) = (plain(ready.memory), plain(ready.bell_memory));
            number
        }
        Message::Adopt(adopt) if adopt.fresh != 0 => number(&adopt.memory),
        Message::Granted(granted) => number(&granted.memory),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{Adopt, Granted, LinkReady};
    use crate::vm::MachineName;
    use zerocopy::FromZeros;

    #[test]
    fn a_pair_window_is_known_by_its_name() {
        let machine = MachineName::new("web-1").unwrap();
        let own = WindowHead::new(machine, 7, 1 << 20);
        let names = PairNames::new([11, 12, 13]);
        assert_eq!((PairNames::read(&names.written()), names.count()), (names, 3));
        let there = [0, 1, 3, 4, 61].map(|number| names.has(number));
        assert_eq!(there, [false, true, true, false, false]);
        const { assert!(WindowHead::BYTES <= PairNames::OFFSET) };
        let pair = head(&own, 12, 1 << 21);
        assert_eq!((names.number(&pair), pair.bytes), (Some((2, WindowOwner::Own)), 1 << 21));
        assert_eq!(WindowHead::read(&pair.written()), None, "it is no machine's own");
        for other in [
            WindowHead { number: 14, ..pair },
            WindowHead { number: 0, ..pair },
            WindowHead { version: VERSION + 1, ..pair },
            WindowHead { number: 12, ..own },
            WindowHead { number: 12 | OF_ANOTHER, ..pair },
        ] {
            assert_eq!(names.number(&other), None, "{other:?}");
        }
        let most = PairNames::new(1..=100);
        let last = head(&own, u64::from(PAIRS_MAX), 0);
        let number = most.number(&last).map(|(number, _)| number);
        assert_eq!((most.count(), number), (60, Some(PAIRS_MAX)));
    }

    #[test]
    fn a_window_of_another_machine_s_is_known_as_such() {
        let own = WindowHead::new(MachineName::new("web-1").unwrap(), 7, 1 << 20);
        let names = PairNames::new([11, 12 | OF_ANOTHER]);
        let found = [11, 12].map(|name| names.number(&head(&own, name, 1 << 21)));
        assert_eq!(found, [Some((1, WindowOwner::Own)), Some((2, WindowOwner::Another))]);
        assert_eq!(names.number(&head(&own, 12 | OF_ANOTHER, 1 << 21)), None);
        assert_eq!(names.number(&head(&own, OF_ANOTHER, 1 << 21)), None);
    }

    #[test]
    fn a_machine_gets_the_generation_with_the_offset() {
        let extent = |offset| Extent { offset, length: 4096 };
        let mut ready = LinkReady::new_zeroed();
        ready.bell_new = 1;
        (ready.memory, ready.bell_memory) = (numbered(9, extent(0x3000)), numbered(9, extent(0)));
        assert!(i64::try_from(numbered(PAIRS_MAX, extent(0)).offset).is_ok());
        let mut message = Message::from(ready);
        assert_eq!(take_number(&mut message), Some(9));
        let Message::LinkReady(left) = message else { panic!() };
        assert_eq!((left.memory, left.bell_memory), (extent(0x3000), extent(0)));
        assert_eq!(take_number(&mut message), None, "the machine's own");
    }

    /// Who lets go of pages says them as he was told of them.
    #[test]
    fn of_pages_a_process_is_told_the_number_too() {
        let memory = numbered(9, Extent { offset: 0x3000, length: 4096 });
        let adopt = Adopt { memory, fresh: 1, ..Adopt::new_zeroed() };
        for (message, expected) in [
            (Message::from(adopt), Some(9)),
            (Adopt { memory: plain(memory), ..adopt }.into(), None),
            (Adopt { fresh: 0, ..adopt }.into(), None),
            (Granted { memory, ..Granted::new_zeroed() }.into(), Some(9)),
        ] {
            let mut told = message.clone();
            assert_eq!((take_number(&mut told), &told), (expected, &message));
        }
        assert_eq!(plain(memory), Extent { offset: 0x3000, length: 4096 });
        assert_eq!((number(&memory), number(&plain(memory))), (Some(9), None));
    }

    #[test]
    fn troubles_survive_their_numbers() {
        for trouble in PlugTrouble::ALL {
            assert_eq!(PlugTrouble::of(trouble as u32), Some(trouble));
        }
        assert_eq!([0, 11, u32::MAX].map(PlugTrouble::of), [None; 3]);
    }

    #[test]
    fn bells_have_their_places() {
        for (bytes, count) in [(1, 1), (8 << 20, 16), ((8 << 20) - 8192, 15), (1 << 40, 60)] {
            assert_eq!(bells(bytes), count);
        }
        let pages = bell_pages(DATA_BYTES_MIN);
        assert!(pages.offset == 4096 && pages.offset + pages.length < DATA_BYTES_MIN);
    }
}
