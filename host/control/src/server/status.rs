//! Writes the status as lines of JSON, as many as fit a message (`Status` of the protocol).

use crate::engine::QpCounters;
use crate::qp_counters::{self, Slot};
use crate::roce_port::VnicPort;
use crate::server::encryption;
use crate::server::operation_contexts::StatusRows;
use crate::vnic_policy::datapath_name;
use omniverb_session::body::{Cursor, STATUS_TEXT_BYTES, Status};
use omniverb_sys::clock;
use omniverb_tenancy::{Path, PeerStatus, ProcessStatus, QpStatus, Row, VnicId, VnicStatus};
use omniverb_terms::Qpn;
use serde_json::{Value, json};

/// Budget: look-ups for one answer. What they find seldom fits into one, either.
const STEPS: usize = 64;

/// Lines for one answer.
struct Slice {
    text: [u8; STATUS_TEXT_BYTES],
    length: usize,
}

impl Slice {
    fn new() -> Slice {
        Slice { text: [0; STATUS_TEXT_BYTES], length: 0 }
    }

    /// False if there is no room for it. What no answer has room for is left out.
    fn add(&mut self, what: &str, row: &Value) -> bool {
        let line = format!("{{\"{what}\":{row}}}\n");
        match self.text.get_mut(self.length..self.length + line.len()) {
            Some(room) => {
                room.copy_from_slice(line.as_bytes());
                self.length += line.len();
                true
            }
            None => self.length == 0,
        }
    }

    fn status(self, next: Option<Cursor>) -> Status {
        Status {
            length: u32::try_from(self.length).unwrap_or(0),
            more: u32::from(next.is_some()),
            next: next.unwrap_or(Cursor::START),
            text: self.text,
        }
    }
}

/// How many rows stand before a cursor, where each row is one step.
fn place(cursor: Cursor) -> usize {
    usize::try_from(cursor.vnic).unwrap_or(usize::MAX)
}

