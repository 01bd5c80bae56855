//! `repoll_create`, `repoll_ctl`, `repoll_wait`: descriptors of which a program has said once that
//! it waits for them, sockets of ours among them.
//!
//! There is no thread: a waiting call polls them all, as `rpoll` does. Beside them it polls a
//! descriptor by which it is told that they have changed meanwhile. Each waiting call then is told
//! by a count of one, and takes that away when it looks anew.
//!
//! Level-triggered, and of the events those that `rpoll` knows: `EPOLLIN`, `EPOLLOUT`, and, asked
//! for or not, `EPOLLERR` and `EPOLLHUP`. The other bits are ignored, as with rdma-core. The number
//! of a set is for these calls and `rclose`; the kernel's calls see nothing happen to it. A `close`
//! of it has closed the set, which shows when its number is used: what has the number by then is
//! another file, which is not waited for here, and which is not closed with it.

mod fd_of_set;

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, O_CLOEXEC, O_NONBLOCK, POLLERR, POLLHUP, POLLIN,
    POLLNVAL, POLLOUT, epoll_event, pollfd,
};
use omniverb_sys::eventfd::EventFd;
use omniverb_sys::lock;
use omniverb_terms::Errno;
use rustix::net::SocketFlags;

use self::fd_of_set::SetFd;
use super::poll::{self, Deadline};
use crate::errno::{EEXIST, outcome, set_errno};

/// A descriptor in a set.
#[derive(Clone, Copy)]
struct Member {
    fd: c_int,
    /// `POLL*` bits, which are those of `EPOLL*`.
    asked: i16,
    data: u64,
    /// Which addition it was: another file may have the number of one that was taken out.
    added: u64,
}

#[derive(Default)]
struct Members {
    list: Vec<Member>,
    /// Which is told of first next time, so that none has to wait for busy ones.
    first: usize,
    /// How often members were added, changed or removed: waiting calls look at the list again.
    changes: u64,
    /// Nothing is added any more, and no call waits.
    closed: bool,
    /// Calls that wait now, and those among them that have been told of a change.
    waiters: u64,
    told: u64,
}

/// A set of descriptors.
struct Set {
    number: SetFd,
    members: Mutex<Members>,
    /// One for each call that is told.
    change: EventFd,
}

static SETS: RwLock<BTreeMap<c_int, Arc<Set>>> = RwLock::new(BTreeMap::new());

/// The set of a number. One whose number is not its own any more is over.
fn find(number: c_int) -> Option<Arc<Set>> {
    let set = SETS.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()?;
    if set.number.is_ours() {
        return Some(set);
    }
    let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
    if sets.get(&number).is_some_and(|other| Arc::ptr_eq(other, &set)) {
        sets.remove(&number);
    }
    set.end(&mut lock(&set.members));
    None
}

/// A set that is new. What had its number before was closed by the program.
fn add(set: Arc<Set>) -> c_int {
    let number = set.number.number;
    let before = SETS.write().unwrap_or_else(PoisonError::into_inner).insert(number, set);
    if let Some(before) = before {
        before.end(&mut lock(&before.members));
    }
    number
}

/// What a set can wait for, of what was asked for.
fn asked(events: u32) -> i16 {
    (events as i16) & (POLLIN | POLLOUT)
}

impl Members {
    fn position(&self, fd: c_int) -> Option<usize> {
        self.list.iter().position(|member| member.fd == fd)
    }

    /// `EEXIST`, `ENOENT`, `EINVAL`.
    fn change(&mut self, operation: c_int, member: Member) -> Result<(), Errno> {
        if self.closed {
            return Err(Errno::EINVAL);
        }
        match (operation, self.position(member.fd)) {
            (EPOLL_CTL_ADD, None) => self.list.push(Member { added: self.changes, ..member }),
            (EPOLL_CTL_MOD, Some(at)) => {
                self.list[at] = Member { added: self.list[at].added, ..member };
            }
            (EPOLL_CTL_DEL, Some(at)) => _ = self.list.swap_remove(at),
            (EPOLL_CTL_ADD, Some(_)) => return Err(EEXIST),
            (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => return Err(Errno::ENOENT),
            _ => return Err(Errno::EINVAL),
        }
        self.changes += 1;
        Ok(())
    }

    /// What is to be told of members that were polled, with which addition they were, as far as
    /// there is room. They may have gone meanwhile, or be asked for something else.
    fn collect(&mut self, polled: &[(u64, pollfd)], room: usize) -> Vec<epoll_event> {
        let mut told = Vec::new();
        let first = self.first.checked_rem(polled.len()).unwrap_or(0);
        let (before, after) = polled.split_at(first);
        for (at, (added, file)) in after.iter().chain(before).enumerate() {
            let member = self.position(file.fd).map(|at| self.list[at]);
            let Some(member) = member.filter(|member| member.added == *added) else { continue };
            // The program has closed it, and nothing will ever happen to it.
            if file.revents & POLLNVAL != 0 {
                self.list.retain(|member| member.fd != file.fd);
                continue;
            }
            let bits = file.revents & (member.asked | POLLERR | POLLHUP);
            if bits == 0 {
                continue;
            }
            if told.len() == room {
                self.first = first + at;
                break;
            }
            told.push(epoll_event { events: u32::from(bits.cast_unsigned()), u64: member.data });
        }
        told
    }
}

impl Set {
    fn new(flags: c_int) -> Result<Arc<Set>, Errno> {
        let mut kept = SocketFlags::empty();
        kept.set(SocketFlags::CLOEXEC, flags & O_CLOEXEC != 0);
        kept.set(SocketFlags::NONBLOCK, flags & O_NONBLOCK != 0);
        let number = SetFd::new(kept)?;
        let change = EventFd::semaphore().map_err(|_| Errno::EMFILE)?;
        Ok(Arc::new(Set { number, members: Mutex::default(), change }))
    }

