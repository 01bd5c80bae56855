//! Sends and receives bytes of light connections.

use core::ffi::c_int;

use omniverb_connection::light::Frame;
use omniverb_connection::light::connection_slot::{Closing, Flag};
use omniverb_connection::light::frame::{DATA_MAX, HEADER};
use omniverb_connection::light::lane_assignment::Flow;
use omniverb_connection::readiness::Deadline;

use super::backpressure::{ReaderWait, send_when_read};
use super::broker;
use super::channel::{Channel, FOR_ANSWERS, ProtocolError};
use super::descriptors::{self, Token};
use super::lane_assignment::WaitTarget;
use super::lanes::{self, Takes};
use super::state::{State, with};
use super::supported_socket_options::is_any_least;
use super::waiting::{deadline_after, is_over, until};
use crate::carry::broker as mail;
use crate::errno;
use crate::iovecs::Parts;

/// The least room in a channel that bytes are put into.
const LEAST: usize = FOR_ANSWERS + 1024;
/// Flags that cannot be honoured here. What else there is changes nothing, or is ignored by TCP.
const SENDS_NEVER: c_int = libc::MSG_OOB | libc::MSG_FASTOPEN;
/// What there is never any of, for calls that receive.
const RECEIVES_NEVER: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;

/// What becomes of a connection whose lane is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfFull {
    /// There may soon be room.
    Stays,
    /// It goes by the channel again.
    ComesHome,
}

/// The place of the limits of time in a row.
const RECEIVING: usize = 0;
const SENDING: usize = 1;

fn fails(error: c_int) -> isize {
    errno::fails(error) as isize
}

/// How long a call may wait.
fn waits(token: Token, flags: c_int, which: usize) -> Option<Deadline> {
    with(|state| {
        let at = state.slot(token)?;
        let slot = state.slots.at(at);
        Some(match slot.has(Flag::NonBlocking) || flags & libc::MSG_DONTWAIT != 0 {
            true => Deadline::Never,
            false => deadline_after(slot.times[which]),
        })
    })
    .flatten()
}

/// A call that sends. `parts`: `None` if only the kernel knows what is wrong with them. Before it
/// waits `about_to_wait` is called.
#[inline(always)]
pub(crate) fn send(
    token: Token,
    parts: Option<Parts<'_>>,
    flags: c_int,
    about_to_wait: impl Fn(),
) -> isize {
    let Some(parts) = &parts else { return fails(libc::EINVAL) };
    if flags & SENDS_NEVER != 0 {
        return fails(libc::EOPNOTSUPP);
    }
    let sent = lanes::send(token, parts, 0);
    if sent > 0 && sent == parts.total() {
        return sent as isize;
    }
    send_in_steps(token, *parts, flags, sent, about_to_wait)
}

/// The same of what is left, whatever it takes.
#[inline(never)]
fn send_in_steps(
    token: Token,
    parts: Parts<'_>,
    flags: c_int,
    mut sent: usize,
    about_to_wait: impl Fn(),
) -> isize {
    let (mut times, mut waited) = (None, ReaderWait::default());
    let if_full = match flags & libc::MSG_DONTWAIT {
        0 => IfFull::Stays,
        _ => IfFull::ComesHome,
    };
    loop {
        let first = with(|state| state.send(token, &parts, (sent, if_full)));
        let step = match first {
            Some(Some(step)) => Ok(step),
            None => Err(libc::EAGAIN),
            Some(None) => {
                let limit =
                    times.or_else(|| waits(token, flags, SENDING)).unwrap_or(Deadline::Never);
                times = Some(limit);
                let mut found = None;
                if limit != Deadline::Never {
                    let waits = (limit, &mut waited);
                    let by_state = |state: &mut State| {
                        let sent = state.send(token, &parts, (sent, IfFull::Stays));
                        (sent, state.has_lane(token))
                    };
                    let what = (&parts, sent);
                    found = send_when_read(token, what, waits, &about_to_wait, by_state);
                    if found.is_none() {
                        about_to_wait();
                    }
                }
                let last = (sent, IfFull::ComesHome);
                let goes_on = |state: &mut State| state.send(token, &parts, last);
                found.map_or_else(|| until(limit, None, WaitTarget::Frames, goes_on), Ok)
            }
        };
        match step {
            Ok(Ok(bytes)) => sent += bytes,
            Ok(Err(error)) | Err(error) if sent == 0 => {
                if error == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
                    // SAFETY: the signal that the kernel would send to this thread.
                    unsafe { libc::raise(libc::SIGPIPE) };
                }
                return fails(error);
            }
            _ => return sent as isize,
        }
        if sent < parts.total() {
            // Others are not kept from what they do by one that sends much.
            sent += lanes::send(token, &parts, sent);
        }
        let is_late = times.is_some_and(|limit| limit != Deadline::Never && is_over(limit));
        if sent >= parts.total() || is_late && sent > 0 {
            return sent as isize;
        }
    }
}

