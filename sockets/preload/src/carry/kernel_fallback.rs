//! Gives a socket back to the kernel: what was sent, and what was not received.
//!
//! This comes before anything is done with the socket that only the kernel can do, or that happens
//! out of the library's sight.

use core::ffi::c_int;

use omniverb_formats::link_layout::{CLOSED, SHUT_RECEIVE, SHUT_SEND};

use super::links::{self, Flag, Link};
use super::published_bytes::{self, is_same_socket};
use super::{ended_link_private_memory, forgotten_links, unread_bytes};
use crate::descriptor_tables::{self, DESCRIPTORS, MEMBERS};
use crate::kernel_socket;
use crate::{fallback_ledger, fork_refcount, process_count_slots};

/// Neither direction goes on, now or, if it has no memory yet, ever. What was not received is still
/// in the ring, for this process and those that it forks.
pub(super) fn stop_carrying(link: Link, fd: c_int) {
    link.set_flag(Flag::NeverPolls);
    close_both(link, fd);
}

/// The same for one whose bytes this process reads on.
fn close_both(link: Link, fd: c_int) {
    link.set_flag(Flag::KernelForGood);
    stop(link, fd);
}

/// The same for one that may come again.
fn stop(link: Link, fd: c_int) {
    // A thread that attaches memory does that first, and then looks whether this was said.
    link.set_flag(Flag::Abandoned);
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    if let Some(inward) = link.inward() {
        inward.stop_polling();
    }
    if let Some(outward) = link.outward() {
        outward.stop();
        if is_same_socket(link, fd) {
            published_bytes::flush(link, fd);
        }
    }
}

/// Stops carrying, and gives what was sent to the kernel: the next sender may know nothing of the
/// ring.
fn stop_carrying_and_flush(link: Link, fd: c_int) {
    stop_carrying(link, fd);
    flush_sent(link, fd);
}

/// What was sent is with the kernel then.
fn flush_sent(link: Link, fd: c_int) {
    if published_bytes::has_unread(link) && is_same_socket(link, fd) {
        published_bytes::flush_wholly(link, fd);
    }
}

/// And what was not received goes through the kernel, too: the other end sees to that, by the next
/// thing that it does.
pub(super) fn leave(link: Link, fd: c_int) {
    stop_carrying_and_flush(link, fd);
    if unread_bytes::unread_bytes(link) > 0
        && let Some(inward) = link.inward()
        && inward.leave().is_err()
    {
        link.set_flag(Flag::Broken);
    }
}

/// The same; other programs are about to have it, too.
fn share_link(link: Link, fd: c_int) {
    link.set_flag(Flag::Shared);
    leave(link, fd);
}

/// Nothing more is sent but by the kernel; what was sent is with it then. What comes in goes on as
/// it did.
pub(super) fn stop_sending(fd: c_int) {
    let Some(link) = links::enter(fd) else { return };
    link.set_flag(Flag::KernelForGood);
    link.set_flag(Flag::Abandoned);
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    if let Some(outward) = link.outward() {
        outward.stop();
        if published_bytes::has_unread(link) && is_same_socket(link, fd) {
            published_bytes::flush_wholly(link, fd);
        }
    }
    link.release();
}

/// Leaves the links that the broker has ended: nothing more comes by them, either way. What was
/// sent goes through the kernel; what it has no room for now it gets by the next calls, since only
/// this process sends behind it. Bytes that this process has seen and not received are read now:
/// the program was told of them, and the other end may never give them back. What the other end
/// writes from now on is not looked at ([`ended_link_private_memory`]).
pub(super) fn leave_revoked() {
    links::each(|fd, link| {
        if link.has(Flag::Revoked) {
            fallback_ledger::parted(fd, link.identity.cookie.get());
            link.clear_flag(Flag::Revoked);
            link.set_flag(Flag::Ended);
            close_both(link, fd);
            ended_link_private_memory::detach(
                link,
                fd,
                ended_link_private_memory::Reason::NotAllowed,
            );
            published_bytes::mark_unread(link);
        }
    });
}

/// The same for a descriptor, if it has a link.
pub(super) fn leave_fd(fd: c_int) {
    if let Some(link) = links::enter(fd) {
        leave(link, fd);
        link.release();
    }
}

/// The same; what was not received is read in the ring.
pub(super) fn leave_but_read_here(fd: c_int) {
    if let Some(link) = links::enter(fd) {
        stop_carrying_and_flush(link, fd);
        link.release();
    }
}

/// Another process is about to have it, too.
pub(super) fn share_fd(fd: c_int) {
    if let Some(link) = links::enter(fd) {
        share_link(link, fd);
        link.release();
    }
}

/// What the descriptor had is no more, and no hook saw that.
#[cold]
pub(super) fn forget(fd: c_int) {
    if let Some((link, _)) = links::take(fd) {
        link.release();
    }
}

/// A descriptor is about to be closed.
pub(super) fn close(fd: c_int) {
    let escaped = links::enter(fd).and_then(|link| {
        // A call that sends by it from now on does so by the kernel, and behind what is in the ring
        // only as long as the descriptor is for the link.
        let is_last = link.identity.fd_count.get() == 1 && link.identity.memory.get() != 0;
        let escapes = is_last && is_same_socket(link, fd);
        if escapes {
            stop_carrying(link, fd);
        }
        link.release();
        escapes.then_some(link.index())
    });
    let taken = links::take(fd);
    // A call that is under way, by this link or by one that the socket had before, may use the
    // socket for as long as it likes. A fork that is counting at this moment is to see that, too.
    let is_in_use = taken.is_some_and(|(link, _)| link.is_in_use())
        || forgotten_links::is_any_used()
            && kernel_socket::cookie(fd).is_some_and(forgotten_links::is_used);
    if is_in_use {
        fork_refcount::mark_untracked(fd);
    }
    let Some((link, is_last)) = taken else { return };
    if is_last {
        link.leave_set();
    }
    let has_escaped = escaped == Some(link.index());
    if is_last && (has_escaped || is_same_socket(link, fd)) {
        if link.identity.memory.get() != 0 {
            if !has_escaped {
                stop_carrying(link, fd);
            }
            end(link, fd);
        } else if !link.has(Flag::Shared) && !link.has(Flag::BrokerClosed) {
            // The broker may have its duplicate still, which would put the end off.
            leave_sets(fd);
            kernel_socket::end_now(fd);
        }
    }
    link.release();
    links::free_left();
}

