//! Defines the operators' protocol, by which the owner of the daemon sees and changes all vNICs.
//!
//! It is spoken on a socket of its own, which only the daemon's user and root may open, and being
//! connected there *is* the right. The header is that of the other protocol; the kinds are numbers
//! that the other one does not have, so neither socket takes a message of the other's for one of
//! its own. There is no greeting: every call is answered by itself, with one message.

use crate::VERSION;
use crate::body::{Cursor, Done, Extent, Status};
use crate::codec::{DecodeError, Header};
use crate::limits::MESSAGE_BYTES_MAX;
use crate::message_macros::{bodies, messages};
use crate::network_fault_text::Faults;
use crate::pinned_pages::Layout;
use omniverb_terms::Errno;
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The operators' socket of the host's daemon.
pub const SYSTEM_SOCKET: &str = "/run/omniverb-operator/omniverbd.sock";

/// Variable that names the operators' socket.
pub const SOCKET_VARIABLE: &str = "OMNIVERB_OPERATOR_SOCKET";

/// `SetVnic::what`: `bits_per_second` is meant; zero takes the limit away.
pub const SET_RATE: u32 = 1;
/// `SetVnic::what`: `burst_bytes` is meant; zero lets the daemon choose.
pub const SET_BURST: u32 = 2;
/// `SetVnic::what`: `datapath` is meant.
pub const SET_DATAPATH: u32 = 4;
/// `SetVnic::what`: `faults` is meant; all zeros take them away.
pub const SET_FAULTS: u32 = 8;
/// `SetVnic::what`: `adoption` is meant.
pub const SET_ADOPTION: u32 = 16;
/// `SetVnic::what`: `operations_per_second` is meant; zero takes the limit away.
pub const SET_OPS: u32 = 32;

/// Traffic within the host takes links between the processes.
pub const DATAPATH_DIRECT: u32 = 0;
/// Traffic within the host passes through the daemon's engine.
pub const DATAPATH_FORWARDED: u32 = 1;

/// Pages are granted where their protection expresses exactly what the verbs flags of the region
/// allow.
pub const ADOPTION_EXACT: u32 = 0;
/// Also where it expresses more, if the vNICs at both ends say so: a peer that may write may then
/// be able to read.
pub const ADOPTION_TRUSTING: u32 = 1;
/// No pages are granted, by nobody of the vNIC and to nobody of it.
pub const ADOPTION_OFF: u32 = 2;

/// Bytes of a vNIC's name in a message, NUL-padded.
pub const VNIC_NAME_BYTES: usize = 64;

/// Bytes of text in `ChangeObjects` and `ObjectsChanged`.
pub const OBJECT_TEXT_BYTES: usize = MESSAGE_BYTES_MAX - 16 - 8;