    fn change(&self, operation: c_int, member: Member) -> Result<(), Errno> {
        let mut members = lock(&self.members);
        members.change(operation, member)?;
        self.tell(&mut members);
        Ok(())
    }

    /// Has waiting calls look anew.
    fn tell(&self, members: &mut Members) {
        for _ in members.told..members.waiters {
            self.change.signal();
        }
        members.told = members.waiters;
    }

    /// Waiting calls hear that there is nothing any more. `EBUSY`: there is something in it.
    fn close(&self) -> Result<(), Errno> {
        let mut members = lock(&self.members);
        if !members.list.is_empty() {
            return Err(Errno::EBUSY);
        }
        self.end(&mut members);
        Ok(())
    }

    /// The same whatever is in it.
    fn end(&self, members: &mut Members) {
        members.closed = true;
        members.changes += 1;
        self.tell(members);
    }

    /// Polls all of them once, for so long at most. `None`: the set was closed.
    fn poll(&self, deadline: &Deadline, room: usize) -> Result<Option<Vec<epoll_event>>, Errno> {
        let (mut files, additions, seen) = {
            let mut members = lock(&self.members);
            if members.closed {
                return Ok(None);
            }
            members.waiters += 1;
            let file = |member: &Member| (member.fd, member.asked);
            let change = (self.change.as_fd().as_raw_fd(), POLLIN);
            let all = members.list.iter().map(file).chain([change]);
            let files = all.map(|(fd, events)| pollfd { fd, events, revents: 0 });
            let additions: Vec<u64> = members.list.iter().map(|member| member.added).collect();
            (files.collect::<Vec<_>>(), additions, members.changes)
        };
        let polled = poll::poll(&mut files, deadline.left());
        let mut members = lock(&self.members);
        members.waiters -= 1;
        if members.changes != seen && self.change.take().is_some() {
            members.told -= 1;
        }
        polled?;
        files.pop();
        let polled: Vec<(u64, pollfd)> = additions.into_iter().zip(files).collect();
        Ok(Some(members.collect(&polled, room)))
    }
}

/// Makes a set: -1 and `errno`, or its number. `flags`: `O_CLOEXEC` and `O_NONBLOCK`, of the
/// number; waiting goes by the timeout.
#[unsafe(no_mangle)]
pub extern "C" fn ov_repoll_create(flags: c_int) -> c_int {
    match Set::new(flags) {
        Ok(set) => add(set),
        Err(errno) => outcome(Err(errno)),
    }
}

/// Adds a descriptor to a set, has another event waited for, or takes it out: 0, or what is wrong
/// as a positive number (also in `errno`). A call that waits meanwhile goes on with the set as it
/// is then.
///
/// # Safety
/// `event` is valid, or null where a descriptor is taken out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_repoll_ctl(
    number: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let changed = || {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        let set = find(number).filter(|_| fd != number).ok_or(Errno::EINVAL)?;
        // SAFETY: the caller's promise.
        let wanted = match unsafe { event.as_ref() } {
            Some(event) => Member { fd, asked: asked(event.events), data: event.u64, added: 0 },
            None if operation == EPOLL_CTL_DEL => Member { fd, asked: 0, data: 0, added: 0 },
            None => return Err(Errno::EINVAL),
        };
        set.change(operation, wanted)
    };
    positive(changed())
}

/// Waits until something has happened to a descriptor of a set: how many events there are; 0: none
/// within so many milliseconds (-1: without end), or the set was closed; -1 and `errno`.
/// (rdma-core says `EINVAL` of a number that is no set as if it were a count.)
///
/// # Safety
/// `events` has room for so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_repoll_wait(
    number: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let wait = || {
        let set = find(number).ok_or(Errno::EINVAL)?;
        let room = usize::try_from(most).ok().filter(|room| *room > 0).ok_or(Errno::EINVAL)?;
        let deadline = Deadline::of(timeout);
        loop {
            let Some(told) = set.poll(&deadline, room)? else { return Ok(Vec::new()) };
            if !told.is_empty() || deadline.left() == 0 {
                return Ok(told);
            }
        }
    };
    match wait() {
        Ok(told) => {
            for (at, event) in told.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { events.add(at).write_unaligned(*event) };
            }
            told.len() as c_int
        }
        Err(errno) => outcome(Err(errno)),
    }
}

/// For `rclose`: closes a set that nothing is in. `None`: it is no set.
pub(super) fn close(number: c_int) -> Option<c_int> {
    find(number)?;
    let mut sets = SETS.write().unwrap_or_else(PoisonError::into_inner);
    let closed = sets.get(&number)?.close();
    if closed.is_ok() {
        sets.remove(&number);
    }
    Some(positive(closed))
}

fn positive(result: Result<(), Errno>) -> c_int {
    result.map_or_else(
        |errno| {
            set_errno(errno);
            errno.raw()
        },
        |()| 0,
    )
}

#[cfg(test)]
mod tests;
