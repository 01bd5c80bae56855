//! Identifies a machine: tells it from others that have, had or will have its name.
//!
//! A name is an operator's to give again; the machine that had it may run on, and see whatever was
//! plugged into it. So a number is drawn when a machine is attached first, and noted in its ledger,
//! which lives as long as its supervisor does: every daemon finds it there.

use crate::vm_window_page_ledger::Ledger;
use omniverb_sys::random;
use omniverb_tenancy::Neighbour;

/// Bytes of a machine's ledger behind those for pages that are about its boots
/// (`guest_boot_id.rs`).
const BEHIND: u64 = 16;
/// What machines' proofs begin and end with: no vNIC that is none has such a one.
const KIND: u64 = 2;
const KNOWN: u64 = 1;

/// The identity, towards others, of the machine with this ledger for so many pages; `None` if it
/// could not be recovered later.
pub(crate) fn of(ledger: &Ledger, pages: u64) -> Option<Neighbour> {
    let at = pages + BEHIND;
    let bytes: [u8; 16] = match ledger.trailer(at).ok()? {
        Some(bytes) => bytes,
        None if ledger.is_kept() => {
            let drawn = [random::number(), random::number() | 1];
            let mut bytes = [0; 16];
            for (room, word) in bytes.chunks_exact_mut(8).zip(drawn) {
                room.copy_from_slice(&word.to_le_bytes());
            }
            ledger.note_trailer(at, &bytes).ok()?;
            bytes
        }
        None => return None,
    };
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let proof = [KIND, word(0), word(8), KNOWN];
    Some(Neighbour { proof, uid: Neighbour::ALL_USERS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::memfd;

    #[test]
    fn a_machine_is_the_same_to_every_daemon_and_no_other_is() {
        let file = |bytes| memfd::create("ledger", bytes).unwrap();
        let (one, other) = (file(132), file(132));
        let identity =
            |file: &std::os::fd::OwnedFd| of(&Ledger::of(file.try_clone().unwrap()), 100);
        let first = identity(&one).unwrap();
        assert_eq!(identity(&one), Some(first));
        assert_ne!(identity(&other), Some(first));
        assert_ne!(first.proof[3], 0);
        // Those of older supervisors.
        assert_eq!(identity(&file(116)), None);
        assert_eq!(of(&Ledger::none(), 100), None);
    }
}
