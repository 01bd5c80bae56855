//! Takes what the broker says of links.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};
use std::os::fd::OwnedFd;

use omniverb_connection::descriptors::Why;
use omniverb_formats::broker_message::{Reach, Reply, Request, Side};
use omniverb_formats::{Direction, link_layout};
use rustix::mm::ProtFlags;

use super::broker::{Files, revoke, tell};
use super::connection_watch;
use super::links::{Flag, Link, Memory};
use super::map_sealed_memfd::{map, map_at};
use crate::descriptor_tables::DESCRIPTORS;
use crate::{fallback_ledger, fork_refcount};

/// Does what a message says of a link; gives back what is of none, or of something else, too. For
/// the thread that takes the mail.
pub(super) fn came(reply: Reply, files: Files) -> Option<(Reply, Files)> {
    let [file, _] = &files;
    match (reply, file) {
        (Reply::Link { tag, link: name, side, reach }, Some(file)) => {
            let link = Link::of_tag(tag);
            if let Some(link) = link.filter(|_| reach == Reach::Across) {
                link.set_flag(Flag::CrossNamespace);
                connection_watch::are_across();
            }
            let is_taken = link.is_some_and(|link| take_link(link, file, name, side));
            close_duplicate(link);
            if !is_taken {
                refuse_link(file, side);
                tell(Request::LinkEnded { link: name }, &[]);
            }
        }
        // There was no room for its memory.
        (Reply::Link { tag, link: name, .. }, None) => {
            close_duplicate(Link::of_tag(tag));
            tell(Request::LinkEnded { link: name }, &[]);
        }
        (Reply::Ended { link: name }, None) => {
            revoke(|link| link.identity.name.get() == name);
            // Or it is a channel.
            return Some((reply, files));
        }
        (Reply::Refused { tag, why }, _) => {
            let link = Link::of_tag(tag);
            if let Some(link) = link {
                let fd = link.member.fd.get() as c_int;
                fallback_ledger::refused(fd, link.identity.cookie.get(), why);
                link.set_flag(Flag::KernelForGood);
                link.set_flag(Flag::Abandoned);
                link.set_flag(Flag::NeverPolls);
            }
            close_duplicate(link);
        }
        (Reply::Pending { tag }, _) => close_duplicate(Link::of_tag(tag)),
        _ => return Some((reply, files)),
    }
    None
}

/// The broker has closed its duplicate of a link's socket. The link, if it is one still, is held by
/// the caller, and no more after this.
fn close_duplicate(link: Option<Link>) {
    if let Some(link) = link {
        link.set_flag(Flag::BrokerClosed);
        link.release();
    }
}

/// Whether a link is to have memory: nothing was done with its socket since it was offered that
/// only the kernel can continue.
fn may_have_memory(link: Link) -> bool {
    let fd = link.member.fd.get() as c_int;
    let entry = DESCRIPTORS.look(fd);
    let is_alone = fork_refcount::is_unshared(fd, entry, Some(link.identity.cookie.get()));
    is_alone && !link.has(Flag::Abandoned) && entry.why() == Why::Free && !entry.is_duplicated()
}

/// A link has come. `false` if it is of no use any more.
fn take_link(link: Link, file: &OwnedFd, name: u64, side: Side) -> bool {
    if link.identity.memory.get() != 0 || !may_have_memory(link) {
        return false;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let Some(base) = map_at(link.home(), file, link_layout::BYTES, access) else {
        return false;
    };
    link.identity.name.set(name);
    connection_watch::put(link, link.member.fd.get() as c_int);
    link.attach_memory(base, side);
    link.mark_maybe_ready();
    // A thread that leaves says so and then looks for the memory; one of the two is seen.
    fence(Ordering::SeqCst);
    if !may_have_memory(link) {
        link.set_flag(Flag::Abandoned);
        link.set_flag(Flag::NeverPolls);
        if let (Some(outward), Some(inward)) = (link.outward(), link.inward()) {
            outward.stop();
            inward.stop_polling();
            // The other end need not keep it either.
            inward.stop();
        }
    }
    true
}

/// A link is of no use here: the other end, if it comes to that, need not keep it either.
fn refuse_link(file: &OwnedFd, side: Side) {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let Some(base) = map(file, link_layout::BYTES, access) else { return };
    for from in [side, side.other()] {
        Direction::new(Memory::new(base as usize), from.number()).stop();
    }
    // SAFETY: the mapping that was just made, which no other thread knows of.
    _ = unsafe { rustix::mm::munmap(base, link_layout::BYTES) };
}