impl StatusRows<'_> {
    /// What there is to see of a vNIC, or of all, from a place on: as much as takes a moment.
    pub(super) fn status_slice(&self, scope: Option<VnicId>, from: Cursor) -> Status {
        let mut slice = Slice::new();
        if from == Cursor::START {
            let mut row = self.daemon_row();
            // Processes hear nothing of the underlay.
            if scope.is_none() {
                row["underlay"] = self.underlay_row();
            }
            slice.add("daemon", &row);
        }
        let next = self.tables.walk(scope, from, STEPS, &mut |row| match row {
            Row::Vnic(vnic) => slice.add("vnic", &self.vnic(&vnic)),
            Row::Process(process) => slice.add("process", &process_row(&process)),
            Row::Qp(qp) => {
                let mut row = queue_pair(self.counters_of(&qp), &qp);
                number(&mut row, scope, [qp.qpn, self.shown(qp.qpn, Qpn(0))[0]]);
                slice.add("qp", &row)
            }
            Row::Peer(qpn, peer) => {
                let mut row = self.peer(qpn, &peer);
                number(&mut row, scope, [peer.qpn, self.shown(qpn, peer.qpn)[1]]);
                slice.add("peer", &row)
            }
            Row::WaitsFor(peer) => slice.add("waiting_for", &json!(peer.0)),
        });
        slice.status(next)
    }

    /// What holds for a vNIC.
    pub(super) fn policy_slice(&self, key: VnicId) -> Status {
        let mut slice = Slice::new();
        slice.add("vnic", &self.policy_row(key));
        slice.status(None)
    }

    /// What holds for all vNICs, from a place on.
    pub(super) fn policies_slice(&self, from: Cursor) -> Status {
        let mut slice = Slice::new();
        let mut at = VnicId(from.vnic);
        while let Some(key) = self.vnic_from(at) {
            if !slice.add("vnic", &self.policy_row(key)) {
                return slice.status(Some(Cursor { vnic: key.0, ..Cursor::START }));
            }
            let Some(next) = key.0.checked_add(1) else { break };
            at = VnicId(next);
        }
        slice.status(None)
    }

    /// Tenants, policies and vNICs as they were described, from a place on.
    pub(super) fn objects_slice(&self, from: Cursor) -> Status {
        let mut slice = Slice::new();
        for (at, mut row) in (from.vnic..).zip(self.objects.rows(place(from))) {
            if let Some(problem) = self.problem_of_address(&row) {
                row["problem"] = problem.into();
            }
            if !slice.add("object", &row) {
                return slice.status(Some(Cursor { vnic: at, ..Cursor::START }));
            }
        }
        slice.status(None)
    }

    /// What this host has of virtual networks, from a place on; `known`: nothing but the revision
    /// is asked for if it is this one.
    pub(super) fn networks_slice(&self, from: Cursor, known: u64) -> Status {
        let mut slice = Slice::new();
        let revision = self.objects.revision();
        if from == Cursor::START {
            slice.add("revision", &revision.into());
            if known == revision {
                return slice.status(None);
            }
        }
        for (at, (kind, row)) in (from.vnic..).zip(self.objects.network_rows(place(from))) {
            if !slice.add(kind, &row) {
                // Another place than the beginning, whatever has no room.
                return slice.status(Some(Cursor { vnic: at, stage: 1, ..Cursor::START }));
            }
        }
        slice.status(None)
    }

    pub(super) fn daemon_row(&self) -> Value {
        let (disposed, seen) = (self.disposal.counts(), self.watchdog.seen());
        let stuck = seen
            .stuck
            .iter()
            .map(|stuck| json!({ "thread": stuck.thread, "seconds": stuck.time / 1_000_000_000 }));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "socket": self.arrivals.listener().path(),
            "seconds": (clock::now() - self.started) / 1_000_000_000,
            "all_namespaces": self.helper.enters(),
            "disposers_lost": disposed.lost,
            "disposers_hanging": disposed.hanging,
            "files_kept": disposed.kept,
            "stuck": stuck.collect::<Vec<_>>(),
            "stuck_so_far": seen.total,
        })
    }

    /// The counters that a process reports for a queue pair. It may write any value; they are
    /// shown, and used for nothing else.
    pub(super) fn counters_of(&self, qp: &QpStatus) -> Option<Slot> {
        let session = self.tables.owner_of(qp.qpn)?;
        let words = self.clients.get(session)?.counters(qp.slot)?;
        (words[0] as u32 == self.shown(qp.qpn, Qpn(0))[0].0).then_some(words)
    }

    /// The numbers that a queue pair's process has for it and for a peer.
    fn shown(&self, qpn: Qpn, peer: Qpn) -> [Qpn; 2] {
        let session = self.tables.owner_of(qpn);
        let shown = session.map(|session| self.tables.shown_ends(session, qpn, peer));
        shown.map_or([qpn, peer], Into::into)
    }

    pub(super) fn vnic(&self, vnic: &VnicStatus) -> Value {
        let guid: Vec<String> =
            vnic.guid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        let gids: Vec<String> = vnic.gids.iter().map(ToString::to_string).collect();
        json!({
            "name": vnic.name,
            "tenant": self.objects.tenant_of(vnic.key),
            "namespace": self.vnics.registry().inode(vnic.key),
            "cookie": self.vnics.registry().serial(vnic.key),
            "node_guid": guid.join(":"),
            "gids": gids,
            "cm_ids": vnic.cm_ids,
            "port": self.vnics.port(vnic.key).map_or("closed", VnicPort::word),
            "datapath": datapath_name(vnic.policy),
            "adoption": vnic.policy.adoption.name(),
            "encryption": self.encryption(vnic.key),
            "rate": vnic.policy.limit.map(|limit| limit.bits_per_second),
            "ops": vnic.policy.operations,
            "faults": vnic.policy.faults.map(|faults| faults.show()),
        })
    }

    /// Whether a vNIC's packets between hosts are encrypted.
    pub(super) fn encryption(&self, key: VnicId) -> &'static str {
        if self.tables.policy(key).encryption.is_none() {
            return "none";
        }
        match self.vnics.psp_port(key).map(VnicPort::word) {
            Some("unavailable") => "psp, but UDP port 1000 cannot be opened",
            _ => "psp",
        }
    }

    /// Why a peer on another host gets nothing.
    fn refusal(&self, qpn: Qpn, peer: &PeerStatus) -> Option<&'static str> {
        if !matches!(peer.path, Path::Carried | Path::Omniverb | Path::Roce) {
            return None;
        }
        let vnic = self.tables.vnic_of(qpn)?;
        self.vnics.refusal(vnic, peer.host.or(peer.address)?).map(encryption::phrase)
    }

    pub(super) fn peer(&self, qpn: Qpn, peer: &PeerStatus) -> Value {
        let counters = match peer.path {
            Path::Direct | Path::Carried => None,
            _ => self.engine.counters(qpn, peer.qpn),
        };
        json!({
            "vnic": peer.vnic,
            "address": peer.address.map(|address| address.to_string()),
            "path": peer.path.name(),
            "why": self.refusal(qpn, peer).unwrap_or(peer.why.phrase()),
            "packets": counters.map(|c: QpCounters| {
                let mut packets = qp_counters::packets(&c);
                packets["sent_bytes"] = c.sent_bytes.into();
                packets["received_bytes"] = c.received_bytes.into();
                packets["window"] = c.window.into();
                packets["in_place"] = c.in_place.into();
                packets
            }),
        })
    }
}

fn process_row(process: &ProcessStatus) -> Value {
    json!({
        "session": process.session.0,
        "pid": process.pid,
        "uid": process.uid,
        "name": process.name,
        "mrs": process.mrs,
        "links": process.links,
        "cm_ids": process.cm_ids,
    })
}

/// Processes see virtual numbers; operators those of packets, and which these are.
fn number(row: &mut Value, scope: Option<VnicId>, [physical, shown]: [Qpn; 2]) {
    let seen = if scope.is_some() { shown } else { physical };
    row["qpn"] = seen.0.into();
    if seen != shown {
        row["virtual_qpn"] = shown.0.into();
    }
}

fn queue_pair(counters: Option<Slot>, qp: &QpStatus) -> Value {
    let words = counters.unwrap_or_default();
    let [head, ..] = words;
    let mut row = qp_counters::row(&words);
    row["type"] = qp.service.name().into();
    row["state"] = if counters.is_some() { state_name((head >> 32) as u8) } else { "?" }.into();
    row["operations"] = ((head >> 48) as u8 & 3).into();
    row
}

/// Names of `enum ibv_qp_state`.
fn state_name(state: u8) -> &'static str {
    let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    names.get(usize::from(state)).copied().unwrap_or("?")
}
