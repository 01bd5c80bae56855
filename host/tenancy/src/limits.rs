//! Lists every maximum of the tables, with the reason for its default.

use omniverb_session::limits::ATTACHMENTS_MAX;

/// Quotas and times. A client over a quota gets `ENOMEM`; others do not notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Budget: vNICs with processes. A container that can make network namespaces can make many;
    /// over this the largest holder's oldest goes.
    pub vnics: usize,
    /// Budget: processes with an open device, and command lines, of the host: each takes
    /// descriptors of the daemon, which has a limit, and two mappings, see
    /// [`Limits::fit_mappings`]. Over this the largest holder's oldest goes.
    pub sessions: usize,
    /// Budget: processes with an open device, per vNIC. Enough for a full node of ranks.
    pub sessions_per_vnic: usize,
    /// Budget: queue pairs of the host: rows of the daemon's memory, see [`Limits::fit_memory`]. Of
    /// this and the next three a vNIC has no more than is left for others.
    pub qps: usize,
    /// Budget: memory regions with remote access, of the host.
    pub mrs: usize,
    /// Budget: link ends of the host.
    pub links: usize,
    /// Budget: ids of the connection manager of the host.
    pub cm_ids: usize,
    /// Budget: queue pairs per vNIC: what small hardware offers.
    pub qps_per_vnic: usize,
    /// Budget: queue pairs per process; each has a slot in the statistics area.
    pub qps_per_session: usize,
    /// Budget: memory regions with remote access, per vNIC.
    pub mrs_per_vnic: usize,
    /// Budget: the same, per process.
    pub mrs_per_session: usize,
    /// Budget: link ends per vNIC; a link takes about 650 KiB of address space. Direct links for
    /// datagrams that others opened may be half of them at most, and make way for all others.
    pub links_per_vnic: usize,
    /// Budget: link ends per process: bounds the mappings a process gets (the kernel allows 65530).
    /// Of those that others opened the same holds as for a vNIC's.
    pub links_per_session: usize,
    /// Budget: datagram links that one foreign vNIC may open towards one vNIC. They need no
    /// consent, so a neighbour must not be able to use up another's whole quota with them; of
    /// several the largest holder's oldest goes when half of a process's or vNIC's quota is used
    /// up.
    pub datagram_links_per_neighbour: usize,
    /// Budget: links to the engine of all vNICs together: each is a mapping of the daemon, see
    /// [`Limits::fit_mappings`]. Over this the largest holder's oldest goes.
    pub engine_links: usize,
    /// Budget: links of connected queue pairs, whose rings are large, see [`Limits::fit_memory`].
    /// Over this the largest holder's oldest of them goes.
    pub engine_connections: usize,
    /// Budget: links to the engine of one vNIC: several must work together to use up the daemon's.
    pub engine_links_per_vnic: usize,
    /// Budget: links to the engine that their processes carry, of the host: of each the daemon
    /// keeps a descriptor. The engine serves further ones.
    pub carried_links: usize,
    /// Budget: the same, of one vNIC.
    pub carried_links_per_vnic: usize,
    /// Budget: links to the engine that datagrams of strangers caused, per vNIC. The sender with
    /// most of them makes room for a new one; where sources are forged, the oldest does.
    pub strangers_per_vnic: usize,
    /// Budget: attachments of a process's queue pairs to multicast groups: each has a link to the
    /// engine.
    pub groups_per_session: usize,
    /// Budget: the same, of all processes of a vNIC.
    pub groups_per_vnic: usize,
    /// How long such a link, or another for datagrams, stays at least: bounds how fast they change.
    pub datagram_link_time_ns: u64,
    /// Budget: ids of the connection manager per vNIC: as many as queue pairs. One takes up to 2
    /// KiB.
    pub cm_ids_per_vnic: usize,
    /// Budget: the same, per process.
    pub cm_ids_per_session: usize,
    /// Budget: grants a process may be waiting for, and the engine of that process's pages.
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
    /// Bytes of an extent: bounds how long owner and kernel are busy with one, and how long a
    /// thread that touches it waits while a hole is punched (50 to 90 ms).
    pub extent_bytes: u64,
    /// Budget: extents of others that a process was granted, each counted once for each link by
    /// which: more than it can have mapped at a time.
    pub granted_per_session: usize,
    /// Budget: questions for its pages that a process may leave unanswered; further ones are
    /// refused, so that its peers cannot fill what waits for it.
    pub questions_per_session: usize,
    /// Budget: probes a vNIC may have under way; and as many for links that it has already.
    pub probes_per_vnic: usize,
    /// How long the owner of an MR may take to hand out its pages.
    pub grant_time_ns: u64,
    /// How long a positive probe result holds.
    pub neighbour_time_ns: u64,
    /// How long a negative one holds.
    pub stranger_time_ns: u64,
    /// How long after its wish a queue pair is told that its peer is gone: time for its process to
    /// take note that the wish was accepted.
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
    /// Bytes of the request ring of an RC or UC link to the engine: packets stay in it while they
    /// are on the network.
    pub engine_request_bytes: u32,
    /// Bytes of its response ring.
    pub engine_response_bytes: u32,
    /// Bytes of the request ring of a link to the engine for datagrams: there may be many.
    pub datagram_request_bytes: u32,
    /// Bytes of its response ring.
    pub datagram_response_bytes: u32,
}

