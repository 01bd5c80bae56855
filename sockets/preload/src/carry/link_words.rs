//! Names the words of a link's slot, and its flags.

/// Words of a slot.
pub(super) const WORDS: usize = 64;
/// Links at a time.
pub(super) const MOST: usize = 1 << 14;

/// Words of a slot: cache lines, of eight words each, of what seldom changes but for the first
/// word, of what who sends writes, of what who receives writes, and of the rest.
#[derive(Clone, Copy)]
pub(super) enum Word {
    /// Who holds it; 0: it is free; [`ENDS`]: it is about to be; [`LEFT`]: it will be.
    Holders,
    /// How many of these are descriptors.
    FdCount,
    /// Where its memory is; 0: it has none yet.
    Memory,
    /// Which side this process is.
    Side,
    /// Changes whenever the slot is used anew.
    Generation,
    /// The socket's cookie.
    Cookie,
    /// As the broker calls it.
    Name,
    /// See [`Flag`].
    Flags,

    /// The thread that puts bytes into the ring.
    Writer = 8,
    /// The thread that takes bytes back.
    Pump,
    /// Calls of the kernel that send, under way.
    Sending,
    /// The fence is what the kernel was given: nothing was since.
    IsFenced,
    /// Bytes that the kernel had room for then.
    Room,
    /// How far the other end had read when that was looked at last.
    SeenPlace,
    /// How far this end has written, as far as it knows.
    Head,
    /// It is among those that may have bytes which nobody has read ([`super::unread`]).
    Dirty,

    /// How long room in the ring was waited for in vain; how often in a row that was given up, and
    /// until when the ring is left out for that.
    WaitedForRoom,
    LeftOut,
    LeftOutUntil,
    /// Small messages that the kernel had to send, since the other end did not look; how many these
    /// were when that is to be looked at; and bytes that the link had carried when it was last.
    ByKernel,
    IsCounted,
    CarriedThen,

    /// The thread that takes bytes out of the ring, by a call that does nothing else.
    Reader = 24,
    /// Calls of the kernel that wait for bytes to come, under way.
    Sleeping,
    /// One more than the fence up to which the kernel's bytes were received.
    Passed,
    /// Bytes that the kernel has before the fence, at least: so many need not be asked about.
    Before,
    /// How far the other end had written when that was looked at last.
    SeenHead,
    /// Waits in a row that were in vain, and how many more are to be left out.
    Vain,
    Skip,
    /// One more than how far the other end had written when the program was last told that there
    /// are bytes, of which it has received none since; 0: it was not.
    Shown,

    /// An error that the next call is to give.
    Error = 32,
    /// When the shadow was looked at last.
    Looked,
    /// One more than the slot of the epoll set that it is in; 0: in none.
    Set,
    /// With which events.
    Events,
    /// The other end's word while the ring has nothing to tell of in its set; [`MAYBE_READY`]: it
    /// may have something.
    Quiet,
    /// Where that word is: its memory, and which side writes there; 0: it has none.
    Glance,
    /// How often in a row, of late, somebody went to sleep in its set who had polled for the other
    /// end for nothing, or could not poll.
    Idle,
    /// A thread that waits in its set polls it, and none has stopped that.
    IsPolled,

    /// The descriptor that it was offered by.
    Fd,
    /// With which data it is in its set.
    Data,
    /// One more than how far the other end had written when it was last told of there.
    Told,
    /// What its set had told of when it last told of this.
    Since,
    /// How often in a row it was looked at closely, in its set, in vain; and when that is to be
    /// done again at the earliest; 0: at once.
    Looks,
    Later,
    /// Where the ring was found empty last, and the pauses that were made then.
    EmptyAt,
    Pauses,
    /// What came of looking first, last ([`super::adaptive_spin`]).
    First,
    /// When the other end had rung, as it said, when that was looked at last.
    Heard,

    /// Where memory of links of this slot is mapped, once there was one; it stays for good.
    Home = WORDS as isize - 1,
}

/// Instead of who holds it: somebody who was the last one ends it.
pub(super) const ENDS: u64 = 1 << 63;
/// The same; he could not, since a short call is under way ([`super::try_guard`]).
pub(super) const LEFT: u64 = ENDS | 1;
/// No word of an end that writes into a ring.
pub(super) const MAYBE_READY: u64 = 1 << 62;

/// What is true of a link from some time on.
#[derive(Clone, Copy)]
pub(super) enum Flag {
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
    /// What happens to its socket is told of by one set with others ([`super::connection_watch`]).
    Watched = 16384,
    /// Its memory is this process's own, and that of processes that it makes ([`super::detach`]).
    Detached = 32768,
    /// Messages that are received say how many bytes are left (`TCP_INQ`).
    ReportsUnread = 65536,
}
