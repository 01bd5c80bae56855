//! Tells a fresh boot of a machine's guest from the one before.
//!
//! In: the boot id that the guest sends. Out: whether the guest was booted afresh, so that no
//! process of the earlier boot exists. A guest that lies takes memory from its own running
//! processes. The last id is noted in the ledger: after another boot the next daemon takes back the
//! memory of the earlier boot's processes.

use crate::vm_window_page_ledger::Ledger;

/// The boot id of one machine.
#[derive(Debug)]
pub(crate) struct BootId {
    ledger: Ledger,
    /// Of the window: the boot is noted behind the notes about them.
    pages: u64,
    last: Option<[u8; 16]>,
    /// Whether the ledger has room for it. That of an older supervisor has none.
    noted: bool,
}

impl BootId {
    /// The boot id that a ledger has, of a window of so many pages.
    pub(crate) fn of(ledger: Ledger, pages: u64) -> BootId {
        let found = ledger.trailer(pages);
        BootId { ledger, pages, noted: found.is_ok(), last: found.ok().flatten() }
    }

    /// The guest says which it is in; zeros: it does not know. True: it was booted afresh.
    pub(crate) fn heard(&mut self, boot: [u8; 16]) -> bool {
        if boot == [0; 16] || self.last == Some(boot) {
            return false;
        }
        // The id is noted before memory of the earlier boot is given away: the next daemon must not
        // take its new owner for a process of the earlier boot. A page of the ledger that cannot be
        // written was never written, so no daemon finds another boot in it.
        if self.noted {
            self.noted = self.ledger.note_trailer(self.pages, &boot).is_ok();
        }
        // Of processes that existed before any id was known, no id says that they are gone.
        self.last.replace(boot).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_sys::memfd;

    const PAGES: u64 = 4090;

    #[test]
    fn the_next_daemon_knows_the_last_boot() {
        let file = memfd::create("ledger", PAGES + 16).unwrap();
        let boots = || BootId::of(Ledger::of(file.try_clone().unwrap()), PAGES);
        let mut first = boots();
        let said = [0, 1, 1, 2, 0, 2, 1].map(|boot| first.heard([boot; 16]));
        assert_eq!(said, [false, false, false, true, false, false, true]);
        let said = [1, 3].map(|boot| boots().heard([boot; 16]));
        assert_eq!(said, [false, true]);
        assert!(!boots().heard([3; 16]));
    }

    #[test]
    fn the_first_boot_id_without_a_ledger_ends_no_session() {
        let short = memfd::create("ledger", PAGES).unwrap();
        for ledger in [Ledger::of(short), Ledger::none()] {
            for _ in 0..2 {
                let mut boots = BootId::of(ledger.clone(), PAGES);
                assert_eq!([1, 2, 2].map(|boot| boots.heard([boot; 16])), [false, true, false]);
            }
        }
    }
}