/// Mappings of a process with an open device, besides those of its links: its statistics area, and
/// its bell with the engine.
const MAPPINGS_PER_SESSION: usize = 2;

/// Mappings that the daemon needs for other things: 4096 granted regions, 256 captured processes,
/// its program, heap, stacks, and mappings that wait to be unmapped.
const MAPPINGS_RESERVED: usize = 6144;

impl Limits {
    /// Lowers the host's quotas to the `most` mappings that the kernel allows the daemon
    /// (`vm.max_map_count`, 65530 by default): half for processes, half for links to the engine,
    /// and the unneeded rest of one for the other. Without this no holder would yield, and once the
    /// mappings had run out no process could open a device.
    pub fn fit_mappings(&mut self, most: usize) {
        // Where there are hardly any, most of the reserve is not needed, either.
        let room = most - MAPPINGS_RESERVED.min(most / 2);
        let for_sessions = (room / 2).max(room.saturating_sub(self.engine_links));
        self.sessions = self.sessions.min(for_sessions / MAPPINGS_PER_SESSION).max(1);
        let for_engine_links =
            room.saturating_sub(self.sessions.saturating_mul(MAPPINGS_PER_SESSION));
        self.engine_links = self.engine_links.min(for_engine_links).max(1);
    }

    /// Lowers the host's quotas to so many bytes: of links to the engine, whose rings count both
    /// ways (the daemon writes to two of the four, and a process that punches holes into the others
    /// has it fill them), and of rows of the tables.
    pub fn fit_memory(&mut self, connection_bytes: u64, datagram_bytes: u64, table_bytes: u64) {
        let rows = |row_bytes: u64| {
            let of_kind = table_bytes / TABLES / row_bytes;
            usize::try_from(of_kind).unwrap_or(usize::MAX).max(1)
        };
        self.qps = self.qps.min(rows(QP_BYTES));
        self.mrs = self.mrs.min(rows(MR_BYTES));
        self.links = self.links.min(rows(LINK_END_BYTES));
        self.cm_ids = self.cm_ids.min(rows(CM_ID_BYTES));
        let fitting = |bytes: u64, request_bytes: u32, response_bytes: u32| {
            let rings = u64::from(request_bytes) + u64::from(response_bytes);
            let of_link = LINK_BYTES + 2 * rings;
            usize::try_from(bytes / of_link).unwrap_or(usize::MAX).max(1)
        };
        let connections =
            fitting(connection_bytes, self.engine_request_bytes, self.engine_response_bytes);
        let links =
            fitting(datagram_bytes, self.datagram_request_bytes, self.datagram_response_bytes);
        self.engine_connections = self.engine_connections.min(connections);
        self.engine_links = self.engine_links.min(links.max(connections));
    }
}

/// Budget: bytes of a link to the engine beside its rings: two pages of words, and its rows.
const LINK_BYTES: u64 = 32 << 10;
/// Kinds of rows that share the bytes of the tables, a part each.
const TABLES: u64 = 4;
/// Budget: bytes of a queue pair's rows.
const QP_BYTES: u64 = 1 << 10;
/// Budget: bytes of a memory region's rows.
const MR_BYTES: u64 = 512;
/// Budget: bytes of the rows of a link's end.
const LINK_END_BYTES: u64 = 1 << 10;
/// Budget: bytes of an id of the connection manager.
const CM_ID_BYTES: u64 = 2 << 10;