impl State {
    /// Sends what there is room for. `None`: none.
    #[inline]
    fn send(
        &mut self,
        token: Token,
        parts: &Parts<'_>,
        (from, if_full): (usize, IfFull),
    ) -> Option<Result<usize, c_int>> {
        let total = parts.total();
        let Some(at) = self.slot(token) else { return Some(Err(libc::EBADF)) };
        // A caller that only sends by a lane looks after the rest here.
        match self.slots.at(at).lane(Flow::Out) {
            Some(_) => self.progress(),
            None => self.look_by(at),
        }
        let slot = self.slots.at(at);
        match slot.may_send() {
            Ok(Some(_)) => {}
            Ok(None) => {
                if total > from {
                    slot.sent_after_close();
                    self.news(at);
                }
                return Some(Ok(total - from));
            }
            Err(error) => return Some(Err(error)),
        }
        if total == from {
            return Some(Ok(0));
        }
        if slot.is_moving() {
            return None;
        }
        if let Some(lane) = slot.lane(Flow::Out) {
            let comes_home = if_full == IfFull::ComesHome || slot.has(Flag::NonBlocking);
            let done = self.sends_by_lane(at, lane, parts, from);
            if done > 0 {
                return Some(Ok(done));
            }
            if !comes_home {
                return None;
            }
            if !self.release_lane(at) {
                return self.begin_wait_for_room(at);
            }
        }
        let slot = self.slots.at(at);
        let credit = slot.credit as usize;
        let index = usize::from(slot.channel);
        let channel = self.channels[index].as_mut()?;
        let (mut done, id) = (0, slot.id);
        let most = (total - from).min(credit);
        while done < most {
            let room = channel.room(LEAST);
            if room < LEAST {
                break;
            }
            let bytes = (most - done).min(DATA_MAX).min(room - FOR_ANSWERS - HEADER);
            let place = channel.put(Frame::Data(bytes as u32), id);
            parts.each(from + done, bytes, |before, piece| {
                channel.fill(place + before as u64, piece);
            });
            done += bytes;
        }
        slot.credit -= done as u32;
        slot.keep(&mut self.pool, done, |before, place| {
            let there = place.len();
            parts.each(from + before, there, |at, piece| {
                piece.read(&mut place[at..at + piece.len()]);
            });
        });
        if done > 0 && slot.waits_for_credit() {
            channel.awaits_accept();
        }
        self.carried.1 += done as u64;
        channel.sends(id, done);
        if done > 0 {
            self.record_send(at);
        }
        if let Some(channel) = self.channels[index].as_mut() {
            channel.publish();
        }
        if done == 0 && most > 0 {
            return self.begin_wait_for_room(at);
        }
        (done > 0).then_some(Ok(done))
    }

    /// What goes by the connection of a descriptor goes by a lane.
    fn has_lane(&mut self, token: Token) -> bool {
        self.slot(token).is_some_and(|at| self.slots.at(at).lane(Flow::Out).is_some())
    }

    /// There is no room in the channel, which it is to hear of when there is.
    fn begin_wait_for_room(&mut self, at: u32) -> Option<Result<usize, c_int>> {
        self.slots.at(at).set_flag(Flag::NoRoom);
        self.owe(at);
        None
    }

