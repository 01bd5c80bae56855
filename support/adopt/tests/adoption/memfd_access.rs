//! Tests what a peer can reach through the memfd, and what the program may do to adopted pages.

use crate::page_contents::file_of;
use crate::raw_syscall_helpers::{Memory, PAGE, descriptor_is_open, take_over_descriptor};
use crate::{Outcome, require};
use omniverb_adopt::{Access, Strategy, adopt};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// After release a peer's mapping reaches nothing of the program, in either direction.
pub fn stale_mapping() -> Outcome {
    for strategy in Strategy::ALL {
        if require(strategy).is_err() {
            continue;
        }
        let memory = Memory::heap(8 * PAGE);
        memory.fill(1);
        let pages = crate::take(memory, Access::ReadWrite, strategy);
        let into = pages.page_start() - memory.address;
        let own = memory.part(into, pages.page_length());
        let peer = Memory::of_file(&pages.memfd(), own.length, true).unwrap();
        own.set(0, 11);
        assert_eq!(peer.get(0), 11, "shared while adopted");
        peer.set(1, 12);
        assert_eq!(own.get(1), 12);
        crate::give_back(pages, &[strategy]);
        assert_eq!((own.get(0), own.get(1)), (11, 12));
        own.set(0, 21);
        peer.set(1, 22);
        peer.fill(0xEE);
        assert_eq!((own.get(0), own.get(1)), (21, 12), "separate after release");
        own.fill(3);
        assert!((0..peer.words()).all(|index| peer.get(index) == 0xEEEE_EEEE_EEEE_EEEE));
    }
    Ok(())
}

/// Bytes of the head and tail pages are never in the file.
pub fn neighbours_stay_private() -> Outcome {
    const SECRET: u8 = 0x5E;
    for strategy in Strategy::ALL {
        if require(strategy).is_err() {
            continue;
        }
        for (head, tail) in [(1, 1), (100, 4095), (PAGE - 1, 2000), (0, 0)] {
            let memory = Memory::anonymous(6 * PAGE);
            memory.fill(SECRET);
            let region = memory.part(head, 6 * PAGE - head - tail);
            region.fill(1);
            let pages = crate::take(region, Access::ReadWrite, strategy);
            let file = file_of(&pages);
            let mut visible = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut visible, 0).unwrap();
            assert_eq!(visible.len(), pages.page_length());
            assert!(visible.iter().all(|&byte| byte == 1), "a neighbour's byte is visible");
            // Bytes on the same pages as the region's ends are written later; still invisible.
            memory.part(0, head).fill(SECRET + 1);
            file.read_exact_at(&mut visible, 0).unwrap();
            assert!(visible.iter().all(|&byte| byte == 1));
            crate::give_back(pages, &[strategy]);
        }
    }
    Ok(())
}

pub fn read_only_grant() -> Outcome {
    let memory = Memory::anonymous(4 * PAGE);
    let pages = adopt(memory.address, memory.length, Access::ReadOnly).unwrap();
    let file = file_of(&pages);
    memory.set(0, 5);
    let peer = Memory::of_file(&file, memory.length, false).unwrap();
    assert_eq!(peer.get(0), 5);
    assert!(Memory::of_file(&file, memory.length, true).is_none());
    assert!(file.write_at(&[1], 0).is_err());
    assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    if let Ok(reopened) = OpenOptions::new().read(true).write(true).open(path) {
        assert!(Memory::of_file(&reopened, memory.length, true).is_none());
        assert!(reopened.write_at(&[1], 0).is_err());
        assert!(reopened.set_len(0).is_err());
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(&reopened, hole, 0, PAGE as u64).is_err());
    }
    // The program itself goes on writing, also after it took the right away from itself.
    memory.protect(libc::PROT_READ);
    memory.protect(libc::PROT_READ | libc::PROT_WRITE);
    memory.set(0, 6);
    assert_eq!(peer.get(0), 6);
    crate::give_back(pages, &Strategy::ALL);
    assert_eq!(memory.get(0), 6);
    Ok(())
}

pub fn writable_grant() -> Outcome {
    let memory = Memory::anonymous(4 * PAGE);
    let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
    let file = file_of(&pages);
    let peer = Memory::of_file(&file, memory.length, true).unwrap();
    peer.set(9, 99);
    assert_eq!(memory.get(9), 99);
    assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
    // Seals that would get in the program's way cannot be added.
    assert!(rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::FUTURE_WRITE).is_err());
    Ok(())
}

