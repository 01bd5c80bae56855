//! Tests that every ring is found in the ready map.

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use omniverb_ring::DoorbellPage;
use omniverb_ring::doorbell::PAGE_BYTES;
use omniverb_ring::loom_memory::Words;
use std::sync::Arc;

const SUMMARY: usize = 0x40;
const MAP: usize = 0x80;

/// Two ringers ring these slots, each after it wrote its news; the owner looks while they do and
/// once more when they are done. In the end the owner has seen the news of both.
fn check(slots: [u32; 2], looks: usize) {
    loom::model(move || {
        let mut offsets = vec![0, SUMMARY];
        offsets.extend(slots.map(|slot| MAP + slot as usize / 64 * 8));
        offsets.dedup();
        let page = Arc::new(DoorbellPage::new(Words::at(PAGE_BYTES, offsets)));
        let news: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let ringers = [0, 1].map(|ringer| {
            let (page, news) = (page.clone(), news.clone());
            thread::spawn(move || {
                news[ringer].store(1, Ordering::Relaxed);
                page.set_ready(slots[ringer]);
            })
        });
        let mut seen = [false; 2];
        let mut look = || {
            page.take_ready(|slot| {
                assert!(slots.contains(&slot), "a bit that nobody set");
                for ringer in (0..2).filter(|ringer| slots[*ringer] == slot) {
                    seen[ringer] |= news[ringer].load(Ordering::Relaxed) == 1;
                }
            });
        };
        (0..looks).for_each(|_| look());
        for ringer in ringers {
            ringer.join().unwrap();
        }
        look();
        assert_eq!(seen, [true; 2]);
    });
}

#[test]
fn two_links_of_one_word() {
    check([1, 2], 1);
}

#[test]
fn two_links_of_different_words() {
    check([1, 64], 1);
}

/// The second ringer finds the bit set and relies on the first one to set the summary.
#[test]
fn two_rings_of_one_link_are_seen() {
    check([5, 5], 1);
}

/// One ringer that rings again while the owner looks.
#[test]
fn repeated_rings_are_seen() {
    loom::model(|| {
        let page = Arc::new(DoorbellPage::new(Words::at(PAGE_BYTES, [0, SUMMARY, MAP])));
        let news = Arc::new(AtomicU64::new(0));
        let ringer = {
            let (page, news) = (page.clone(), news.clone());
            thread::spawn(move || {
                for round in 1..=2 {
                    news.store(round, Ordering::Relaxed);
                    page.set_ready(3);
                }
            })
        };
        let mut seen = 0;
        let mut look = || page.take_ready(|_| seen = news.load(Ordering::Relaxed));
        look();
        look();
        ringer.join().unwrap();
        look();
        assert_eq!(seen, 2);
    });
}
