//! Lays out what a process keeps of a link, besides the memory that the peer has, too.
//!
//! A slot belongs to one process, and its threads share it: so each line of the cache has fields
//! that one kind of thread writes. Most fields are read with acquire and written with release; what
//! needs more says so where it is used.

use core::ops::Deref;

use omniverb_ring::shared_atomics::{AtomicU64, Ordering};

/// Links of a process at a time.
pub const LINKS: usize = 1 << 14;
/// Bytes of a slot.
pub const BYTES: usize = 512;

/// One field, which any thread may change.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Field(AtomicU64);

impl Field {
    /// What it is, with all that was done before it was written ([`Self::set`]).
    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Writes it, behind all that was done before.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

impl Deref for Field {
    type Target = AtomicU64;

    #[inline(always)]
    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

/// Defines a line of the cache, and all fields of it in order.
macro_rules! line {
    ($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        #[repr(C, align(64))]
        pub struct $name {
            $($(#[$field_about])* pub $field: Field,)*
        }

        impl $name {
            /// Calls with each field, in order.
            pub fn each(&self, mut with: impl FnMut(&Field)) {
                $(with(&self.$field);)*
            }
        }

        #[cfg(not(loom))]
        const _: () = assert!(size_of::<$name>() == 64);
    };
}

line! {
    /// What seldom changes, but for the first.
    Identity {
        /// How many calls and descriptors hold it; 0: it is free; [`ENDS`]: it is about to be;
        /// [`LEFT`]: it will be.
        holders,
        /// How many of these are descriptors.
        fd_count,
        /// Where its memory is; 0: it has none yet.
        memory,
        /// Which side this process is.
        side,
        /// Changes whenever the slot is used anew.
        generation,
        /// The socket's cookie.
        cookie,
        /// As the broker calls it.
        name,
        /// See [`Flag`].
        flags,
    }
}

line! {
    /// What a thread writes that sends.
    Sender {
        /// The thread that puts bytes into the ring.
        lock,
        /// The thread that takes bytes back.
        reclaim_lock,
        /// Calls of the kernel that send, under way.
        calls,
        /// The fence is what the kernel was given: nothing was since.
        is_fenced,
        /// Bytes that the kernel had room for then.
        room,
        /// How far the other end had read when that was looked at last.
        seen_place,
        /// How far this end has written, as far as it knows.
        head,
        /// It is among those that may have unread bytes.
        dirty,
    }
}

line! {
    /// What a thread writes that sends where the ring did not serve.
    Congestion {
        /// How long room in the ring was waited for in vain.
        waited_for_room,
        /// How often in a row that was given up.
        given_up,
        /// Until when the ring is left out for that.
        given_up_until,
        /// Small messages that the kernel had to send, since the other end did not look.
        by_kernel,
        /// How many these were when that is to be looked at.
        is_counted,
        /// Bytes that the link had carried when it was looked at last.
        carried_then,
    }
}

line! {
    /// What a thread writes that receives.
    Receiver {
        /// The thread that takes bytes out of the ring, by a call that does nothing else.
        lock,
        /// Calls of the kernel that wait for bytes to come, under way.
        sleeping,
        /// One more than the fence up to which the kernel's bytes were received.
        passed,
        /// Bytes that the kernel has before the fence, at least: so many need not be asked about.
        before,
        /// How far the other end had written when that was looked at last.
        seen_head,
        /// Waits in a row that were in vain.
        vain,
        /// How many more are to be left out.
        skip,
        /// One more than how far the other end had written when the program was last told that
        /// there are bytes, of which it has received none since; 0: it was not.
        shown,
    }
}

line! {
    /// What is looked at in passing, of all members of a set.
    Glance {
        /// An error that the next call is to give.
        error,
        /// When the kernel's socket was looked at last.
        looked,
        /// One more than the slot of the epoll set that it is in; 0: in none.
        set,
        /// With which events.
        events,
        /// The other end's head while the ring has nothing to tell of in its set; [`MAYBE_READY`]:
        /// it may have something.
        quiet,
        /// Where that head is: its memory, and which side writes there; 0: it has none.
        head_at,
        /// How often in a row, of late, a thread went to sleep in its set that had polled for the
        /// other end for nothing, or could not poll.
        idle,
        /// A thread that waits in its set polls it, and none has stopped that.
        is_polled,
    }
}

line! {
    /// What a thread writes that waits in its set.
    Member {
        /// The descriptor that it was offered by.
        fd,
        /// With which data it is in its set.
        data,
        /// One more than how far the other end had written when it was last told of there.
        told,
        /// What its set had told of when it last told of this.
        since,
        /// How often in a row it was looked at closely, in its set, in vain.
        looks,
        /// When that is to be done again at the earliest; 0: at once.
        later,
    }
}

line! {
    /// What a thread writes that polls the ring before it sleeps.
    Polling {
        /// Where the ring was found empty last.
        empty_at,
        /// The pauses that were made then.
        pauses,
        /// What came of looking first, last.
        first,
        /// When the other end had rung, as it said, when that was looked at last.
        heard,
    }
}

line! {
    /// What stays when the slot is used anew.
    Place {
        /// Where memory of links of this slot is mapped, once there was one.
        home,
    }
}

/// A link's slot. All zeros is one that is free.
#[derive(Debug, Default)]
#[repr(C)]
pub struct LinkSlot {
    /// What seldom changes.
    pub identity: Identity,
    /// Of threads that send.
    pub sender: Sender,
    /// Of threads that send where the ring did not serve.
    pub congestion: Congestion,
    /// Of threads that receive.
    pub receiver: Receiver,
    /// What is looked at in passing.
    pub glance: Glance,
    /// Of threads that wait in its set.
    pub member: Member,
    /// Of threads that poll.
    pub polling: Polling,
    /// What stays for the slot's next link.
    pub place: Place,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SetSlot>() == BYTES + LINKS / 8 && align_of::<SetSlot>() == 64);
#[cfg(not(loom))]
const _: () = assert!(size_of::<LinkSlot>() == BYTES && align_of::<LinkSlot>() == 64);

impl LinkSlot {
    /// Zeroes the slot for another link, but for the slot's own words: its holders, its generation
    /// and its home. A thread that has come too late may have one of the locks, and releases it.
    pub fn reset(&self) {
        let Self { identity, sender, congestion, receiver, glance, member, polling, place } = self;
        let stays =
            [&identity.holders, &identity.generation, &sender.lock, &receiver.lock, &place.home];
        let zero = |field: &Field| {
            if !stays.iter().any(|one| core::ptr::eq(*one, field)) {
                field.store(0, Ordering::Relaxed);
            }
        };
        identity.each(zero);
        sender.each(zero);
        congestion.each(zero);
        receiver.each(zero);
        glance.each(zero);
        member.each(zero);
        polling.each(zero);
        place.each(zero);
    }

    /// The locks of short calls, one for each direction.
    #[must_use]
    pub fn locks(&self) -> [&AtomicU64; 2] {
        [&self.sender.lock, &self.receiver.lock]
    }

    /// It is true of the link.
    #[inline(always)]
    pub fn has(&self, flag: Flag) -> bool {
        self.identity.flags.get() & flag as u64 != 0
    }

    /// From now on.
    pub fn set_flag(&self, flag: Flag) {
        self.identity.flags.fetch_or(flag as u64, Ordering::AcqRel);
    }

    /// It is true of the link no more.
    pub fn clear_flag(&self, flag: Flag) {
        self.identity.flags.fetch_and(!(flag as u64), Ordering::AcqRel);
    }
}

line! {
    /// What threads write that wait in a set.
    SetWaits {
        /// The set's id; 0: the slot is free.
        id,
        /// Looks in a row that were in vain.
        vain,
        /// How many more are to be left out.
        skip,
        /// How many calls there were.
        calls,
        /// The member that is told of first.
        first,
        /// When the kernel was asked for all that there is; 0: it was not.
        asked,
        /// How many members were maybe ready when that was counted last.
        ready_count,
        /// Which one is looked at next whether it still is.
        hand,
    }
}

line! {
    /// What threads write that tell of members.
    SetNews {
        /// How often some member was told of.
        told,
        /// A thread slept since members that may be ready were polled.
        away,
    }
}

/// The slot of an epoll set that has carried members. All zeros is one that is free.
#[derive(Debug)]
#[repr(C)]
pub struct SetSlot {
    /// Of threads that wait.
    pub waits: SetWaits,
    /// Of threads that tell.
    pub news: SetNews,
    unused: [u64; 48],
    /// Members that may be ready, a bit for each link.
    pub maybe_ready: [AtomicU64; LINKS / 64],
}

/// Instead of the holders: the last of them is ending it.
pub const ENDS: u64 = 1 << 63;
/// Instead of the holders: the last of them could not end it, since a short call is under way.
pub const LEFT: u64 = ENDS | 1;
/// No word of an end that writes into a ring.
pub const MAYBE_READY: u64 = 1 << 62;

/// What is true of a link from some time on.
#[derive(Clone, Copy)]
pub enum Flag {
    /// The other end is not to put bytes into the ring any more.
    NeverPolls = 1,
    /// Other processes have the socket.
    Shared = 2,
    /// What is in its memory makes no sense.
    Broken = 4,
    /// The other end has gone, and what followed from that is done.
    PeerGone = 8,
    /// The socket does not wait.
    NonBlocking = 16,
    /// The broker has closed its duplicate.
    BrokerClosed = 32,
    /// This side puts no bytes into the ring any more, and takes no memory if it has none yet.
    Abandoned = 64,
    /// It was sent what it had not read when it went: if the kernel resets the connection for that
    /// it is ours to tell.
    Resets = 128,
    /// The other end is in another network namespace: the link is only for as long as the broker
    /// says.
    CrossNamespace = 256,
    /// The broker has said that it is over.
    Revoked = 512,
    /// That was done: neither side puts anything there any more. What is there is read.
    Ended = 1024,
    /// Both directions were ended since a process was made, and for no other reason: when nothing
    /// is left in it the link may be forgotten, and the socket offered anew.
    Reattachable = 2048,
    /// It was left for another reason besides: it is not, whatever else is true of it.
    KernelForGood = 4096,
    /// Both directions were ended since it carried too little.
    Suspended = 8192,
    /// What happens to its socket is told of by one set with others.
    Watched = 16384,
    /// Its memory is this process's own, and that of processes that it makes.
    Detached = 32768,
    /// Messages that are received say how many bytes are left (`TCP_INQ`).
    ReportsUnread = 65536,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::mem::offset_of;
    use proptest::prelude::*;

    fn all(slot: &LinkSlot, mut with: impl FnMut(&Field)) {
        slot.identity.each(&mut with);
        slot.sender.each(&mut with);
        slot.congestion.each(&mut with);
        slot.receiver.each(&mut with);
        slot.glance.each(&mut with);
        slot.member.each(&mut with);
        slot.polling.each(&mut with);
        slot.place.each(&mut with);
    }

    #[test]
    fn a_sender_and_a_receiver_share_no_pair_of_lines() {
        let pair = |offset: usize| offset / 128;
        let (sender, receiver) = (offset_of!(LinkSlot, sender), offset_of!(LinkSlot, receiver));
        assert_ne!(pair(sender), pair(receiver));
        assert_ne!(pair(sender), pair(offset_of!(LinkSlot, glance)));
    }

    #[test]
    fn a_slot_that_is_used_anew_keeps_its_own_fields() {
        let slot = Box::<LinkSlot>::default();
        let mut count = 0;
        all(&slot, |field| {
            count += 1;
            field.set(count);
        });
        slot.reset();
        let mut kept = 0;
        all(&slot, |field| kept += u64::from(field.get() != 0));
        assert_eq!((kept, count), (5, 49));
        let stays = [&slot.identity.holders, &slot.identity.generation, &slot.place.home];
        assert!(stays.iter().all(|field| field.get() != 0));
        assert!(slot.locks().iter().all(|lock| lock.load(Ordering::Relaxed) != 0));
    }

    const FLAGS: [Flag; 17] = [
        Flag::NeverPolls,
        Flag::Shared,
        Flag::Broken,
        Flag::PeerGone,
        Flag::NonBlocking,
        Flag::BrokerClosed,
        Flag::Abandoned,
        Flag::Resets,
        Flag::CrossNamespace,
        Flag::Revoked,
        Flag::Ended,
        Flag::Reattachable,
        Flag::KernelForGood,
        Flag::Suspended,
        Flag::Watched,
        Flag::Detached,
        Flag::ReportsUnread,
    ];

    proptest! {
        /// Each flag is a bit of its own.
        #[test]
        fn flags_do_not_change_each_other(
            changes in prop::collection::vec((0..17_usize, any::<bool>()), 0..64),
        ) {
            let (slot, mut wanted) = (Box::<LinkSlot>::default(), [false; 17]);
            for (which, is_set) in changes {
                let flag = FLAGS[which];
                if is_set { slot.set_flag(flag) } else { slot.clear_flag(flag) }
                wanted[which] = is_set;
                prop_assert_eq!(FLAGS.map(|flag| slot.has(flag)), wanted);
            }
        }
    }
}
