//! Payload that is read from a region while its owner fills the ring with it and takes the region
//! back (`rnic/link/src/payload_source.rs`, whose steps these are): either the revocation count has
//! not moved and what was read is the payload, or the ring is known to hold it.

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use std::sync::Arc;

const PAYLOAD: u64 = 7;
const JUNK: u64 = 8;

#[derive(Default)]
struct Link {
    region: AtomicU64,
    ring: AtomicU64,
    filled: AtomicU64,
    epoch: AtomicU64,
}

/// Whether there is a run in which something else than the payload is sent. `in_order`: as it is
/// done; otherwise the count moves before the ring is filled.
fn sends_junk(in_order: bool) -> bool {
    let junk = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = junk.clone();
    loom::model(move || {
        let link = Arc::new(Link::default());
        link.region.store(PAYLOAD, Ordering::Relaxed);
        let owner = {
            let link = link.clone();
            thread::spawn(move || {
                let fill = || {
                    link.ring.store(PAYLOAD, Ordering::Relaxed);
                    link.filled.store(1, Ordering::Release); // SYNC: filled
                };
                let take_back = || {
                    link.epoch.store(1, Ordering::SeqCst);
                    fence(Ordering::SeqCst); // SYNC: revoked
                };
                if in_order {
                    fill();
                    take_back();
                } else {
                    take_back();
                    fill();
                }
                link.region.store(JUNK, Ordering::Relaxed);
            })
        };
        let found = link.region.load(Ordering::Relaxed);
        fence(Ordering::SeqCst); // SYNC: revoked
        let sent = if link.epoch.load(Ordering::Acquire) == 0 {
            found
        } else if link.filled.load(Ordering::Acquire) == 1 {
            link.ring.load(Ordering::Relaxed) // SYNC: filled
        } else {
            JUNK // it would be waited for, but nobody needs to wait
        };
        owner.join().unwrap();
        if sent != PAYLOAD {
            seen.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    junk.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn what_is_sent_is_the_payload() {
    assert!(!sends_junk(true));
}

#[test]
fn the_ring_is_filled_before_the_count_moves() {
    assert!(sends_junk(false));
}