bodies! {
    /// Ask for what there is to see of all vNICs, from a place on. Answered with `Status`.
    QueryAll { from: Cursor }
    /// Ask for the vNICs and what was set for them, from a place on. Answered with `Status`.
    QueryVnics { from: Cursor }
    /// Change a vNIC. Answered with `VnicChanged`; `ENOENT` if there is no such vNIC.
    SetVnic {
        /// As `omniverb status` shows it, or `pid:` and the number of a process in its namespace.
        name: [u8; VNIC_NAME_BYTES],
        /// Which of the following are meant: `SET_*`.
        what: u32,
        /// `DATAPATH_*`.
        datapath: u32,
        bits_per_second: u64,
        burst_bytes: u64,
        /// What is done to packets that arrive.
        faults: Faults,
        /// `ADOPTION_*`.
        adoption: u32,
        operations_per_second: u32,
    }
    /// Answer to `SetVnic`: how the vNIC is now. A limit of zero is none.
    VnicChanged {
        bits_per_second: u64,
        burst_bytes: u64,
        /// `DATAPATH_*`, as set; a limited or faulty vNIC is forwarded whatever it says.
        datapath: u32,
        /// Direct links that exist and stay.
        direct_links: u32,
        /// All zeros: none.
        faults: Faults,
        /// `ADOPTION_*`.
        adoption: u32,
        /// 1: others share a limit with it, which holds besides its own.
        shares_limit: u32,
        operations_per_second: u32,
        reserved: u32,
    }
    /// End all links of a vNIC. Its processes and their peers are told `CLOSED_BY_NETWORK`.
    /// Answered with `Disconnected`, or as `SetVnic`.
    DisconnectVnic {
        /// As in `SetVnic`.
        name: [u8; VNIC_NAME_BYTES],
    }
    /// Answer to `DisconnectVnic`.
    Disconnected {
        /// Links that were ended.
        links: u32,
        reserved: u32,
    }
    /// Write the packets of a vNIC into the file that comes along (a regular file), until
    /// `EndCapture` or the end of this connection. Answered with `Done`, or as `SetVnic`; `EBUSY`
    /// if another one captures.
    Capture {
        /// As in `SetVnic`; empty: the daemon's own vNIC.
        name: [u8; VNIC_NAME_BYTES],
        /// Bytes of each packet to keep, from the Ethernet header on.
        snap_bytes: u32,
        reserved: u32,
    }
    /// End this connection's capture. Answered with `Captured` when all is written, `ENOENT` if
    /// there is none.
    EndCapture { reserved: u64 }
    /// Answer to `EndCapture`.
    Captured {
        /// Packets in the file.
        packets: u64,
        /// Packets there was no room for: on their way to the file, or in the memory that a process
        /// writes traces into.
        dropped: u64,
        /// What processes wrote that made no sense.
        refused: u64,
        /// Processes whose direct links could not be traced.
        untraced: u32,
        /// What ended the file early, if anything did.
        errno: Errno,
    }
    /// Attach a virtual machine: from now on there is a vNIC `vm-NAME`. The machine's window comes
    /// along: a memfd that can neither shrink nor grow. Behind it may come its ledger, another one,
    /// which has a byte for each page of the data part: the daemon notes there which it has given
    /// away, and gives none that is noted. (And behind these which boot of the guest was the last,
    /// and what tells this machine from others that had its name: 16 bytes each.) So the window can
    /// be attached to another daemon, with the same ledger, while the machine runs. Answered with
    /// `MachineAttached`; `EINVAL` for other
    /// files or another name, `EBUSY` if a machine of this name is attached.
    AttachMachine {
        /// As [`crate::vm::MachineName`] has it, NUL-padded.
        name: [u8; VNIC_NAME_BYTES],
        /// The part of the window that the daemon gives away pieces of, but for its first page.
        data: Extent,
    }
    /// Answer to `AttachMachine`. Descriptor: the machine's door ([`crate::machine`]); while it is
    /// open the machine is attached.
    MachineAttached { reserved: u64 }
    /// Give a machine that is attached a pair window ([`crate::pair`]): one that it has plugged in,
    /// too, and shares with one neighbour. It comes along, a memfd as the machine's own, and its
    /// ledger, which has 64 bytes more than the data part has pages: there the daemon notes whose
    /// it is. Answered with `Done`; `ENOENT` if there is no such machine, `EBUSY` if it has one of
    /// this number, `EINVAL` for other files or numbers.
    AttachPair {
        /// As in `AttachMachine`.
        name: [u8; VNIC_NAME_BYTES],
        /// As in `AttachMachine`.
        data: Extent,
        /// The window's number, from 1 on.
        number: u64,
        /// Where the data part begins in the device that the guest has it by: 0 in one of its own.
        at: u64,
    }
    /// The supervisor of a machine can plug in another pair window, and waits until one is wanted.
    /// Answered with `PairWanted` then; with `Done` at once if there are to be no more, and none
    /// can be taken out; `ENOENT` if there is no such machine. One for each machine waits: whoever
    /// did before is hung up on.
    AwaitPair {
        /// As in `AttachMachine`.
        name: [u8; VNIC_NAME_BYTES],
        /// How many more it would plug in.
        left: u32,
        /// What went wrong with the last one, by the number of a [`PlugTrouble`]; 0: nothing.
        ///
        /// [`PlugTrouble`]: crate::pair::PlugTrouble
        trouble: u16,
        /// What it can do beside: [`CAN_JOIN`], [`CAN_TAKE_OUT`].
        can: u16,
    }
    /// Answer to `AwaitPair`: the machine has no window left for somebody new. The supervisor plugs
    /// one in, brings it (`AttachPair`), and waits again.
    PairWanted { reserved: u64 }
    /// Another answer to `AwaitPair`: another machine's pair window is for this machine, and comes
    /// along. The supervisor plugs it in, says so (`JoinPair`), and waits again. One that does not
    /// say so is offered it again when it waits again.
    PairOffered { reserved: u64 }
    /// A machine has a pair window of another machine's plugged in, which comes along: the same
    /// file. Whose it is, and its ledger, that one's supervisor says, before or after this.
    /// Answered as `AttachPair`.
    JoinPair {
        /// As in `AttachMachine`.
        name: [u8; VNIC_NAME_BYTES],
        /// As in `AttachMachine`.
        data: Extent,
        /// The number that the window has in this machine, from 1 on; none of its own has it.
        number: u64,
        /// As in `AttachPair`, in this machine.
        at: u64,
    }
    /// Another answer to `AwaitPair` of one that can take windows out: nobody uses this one of the
    /// machine's own any more, and nobody is given any of it. The supervisor takes it out, says so
    /// (`PartPair`), and waits again.
    PairOver {
        /// That window's number, from 1 on.
        number: u64,
    }
    /// A window that was said to be over is not in the machine any more: its file is nobody's, and
    /// another one may have its number. Answered with `Done`; `ENOENT` if there is no such machine,
    /// or none of its windows of this number is over.
    PartPair {
        /// As in `AttachMachine`.
        name: [u8; VNIC_NAME_BYTES],
        /// As in `PairOver`.
        number: u64,
    }
    /// Give a machine that is attached its own memory: the file, a memfd that can neither shrink
    /// nor grow, comes along; it goes to nobody. From now on pages of its processes that the engine
    /// is granted may stay where they are ([`crate::pinned_pages`]). Answered with `Done`; `ENOENT`
    /// if there is no such machine, `EBUSY` if its memory is known, `EINVAL` for other files or
    /// places.
    AttachMemory {
        /// As in `AttachMachine`.
        name: [u8; VNIC_NAME_BYTES],
        /// Where the guest has it.
        layout: Layout,
    }
    /// Show sockets. Answered with `SocketsShown`; `ENOENT` if the daemon brings none together.
    ShowSockets { reserved: u64 }
    /// Answer to `ShowSockets`. Descriptor: a socket by which the rows come, from the broker
    /// itself (`sockets/formats/src/socket_status_rows.rs`).
    SocketsShown { reserved: u64 }
    /// Change tenants, policies and vNICs: all that the text says, or nothing. It is JSON:
    /// `{"changes": [{"do": "create", "kind": "vnic", "name": "web", "fields": {}}]}`; `do` is
    /// `create`, `set`, `delete`, or `put` for an object that is as the fields say whatever it was
    /// before; a field that is `null` is taken away. With `"source": "cluster"` beside the changes
    /// these are of what an agent brings, below what was set by command. Answered with
    /// `ObjectsChanged`.
    ChangeObjects {
        /// Bytes of `text`.
        length: u32,
        reserved: u32,
        text: [u8; OBJECT_TEXT_BYTES],
    }
    /// Read the configuration file again. Answered with `ObjectsChanged`.
    ReloadConfiguration { reserved: u64 }
    /// Answer to `ChangeObjects` and `ReloadConfiguration`.
    ObjectsChanged {
        /// Non-zero: nothing was changed, and `text` says why.
        refused: u32,
        /// Bytes of `text`.
        length: u32,
        text: [u8; OBJECT_TEXT_BYTES],
    }
    /// Ask for tenants, policies and vNICs as they were described, from a place on. Answered with
    /// `Status`.
    QueryObjects { from: Cursor }
    /// Ask what this host has of virtual networks, from a place on: the tenants that have one, and
    /// the vNICs that other hosts can reach. Answered with `Status`, whose first row has the number
    /// of changes of objects so far.
    QueryNetworks {
        from: Cursor,
        /// That number, if it is known: then nothing else is answered unless there is a change.
        known: u64,
    }
    /// Part with a machine: its door is closed, and so are the sessions of its processes. Answered
    /// with `Done`, or `ENOENT`.
    DetachMachine {
        /// As in `AttachMachine`.
        name: [u8; VNIC_NAME_BYTES],
    }
}

