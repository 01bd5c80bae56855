//! Records which sockets are members of which epoll set.

use core::ffi::c_int;

use omniverb_connection::descriptors::{Kind, Member};

use crate::descriptor_tables::{self, DESCRIPTORS, MEMBERS};
use crate::user_memory::UserPtr;

/// `epoll_ctl` did this.
pub(crate) fn control(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: UserPtr<'_, libc::epoll_event>,
) {
    let (set, member) = (descriptor_tables::look(set), descriptor_tables::look(fd));
    if set.kind() != Kind::Set || !(member.kind().is_stream() || member.kind() == Kind::Set) {
        return;
    }
    if operation == libc::EPOLL_CTL_DEL {
        MEMBERS.remove(set.id(), fd, member.id());
        return;
    }
    let Some(event) = event.read() else { return };
    let new = Member { set: set.id(), fd, id: member.id(), events: event.events, data: event.u64 };
    match operation {
        libc::EPOLL_CTL_ADD => MEMBERS.add(new, |id| DESCRIPTORS.fds_of(id).next().is_some()),
        libc::EPOLL_CTL_MOD => MEMBERS.modify(new),
        _ => {}
    }
}
