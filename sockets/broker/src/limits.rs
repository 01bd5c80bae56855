//! Bounds what processes can make the broker keep.

use std::time::Duration;

/// Budget: processes at a time: a thread each, four descriptors, a page, and four that they may
/// touch. When there are so many the largest holder (by cgroup, user and network namespace)
/// yields.
pub(crate) const PROCESSES: usize = 1024;
/// Budget: of these of one holder that have not said hello.
pub(crate) const SILENT: usize = 32;
/// Budget: processes that have yielded and whose threads have not ended: a message whose
/// descriptors take long to close keeps the thread. Half of them are for relatives of the same
/// cgroup to yield to each other, half of these for those that share two levels of its path, and so
/// on.
pub(crate) const LEAVING: usize = 256;
/// Bytes of the path of a cgroup by which holders are told apart.
pub(crate) const CGROUP_BYTES: usize = 1024;
/// Budget: how long a connected process may take to say hello. Until then it has a thread.
pub(crate) const HELLO: Duration = Duration::from_secs(2);
/// Budget: operators that are shown something at a time: a thread each.
pub(crate) const OPERATORS: usize = 8;
/// Budget: how long a reader of a listing may take to read all of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Budget: what of the messages to one process waits to be read, as the kernel counts it: some 64
/// of them. Each link's has a descriptor, a channel's two, and those that are under way are limited
/// for the whole of the daemon's user (`RLIMIT_NOFILE`, unless it has `CAP_SYS_RESOURCE`).
pub(crate) const UNREAD: usize = 48 << 10;
/// Budget: offers of a process whose other end has not come. Nearly all of these never come, since
/// there the library is not loaded, so the oldest are given up.
pub(crate) const OFFERS: usize = 1024;
/// Budget: offers of all processes in one network namespace. Beyond it the process with the most
/// gives up its oldest.
pub(crate) const OFFERS_OF_NAMESPACE: usize = 16 << 10;
/// Budget: of all, in the same way: some 300 bytes each.
pub(crate) const OFFERS_OF_ALL: usize = 128 << 10;
/// Budget: links of a process. Their memory is its own and its peers'.
pub(crate) const LINKS: usize = 4096;
/// Budget: listening sockets of a process. Those that are closed without a word count, too; the
/// oldest are given up.
pub(crate) const LISTENERS: usize = 1024;
/// Budget: listeners of all processes in one network namespace. Beyond it the process with the most
/// gives up its oldest.
pub(crate) const LISTENERS_OF_NAMESPACE: usize = 16 << 10;
/// Budget: of all, in the same way: some 300 bytes each.
pub(crate) const LISTENERS_OF_ALL: usize = 128 << 10;
/// Budget: channels of a process, one to each other one: so many has a library room for
/// (sockets/preload/src/light/mmap_buffers.rs). With others it has TCP. Their memory is its own and
/// its peers'.
pub(crate) const CHANNELS: usize = 64;
/// Budget: of these with processes of one other network namespace.
pub(crate) const CHANNELS_WITH_NAMESPACE: usize = 16;
/// Budget: of these in one network namespace: sixteen for each process on average, some 300 bytes
/// each. A channel has two sockets and half a megabyte of memory, and two for lanes as far as they
/// are used, which are its processes'. Of all there need be no limit: [`PROCESSES`] are in few
/// namespaces.
pub(crate) const CHANNELS_OF_NAMESPACE: usize = 4096;
/// Budget: pairs of addresses in two network namespaces, of which the daemon has an entry each.
pub(crate) const ADDRESS_PAIRS: usize = 4096;
/// Budget: of these, with one namespace.
pub(crate) const ADDRESS_PAIRS_OF_NAMESPACE: usize = 512;
/// Budget: of these, that the daemon is being asked about.
pub(crate) const ASKED_OF_NAMESPACE: usize = 16;
/// Budget: how long one without links is kept, in nanoseconds.
pub(crate) const ADDRESS_PAIR_KEPT: u64 = 10_000_000_000;
/// Budget: ways from one network namespace to addresses and ports of others that connections were
/// seen to go.
pub(crate) const OBSERVED_ROUTES_OF_NAMESPACE: usize = 1024;
/// Budget: how long the other process of a channel that an earlier broker gave is waited for, in
/// nanoseconds: one that makes no call meanwhile has not found that there is another broker. Until
/// both have claimed it no process may rely on the channel.
pub(crate) const INHERITED_KEPT: u64 = 10_000_000_000;
/// Budget: how long the daemon is asked whether it may be, in nanoseconds.
pub(crate) const INHERITED_ASKED: u64 = 30_000_000_000;
/// Budget: other network namespaces that have offered the other end of one offer, of which the
/// daemon is asked.
pub(crate) const ELSEWHERE: usize = 8;
/// Budget: gateways of one network namespace that serve their own user, of all users; beside those
/// for all.
pub(crate) const GATEWAYS_OF_NAMESPACE: usize = 16;
/// Budget: of one user; those for all may do anything to the network there.
pub(crate) const GATEWAYS_OF_USER: usize = 2;
/// Budget: those for all, in one network namespace.
pub(crate) const GATEWAYS_FOR_ALL: usize = 4;
/// Budget: connections that have come to a network namespace with a gateway: for ten seconds each.
pub(crate) const INCOMING_OF_NAMESPACE: usize = 4096;
/// Budget: ways to other hosts that a process has asked for, of which no gateway has heard yet.
pub(crate) const WANTS_OF_PROCESS: usize = 64;
/// Budget: ways to other hosts, of one process each, that gateways lead in one network namespace.
pub(crate) const LEADS_OF_NAMESPACE: usize = 1024;
