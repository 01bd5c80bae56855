//! Bytes of light connections: sent, received.

use core::ffi::c_int;

use omniverb_stream::light::Frame;
use omniverb_stream::light::frame::{DATA_MAX, HEADER};
use omniverb_stream::light::row::Note;

use super::broker;
use super::numbers::{self, Token};
use super::state::{State, with};
use super::trunk::{FOR_ANSWERS, Trunk};
use super::waiting::{Waits, until};
use crate::carry::broker as mail;
use crate::carry::parts::Parts;
use crate::errno;

/// The least room in a trunk that bytes are put into.
const LEAST: usize = FOR_ANSWERS + 1024;
/// Flags that mean something here.
const SENDS: c_int = libc::MSG_NOSIGNAL
    | libc::MSG_DONTWAIT
    | libc::MSG_MORE
    | libc::MSG_EOR
    | libc::MSG_CONFIRM
    | libc::MSG_DONTROUTE;
const RECEIVES: c_int = libc::MSG_PEEK
    | libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// The place of the limits of time in a row.
const RECEIVING: usize = 0;
const SENDING: usize = 1;

fn fails(error: c_int) -> isize {
    errno::fails(error) as isize
}

/// How long a call may wait.
fn waits(token: Token, flags: c_int, which: usize) -> Option<Waits> {
    with(|state| {
        let at = state.row(token)?;
        let row = state.rows.at(at);
        Some(match row.has(Note::NonBlocking) || flags & libc::MSG_DONTWAIT != 0 {
            true => Waits::Never,
            false => Waits::until(row.times[which]),
        })
    })
    .flatten()
}

