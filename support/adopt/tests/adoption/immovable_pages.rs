//! Tests which pages stay where they are.

use crate::Outcome;
use crate::raw_syscall_helpers::{Memory, PAGE, make_aio_context};
use omniverb_adopt::{Access, AdoptError, Strategy, adopt, adopt_with};
use std::fs::OpenOptions;
use std::hint::black_box;
use std::thread;

fn refused(memory: Memory, because: AdoptError) {
    let before = std::fs::read_to_string("/proc/self/maps").unwrap();
    for strategy in Strategy::ALL {
        let outcome = adopt_with(memory.address, memory.length, Access::ReadWrite, &[strategy]);
        assert_eq!(outcome.err(), Some(because));
    }
    assert_eq!(adopt(memory.address, memory.length, Access::ReadWrite).err(), Some(because));
    let after = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert_eq!(before, after, "the mappings changed");
}

pub fn refusals() -> Outcome {
    use libc::{MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_EXEC, PROT_READ, PROT_WRITE};
    let plain = PROT_READ | PROT_WRITE;
    let memory = Memory::anonymous(8 * PAGE);
    refused(memory.part(1, PAGE), AdoptError::NoWholePage);
    refused(memory.part(8, 2 * PAGE - 9), AdoptError::NoWholePage);
    refused(Memory { address: usize::MAX - 10, length: 100 }, AdoptError::NoWholePage);
    refused(Memory { address: usize::MAX - 5 * PAGE, length: PAGE * 4 }, AdoptError::NotAnonymous);
    let anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    refused(
        Memory::mapped(4 * PAGE, plain, MAP_SHARED | MAP_ANONYMOUS, None),
        AdoptError::NotAnonymous,
    );
    refused(Memory::mapped(4 * PAGE, PROT_READ, anonymous, None), AdoptError::NotAnonymous);
    refused(Memory::mapped(4 * PAGE, plain | PROT_EXEC, anonymous, None), AdoptError::NotAnonymous);
    let path = std::env::current_exe().unwrap();
    let file = OpenOptions::new().read(true).open(path).unwrap();
    refused(Memory::mapped(4 * PAGE, plain, MAP_PRIVATE, Some(&file)), AdoptError::NotAnonymous);
    // A hole in the middle, a read-only page in the middle, a page that is adopted already.
    memory.part(3 * PAGE, PAGE).unmap();
    refused(memory, AdoptError::NotAnonymous);
    let memory = Memory::anonymous(8 * PAGE);
    memory.part(3 * PAGE, PAGE).protect(PROT_READ);
    refused(memory, AdoptError::NotAnonymous);
    memory.part(3 * PAGE, PAGE).protect(plain);
    let _pages = adopt(memory.address + 5 * PAGE, PAGE, Access::ReadWrite).unwrap();
    refused(memory, AdoptError::NotAnonymous);
    Ok(())
}

pub fn stacks() -> Outcome {
    let try_own = || {
        let local = black_box([0u8; 8 * PAGE]);
        let memory = Memory { address: (&raw const local).addr(), length: local.len() };
        assert_eq!(
            adopt(memory.address, memory.length, Access::ReadWrite).err(),
            Some(AdoptError::NotAnonymous)
        );
        black_box(&local);
    };
    try_own();
    thread::scope(|scope| {
        scope.spawn(try_own).join().unwrap();
        // Another thread's stack.
        let (address, addresses) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let local = black_box([0u8; 8 * PAGE]);
            address.send((&raw const local).addr()).unwrap();
            let _ = wait.recv();
            black_box(&local);
        });
        let memory = Memory { address: addresses.recv().unwrap(), length: 8 * PAGE };
        assert_eq!(
            adopt(memory.address, memory.length, Access::ReadWrite).err(),
            Some(AdoptError::NotAnonymous)
        );
        drop(done);
    });
    Ok(())
}

pub fn asynchronous_io() -> Outcome {
    if !make_aio_context() {
        return Err("no AIO here".into());
    }
    refused(Memory::anonymous(4 * PAGE), AdoptError::KernelStores);
    Ok(())
}

/// An ordinary user has no full userfaultfd, and the half one that all users have is not used.
pub fn no_userfault() -> Outcome {
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").ok();
    if allowed.is_some_and(|text| text.trim() == "1") {
        return Err("this system allows userfaultfd to everybody".into());
    }
    let memory = Memory::anonymous(PAGE);
    let outcome = adopt_with(memory.address, PAGE, Access::ReadWrite, &[Strategy::Userfault]);
    assert_eq!(outcome.err(), Some(AdoptError::NotPermitted));
    Ok(())
}

/// What the program arranged for its pages would not move with them.
pub fn arranged() -> Outcome {
    const GUARD_INSTALL: i32 = 102;
    let advice = [
        libc::MADV_WIPEONFORK,
        libc::MADV_DONTFORK,
        libc::MADV_DONTDUMP,
        libc::MADV_MERGEABLE,
        GUARD_INSTALL,
    ];
    for what in advice {
        let memory = Memory::anonymous(4 * PAGE);
        memory.fill(7);
        // Where the kernel does not know it there is nothing to respect.
        if memory.part(2 * PAGE, PAGE).advise(what) {
            refused(memory, AdoptError::NotAnonymous);
        }
        memory.unmap();
    }
    let memory = Memory::anonymous(4 * PAGE);
    if memory.part(PAGE, PAGE).lock_on_fault() {
        refused(memory, AdoptError::NotAnonymous);
    }
    let memory = Memory::anonymous(4 * PAGE);
    if memory.part(PAGE, PAGE).prefer_first_node() {
        refused(memory, AdoptError::NotAnonymous);
    }
    let memory = Memory::anonymous(4 * PAGE);
    if let Some(_watch) = memory.part(PAGE, PAGE).watch_missing() {
        refused(memory, AdoptError::NotAnonymous);
    }
    let memory = Memory::mapped(
        4 * PAGE,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN,
        None,
    );
    refused(memory, AdoptError::NotAnonymous);
    Ok(())
}

/// Guard pages that are made while pages are adopted stay guard pages.
pub fn guards_stay() -> Outcome {
    const GUARD_INSTALL: i32 = 102;
    for strategy in Strategy::EXACT {
        if crate::require(strategy).is_err() {
            continue;
        }
        let memory = Memory::anonymous(6 * PAGE);
        memory.fill(7);
        let pages = crate::take(memory, Access::ReadWrite, strategy);
        if !memory.part(2 * PAGE, PAGE).advise(GUARD_INSTALL) {
            crate::give_back(pages, &[strategy]);
            return Err("this kernel has no guard pages in files".into());
        }
        crate::give_back(pages, &[strategy]);
        assert_eq!(memory.get(0), 0x0707_0707_0707_0707);
        assert_eq!(memory.get(3 * PAGE / 8), 0x0707_0707_0707_0707);
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let zeros = std::os::fd::AsRawFd::as_raw_fd(&zeros);
        assert_eq!(memory.part(2 * PAGE, 8).read_from(zeros), -1, "the guard page is gone");
        assert_eq!(memory.part(3 * PAGE, 8).read_from(zeros), 8);
    }
    Ok(())
}
