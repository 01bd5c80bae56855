//! After `fork()` parent and child have separate memory.

use crate::raw_syscall_helpers::{Memory, PAGE, in_child};
use crate::{Outcome, require};
use omniverb_adopt::{Access, Strategy, adopt, adopt_with};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub fn separates() -> Outcome {
    let memory = Memory::heap(64 * PAGE);
    for (access, writable) in [(Access::ReadWrite, true), (Access::ReadOnly, false)] {
        for index in 0..memory.words() {
            memory.set(index, index as u64 + 1);
        }
        let mut pages = Some(adopt(memory.address, memory.length, access).unwrap());
        let adopted = pages.as_ref().unwrap();
        let peer = Memory::of_file(&adopted.memfd(), adopted.page_length(), writable).unwrap();
        let word = PAGE / 8;
        let status = in_child(|| {
            for index in 0..memory.words() {
                assert_eq!(memory.get(index), index as u64 + 1, "the child's own copy");
                memory.set(index, 0);
            }
            // Deregistering in the child must not disturb the parent either.
            pages.take().unwrap().release().unwrap();
            assert_eq!(memory.get(word), 0);
            memory.set(word, 5);
            // A grandchild of a child.
            let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
            assert_eq!(in_child(move || assert_eq!(memory.get(word), 5)), 0);
            crate::give_back(pages, &Strategy::ALL);
        });
        assert_eq!(status, 0);
        for index in 0..memory.words() {
            assert_eq!(memory.get(index), index as u64 + 1, "the parent's memory");
        }
        // The parent is still adopted.
        memory.set(2 * word, 77);
        assert!((0..peer.words()).any(|index| peer.get(index) == 77));
        // A child that dies in the middle of things does not matter.
        assert_ne!(in_child(|| std::process::abort()), 0);
    }
    Ok(())
}

/// A child has copies of the program's pages, and nothing where the library had them once more.
pub fn leaves_an_own_mapping_out() -> Outcome {
    let memory = Memory::anonymous(4 * PAGE);
    memory.set(0, 9);
    let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
    let own = Memory::of_file(&pages.memfd(), pages.page_length(), true).unwrap();
    if !own.advise(libc::MADV_DONTFORK) {
        return Err("the kernel has no MADV_DONTFORK".into());
    }
    let is_mapped = |memory: Memory| memory.advise(libc::MADV_NORMAL);
    pages.set_own_mapping(own.address);
    let status = in_child(|| {
        assert!(is_mapped(memory) && !is_mapped(own));
        assert_eq!(memory.get(0), 9);
        memory.set(0, 1);
    });
    assert_eq!((status, memory.get(0), own.get(0)), (0, 9, 9));
    own.set(0, 10);
    assert_eq!(memory.get(0), 10, "the parent goes on");
    own.unmap();
    pages.set_own_mapping(0);
    crate::give_back(pages, &Strategy::ALL);
    assert_eq!(memory.get(0), 10);
    Ok(())
}

/// A child made behind libc's back does not share the pages: they are missing there.
pub fn raw_clone() -> Outcome {
    let memory = Memory::anonymous(4 * PAGE);
    memory.set(0, 9);
    let pages = adopt(memory.address, memory.length, Access::ReadWrite).unwrap();
    let status = crate::raw_syscall_helpers::in_raw_child(move || memory.set(0, 1));
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
    assert_eq!(memory.get(0), 9);
    crate::give_back(pages, &Strategy::ALL);
    let status = crate::raw_syscall_helpers::in_raw_child(move || {
        assert_eq!(memory.get(0), 9);
        memory.set(0, 1);
    });
    assert_eq!((status, memory.get(0)), (0, 9));
    Ok(())
}

/// Forks at random moments of many moves: the child always finds the words that do not change, and
/// never changes the parent's.
pub fn while_moving(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let memory = Memory::heap(9 * PAGE);
    for index in 0..memory.words() {
        memory.set(index, index as u64 + 1);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let forker = scope.spawn(|| {
            for _ in 0..500 {
                let status = in_child(|| {
                    for index in 0..memory.words() {
                        if memory.get(index) != index as u64 + 1 {
                            std::process::abort();
                        }
                        memory.set(index, 0);
                    }
                });
                assert_eq!(status, 0, "the child saw something else");
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) && !forker.is_finished() {
            let Ok(pages) =
                adopt_with(memory.address, memory.length, Access::ReadWrite, &[strategy])
            else {
                continue;
            };
            let mut held = pages;
            while let Err(failed) = held.release_with(&[strategy]) {
                held = failed.pages;
            }
        }
        forker.join().unwrap();
    });
    for index in 0..memory.words() {
        assert_eq!(memory.get(index), index as u64 + 1);
    }
    Ok(())
}
