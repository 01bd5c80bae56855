//! Decides whether a range may move: plain private anonymous memory only.

#![expect(unsafe_code)]
// UNSAFETY: asks the kernel for the NUMA policy of an address, a call that rustix does not have.

use crate::error::AdoptError;
use crate::kernel_page_users;
use core::ops::ControlFlow;
use omniverb_sys::proc_maps::{self, Mapping};
use omniverb_sys::proc_smaps;
use rustix::fs::{AtFlags, CWD, statat};
use rustix::io::{Errno, read};

/// Below a thread's stack lies a guard of inaccessible pages, one page unless the program asked
/// for more. A heap arena's reserve, which looks the same, is nearly always larger.
const STACK_GUARD_BYTES_MAX: usize = 64 << 10;

/// What a range looked like.
#[derive(Default)]
struct RangeSurvey {
    /// Everything below this address of the range is fit.
    covered_to: usize,
    unfit: bool,
    kernel_stores: bool,
    mappings: usize,
    guard_end: usize,
}

/// Checks that `start..end` (page-aligned) may be adopted.
pub(crate) fn check(start: usize, end: usize) -> Result<(), AdoptError> {
    let local = 0u8;
    let stack_pointer = (&raw const local).addr();
    if (start..end).contains(&stack_pointer) {
        return Err(AdoptError::NotAnonymous);
    }
    let mut survey = RangeSurvey { covered_to: start, ..RangeSurvey::default() };
    proc_maps::for_each(|mapping| {
        survey.add(mapping, start, end, stack_pointer);
        ControlFlow::Continue(())
    })?;
    if survey.unfit || survey.covered_to < end {
        return Err(AdoptError::NotAnonymous);
    }
    // Where flags cannot be looked at, none can be trusted to be plain.
    if !has_plain_flags(start, end).unwrap_or(false) || has_numa_policy(start, end)? {
        return Err(AdoptError::NotAnonymous);
    }
    if survey.kernel_stores || kernel_page_users::present() {
        return Err(AdoptError::KernelStores);
    }
    if survey.mappings > mappings_max() / 2 {
        return Err(AdoptError::TooManyMappings);
    }
    Ok(())
}

