//! Finds the windows of this machine: its own, and one for each neighbour.
//!
//! In: devices of plugged-in memory. Out: the kind of each, by its first bytes. Only the host can
//! have written the head of a machine's own window; the head of a pair window, or of one that
//! claims to be a machine's own, may be a neighbour's. So a device is a pair window if its name is
//! in the own window and unique; and of several that claim to be the machine's own it is the one
//! whose number the host knows ([`FoundWindows::others`]).

#[cfg(test)]
mod tests;

use super::window_slots::Slots;
use omniverb_session::body::Extent as Part;
use omniverb_session::pair_window::{DATA_BYTES_MIN, PairNames, WindowOwner};
use omniverb_session::vm::{WINDOW_MAGIC, WindowHead};
use omniverb_sys::{Access, Extent};
use rustix::fs::{Mode, OFlags, fstat, open};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Where devices of plugged-in memory are.
pub(super) const DEVICES: &str = "/sys/bus/dax/devices";
const PAGE: u64 = 4096;

/// A device, and what it begins with.
struct Device {
    file: Arc<OwnedFd>,
    /// Where in it this begins: where windows are mapped they have places in one device.
    offset: u64,
    /// Bytes that it has there.
    room: u64,
    head: WindowHead,
    names: PairNames,
}

/// One that may be the machine's own window.
pub(super) struct OwnWindow {
    pub(super) file: Arc<OwnedFd>,
    pub(super) number: u64,
    names: PairNames,
}

/// A pair window.
pub(super) struct Shared {
    pub(super) file: Arc<OwnedFd>,
    /// Where in the device it is: all of that, or a place in it.
    pub(super) data: Part,
    /// It is mapped there with others, and may go again.
    pub(super) is_mapped: bool,
    /// This machine's, or another one's that is plugged in here, too.
    pub(super) whose: WindowOwner,
    /// Its head when it was found.
    head: WindowHead,
}

impl Shared {
    /// Whether the machine's own window says of this one what it said when it was found.
    pub(super) fn is_called(&self, number: u8, own: &OwnWindow) -> bool {
        own.names.number(&self.head) == Some((number, self.whose))
    }
}

/// A device that windows are mapped into, and where: or a neighbour's window that begins so.
#[derive(Clone)]
struct Places {
    file: Arc<OwnedFd>,
    slots: Slots,
    /// The host's number of the machine's own window, which no neighbour knows.
    number: u64,
}

/// All that there are.
#[derive(Default)]
pub(super) struct FoundWindows {
    devices: Vec<Device>,
    /// Devices that windows may be mapped into.
    places: Vec<Places>,
    /// One that begins as a window does, of another version.
    pub(super) other_version: Option<String>,
}

impl FoundWindows {
    /// Looks at all devices.
    pub(super) fn look() -> FoundWindows {
        let mut found = FoundWindows::default();
        for name in names(DEVICES) {
            let device = PathBuf::from("/dev").join(&name);
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let Ok(file) = open(&device, flags, Mode::empty()) else { continue };
            let Some((head, names)) = beginning(&file, 0) else { continue };
            if found.is_for_places(&file, &head) {
                continue;
            }
            if head.magic == WINDOW_MAGIC && WindowHead::read(&head.written()).is_none() {
                found.other_version = Some(device.display().to_string());
            }
            found.devices.push(Device::whole(file, head, names));
        }
        found.look_at_places(u64::MAX);
        found
    }

    /// Whether it may be the device that windows are mapped into: that is kept, once.
    fn is_for_places(&mut self, file: &OwnedFd, head: &WindowHead) -> bool {
        let Some(slots) = Slots::read(head, bytes_of(file)) else { return false };
        let number = head.number;
        if self.places.iter().all(|places| places.number != number)
            && let Ok(file) = file.try_clone()
        {
            self.places.push(Places { file: Arc::new(file), slots, number });
        }
        true
    }

    /// Looks which windows are mapped, of those that there are (bit `number - 1` of each): those
    /// that the machine's own window has names for. At a place without one there may be nothing.
    pub(super) fn look_at_places(&mut self, present: u64) {
        self.devices.retain(|device| device.offset == 0);
        self.look_at_names();
        for Places { file, slots, number: whose } in self.places.clone() {
            let named = |number: u8| {
                let mut own = self.devices.iter().filter(|device| device.is_own());
                own.any(|own| own.head.number == whose && own.names.has(number))
            };
            let is_there = |number: &u8| present >> (number - 1) & 1 != 0 && named(*number);
            let numbers: Vec<u8> = (1..=slots.count).filter(is_there).collect();
            for number in numbers {
                let (file, offset) = (file.clone(), slots.at(number));
                let Some((head, names)) = beginning(&file, offset) else { continue };
                let room = slots.room();
                self.devices.push(Device { file, offset, room, head, names });
            }
        }
    }

