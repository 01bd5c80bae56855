//! Tells the broker which sockets listen, and which listen no more.

use core::ffi::c_int;

use omniverb_formats::broker_message::Request;

use super::broker::{ANSWER, connection, mailbox_for, take, wait};
use super::state::{State, with};
use crate::borrowed_fd::borrow;
use crate::carry::broker::say;
use crate::descriptor_tables;
use crate::tsc_clock;

/// A socket listens: by which connection the broker was told; 0: by none.
pub(super) fn listens(fd: c_int) -> u64 {
    let file = borrow(fd);
    let tag = descriptor_tables::look(fd).id().into();
    match mailbox_for(Request::Listen { tag }, &[file]) {
        true => connection(),
        false => 0,
    }
}

/// A listening socket is about to be closed: waits until the broker has closed its duplicate, which
/// would go on listening.
pub(super) fn waits_for_duplicate(fd: c_int) {
    let is_under_way =
        |state: &mut State| state.listeners.of(fd).is_some_and(|listener| listener.is_under_way);
    if with(is_under_way) != Some(true) {
        return;
    }
    let until = tsc_clock::nanoseconds() + ANSWER;
    loop {
        let is_still = with(|state| {
            take(state);
            is_under_way(state)
        });
        if is_still != Some(true) || !wait(until) {
            return;
        }
    }
}

/// Removes a listener: the broker is told, and brings no client there any more.
pub(super) fn unlistens(fd: c_int) {
    let said = with(|state| {
        let by = state.listeners.of(fd).map_or(0, |listener| listener.said);
        let is_late = state.unheard.late != 0 && state.unheard.late == connection();
        let is_said = by != 0 && by == connection() && {
            say(Request::Unlisten { tag: descriptor_tables::look(fd).id().into() }, &[])
        };
        // A broker that did not answer once is not waited for again.
        (is_said && !is_late).then(|| {
            state.unheard.said += 1;
            state.unheard.said
        })
    });
    let Some(said) = said.flatten() else { return };
    let until = tsc_clock::nanoseconds() + ANSWER;
    loop {
        let is_heard = with(|state| {
            take(state);
            state.unheard.heard >= said
        });
        if is_heard != Some(false) || !wait(until) {
            break;
        }
    }
    with(|state| {
        let unheard = &mut state.unheard;
        if unheard.heard < said {
            (unheard.heard, unheard.late) = (said, connection());
        }
    });
}