const MILLISECOND: u64 = 1_000_000;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            vnics: 4096,
            sessions: 65536,
            sessions_per_vnic: 1024,
            qps: 1 << 20,
            mrs: 2 << 20,
            links: 1 << 20,
            cm_ids: 512 << 10,
            qps_per_vnic: 16384,
            qps_per_session: 8192,
            mrs_per_vnic: 65536,
            mrs_per_session: 32768,
            links_per_vnic: 32768,
            links_per_session: 16384,
            datagram_links_per_neighbour: 4096,
            engine_links: 57344,
            engine_connections: 57344,
            engine_links_per_vnic: 8192,
            carried_links: 8192,
            carried_links_per_vnic: 2048,
            strangers_per_vnic: 1024,
            groups_per_session: ATTACHMENTS_MAX,
            groups_per_vnic: 256,
            datagram_link_time_ns: 1000 * MILLISECOND,
            cm_ids_per_session: 8192,
            cm_ids_per_vnic: 16384,
            grants_per_session: 256,
            extents_per_region: 192,
            extents_per_session: 4096,
            extents_per_vnic: 8192,
            extents: 32768,
            extent_bytes: 256 << 20,
            granted_per_session: 16384,
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
            engine_request_bytes: 2048 << 10,
            engine_response_bytes: 256 << 10,
            datagram_request_bytes: 64 << 10,
            datagram_response_bytes: 4 << 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(most: usize) -> (usize, usize) {
        let mut limits = Limits::default();
        limits.fit_mappings(most);
        let rest = Limits { sessions: 65536, engine_links: 57344, ..limits.clone() };
        assert_eq!(rest, Limits::default(), "nothing else changes");
        (limits.sessions, limits.engine_links)
    }

    #[test]
    fn allowed_mappings_are_shared_by_processes_and_links() {
        assert_eq!(fitted(65530), (14846, 29694));
        for most in (16..400_000).step_by(997) {
            let (sessions, engine_links) = fitted(most);
            let reserve = MAPPINGS_RESERVED.min(most / 2);
            assert!(MAPPINGS_PER_SESSION * sessions + engine_links + reserve <= most, "{most}");
        }
    }

    #[test]
    fn links_to_the_engine_fit_into_the_memory_of_the_daemon() {
        for bytes in [0, 512 << 20, 8 << 30, 1 << 50] {
            let mut limits = Limits::default();
            limits.fit_memory(bytes, bytes / 5, bytes / 8);
            let rings = |request: u32, response: u32| 2 * u64::from(request + response);
            let each = rings(limits.engine_request_bytes, limits.engine_response_bytes);
            let all = limits.engine_connections as u64 * each;
            assert!(all <= bytes || limits.engine_connections == 1, "{all} of {bytes}");
            assert!(limits.engine_links >= limits.engine_connections);
            let rows = limits.qps as u64 * QP_BYTES
                + limits.mrs as u64 * MR_BYTES
                + limits.links as u64 * LINK_END_BYTES
                + limits.cm_ids as u64 * CM_ID_BYTES;
            assert!(rows <= bytes / 8 || bytes == 0, "{rows} of {bytes}");
        }
    }

    #[test]
    fn many_allowed_mappings_keep_the_quotas() {
        assert_eq!(fitted(262_144), (65536, 57344));
        assert_eq!(fitted(usize::MAX), (65536, 57344));
        // One of them does not need its half.
        let mut few = Limits { engine_links: 100, ..Limits::default() };
        few.fit_mappings(65530);
        assert_eq!((few.sessions, few.engine_links), (29643, 100));
        let mut few = Limits { sessions: 100, ..Limits::default() };
        few.fit_mappings(65530);
        assert_eq!((few.sessions, few.engine_links), (100, 57344));
    }

    #[test]
    fn few_allowed_mappings_leave_one_of_each() {
        for most in 0..=8 {
            assert_eq!(fitted(most).0, 1);
            assert!(fitted(most).1 >= 1);
        }
        assert_eq!(fitted(1000), (125, 250));
    }
}
