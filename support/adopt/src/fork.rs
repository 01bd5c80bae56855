//! Gives parent and child separate memory at `fork()`, as programs expect of their heap.
//!
//! Adopted pages are shared mappings, which a child would share with its parent. So, in the thread
//! that forks:
//!
//! 1. *before*: no move may be under way (the lock is taken), and every adopted page that is mapped
//!    is copied to a private snapshot. Private pages are what `fork()` duplicates by itself.
//! 2. *in the child*: each snapshot takes the place of the pages it was made from.
//! 3. *in the parent*: the snapshots are thrown away.
//!
//! No process waits for another: a child that dies at once cannot hang its parent. The child sees
//! what the forking thread could see when it called `fork()`. What other threads and peers stored
//! during the call may be missing, as it may for any program that forks while others store. Where
//! there is no memory for a snapshot the child finds the pages missing (and dies of it if it
//! touches them) rather than shared.
#![expect(unsafe_code)]
// UNSAFETY: handlers called by libc inside fork(), and a list of snapshots in raw pages.

use crate::adopted_regions::{Region, RegionPart};
use crate::blocked_signals::BlockedSignals;
use crate::move_lock::MOVES;
use crate::stretch_move::{PAGE_BYTES, StagingPages, Stretch, copy_back, protection_of, unmap};
use core::cell::UnsafeCell;
use core::ops::ControlFlow;
use core::ptr;
use omniverb_sys::proc_maps;
use rustix::mm::{MprotectFlags, MremapFlags, mprotect, mremap_fixed};
use std::sync::Once;

/// First page of a snapshot; the copied pages follow it.
struct SnapshotHeader {
    next: *mut SnapshotHeader,
    address: usize,
    length: usize,
    protection: MprotectFlags,
}

/// What happens between the hooks of one fork; guarded by [`MOVES`].
struct ForkState {
    calm: Option<BlockedSignals>,
    snapshots: *mut SnapshotHeader,
}

struct ForkStateCell(UnsafeCell<ForkState>);

// SAFETY: used only with MOVES held, from before_fork to the end of the after hook.
unsafe impl Sync for ForkStateCell {}

static FORKING: ForkStateCell =
    ForkStateCell(UnsafeCell::new(ForkState { calm: None, snapshots: ptr::null_mut() }));

/// Registers the hooks that keep parent and child apart, once per process. The first adoption does
/// it at the latest.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handlers stay valid as long as this library is loaded; libc forgets them
        // when it is unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

extern "C" fn before() {
    MOVES.acquire();
    if Region::none() {
        return;
    }
    // SAFETY: MOVES is held.
    let forking = unsafe { &mut *FORKING.0.get() };
    forking.calm = Some(BlockedSignals::new());
    // A failure leaves the rest without snapshots, see above.
    let _ = proc_maps::for_each(|mapping| {
        Region::each_in(mapping, |region, RegionPart { address, length, offset }| {
            if let Ok(staging) = StagingPages::new(PAGE_BYTES + length) {
                let stretch = Stretch { region, offset, address, length };
                let source = region.source(mapping);
                if copy_back(stretch, staging.address + PAGE_BYTES, source, None).is_ok() {
                    let header: *mut SnapshotHeader =
                        ptr::with_exposed_provenance_mut(staging.into_address());
                    // SAFETY: the first page of a mapping just made.
                    unsafe {
                        header.write(SnapshotHeader {
                            next: forking.snapshots,
                            address,
                            length,
                            protection: protection_of(mapping),
                        });
                    }
                    forking.snapshots = header;
                }
            }
        });
        ControlFlow::Continue(())
    });
}

fn for_each_snapshot(forking: &mut ForkState, mut visit: impl FnMut(usize, &SnapshotHeader)) {
    let mut at = core::mem::replace(&mut forking.snapshots, ptr::null_mut());
    // SAFETY: headers written by `before`, each still mapped when it is reached.
    while let Some(header) = unsafe { at.as_ref() } {
        let next = header.next;
        visit(at.expose_provenance(), header);
        at = next;
    }
}

extern "C" fn in_parent() {
    // SAFETY: MOVES is held since `before`.
    let forking = unsafe { &mut *FORKING.0.get() };
    for_each_snapshot(forking, |at, header| unmap(at, PAGE_BYTES + header.length));
    let calm = forking.calm.take();
    MOVES.release();
    drop(calm);
}

extern "C" fn in_child() {
    // SAFETY: MOVES was held by the forking thread, the only one there is in the child.
    let forking = unsafe { &mut *FORKING.0.get() };
    for_each_snapshot(forking, |at, header| {
        let length = header.length;
        // SAFETY: the snapshot replaces the pages it was made from, in a process without other
        // threads yet.
        let replaced = unsafe {
            let from = ptr::with_exposed_provenance_mut(at + PAGE_BYTES);
            let to = ptr::with_exposed_provenance_mut(header.address);
            mprotect(from, length, header.protection)
                .and_then(|()| mremap_fixed(from, length, length, MremapFlags::MAYMOVE, to))
        };
        let left = if replaced.is_ok() { 0 } else { length };
        unmap(at, PAGE_BYTES + left);
    });
    crate::strategy::forget_in_child();
    let calm = forking.calm.take();
    MOVES.reset();
    drop(calm);
}