/// Whether the kernel or a device may store into pages of this process later, not by way of the
/// page tables (io_uring, AIO, devices); true also where that is not known. A store that is under
/// way misses pages that are moved meanwhile.
#[must_use]
pub fn kernel_may_store() -> bool {
    let mut found = false;
    let looked = proc_maps::for_each(|mapping| {
        found |= stores_behind_page_tables(mapping.name);
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found || looked.is_err() || kernel_page_users::present()
}

impl RangeSurvey {
    fn add(&mut self, mapping: &Mapping<'_>, start: usize, end: usize, stack_pointer: usize) {
        self.mappings += 1;
        self.kernel_stores |= stores_behind_page_tables(mapping.name);
        if mapping.end > start && mapping.start < end {
            let is_stack = self.guard_end == mapping.start
                || (mapping.start..mapping.end).contains(&stack_pointer);
            if !is_plain(mapping) || is_stack || mapping.start > self.covered_to {
                self.unfit = true;
            } else {
                self.covered_to = mapping.end;
            }
        }
        let inaccessible = !mapping.may_read && !mapping.may_write && !mapping.may_execute;
        if inaccessible && mapping.end - mapping.start <= STACK_GUARD_BYTES_MAX {
            self.guard_end = mapping.end;
        }
    }
}

/// True if the flags of all mappings of a range are plain ones: those that every mapping has, that
/// a heap has (`nr`), and advice about huge pages, which is advice. All others say that the program
/// arranged something for these pages that would not move with them: userfaultfd (`um`, `uw`,
/// `ui`), guard pages, locked pages, what a forked child is to see of them, core dumps, a key, KSM,
/// growth, or what a kernel to come has.
pub(crate) fn has_plain_flags(start: usize, end: usize) -> Result<bool, Errno> {
    const PLAIN: [&[u8; 2]; 10] =
        [b"rd", b"wr", b"mr", b"mw", b"me", b"ac", b"nr", b"sd", b"hg", b"nh"];
    let (mut covered_to, mut is_plain) = (start, true);
    proc_smaps::for_each(|mapping, flags| {
        if mapping.end > start && mapping.start < end {
            is_plain &= mapping.start <= covered_to
                && flags.protection_key == 0
                && flags.all(|flag| PLAIN.iter().any(|plain| *plain == flag));
            covered_to = mapping.end;
        }
        match is_plain && covered_to < end {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    Ok(is_plain && covered_to >= end)
}

/// As [`has_plain_flags`], while others stand still: only where looking is as short as copying is.
/// Elsewhere what was seen before counts.
pub(crate) fn has_plain_flags_still(start: usize, end: usize) -> Result<bool, Errno> {
    /// Pages of a process whose mappings are walked in a millisecond: much less than a step copies.
    const PAGES_MAX: usize = 1 << 14;
    let mut text = [0u8; 128];
    let count = read(proc_maps::open_read(c"/proc/self/statm")?, &mut text)?;
    let resident = core::str::from_utf8(&text[..count])
        .ok()
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<usize>().ok());
    if resident.is_some_and(|pages| pages <= PAGES_MAX) {
        has_plain_flags(start, end)
    } else {
        Ok(true)
    }
}

/// True if the program says on which NUMA nodes pages of a range are to be (`mbind`).
fn has_numa_policy(start: usize, end: usize) -> Result<bool, Errno> {
    let mut found = false;
    proc_maps::for_each(|mapping| {
        if mapping.end > start && mapping.start < end {
            found |= policy_of(mapping.start.max(start));
        }
        if found || mapping.end >= end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

/// True if the mapping at an address has a policy of its own.
fn policy_of(address: usize) -> bool {
    const OF_ADDRESS: libc::c_ulong = 1 << 1;
    let (mut mode, no_nodes) = (0 as libc::c_int, core::ptr::null_mut::<libc::c_ulong>());
    // SAFETY: the kernel writes one integer. Where it has no NUMA it says ENOSYS, and then there is
    // no policy.
    unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            no_nodes,
            0 as libc::c_ulong,
            address,
            OF_ADDRESS,
        ) == 0
            && mode != 0
    }
}

pub(crate) fn is_plain(mapping: &Mapping<'_>) -> bool {
    mapping.may_read
        && mapping.may_write
        && !mapping.may_execute
        && !mapping.is_shared
        && mapping.inode == 0
        && mapping.device == (0, 0)
        && (mapping.name.is_empty()
            || mapping.name == b"[heap]"
            || mapping.name.starts_with(b"[anon:"))
}

/// Mappings whose presence, by their names, means that some part of the kernel or a device may hold
/// pages of this process and store into them later: AIO contexts, io_uring, packet and AF_XDP
/// rings, VFIO, GPUs, real RDMA devices.
fn stores_behind_page_tables(name: &[u8]) -> bool {
    // `/dev/dax` is memory that was plugged into the machine: it stores nothing by itself, and all
    // that processes of a virtual machine share lies there.
    const HARMLESS: [&[u8]; 6] = [
        b"/dev/zero",
        b"/dev/shm/",
        b"/dev/null",
        b"/dev/hugepages/",
        b"/dev/dax",
        b"anon_inode:[perf_event]",
    ];
    const SUSPECT: [&[u8]; 4] = [b"/dev/", b"anon_inode:", b"socket:", b"/[aio]"];
    SUSPECT.iter().any(|prefix| name.starts_with(prefix))
        && !HARMLESS.iter().any(|prefix| name.starts_with(prefix))
}

fn mappings_max() -> usize {
    const KERNEL_DEFAULT: usize = 65530;
    let mut text = [0u8; 32];
    let Ok(file) = proc_maps::open_read(c"/proc/sys/vm/max_map_count") else {
        return KERNEL_DEFAULT;
    };
    let Ok(count) = read(&file, &mut text) else { return KERNEL_DEFAULT };
    core::str::from_utf8(&text[..count])
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(KERNEL_DEFAULT)
}

/// Threads of this process, the caller included. `usize::MAX` when it cannot be known.
pub(crate) fn thread_count() -> usize {
    // The directory has one link per thread besides its own two.
    statat(CWD, c"/proc/self/task", AtFlags::empty())
        .ok()
        .and_then(|status| usize::try_from(status.st_nlink).ok())
        .and_then(|links| links.checked_sub(2))
        .filter(|&threads| threads > 0)
        .unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_and_device_mappings_are_recognised() {
        for name in [&b"anon_inode:[io_uring]"[..], b"/[aio] (deleted)", b"/dev/infiniband/uverbs0"]
        {
            assert!(stores_behind_page_tables(name));
        }
        for name in [
            &b""[..],
            b"[heap]",
            b"/dev/shm/x",
            b"/usr/lib/libc.so.6",
            b"/dev/zero (deleted)",
            b"/dev/dax0.0",
        ] {
            assert!(!stores_behind_page_tables(name));
        }
    }

    #[test]
    fn threads_are_counted() {
        let before = thread_count();
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || receiver.recv().is_err());
        assert!(before >= 1 && before != usize::MAX);
        assert!(thread_count() >= 2);
        drop(sender);
        thread.join().unwrap();
    }

    #[test]
    fn own_stack_code_and_files_are_refused() {
        let local = [0u8; 3 * 4096];
        let start = (&raw const local).addr() & !4095;
        assert_eq!(check(start, start + 4096), Err(AdoptError::NotAnonymous));
        let code = (check as *const ()).addr() & !4095;
        assert_eq!(check(code, code + 4096), Err(AdoptError::NotAnonymous));
        assert_eq!(check(4096, 8192), Err(AdoptError::NotAnonymous));
    }
}