    /// Reads the names in the machine's own window again: there may be more, or others.
    pub(super) fn look_at_names(&mut self) {
        for device in &mut self.devices {
            if let Some((_, names)) = beginning(&device.file, device.offset) {
                device.names = names;
            }
        }
    }

    /// Adds a device that has come later. The names of pair windows in the machine's own window may
    /// be more than before.
    ///
    /// # Errors
    /// The kernel's error; `AlreadyExists` if it is known.
    pub(super) fn add(&mut self, file: OwnedFd) -> io::Result<()> {
        // Of a device its number, of a file, as in tests, its own.
        let number = |file: &OwnedFd| {
            let status = fstat(file)?;
            let of_file = if status.st_rdev == 0 { status.st_ino } else { 0 };
            Ok::<_, io::Error>((status.st_rdev, of_file))
        };
        let new = number(&file)?;
        let known = |device: &Device| number(&device.file).is_ok_and(|known| known == new);
        if self.devices.iter().any(known) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (head, names) = beginning(&file, 0).ok_or(io::ErrorKind::InvalidData)?;
        if self.is_for_places(&file, &head) {
            self.look_at_places(u64::MAX);
            return Ok(());
        }
        self.devices.push(Device::whole(file, head, names));
        self.look_at_names();
        Ok(())
    }

    /// Those that may be the machine's own.
    pub(super) fn own(&self) -> Vec<OwnWindow> {
        let all = self.devices.iter().filter(|device| device.is_own());
        all.map(|device| OwnWindow {
            file: device.file.clone(),
            number: device.head.number,
            names: device.names,
        })
        .collect()
    }

    /// The pair windows of the machine whose own window is this one, by their numbers.
    pub(super) fn pairs(&self, own: &OwnWindow) -> BTreeMap<u8, Shared> {
        let mut found: BTreeMap<u8, Vec<(&Device, WindowOwner)>> = BTreeMap::new();
        for device in &self.devices {
            if let Some((number, whose)) = own.names.number(&device.head) {
                found.entry(number).or_default().push((device, whose));
            }
        }
        let single = |(number, devices): (u8, Vec<(&Device, WindowOwner)>)| match devices[..] {
            [(device, whose)] => shared(device, whose).map(|shared| (number, shared)),
            _ => None,
        };
        found.into_iter().filter_map(single).collect()
    }

    /// Whether all are there that the machine has.
    pub(super) fn is_complete(&self) -> bool {
        self.own().iter().any(|own| self.pairs(own).len() >= own.names.count())
    }
}

impl Device {
    fn whole(file: OwnedFd, head: WindowHead, names: PairNames) -> Device {
        Device { file: Arc::new(file), offset: 0, room: u64::MAX, head, names }
    }

    /// Whether it may be the machine's own window. One that is mapped with others never is.
    fn is_own(&self) -> bool {
        self.offset == 0 && WindowHead::read(&self.head.written()).is_some()
    }
}

/// A pair window as large as it says, and as its device is, or its place in that.
fn shared(device: &Device, whose: WindowOwner) -> Option<Shared> {
    let data = Part { offset: device.offset, length: device.head.bytes };
    let sound = (DATA_BYTES_MIN..=device.room).contains(&data.length)
        && Extent::new(&device.file, data.offset, data.length).verify().is_ok();
    let (is_mapped, head) = (data.offset != 0, device.head);
    sound.then(|| Shared { file: device.file.clone(), data, is_mapped, whose, head })
}

/// The entries of a folder.
pub(super) fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Bytes of a device; none, if it is none.
fn bytes_of(file: &OwnedFd) -> u64 {
    Extent::new(file, 0, PAGE).file_bytes().unwrap_or(0)
}

/// The head of a device, or of a place in it.
fn beginning(file: &OwnedFd, offset: u64) -> Option<(WindowHead, PairNames)> {
    let first = Extent::new(file, offset, PAGE).mapping(Access::ReadOnly).ok()?;
    let read = |from: usize, bytes: &mut [u8]| {
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            let found = first.load_u64(from + 8 * at).unwrap_or(0).to_ne_bytes();
            word.copy_from_slice(&found);
        }
    };
    let (mut head, mut names) = ([0; WindowHead::BYTES], [0; PairNames::BYTES]);
    read(0, &mut head);
    read(PairNames::OFFSET, &mut names);
    Some((WindowHead::of(&head), PairNames::read(&names)))
}
