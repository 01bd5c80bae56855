//! Pages on a device of memory, as a virtual machine has one, instead of a memfd: what the others
//! try, where there is one, and what is otherwise there.

use crate::raw_syscall_helpers::{Memory, PAGE, in_child};
use crate::{Outcome, give_back, take};
use omniverb_adopt::{Access, AdoptError, AdoptedPages, Strategy, adopt_onto, adopt_with};
use omniverb_sys::Extent;
use std::fs::{File, OpenOptions};
use std::sync::atomic::{AtomicU64, Ordering};

const DEVICE: &str = "OMNIVERB_ADOPT_DEVICE";
/// The part of it that is used: free, where a window has its usual size.
const FIRST: u64 = 32 << 20;
const BYTES: u64 = 28 << 20;

fn device() -> Option<File> {
    let path = std::env::var_os(DEVICE)?;
    Some(OpenOptions::new().read(true).write(true).open(path).unwrap())
}

/// The whole pages of some memory: their address, and how many bytes.
fn pages(memory: Memory) -> (usize, usize) {
    let start = memory.address.next_multiple_of(PAGE);
    (start, ((memory.address + memory.length) & !(PAGE - 1)) - start)
}

/// A place that is beside the last one.
fn place(length: usize) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.load(Ordering::Relaxed);
    let begin = if next + length as u64 > BYTES { 0 } else { next };
    NEXT.store(begin + length as u64, Ordering::Relaxed);
    FIRST + begin
}

/// Adopts pages onto the device that is named, or else onto a memfd.
pub fn adopt_somewhere(
    memory: Memory,
    access: Access,
    strategies: &[Strategy],
) -> Result<AdoptedPages, AdoptError> {
    let Some(device) = device() else {
        return adopt_with(memory.address, memory.length, access, strategies);
    };
    let (start, length) = pages(memory);
    let extent = Extent::new(device.into(), place(length), length as u64);
    adopt_onto(extent, start, Access::ReadWrite, strategies)
}

/// What lies there is not seen in the pages, what is written to the pages lies there, and nothing
/// that is written there after their release is seen.
pub fn come_and_go() -> Outcome {
    let device = device().ok_or("no device")?;
    let count = 3;
    for strategy in [Strategy::SingleThread, Strategy::Stop] {
        for round in 0..4 {
            let memory = Memory::anonymous(count * PAGE);
            (0..memory.words() / 2).for_each(|word| memory.set(word, word as u64 + 1));
            let at = place(memory.length);
            let peer = || Memory::of_file_at(&device, at, memory.length, true).unwrap();
            let there = peer();
            (0..there.words()).for_each(|word| there.set(word, 0xEEEE));
            let extent = Extent::new(device.try_clone().unwrap().into(), at, memory.length as u64);
            let adopted = adopt_onto(extent, memory.address, Access::ReadWrite, &[strategy]);
            let adopted = adopted.unwrap();
            let expected = |word| if word < memory.words() / 2 { word as u64 + 1 } else { 0 };
            assert!((0..memory.words()).all(|word| memory.get(word) == expected(word)));
            there.set(3, 77);
            assert_eq!(memory.get(3), 77);
            // All mappings of the place that this process has would be taken for its own.
            there.unmap();
            if round % 2 == 1 {
                memory.protect(libc::PROT_NONE);
            }
            let status = in_child(|| assert!(round % 2 == 1 || memory.get(3) == 77));
            assert_eq!(status, 0);
            give_back(adopted, &[strategy]);
            if round % 2 == 1 {
                memory.protect(libc::PROT_READ | libc::PROT_WRITE);
            }
            let left = peer();
            assert_eq!(left.get(3), 77);
            left.fill(78);
            assert_eq!((memory.get(3), memory.get(4)), (77, 5));
        }
    }
    Ok(())
}

/// A holder of it can write to it: it is no place for what peers may only read.
pub fn is_for_writers() -> Outcome {
    let device = device().ok_or("no device")?;
    let memory = Memory::anonymous(PAGE);
    let extent = || Extent::new(device.try_clone().unwrap().into(), FIRST, PAGE as u64);
    let read = adopt_onto(extent(), memory.address, Access::ReadOnly, &Strategy::ALL);
    assert_eq!(read.err(), Some(AdoptError::NotPermitted));
    // No page could be protected for the way back.
    let protected = adopt_onto(extent(), memory.address, Access::ReadWrite, &[Strategy::Userfault]);
    assert_eq!(protected.err(), Some(AdoptError::NotPermitted));
    give_back(take(memory, Access::ReadWrite, Strategy::SingleThread), &[Strategy::SingleThread]);
    Ok(())
}