/// `realloc()` of a big block moves its mapping; the old place may be used otherwise then.
pub fn program_moves_pages() -> Outcome {
    for strategy in Strategy::ALL {
        if require(strategy).is_err() {
            continue;
        }
        let memory = Memory::anonymous(8 * PAGE);
        memory.fill(7);
        let pages = crate::take(memory, Access::ReadWrite, strategy);
        let peer = Memory::of_file(&pages.memfd(), memory.length, true).unwrap();
        let moved = memory.part(2 * PAGE, 4 * PAGE).moved();
        memory.part(2 * PAGE, 4 * PAGE).overmap();
        memory.set(2 * PAGE / 8, 1234);
        moved.set(0, 4321);
        assert_eq!(peer.get(2 * PAGE / 8), 4321);
        crate::give_back(pages, &[strategy]);
        assert_eq!(memory.get(2 * PAGE / 8), 1234, "what lives at the old address");
        assert_eq!(moved.get(0), 4321);
        assert_eq!(moved.get(1), 0x0707_0707_0707_0707);
        assert_eq!(memory.get(0), 0x0707_0707_0707_0707);
        peer.fill(0);
        assert_eq!((memory.get(0), moved.get(1)), (0x0707_0707_0707_0707, 0x0707_0707_0707_0707));
    }
    Ok(())
}

/// Nothing is SIGBUS that was grown: it works, or the program is told that it does not.
pub fn program_grows_pages() -> Outcome {
    for strategy in Strategy::EXACT {
        if require(strategy).is_err() {
            continue;
        }
        let memory = Memory::anonymous(4 * PAGE);
        memory.fill(7);
        let pages = crate::take(memory, Access::ReadWrite, strategy);
        match memory.grown(8 * PAGE) {
            Some(grown) => {
                grown.fill(1);
                crate::give_back(pages, &[strategy]);
                assert_eq!(grown.get(7 * PAGE / 8), 0x0101_0101_0101_0101);
                grown.unmap();
            }
            None => {
                crate::give_back(pages, &[strategy]);
                assert_eq!(memory.get(3 * PAGE / 8), 0x0707_0707_0707_0707);
                // Now they are as they were.
                let grown = memory.grown(8 * PAGE).unwrap();
                grown.fill(1);
                grown.unmap();
            }
        }
    }
    Ok(())
}

pub fn program_unmaps_pages() -> Outcome {
    let memory = Memory::anonymous(6 * PAGE);
    memory.fill(7);
    let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
    memory.part(PAGE, 2 * PAGE).overmap();
    memory.part(4 * PAGE, 2 * PAGE).unmap();
    crate::give_back(pages, &Strategy::ALL);
    assert_eq!(memory.get(0), 0x0707_0707_0707_0707);
    assert_eq!(memory.get(PAGE / 8), 0);
    assert_eq!(memory.get(3 * PAGE / 8), 0x0707_0707_0707_0707);
    // Nothing was mapped where the program has nothing.
    let again = adopt(memory.address + 4 * PAGE, 2 * PAGE, Access::ReadWrite);
    assert!(again.is_err());
    Ok(())
}

pub fn program_protects_pages() -> Outcome {
    for strategy in Strategy::ALL {
        if require(strategy).is_err() {
            continue;
        }
        let memory = Memory::anonymous(6 * PAGE);
        memory.fill(7);
        let pages = crate::take(memory, Access::ReadWrite, strategy);
        memory.part(PAGE, PAGE).protect(libc::PROT_READ);
        memory.part(3 * PAGE, PAGE).protect(libc::PROT_NONE);
        crate::give_back(pages, &[strategy]);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for (page, protection) in [(1, "r--p"), (3, "---p")] {
            let at = memory.address + page * PAGE;
            let line = format!("{at:x}-{:x} {protection}", at + PAGE);
            assert!(maps.contains(&line), "{line} in\n{maps}");
        }
        memory.protect(libc::PROT_READ | libc::PROT_WRITE);
        assert!((0..memory.words()).all(|index| memory.get(index) == 0x0707_0707_0707_0707));
    }
    Ok(())
}

/// Some programs close every descriptor they do not know.
pub fn program_closes_descriptor() -> Outcome {
    for strategy in Strategy::ALL {
        if require(strategy).is_err() {
            continue;
        }
        let memory = Memory::anonymous(6 * PAGE);
        memory.part(PAGE, 2 * PAGE).fill(7);
        let pages = crate::take(memory, Access::ReadWrite, strategy);
        let number = pages.memfd().as_raw_fd();
        take_over_descriptor(number);
        memory.set(0, 1);
        assert_eq!(crate::raw_syscall_helpers::in_child(|| assert_eq!(memory.get(0), 1)), 0);
        crate::give_back(pages, &[strategy]);
        assert!(descriptor_is_open(number), "the program's own file was closed");
        assert_eq!((memory.get(0), memory.get(1)), (1, 0));
        assert_eq!(memory.get(PAGE / 8), 0x0707_0707_0707_0707);
        assert_eq!(memory.get(5 * PAGE / 8), 0);
    }
    Ok(())
}

/// A daemon that closed its standard streams does not get the memory under one of their numbers.
pub fn closed_standard_streams() -> Outcome {
    let memory = Memory::anonymous(2 * PAGE);
    let streams: Vec<_> = (0..3).map(crate::raw_syscall_helpers::put_aside).collect();
    let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
    let number = pages.memfd().as_raw_fd();
    for (stream, copy) in streams.iter().enumerate() {
        crate::raw_syscall_helpers::put_back(*copy, stream as i32);
    }
    assert!(number > 2);
    crate::give_back(pages, &Strategy::ALL);
    Ok(())
}
