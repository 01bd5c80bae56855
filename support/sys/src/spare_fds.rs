//! Keeps spare descriptors for the moment when the process has no others left.
//!
//! A message whose descriptors find no room loses them, and a program that is at its limit
//! (`RLIMIT_NOFILE`) would lose its connections so. What the daemon sends is mapped and closed at
//! once: a place is needed for a moment only. So spare descriptors are given up for that moment,
//! and taken back after it.

use crate::{lock, memfd};
use rustix::fs::fstat;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Budget: descriptors that a process keeps so: as many as one message to it brings (a link and a
/// doorbell).
pub const SPARES: usize = 2;

/// A descriptor, and the file that it is of.
struct SpareFd {
    file: OwnedFd,
    inode: u64,
}

/// What this process has of them.
static KEPT: Mutex<Vec<SpareFd>> = Mutex::new(Vec::new());
/// There are to be [`SPARES`] of them, and are fewer.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Keeps some from now on; as many as there is room for, and the rest when there is.
pub fn keep() {
    let mut kept = lock(&KEPT);
    while kept.len() < SPARES {
        let made = memfd::unsealed("omniverb-spare", 0)
            .and_then(|file| Ok(SpareFd { inode: fstat(&file)?.st_ino, file }));
        match made {
            Ok(spare) => kept.push(spare),
            Err(_) => break,
        }
    }
    IS_SHORT.store(kept.len() < SPARES, Ordering::Relaxed);
}

/// Makes up for those that were given up, if some were.
pub(crate) fn refill() {
    if IS_SHORT.load(Ordering::Relaxed) {
        keep();
    }
}

/// Gives up what is kept, for the moment. False: there is nothing.
pub(crate) fn give_up() -> bool {
    let mut kept = lock(&KEPT);
    let mut any = false;
    for SpareFd { file, inode } in kept.drain(..) {
        // Programs close descriptors that they know nothing of, and get the number for another.
        if fstat(&file).is_ok_and(|found| found.st_ino == inode) {
            any = true;
            drop(file);
        } else {
            let _ = file.into_raw_fd();
        }
    }
    if any {
        IS_SHORT.store(true, Ordering::Relaxed);
    }
    any
}
