//! Keeps the window pieces that a process has for pages: its own, or a peer's that it was granted.
//!
//! A process may be told of a piece several times, and has released it when it has said so as
//! often: it cannot have answered messages under way. A process that says nothing has it as long as
//! it lives. It can release its own part in a piece only, not another process's.

use crate::vm_window_allocator::{Piece, Pieces};
use omniverb_session::body;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// A piece, as the process was told of it, and how often it was.
#[derive(Debug)]
struct LoanRecord<T> {
    /// `None`: its window is over, and the process has not let go of it yet.
    piece: Option<Arc<Piece>>,
    length: u64,
    told: u32,
    /// The value stored with it.
    with: T,
}

/// Those of one process, by where it was told that they are: in which window, where in that.
#[derive(Debug)]
pub(crate) struct Loans<T> {
    pieces: BTreeMap<u64, LoanRecord<T>>,
    /// Windows that were numbered for the process, from 1 on, and may be gone.
    numbered: Vec<Weak<Pieces>>,
}

impl<T> Default for Loans<T> {
    fn default() -> Loans<T> {
        Loans { pieces: BTreeMap::new(), numbered: Vec::new() }
    }
}

impl<T> Loans<T> {
    /// The number of a window for a process that is told of several, and has no other name for
    /// them. `None`: there are no more numbers.
    pub(crate) fn number_of(&mut self, window: &Arc<Pieces>) -> Option<u8> {
        let is_it = |known: &Weak<Pieces>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(window));
        let place = self.numbered.iter().position(is_it);
        let place = place.or_else(|| (0..self.numbered.len()).find(|place| self.is_free(*place)));
        let place = place.unwrap_or(self.numbered.len());
        let number = u8::try_from(place + 1).ok()?;
        match self.numbered.get_mut(place) {
            Some(known) => *known = Arc::downgrade(window),
            None => self.numbered.push(Arc::downgrade(window)),
        }
        Some(number)
    }

    /// Whether the window of a number is gone, and the process has released all pieces in it: a
    /// message about these must not mean another window's pieces.
    fn is_free(&self, place: usize) -> bool {
        let is_in = |offset: &u64| u64::from(offset.to_be_bytes()[0]) == place as u64 + 1;
        let gone = self.numbered.get(place).is_some_and(|window| window.strong_count() == 0);
        gone && !self.pieces.keys().any(is_in)
    }

    /// It is told of a piece.
    pub(crate) fn told(&mut self, piece: Arc<Piece>, said: body::Extent, with: T) {
        let new = LoanRecord { piece: Some(piece), length: said.length, told: 0, with };
        self.pieces.entry(said.offset).or_insert(new).told += 1;
    }

    /// The process has released what it was told of so many times.
    pub(crate) fn let_go(&mut self, memory: body::Extent, times: u32) {
        let known = self.pieces.get_mut(&memory.offset);
        let Some(known) = known.filter(|known| known.length == memory.length) else { return };
        known.told = known.told.saturating_sub(times);
        if known.told == 0 {
            self.pieces.remove(&memory.offset);
        }
    }

    /// All pieces, with the value stored with each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<Piece>, &T)> {
        self.pieces.values().filter_map(|known| Some((known.piece.as_ref()?, &known.with)))
    }

    /// Takes all of them out.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Arc<Piece>> + use<T> {
        std::mem::take(&mut self.pieces).into_values().filter_map(|known| known.piece)
    }

    /// Lets go of those of windows that are over.
    pub(crate) fn drop_over(&mut self) {
        for known in self.pieces.values_mut() {
            known.piece.take_if(|piece| piece.is_over());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm_window_allocator::PAGE;
    use crate::vm_window_page_ledger::Ledger;
    use omniverb_session::pair_window;
    use omniverb_sys::deferred_close::CloseQueue;
    use omniverb_sys::memfd;

    fn pieces() -> Arc<Pieces> {
        let file = memfd::create("window", 8 * PAGE).unwrap();
        let data = body::Extent { offset: 0, length: 8 * PAGE };
        Pieces::new(file, data, Ledger::none(), CloseQueue::new().unwrap()).unwrap()
    }

    #[test]
    fn a_piece_is_kept_until_released_as_often_as_announced() {
        let pieces = pieces();
        let [one, other] = [(); 2].map(|()| Arc::new(pieces.take(PAGE).unwrap()));
        let mut loans = Loans::default();
        loans.told(one.clone(), one.in_guest(), ());
        loans.told(one.clone(), one.in_guest(), ());
        loans.told(other.clone(), other.in_guest(), ());
        let memory = one.in_guest();
        loans.let_go(memory, 1);
        assert_eq!((loans.iter().count(), Arc::strong_count(&one)), (2, 2));
        for wrong in [
            body::Extent { offset: memory.offset + 8, ..memory },
            body::Extent { length: 2 * PAGE, ..memory },
            body::Extent { offset: u64::MAX, length: 0 },
        ] {
            loans.let_go(wrong, u32::MAX);
        }
        loans.let_go(memory, 0);
        assert_eq!(loans.iter().count(), 2);
        // More often than it was told is as often.
        loans.let_go(memory, 7);
        assert_eq!((loans.iter().count(), Arc::strong_count(&one)), (1, 1));
        loans.let_go(memory, 1);
        pieces.part();
        loans.drop_over();
        assert_eq!((loans.iter().count(), Arc::strong_count(&other)), (0, 1));
    }

    /// Pieces of two windows may be at the same place.
    #[test]
    fn windows_have_numbers_as_long_as_they_exist() {
        let windows = [(); 300].map(|()| pieces());
        let mut loans = Loans::default();
        let numbers = windows.each_ref().map(|window| loans.number_of(window));
        assert_eq!((numbers[0], numbers[254], numbers[255]), (Some(1), Some(255), None));
        let taken = [3, 7].map(|at| Arc::new(windows[at].take(PAGE).unwrap()));
        for (at, piece) in [3, 7].into_iter().zip(&taken) {
            assert_eq!(loans.number_of(&windows[at]), numbers[at]);
            let said = pair_window::numbered(numbers[at].unwrap(), piece.in_guest());
            loans.told(piece.clone(), said, ());
        }
        assert_eq!(loans.iter().count(), 2);
        loans.let_go(taken[0].in_guest(), 1);
        loans.let_go(pair_window::numbered(9, taken[0].in_guest()), 1);
        assert_eq!(loans.iter().count(), 2, "it was not told so");
        loans.let_go(pair_window::numbered(4, taken[0].in_guest()), 1);
        assert_eq!(loans.iter().count(), 1);
        assert!(loans.iter().all(|(piece, ())| Arc::ptr_eq(piece.window(), &windows[7])));
        let said = pair_window::numbered(8, taken[1].in_guest());
        windows[7].part();
        loans.drop_over();
        assert_eq!(loans.iter().count(), 0);
        drop((windows, taken));
        let others = [(); 255].map(|()| pieces());
        let numbers = others.each_ref().map(|window| loans.number_of(window));
        assert_eq!(numbers.iter().position(|number| *number == Some(8)), None, "it may say so yet");
        assert_eq!((numbers[0], numbers[253], numbers[254]), (Some(1), Some(255), None));
        loans.let_go(said, 1);
        assert_eq!(loans.number_of(&others[254]), Some(8));
        assert_eq!(loans.take().count(), 0);
    }
}