/// A call that sends. `parts`: `None` if only the kernel knows what is wrong with them. Before it
/// waits `about_to_wait` is called.
#[inline(never)]
pub(crate) fn send(
    token: Token,
    parts: Option<Parts<'_>>,
    flags: c_int,
    about_to_wait: impl Fn(),
) -> isize {
    let Some(parts) = parts else { return fails(libc::EINVAL) };
    if flags & !SENDS != 0 {
        return fails(libc::EOPNOTSUPP);
    }
    let mut sent = 0;
    let mut times = None;
    loop {
        let first = with(|state| state.send(token, &parts, sent));
        let step = match first {
            Some(Some(step)) => Ok(step),
            None => Err(libc::EAGAIN),
            Some(None) => {
                let limit = times.or_else(|| waits(token, flags, SENDING)).unwrap_or(Waits::Never);
                times = Some(limit);
                if limit != Waits::Never {
                    about_to_wait();
                }
                until(limit, None, |state| state.send(token, &parts, sent))
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
        if sent >= parts.total() {
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
        from: usize,
    ) -> Option<Result<usize, c_int>> {
        let total = parts.total();
        let Some(at) = self.row(token) else { return Some(Err(libc::EBADF)) };
        self.look_by(at);
        let row = self.rows.at(at);
        let credit = match row.may_send() {
            Ok(Some(credit)) => credit as usize,
            Ok(None) => {
                if total > from {
                    row.sent_in_vain();
                    self.news(at);
                }
                return Some(Ok(total - from));
            }
            Err(error) => return Some(Err(error)),
        };
        if total == from {
            return Some(Ok(0));
        }
        if row.moves() {
            return None;
        }
        let trunk = self.trunks[usize::from(row.trunk)].as_mut()?;
        let (mut done, id) = (0, row.id);
        let most = (total - from).min(credit);
        while done < most {
            let room = trunk.room(LEAST);
            if room < LEAST {
                break;
            }
            let bytes = (most - done).min(DATA_MAX).min(room - FOR_ANSWERS - HEADER);
            let place = trunk.put(Frame::Data(bytes as u32), id);
            parts.each(from + done, bytes, |before, piece| {
                trunk.fill(place + before as u64, piece);
            });
            done += bytes;
        }
        row.credit -= done as u32;
        row.keep(&mut self.pool, done, |before, place| {
            let there = place.len();
            parts.each(from + before, there, |at, piece| {
                piece.read(&mut place[at..at + piece.len()]);
            });
        });
        self.carried.1 += done as u64;
        trunk.sends(id, done);
        trunk.publish();
        if done == 0 && most > 0 {
            row.note(Note::NoRoom);
            self.owe(at);
        }
        (done > 0).then_some(Ok(done))
    }

    /// Receives what is there, but for so many bytes. `None`: nothing.
    #[inline]
    fn receive(
        &mut self,
        token: Token,
        parts: &Parts<'_>,
        (from, peeks): (usize, bool),
    ) -> Option<Result<usize, c_int>> {
        let Some(at) = self.row(token) else { return Some(Err(libc::EBADF)) };
        let trunk = usize::from(self.rows.at(at).trunk);
        if parts.total() - from > self.rows.at(at).received() {
            self.look_by(at);
        }
        let row = self.rows.at(at);
        if row.received() == 0 {
            return match row.is_at_end() {
                Ok(true) => Some(Ok(0)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            };
        }
        let most = parts.total() - from;
        let got = row.queue.look(&self.pool, most, |done, bytes| {
            parts.each(from + done, bytes.len(), |before, piece| {
                piece.write(&bytes[before..before + piece.len()]);
            });
        });
        if !peeks {
            row.queue.drop(&mut self.pool, got);
            if row.consume(got as u32).is_some() {
                self.owe(at);
                self.pay(trunk);
                if let Some(trunk) = self.trunks[trunk].as_mut() {
                    trunk.publish();
                }
            }
        }
        Some(Ok(got))
    }

    /// Takes out what has come by the trunk of a connection.
    #[inline]
    fn look_by(&mut self, at: u32) {
        let index = usize::from(self.rows.at(at).trunk);
        let Some(trunk) = self.trunks[index].as_ref() else { return };
        if trunk.across.is_some() && mail::has_mail() {
            // It may be over.
            broker::take(self);
        }
        if self.trunks[index].as_ref().is_some_and(Trunk::has_next) {
            self.pump_one(index);
        }
    }

    /// Bytes that are there.
    pub(super) fn queued(&mut self, at: u32) -> usize {
        self.rows.at(at).received()
    }
}

/// A call that receives.
#[inline(never)]
pub(crate) fn receive(token: Token, parts: Option<Parts<'_>>, flags: c_int) -> isize {
    let Some(parts) = parts else { return fails(libc::EINVAL) };
    if flags & libc::MSG_OOB != 0 {
        return fails(libc::EINVAL);
    }
    if flags & !RECEIVES != 0 {
        return fails(libc::EOPNOTSUPP);
    }
    let peeks = flags & libc::MSG_PEEK != 0;
    let wants_all = flags & libc::MSG_WAITALL != 0;
    let (mut got, mut times) = (0, None);
    loop {
        let attempt = |state: &mut State| {
            let is_short = |state: &mut State| {
                state
                    .row(token)
                    .is_some_and(|at| state.queued(at) < parts.total() && !state.has_no_more(at))
            };
            if wants_all && peeks && is_short(state) {
                return None;
            }
            state.receive(token, &parts, (got, peeks))
        };
        let limit = times.or_else(|| waits(token, flags, RECEIVING)).unwrap_or(Waits::Never);
        times = Some(limit);
        match until(limit, None, attempt) {
            Ok(Ok(0)) => return got as isize,
            Ok(Ok(bytes)) => got += bytes,
            Ok(Err(error)) | Err(error) if got == 0 => return fails(error),
            _ => return got as isize,
        }
        if !wants_all || peeks || got >= parts.total() {
            return got as isize;
        }
    }
}

impl State {
    fn has_no_more(&mut self, at: u32) -> bool {
        let row = self.rows.at(at);
        row.has(Note::HadEnd) || row.has(Note::WasReset) || row.has(Note::Deaf)
    }
}

/// `shutdown`.
pub(crate) fn shut(number: c_int, how: c_int) -> c_int {
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return errno::fails(libc::EINVAL);
    }
    let done = with(|state| {
        let at = numbers::row(number).ok_or(libc::EBADF)?;
        state.look_by(at);
        let row = state.rows.at(at);
        if row.is_over() {
            return Err(libc::ENOTCONN);
        }
        if how != libc::SHUT_WR {
            row.turn_deaf();
        }
        if how != libc::SHUT_RD {
            row.end();
        }
        let index = usize::from(row.trunk);
        state.owe(at);
        state.news(at);
        state.pump_one(index);
        Ok(())
    });
    done.unwrap_or(Err(libc::EAGAIN)).map_or_else(errno::fails, |()| 0)
}
