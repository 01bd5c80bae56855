//! Moves pages of a process with one thread, in memory of its own: no other thread can store.
//! Signals of the calling thread are blocked, so not even a handler of its own can.

use crate::address_space_sharers;
use crate::error::AdoptError;
use crate::movable_range::thread_count;
use crate::stretch_move::StretchMove;

pub(super) fn perform(work: &StretchMove<'_>) -> Result<(), AdoptError> {
    if thread_count() != 1 || !address_space_sharers::none() || work.is_under_caller() {
        return Err(AdoptError::NotPermitted);
    }
    let protection = work.protection_still()?.ok_or(AdoptError::Changed)?;
    work.copy()?;
    Ok(work.replace(protection)?)
}