/// Removes what is open at a descriptor from all sets. The kernel does that when the last
/// descriptor is closed, and would report events until then.
fn leave_sets(fd: c_int) {
    MEMBERS.of_fd(fd, descriptor_tables::look(fd).id(), |member| {
        if let Some(set) = DESCRIPTORS.fds_of(member.set).next() {
            kernel_socket::leave_set(set, fd);
        }
    });
}

/// The last descriptor of this process is, of a link that has escaped.
fn end(link: Link, fd: c_int) {
    if link.has(Flag::Shared) {
        return;
    }
    link.say(CLOSED);
    if published_bytes::has_unread(link) && !published_bytes::flush(link, fd) {
        // The kernel has no room for it: it is not to look as if that were the end.
        return kernel_socket::close_will_reset(fd);
    }
    let Some(inward) = link.inward() else { return };
    // Natively unread bytes make the end a reset. What comes from now on the other end takes back,
    // and the kernel resets for it.
    if !inward.place().is_taken() && inward.leave().is_ok_and(|bytes| bytes > 0) {
        kernel_socket::close_will_reset(fd);
    }
}

/// A socket is about to be shut down.
pub(super) fn shutdown(fd: c_int, how: c_int) {
    let Some(link) = links::enter(fd) else { return };
    let (receives, sends) = match how {
        libc::SHUT_RD => (true, false),
        libc::SHUT_WR => (false, true),
        libc::SHUT_RDWR => (true, true),
        _ => (false, false),
    };
    if !is_same_socket(link, fd) {
        // Another socket's that came here unseen.
        links::forget(fd, link);
        link.release();
        return;
    }
    if receives {
        // The other end is told of this in the link's memory: it would not be in another one.
        link.set_flag(Flag::KernelForGood);
    }
    if (sends || receives) && link.identity.memory.get() == 0 {
        // Then it gets none, for the same reason.
        link.set_flag(Flag::KernelForGood);
        link.set_flag(Flag::Abandoned);
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }
    if sends && let Some(outward) = link.outward() {
        outward.stop();
        published_bytes::flush_wholly(link, fd);
        link.say(SHUT_SEND);
    }
    if receives && let Some(inward) = link.inward() {
        link.set_flag(Flag::NeverPolls);
        link.say(SHUT_RECEIVE);
        inward.stop_polling();
    }
    link.release();
}

/// All of them go back.
pub(super) fn leave_all() {
    links::each(|fd, link| leave(link, fd));
}

/// Programs that know nothing of us are about to have those of which `is_handed_over` says so.
pub(super) fn share_all(is_handed_over: impl Fn(c_int) -> bool) {
    links::each(|fd, link| {
        if is_handed_over(fd) {
            share_link(link, fd);
        } else {
            stop_carrying_and_flush(link, fd);
        }
    });
}

/// The same; nothing happens to all others.
pub(super) fn share_matching(which: impl Fn(c_int) -> bool) {
    links::each(|fd, link| {
        if which(fd) {
            share_link(link, fd);
        }
    });
}

/// How long other processes have what this one has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// It will never be known when the others have closed it.
    ForGood,
    /// They are counted. The other end sends no more either, so that both can forget the link.
    Counted,
}

/// Other processes are about to have all sockets that this one has, and the links, too.
pub(super) fn share(how: Sharing) {
    links::each(|fd, link| {
        let renews = how == Sharing::Counted;
        link.set_flag(Flag::Shared);
        link.set_flag(Flag::NeverPolls);
        if renews {
            stop(link, fd)
        } else {
            close_both(link, fd)
        }
        flush_sent(link, fd);
        if renews {
            ends_both_ways(link);
        }
        ended_link_private_memory::detach(link, fd, ended_link_private_memory::Reason::Shared);
    });
}

/// What this side does not send any more the other one does not, either: it may come again.
fn ends_both_ways(link: Link) {
    // Whatever it was left for besides is noted, before this or behind it.
    if !link.has(Flag::KernelForGood) {
        if let Some(inward) = link.inward() {
            inward.stop();
        }
        link.set_flag(Flag::Reattachable);
    }
}

/// A link is not worth its while: the kernel has its socket for some time. What is in it is read
/// there.
pub(super) fn suspend(link: Link, fd: c_int) {
    link.set_flag(Flag::Suspended);
    stop(link, fd);
    ends_both_ways(link);
}

/// In a child: links that its parent has got while it was made are the parent's alone.
pub(super) fn forget_unshared() {
    links::each(|fd, link| {
        if !link.has(Flag::Shared) {
            forget(fd);
        }
    });
}

/// The process ends: what becomes of each socket is what becomes of one that is closed.
pub(super) fn finish() {
    links::each(|fd, link| {
        if process_count_slots::are_any() {
            // Others of the family are to know.
            link.record_worth();
        }
        if is_same_socket(link, fd) && link.identity.memory.get() != 0 {
            stop_carrying(link, fd);
            end(link, fd);
        }
    });
}
