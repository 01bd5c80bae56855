//! Defines the recorder's commands and the summary of a capture.

use super::packet_queue::PacketQueue;
use super::packets_of_traces::TracedEnd;
use omniverb_link::TraceReader;
use omniverb_link::captured_operations_ring::KEEP_MAX;
use omniverb_ring::Window;
use omniverb_terms::{Errno, Qpn, VnicId};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Something for the recorder to do. Captures and sessions are numbered by the control plane.
pub(crate) enum Task {
    Begin {
        capture: u64,
        vnic: VnicId,
        file: OwnedFd,
        snap_bytes: u32,
        queue: Arc<PacketQueue>,
    },
    End {
        capture: u64,
    },
    Process {
        session: u64,
        memory: Window,
    },
    EndProcess {
        session: u64,
    },
    Link {
        session: u64,
        end: TracedEnd,
        vnics: [VnicId; 2],
    },
    EndLink {
        session: u64,
        qpn: Qpn,
        peer_qpn: Qpn,
    },
    Untraced,
    /// To be closed, which may take long.
    Discard(Vec<OwnedFd>),
}

impl Task {
    /// To read what a session tells through this memory, which may be given to it now. Until the
    /// recorder's thread knows how much of each packet is wanted, all of it is.
    pub(super) fn process(session: u64, memory: Window) -> Task {
        if let Some(reader) = TraceReader::new(&memory) {
            reader.want(KEEP_MAX);
        }
        Task::Process { session, memory }
    }
}

/// How a capture went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Packets written to the file.
    pub packets: u64,
    /// Packets that were not: they came faster than they could be written.
    pub dropped: u64,
    /// Records in which processes told of what made no sense.
    pub refused: u64,
    /// Processes that could not be given memory to tell through.
    pub untraced: u32,
    /// Why the file ended early, if it did.
    pub errno: Option<Errno>,
}
