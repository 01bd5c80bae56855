//! Contents survive the way out and back, in every size and alignment.

use crate::raw_syscall_helpers::{Memory, PAGE, errno, set_errno, signal_mask};
use crate::{Outcome, cycles, require};
use omniverb_adopt::{Access, AdoptError, Strategy, adopt, adopt_with};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Peers may write every second time.
pub fn access(round: u64) -> Access {
    if round.is_multiple_of(2) { Access::ReadWrite } else { Access::ReadOnly }
}

/// A pseudo-random sequence, so that every word of a buffer is recognisable.
pub fn scramble(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

pub fn file_of(pages: &omniverb_adopt::AdoptedPages) -> std::fs::File {
    std::fs::File::from(pages.memfd().try_clone_to_owned().unwrap())
}

pub fn survives(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let memory = Memory::heap(40 * PAGE);
    for round in 0..cycles(400) as u64 {
        let random = scramble(round) as usize;
        let offset = random % (8 * PAGE);
        let length = (random >> 16) % (30 * PAGE);
        for index in 0..memory.words() {
            // Some pages stay zero, which takes another way through the copying.
            let zero = scramble(round * 64 + (index / 512) as u64).is_multiple_of(3);
            memory.set(index, if zero { 0 } else { scramble(round << 32 | index as u64) });
        }
        let before = memory.bytes();
        let part = memory.part(offset, length);
        let first = part.address.next_multiple_of(PAGE);
        if part.address + length < first + PAGE {
            assert!(adopt_with(part.address, length, access(round), &[strategy]).is_err());
            continue;
        }
        let pages = crate::take(part, access(round), strategy);
        assert_eq!(pages.page_start(), first);
        assert_eq!(pages.page_length(), (part.address + length - first) / PAGE * PAGE);
        assert_eq!(memory.bytes(), before, "round {round}: adopted");
        let mut shared = vec![0; pages.page_length()];
        file_of(&pages).read_exact_at(&mut shared, 0).unwrap();
        let into = pages.page_start() - memory.address;
        assert_eq!(shared, before[into..into + shared.len()], "round {round}: in the file");
        // Stores reach the file.
        let word = into / 8 + (random >> 40) % (shared.len() / 8);
        memory.part(into % 8, memory.length - 8).set(word, round);
        let mut seen = [0; 8];
        file_of(&pages).read_exact_at(&mut seen, (word * 8 + into % 8 - into) as u64).unwrap();
        assert_eq!(u64::from_ne_bytes(seen), round);
        let before = memory.bytes();
        crate::give_back(pages, &[strategy]);
        assert_eq!(memory.bytes(), before, "round {round}: released");
    }
    Ok(())
}

pub fn large(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let memory = Memory::anonymous((64 << 20) + 12345);
    memory.want_huge_pages();
    for index in 0..memory.words() {
        memory.set(index, scramble(index as u64));
    }
    for round in 0..3 {
        let pages = crate::take(memory, Access::ReadWrite, strategy);
        assert_eq!(pages.page_length(), (64 << 20) + 3 * PAGE);
        memory.set(round, 1);
        crate::give_back(pages, &[strategy]);
        for index in 0..memory.words() {
            let expected = if index <= round { 1 } else { scramble(index as u64) };
            assert_eq!(memory.get(index), expected, "word {index}");
        }
    }
    Ok(())
}

/// A huge region of which little was touched costs what was touched.
pub fn sparse() -> Outcome {
    const LENGTH: usize = 1 << 30;
    for strategy in Strategy::ALL {
        if require(strategy).is_err() {
            continue;
        }
        let memory = Memory::anonymous(LENGTH);
        for at in [0, LENGTH / 16, LENGTH / 8 - 1] {
            memory.set(at, 7);
        }
        let pages = loop {
            match adopt_with(memory.address, LENGTH, Access::ReadWrite, &[strategy]) {
                Err(AdoptError::Busy) => {} // the machine is
                outcome => break outcome.unwrap(),
            }
        };
        assert_eq!(file_of(&pages).metadata().unwrap().blocks() * 512, 3 * PAGE as u64);
        crate::give_back(pages, &[strategy]);
        for at in [0, LENGTH / 16, LENGTH / 8 - 1] {
            assert_eq!(memory.get(at), 7);
        }
        assert_eq!(memory.get(LENGTH / 32), 0);
        memory.unmap();
    }
    Ok(())
}

pub fn errno_and_mask() -> Outcome {
    let memory = Memory::anonymous(4 * PAGE);
    let mask = signal_mask();
    set_errno(42);
    let pages = adopt(memory.address, memory.length, Access::ReadWrite);
    assert_eq!(errno(), 42);
    let refused = adopt(PAGE, PAGE, Access::ReadWrite);
    assert_eq!(errno(), 42);
    let released = pages.unwrap().release();
    assert_eq!(errno(), 42);
    assert!(refused.is_err() && released.is_ok());
    assert_eq!(signal_mask(), mask);
    Ok(())
}
