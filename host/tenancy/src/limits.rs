//! Every maximum of the tables, with the reason for its default.

/// Quotas and times. A client over a quota gets `ENOMEM`; nobody else notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// vNICs with processes. A container that can make network namespaces can make many; over this
    /// the largest holder's oldest goes.
    pub vnics: usize,
    /// Processes with an open device, and command lines, of the host: each takes descriptors of the
    /// daemon, which has a limit. Over this the largest holder's oldest goes.
    pub sessions: usize,
    /// Processes with an open device, per vNIC. Enough for a full node of ranks.
    pub sessions_per_vnic: usize,
    /// Queue pairs per vNIC: what small hardware offers.
    pub qps_per_vnic: usize,
    /// Queue pairs per process; each has a slot in the statistics area.
    pub qps_per_session: usize,
    /// Memory regions with remote access, per vNIC.
    pub mrs_per_vnic: usize,
    /// The same, per process.
    pub mrs_per_session: usize,
    /// Link ends per vNIC; a link takes about 650 KiB of address space.
    pub links_per_vnic: usize,
    /// Link ends per process: bounds the mappings a process gets (the kernel allows 65530).
    pub links_per_session: usize,
    /// Datagram links that one foreign vNIC may open towards one vNIC. They need no consent,
    /// so a neighbour must not be able to use up somebody's whole quota with them.
    pub datagram_links_per_neighbour: usize,
    /// Links to the engine of all vNICs together: each is a mapping of the daemon, and the kernel
    /// allows it 65530. Over this the largest holder's oldest goes.
    pub wires: usize,
    /// Those of one vNIC: several must work together to use up the daemon's.
    pub wires_per_vnic: usize,
    /// Links to the engine that datagrams of strangers caused, per vNIC. Sources can be forged, so
    /// the oldest makes room for a new one.
    pub strangers_per_vnic: usize,
    /// How long such a link, or another for datagrams, stays at least: bounds how fast they change.
    pub datagram_link_time_ns: u64,
    /// Grants a process may be waiting for, and the engine of what is that process's.
    pub grants_per_session: usize,
    /// Extents of one region: enough for any region, since each doubles what there is or closes a
    /// gap.
    pub extents_per_region: usize,
    /// Extents of all regions of a process. Each is a descriptor of the daemon's, and a mapping of
    /// the process's, of which the kernel allows it 65530.
    pub extents_per_session: usize,
    /// Those of one vNIC.
    pub extents_per_vnic: usize,
    /// Those of all together; the daemon must have as many descriptors to spare.
    pub extents: usize,
    /// Bytes of an extent: bounds how long owner and kernel are busy with one, and how long whoever
    /// touches it waits while somebody punches a hole (50 to 90 ms).
    pub extent_bytes: u64,
    /// Extents of others that a process was granted, each counted once for each link by which: more
    /// than it can have mapped at a time.
    pub held_per_session: usize,
    /// Questions for its pages that a process may leave unanswered; further ones are refused, so
    /// that its peers cannot fill what waits for it.
    pub questions_per_session: usize,
    /// Probes a vNIC may have under way; and as many for links that it has already.
    pub probes_per_vnic: usize,
    /// How long the owner of an MR may take to hand out its pages.
    pub grant_time_ns: u64,
    /// How long a positive probe result holds.
    pub neighbour_time_ns: u64,
    /// How long a negative one holds.
    pub stranger_time_ns: u64,
    /// How long after its wish a queue pair is told that its peer is no more: time for its process
    /// to take note that the wish was accepted.
    pub absence_time_ns: u64,
    /// How old a GID table may be before a query reads the addresses again. Keeps a client that
    /// queries in a loop from keeping the daemon busy.
    pub gids_time_ns: u64,
    /// How long, after a daemon restart, one end of a surviving link waits for the other to
    /// announce itself before it is told that the other is dead.
    pub resume_time_ns: u64,
    /// How long after the daemon was started announcements of what survived are believed at all.
    pub resume_window_ns: u64,
    /// How often the network is asked again whether it lets a link be; zero: never.
    pub consent_time_ns: u64,
    /// Bytes of a link's request ring.
    pub request_bytes: u32,
    /// Bytes of a link's response ring.
    pub response_bytes: u32,
    /// Bytes of the request ring of an RC or UC link to the engine: what is under way on the
    /// network stays in it.
    pub wire_request_bytes: u32,
    /// Bytes of its response ring.
    pub wire_response_bytes: u32,
    /// Bytes of the request ring of a link to the engine for datagrams: there may be many.
    pub datagram_request_bytes: u32,
    /// Bytes of its response ring.
    pub datagram_response_bytes: u32,
}

const MILLISECOND: u64 = 1_000_000;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            vnics: 4096,
            sessions: 65536,
            sessions_per_vnic: 1024,
            qps_per_vnic: 16384,
            qps_per_session: 8192,
            mrs_per_vnic: 65536,
            mrs_per_session: 32768,
            links_per_vnic: 32768,
            links_per_session: 16384,
            datagram_links_per_neighbour: 4096,
            wires: 57344,
            wires_per_vnic: 8192,
            strangers_per_vnic: 1024,
            datagram_link_time_ns: 1000 * MILLISECOND,
            grants_per_session: 256,
            extents_per_region: 192,
            extents_per_session: 4096,
            extents_per_vnic: 8192,
            extents: 32768,
            extent_bytes: 256 << 20,
            held_per_session: 16384,
            questions_per_session: 1024,
            probes_per_vnic: 256,
            grant_time_ns: 2000 * MILLISECOND,
            neighbour_time_ns: 30_000 * MILLISECOND,
            stranger_time_ns: 1000 * MILLISECOND,
            absence_time_ns: 20 * MILLISECOND,
            gids_time_ns: 250 * MILLISECOND,
            resume_time_ns: 5000 * MILLISECOND,
            resume_window_ns: 30_000 * MILLISECOND,
            consent_time_ns: 10_000 * MILLISECOND,
            request_bytes: 256 << 10,
            response_bytes: 64 << 10,
            wire_request_bytes: 2048 << 10,
            wire_response_bytes: 256 << 10,
            datagram_request_bytes: 64 << 10,
            datagram_response_bytes: 4 << 10,
        }
    }
}