messages! {
    0x4001 QueryAll, 0x4002 QueryVnics, 0x4003 Status, 0x4004 SetVnic, 0x4005 VnicChanged,
    0x4006 DisconnectVnic, 0x4007 Disconnected, 0x4008 Capture, 0x4009 EndCapture,
    0x400a Captured, 0x400b Done, 0x400c AttachMachine, 0x400d MachineAttached,
    0x400e DetachMachine, 0x400f AttachPair, 0x4010 AwaitPair, 0x4011 PairWanted,
    0x4012 PairOffered, 0x4013 JoinPair, 0x4014 AttachMemory, 0x4015 ShowSockets,
    0x4016 SocketsShown, 0x4017 PairOver, 0x4018 PartPair, 0x4019 ChangeObjects,
    0x401a ReloadConfiguration, 0x401b ObjectsChanged, 0x401c QueryObjects,
    0x401d QueryNetworks,
}

/// `AwaitPair::can`: plug in another machine's window.
pub const CAN_JOIN: u16 = 1;
/// `AwaitPair::can`: take a window out of the machine while that runs.
pub const CAN_TAKE_OUT: u16 = 2;

/// Whose daemon it is: that says where it has its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonScope {
    /// That of the system's daemon.
    Root,
    /// That of a daemon which some user runs for himself.
    User,
}

