//! Pieces of a window that a process has for pages: for its own, which peers are granted, or a
//! peer's that it was granted.
//!
//! It may be told of one several times, and has let go of it when it has said so as often: what it
//! is told meanwhile it cannot have answered. A process that says nothing has it as long as it
//! lives. What it says is about its own part in a piece: nobody else's ends by that.

use crate::pieces::Piece;
use omniverb_session::body;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Those of one process, by where the guest finds them.
#[derive(Debug, Default)]
pub(crate) struct Lent(BTreeMap<u64, (Arc<Piece>, u32)>);

impl Lent {
    /// It is told of a piece.
    pub(crate) fn told(&mut self, piece: Arc<Piece>) {
        let at = piece.in_guest().offset;
        self.0.entry(at).or_insert((piece, 0)).1 += 1;
    }

    /// It says that it has let go of what it was told of so many times.
    pub(crate) fn let_go(&mut self, memory: body::Extent, times: u32) {
        let known = self.0.get_mut(&memory.offset);
        let Some((_, told)) = known.filter(|(piece, _)| piece.in_guest() == memory) else { return };
        *told = told.saturating_sub(times);
        if *told == 0 {
            self.0.remove(&memory.offset);
        }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Piece>> {
        self.0.values().map(|(piece, _)| piece)
    }

    /// Lets go of those of windows that are over.
    pub(crate) fn drop_over(&mut self) {
        self.0.retain(|_, (piece, _)| !piece.is_over());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disposal::Bin;
    use crate::ledger::Ledger;
    use crate::pieces::{PAGE, Pieces};
    use omniverb_sys::memfd;

    fn pieces() -> Arc<Pieces> {
        let file = memfd::create("window", 8 * PAGE).unwrap();
        let data = body::Extent { offset: 0, length: 8 * PAGE };
        Pieces::new(file, data, Ledger::none(), Bin::new().unwrap()).unwrap()
    }

    #[test]
    fn a_piece_is_had_until_it_was_let_go_of_as_often_as_it_was_told_of() {
        let pieces = pieces();
        let [one, other] = [(); 2].map(|()| Arc::new(pieces.take(PAGE).unwrap()));
        let mut lent = Lent::default();
        lent.told(one.clone());
        lent.told(one.clone());
        lent.told(other.clone());
        let memory = one.in_guest();
        lent.let_go(memory, 1);
        assert_eq!((lent.iter().count(), Arc::strong_count(&one)), (2, 2));
        for wrong in [
            body::Extent { offset: memory.offset + 8, ..memory },
            body::Extent { length: 2 * PAGE, ..memory },
            body::Extent { offset: u64::MAX, length: 0 },
        ] {
            lent.let_go(wrong, u32::MAX);
        }
        lent.let_go(memory, 0);
        assert_eq!(lent.iter().count(), 2);
        // More often than it was told is as often.
        lent.let_go(memory, 7);
        assert_eq!((lent.iter().count(), Arc::strong_count(&one)), (1, 1));
        lent.let_go(memory, 1);
        pieces.part();
        lent.drop_over();
        assert_eq!((lent.iter().count(), Arc::strong_count(&other)), (0, 1));
    }
}