    /// Receives what is there, but for so many bytes. `None`: nothing.
    #[inline]
    fn receive(
        &mut self,
        token: Token,
        parts: &Parts<'_>,
        (from, takes): (usize, Takes),
    ) -> Option<Result<usize, c_int>> {
        let Some(at) = self.slot(token) else { return Some(Err(libc::EBADF)) };
        let channel = usize::from(self.slots.at(at).channel);
        if parts.total() - from > self.slots.at(at).received() {
            self.look_by(at);
        }
        let most = parts.total() - from;
        let slot = self.slots.at(at);
        let there = slot.received();
        let got = if there == 0 { 0 } else { self.receive_queued(at, parts, (from, takes)) };
        if there > 0 && (got == most || got < there) || most == 0 && self.in_lane(at) > 0 {
            return Some(Ok(got));
        }
        match self.receives_by_lane(at, parts, (from + got, takes)) {
            Ok(more) if got + more > 0 => return Some(Ok(got + more)),
            Ok(_) => {}
            Err(ProtocolError) => {
                self.lose(channel, Closing::Orderly);
                if got > 0 {
                    return Some(Ok(got));
                }
            }
        }
        match self.slots.at(at).end_of_stream() {
            Ok(true) => Some(Ok(0)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Receives what has come by the channel.
    #[inline]
    fn receive_queued(
        &mut self,
        at: u32,
        parts: &Parts<'_>,
        (from, takes): (usize, Takes),
    ) -> usize {
        let most = parts.total() - from;
        let slot = self.slots.at(at);
        let channel = usize::from(slot.channel);
        let got = slot.queue.look(&self.pool, most, |done, bytes| {
            parts.each(from + done, bytes.len(), |before, piece| {
                piece.write(&bytes[before..before + piece.len()]);
            });
        });
        if takes == Takes::All {
            slot.queue.drop(&mut self.pool, got);
            if slot.consume(got as u32).is_some() {
                self.owe(at);
                self.pay(channel);
                if let Some(channel) = self.channels[channel].as_mut() {
                    channel.publish();
                }
            }
        }
        got
    }

    /// Takes out what has come by the channel of a connection.
    #[inline]
    fn look_by(&mut self, at: u32) {
        let index = usize::from(self.slots.at(at).channel);
        let Some(channel) = self.channels[index].as_ref() else { return };
        if channel.across.is_some() && mail::has_mail() {
            // It may be over.
            broker::take(self);
        }
        if self.channels[index].as_ref().is_some_and(Channel::has_next) {
            self.progress_channel(index);
        }
    }

    /// Bytes that are there.
    pub(super) fn queued(&mut self, at: u32) -> usize {
        self.slots.at(at).received() + self.in_lane(at)
    }
}

/// How many bytes such a call waits for.
#[inline(always)]
fn target(token: Token, parts: &Parts<'_>, flags: c_int) -> usize {
    if flags & libc::MSG_WAITALL != 0 {
        return parts.total();
    }
    if !is_any_least() {
        return 1;
    }
    let least = with(|state| state.slot(token).map(|at| state.slots.at(at).least())).flatten();
    least.unwrap_or(1).min(parts.total())
}

/// A call that receives.
#[inline(always)]
pub(crate) fn receive(token: Token, parts: Option<Parts<'_>>, flags: c_int) -> isize {
    let Some(parts) = &parts else { return fails(libc::EINVAL) };
    let (mut got, target) = (0, target(token, parts, flags));
    if flags & RECEIVES_NEVER == 0 && (flags & libc::MSG_PEEK == 0 || target <= 1) {
        got = lanes::receive(token, parts, Takes::of(flags)).unwrap_or_else(|| {
            // Now and then: a caller that only receives by a lane looks after the rest here.
            with(|state| state.progress());
            0
        });
        if got > 0 && got >= target {
            return got as isize;
        }
    }
    receive_in_steps(token, *parts, (flags, target), got)
}

/// The same behind what it has got, whatever it takes.
#[inline(never)]
fn receive_in_steps(
    token: Token,
    parts: Parts<'_>,
    (flags, target): (c_int, usize),
    mut got: usize,
) -> isize {
    if flags & libc::MSG_OOB != 0 {
        return fails(libc::EINVAL);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return fails(libc::EAGAIN);
    }
    let (takes, peeks) = (Takes::of(flags), flags & libc::MSG_PEEK != 0);
    let wants_more = target > 1;
    if got == 0 && flags & libc::MSG_DONTWAIT == 0 && !(peeks && wants_more) {
        got = lanes::receive_soon(token, &parts, takes);
        if got > 0 && got >= target {
            return got as isize;
        }
    }
    let mut times = None;
    loop {
        let limit = times.or_else(|| waits(token, flags, RECEIVING)).unwrap_or(Deadline::Never);
        times = Some(limit);
        let attempt = |state: &mut State| {
            let is_short = |state: &mut State| {
                state
                    .slot(token)
                    .is_some_and(|at| state.queued(at) < target && !state.has_no_more(at))
            };
            if wants_more && peeks && limit != Deadline::Never && is_short(state) {
                return None;
            }
            state.receive(token, &parts, (got, takes))
        };
        match until(limit, None, WaitTarget::One(token), attempt) {
            Ok(Ok(0)) => return got as isize,
            Ok(Ok(bytes)) => got += bytes,
            // What there is by then.
            Err(libc::EAGAIN) if peeks && wants_more && limit != Deadline::Never => {
                times = Some(Deadline::Never);
                continue;
            }
            Ok(Err(error)) | Err(error) if got == 0 => return fails(error),
            _ => return got as isize,
        }
        if peeks || got >= target {
            return got as isize;
        }
    }
}

impl State {
    fn has_no_more(&mut self, at: u32) -> bool {
        let slot = self.slots.at(at);
        slot.has(Flag::PeerEnded) || slot.has(Flag::ResetByPeer) || slot.has(Flag::ReadShut)
    }
}

/// `shutdown`.
pub(crate) fn shut(fd: c_int, how: c_int) -> c_int {
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return errno::fails(libc::EINVAL);
    }
    let done = with(|state| {
        let at = descriptors::slot(fd).ok_or(libc::EBADF)?;
        state.look_by(at);
        if state.slots.at(at).is_over() {
            return Err(libc::ENOTCONN);
        }
        if how != libc::SHUT_RD {
            state.leave_lane(at);
        }
        let slot = state.slots.at(at);
        if how != libc::SHUT_WR {
            slot.shut_read();
        }
        if how != libc::SHUT_RD {
            slot.shut_write();
        }
        let index = usize::from(slot.channel);
        state.owe(at);
        state.news(at);
        state.progress_channel(index);
        Ok(())
    });
    done.unwrap_or(Err(libc::EAGAIN)).map_or_else(errno::fails, |()| 0)
}