impl DaemonScope {
    /// That of this user.
    #[must_use]
    pub fn of(uid: u32) -> DaemonScope {
        if uid == 0 { DaemonScope::Root } else { DaemonScope::User }
    }
}

/// Where the operators' socket of a daemon is whose tenants' socket is at `path`. Of root's
/// daemon: in a folder beside the tenants', since that one is mounted into containers. Of another
/// user's, and where the tenants' folder is nobody's to have one beside: in the same.
#[must_use]
pub fn socket_beside(path: &Path, runner: DaemonScope) -> PathBuf {
    // Not beside what is in the root folder itself, as /tmp is.
    let folder = path.parent().filter(|folder| folder.is_absolute());
    let above = folder.and_then(Path::parent).and_then(Path::file_name);
    match (folder, folder.and_then(Path::file_name), path.file_name()) {
        (Some(folder), Some(tenants), Some(name))
            if runner == DaemonScope::Root && above.is_some() =>
        {
            let mut beside = tenants.to_owned();
            beside.push("-operator");
            folder.with_file_name(beside).join(name)
        }
        _ => path.with_extension("operator.sock"),
    }
}

/// The name that files of the daemon begin with that listens at `path` for tenants: its lock, its
/// secret, its log. Always in the folder of [`socket_beside`], wherever operators are heard: root
/// of a container that is given the tenants' folder could hold the lock and read the secret there.
#[must_use]
pub fn files_beside(path: &Path, runner: DaemonScope) -> PathBuf {
    let beside = socket_beside(path, runner);
    path.file_name().map_or_else(|| beside.clone(), |name| beside.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn operators_do_not_share_the_folder_that_containers_are_given() {
        let beside =
            |path: &str, runner| socket_beside(Path::new(path), runner).display().to_string();
        assert_eq!(beside(crate::SYSTEM_SOCKET, DaemonScope::Root), SYSTEM_SOCKET);
        assert_eq!(beside("/a/b/x.sock", DaemonScope::Root), "/a/b-operator/x.sock");
        assert_eq!(beside("/a/b/x.sock", DaemonScope::User), "/a/b/x.operator.sock");
        assert_eq!(beside("/tmp/x.sock", DaemonScope::Root), "/tmp/x.operator.sock");
        assert_eq!(beside("x.sock", DaemonScope::Root), "x.operator.sock");
    }

    #[test]
    fn files_of_the_daemon_are_not_in_the_tenants_folder_either() {
        let beside =
            |path: &str, runner| files_beside(Path::new(path), runner).display().to_string();
        assert_eq!(
            beside(crate::SYSTEM_SOCKET, DaemonScope::Root),
            "/run/omniverb-operator/omniverbd.sock"
        );
        assert_eq!(beside("/a/b/x.sock", DaemonScope::User), "/a/b/x.sock");
        assert_eq!(beside("/tmp/x.sock", DaemonScope::Root), "/tmp/x.sock");
    }

    /// `operations_per_second` was not there once. A command without it means no operations. An
    /// answer without it is no message, so nothing else is taken for it.
    #[test]
    fn messages_from_before_limits_of_operations_are_not_misread() {
        let set =
            SetVnic { name: [b'a'; VNIC_NAME_BYTES], what: SET_RATE, ..FromZeros::new_zeroed() };
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, &set.into(), &mut bytes);
        assert_eq!(
            (size_of::<SetVnic>(), length),
            (VNIC_NAME_BYTES + 80, 16 + VNIC_NAME_BYTES + 80)
        );
        let Ok((1, Message::SetVnic(read))) = decode(&bytes[..length]) else { panic!() };
        assert_eq!((read.what & SET_OPS, read.operations_per_second), (0, 0));

        let changed = VnicChanged { bits_per_second: 8, ..FromZeros::new_zeroed() };
        let length = encode(1, &changed.into(), &mut bytes);
        let header = size_of::<Header>();
        let before = header + std::mem::offset_of!(VnicChanged, operations_per_second);
        assert!(decode(&bytes[..length]).is_ok());
        assert_eq!(decode(&bytes[..before]), Err(DecodeError::Length));
    }

    #[test]
    fn neither_protocol_knows_messages_of_the_other() {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for kind in 0..=u16::MAX {
            let header = Header { version: VERSION, kind, errno: Errno::NONE, tag: 0 };
            bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
            let unknown = |bytes: &[u8]| {
                let ours = decode(bytes) != Err(DecodeError::Kind);
                let theirs = crate::decode(bytes) != Err(DecodeError::Kind);
                (ours, theirs)
            };
            let (ours, theirs) = unknown(&bytes);
            assert!(kind == 0 || !(ours && theirs), "{kind}");
            assert!(kind == 0 || ours == (0x4001..=0x401d).contains(&kind), "{kind}");
        }
    }
}
