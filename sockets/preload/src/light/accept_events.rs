//! Tells sets of epoll of listening sockets that have light connections. For the kernel such a
//! socket is a member as any other; what it was told of it is in [`descriptor_tables::MEMBERS`].

use core::ffi::c_int;

use omniverb_connection::descriptors::Member;
use omniverb_connection::readiness::Interest;
use omniverb_connection::readiness::epoll_interest::ONE_SHOT;

use super::epoll_sets;
use super::state::State;
use crate::descriptor_tables::{self, DESCRIPTORS, MEMBERS};
use crate::errno::keeping_errno;
use crate::next_library;
use crate::user_memory::UserPtrMut;

impl State {
    /// A listening socket is in these sets, which are to be looked at: `false` if there are too
    /// many.
    pub(super) fn joins_sets(&mut self, fd: c_int) -> bool {
        let (id, mut is_well) = (descriptor_tables::look(fd).id(), true);
        memberships(fd, id, |member| {
            if Interest(member.events).is_one_shot() {
                epoll_sets::has_one_shot();
            }
            is_well &= self.sets.find_or_add(member.set).is_some();
        });
        is_well
    }
}

/// What a set is told of a listening socket, by whichever of its descriptors it was put there.
fn memberships(fd: c_int, id: u32, mut with: impl FnMut(Member)) {
    MEMBERS.of_fd(fd, id, &mut with);
    if descriptor_tables::look(fd).is_duplicated() {
        let others = DESCRIPTORS.fds_of(id).filter(|other| *other != fd);
        others.for_each(|other| MEMBERS.of_fd(other, id, &mut with));
    }
}

/// What was told once is not told again until the program asks for it.
fn disarm(set: c_int, member: Member) {
    let mut event = libc::epoll_event { events: ONE_SHOT, u64: member.data };
    let event = UserPtrMut::of(&mut event);
    let done =
        keeping_errno(|| next_library::epoll_ctl(set, libc::EPOLL_CTL_MOD, member.fd, event));
    if done == 0 {
        MEMBERS.modify(Member { events: ONE_SHOT, ..member });
    }
}

impl State {
    /// Calls with each listening socket that a set is to be told of now: its place, and what it is
    /// in that set.
    fn each_ready(&mut self, set: u32, mut with: impl FnMut(&mut State, usize, Member)) {
        if self.listeners.waiting == 0 || set == 0 {
            return;
        }
        for place in 0..self.listeners.end() {
            let Some((fd, id)) = self.listeners.ready_at(place) else { continue };
            let mut found = None;
            memberships(fd, id, |member| {
                if member.set == set && member.events & libc::EPOLLIN as u32 != 0 {
                    found = Some(member);
                }
            });
            let Some(member) = found else { continue };
            if !Interest(member.events).is_edge() || !self.listeners.was_told(place, set) {
                with(self, place, member);
            }
        }
    }

    /// Some listening socket in a set has a light connection.
    pub(super) fn has_ready_listener(&mut self, set: u32) -> bool {
        let mut is_any = false;
        self.each_ready(set, |_, _, _| is_any = true);
        is_any
    }

    /// Writes which are ready: how many.
    pub(super) fn collect_listeners(
        &mut self,
        (set, id): (c_int, u32),
        events: &mut [libc::epoll_event],
    ) -> usize {
        let mut count = 0;
        self.each_ready(id, |state, place, member| {
            if count == events.len() {
                return;
            }
            state.listeners.tells(place, id);
            events[count] = libc::epoll_event { events: libc::EPOLLIN as u32, u64: member.data };
            count += 1;
            if Interest(member.events).is_one_shot() {
                disarm(set, member);
            }
        });
        count
    }

    /// Something in a set with this data is one that the kernel has there, too: a listening socket,
    /// or another set.
    pub(super) fn is_known_to_kernel(&mut self, set: u32, data: u64) -> bool {
        let mut is_one = self.sets.inner(set).any(|(_, one)| one.data == data);
        for place in 0..self.listeners.end() {
            let Some((fd, id)) = self.listeners.known_at(place) else { continue };
            memberships(fd, id, |member| is_one |= member.set == set && member.data == data);
        }
        is_one
    }

    /// The kernel has told a set of what has this data: of a listening socket that it tells of once
    /// it has.
    pub(super) fn mark_told_by_kernel(&mut self, set: u32, data: u64) {
        for place in 0..self.listeners.end() {
            let Some((fd, id)) = self.listeners.known_at(place) else { continue };
            let mut found = None;
            memberships(fd, id, |member| {
                if member.set == set && member.data == data && Interest(member.events).is_one_shot()
                {
                    found = Some(member);
                }
            });
            if let Some(member) = found {
                MEMBERS.modify(Member { events: ONE_SHOT, ..member });
            }
        }
    }
}
