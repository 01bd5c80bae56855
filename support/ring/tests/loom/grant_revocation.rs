//! Model-checks the use of granted pages while their owner takes them back
//! (`Endpoint::peer_epoch_afterwards` and `advance_epoch` of rnic/link, whose steps these are): a
//! user writes and then looks at the revocation count; the owner advances the count and then
//! copies. If the count has not moved, what was written is in the copy.

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use std::sync::Arc;

/// Whether there is a run in which the count has not moved and the copy lacks what was written.
fn loses(fences: bool) -> bool {
    let lost = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = lost.clone();
    loom::model(move || {
        let page = Arc::new(AtomicU64::new(0));
        let epoch = Arc::new(AtomicU64::new(0));
        let owner = {
            let (page, epoch) = (page.clone(), epoch.clone());
            thread::spawn(move || {
                epoch.store(1, Ordering::SeqCst);
                if fences {
                    fence(Ordering::SeqCst); // SYNC: revoked
                }
                page.load(Ordering::Relaxed)
            })
        };
        page.store(7, Ordering::Relaxed);
        if fences {
            fence(Ordering::SeqCst); // SYNC: revoked
        }
        let unmoved = epoch.load(Ordering::Acquire) == 0;
        let copy = owner.join().unwrap();
        if unmoved && copy != 7 {
            seen.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    lost.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn what_was_written_before_the_count_moved_is_in_the_copy() {
    assert!(!loses(true));
}

#[test]
fn without_the_fences_it_could_be_lost() {
    assert!(loses(false));
}
