//! Several extents in one file, side by side there and in memory, so that the kernel joins their
//! mappings; with others' bytes before and behind them.

use crate::raw_syscall_helpers::{Memory, PAGE, in_child};
use crate::{Outcome, require};
use omniverb_adopt::{Access, AdoptedPages, Strategy, adopt_onto};
use omniverb_sys::{Extent, memfd};
use std::os::fd::{AsFd, OwnedFd};

/// What lies in the file beside the region's pages, and is to stay as it is.
const OTHERS: u64 = 0xEEEE_EEEE_EEEE_EEEE;
/// Words of a page.
const WORDS: usize = PAGE / 8;

/// Pages 0 to 5 of some memory; where they are in a file of ten: the last two are not beside the
/// others.
const PLACES: [(usize, usize); 3] = [(0, 1), (2, 3), (4, 7)];

struct Bench {
    memory: Memory,
    file: OwnedFd,
    /// All of the file, as a peer sees it.
    peer: Memory,
}

fn bench() -> Bench {
    let file = memfd::create_sealable("packed", 10 * PAGE as u64).unwrap();
    let peer = Memory::of_file(&file, 10 * PAGE, true).unwrap();
    for page in [0, 5, 6, 9] {
        (0..WORDS).for_each(|word| peer.set(page * WORDS + word, OTHERS));
    }
    let memory = Memory::anonymous(6 * PAGE);
    (0..memory.words()).for_each(|word| memory.set(word, word as u64 + 1));
    Bench { memory, file, peer }
}

impl Bench {
    fn adopt(&self, (page, at): (usize, usize), strategy: Strategy) -> AdoptedPages {
        let file = self.file.as_fd().try_clone_to_owned().unwrap();
        let extent = Extent::new(file, (at * PAGE) as u64, 2 * PAGE as u64);
        let start = self.memory.address + page * PAGE;
        adopt_onto(extent, start, Access::ReadWrite, &[strategy]).unwrap()
    }

    /// Whether what the program writes there is seen in the file, and nothing else is changed.
    fn is_shared(&self, (page, at): (usize, usize)) -> bool {
        let (own, theirs) = (page * WORDS + 3, at * WORDS + 3);
        let before = self.memory.get(own);
        self.memory.set(own, 777);
        let seen = self.peer.get(theirs) == 777;
        self.memory.set(own, before);
        seen
    }

    fn check(&self) {
        assert!((0..self.memory.words()).all(|word| self.memory.get(word) == word as u64 + 1));
        for page in [0, 5, 6, 9] {
            let all = (0..WORDS).all(|word| self.peer.get(page * WORDS + word) == OTHERS);
            assert!(all, "others' page {page}");
        }
    }
}

/// Each comes and goes without the others.
pub fn come_and_go() -> Outcome {
    for strategy in Strategy::ALL {
        if require(strategy).is_err() {
            continue;
        }
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let bench = bench();
            let mut adopted = PLACES.map(|place| Some(bench.adopt(place, strategy)));
            bench.check();
            for gone in order {
                for (place, pages) in PLACES.iter().zip(&adopted) {
                    assert_eq!(bench.is_shared(*place), pages.is_some(), "{strategy:?} {place:?}");
                }
                crate::give_back(adopted[gone].take().unwrap(), &[strategy]);
                bench.check();
            }
        }
    }
    Ok(())
}

/// A forked child has copies of what was adopted, and the file's other parts are not its concern.
pub fn fork_separates() -> Outcome {
    let bench = bench();
    let adopted = PLACES.map(|place| bench.adopt(place, Strategy::ALL[0]));
    let status = in_child(|| {
        bench.check();
        (0..bench.memory.words()).for_each(|word| bench.memory.set(word, 0));
    });
    assert_eq!(status, 0);
    bench.check();
    assert!(PLACES.iter().all(|place| bench.is_shared(*place)));
    adopted.into_iter().for_each(|pages| crate::give_back(pages, &Strategy::ALL));
    bench.check();
    Ok(())
}

/// Another holder of the file may have written where nothing was.
pub fn zeros_are_zeros() -> Outcome {
    let bench = bench();
    let (page, at) = PLACES[0];
    (0..2 * WORDS).for_each(|word| bench.peer.set(at * WORDS + word, OTHERS));
    (0..WORDS).for_each(|word| bench.memory.set(page * WORDS + word, 0));
    let pages = bench.adopt((page, at), Strategy::ALL[0]);
    assert!((0..WORDS).all(|word| bench.memory.get(page * WORDS + word) == 0));
    assert!((WORDS..2 * WORDS).all(|word| bench.memory.get(word) == word as u64 + 1));
    crate::give_back(pages, &Strategy::ALL);
    assert!((0..WORDS).all(|word| bench.memory.get(page * WORDS + word) == 0));
    Ok(())
}

/// A file whose seals are final for writers cannot become one for readers alone.
pub fn read_only_is_refused() -> Outcome {
    let bench = bench();
    let kept = bench.adopt(PLACES[0], Strategy::ALL[0]);
    let file = bench.file.as_fd().try_clone_to_owned().unwrap();
    let extent = Extent::new(file, 3 * PAGE as u64, 2 * PAGE as u64);
    let start = bench.memory.address + 2 * PAGE;
    assert!(adopt_onto(extent, start, Access::ReadOnly, &Strategy::ALL).is_err());
    assert!(bench.is_shared(PLACES[0]) && !bench.is_shared(PLACES[1]));
    crate::give_back(kept, &Strategy::ALL);
    bench.check();
    Ok(())
}
