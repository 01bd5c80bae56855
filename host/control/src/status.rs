//! Status as JSON, in pieces that fit a message.

use crate::client::Client;
use crate::engine::{QpCounters, address};
use crate::server::Server;
use crate::vnics::datapath_name;
use omniverb_session::Message;
use omniverb_session::body::{QP_RC, QP_UC, QP_UD, STATUS_TEXT_BYTES, Status};
use omniverb_sys::clock;
use omniverb_tenancy::{Path, PeerStatus, ProcessStatus, QpStatus, SessionId, VnicStatus};
use serde_json::{Value, json};
use std::net::Ipv6Addr;

impl Server {
    /// Answers with a text, in as many messages as it takes.
    pub(crate) fn tell_text(&mut self, id: SessionId, tag: u64, text: &str) {
        let mut rest = text.as_bytes();
        loop {
            let (piece, after) = rest.split_at(rest.len().min(STATUS_TEXT_BYTES));
            rest = after;
            let mut bytes = [0; STATUS_TEXT_BYTES];
            bytes[..piece.len()].copy_from_slice(piece);
            let length = u32::try_from(piece.len()).unwrap_or(0);
            let more = u32::from(!rest.is_empty());
            let message = Message::Status(Status { length, more, text: bytes });
            self.answer(id, tag, &message, Vec::new());
            if rest.is_empty() {
                break;
            }
        }
    }

    pub(crate) fn status_text(&self, scope: Option<omniverb_tenancy::VnicKey>) -> String {
        let vnics: Vec<Value> = self.tenancy.status(scope).iter().map(|v| self.vnic(v)).collect();
        let disposed = self.disposal.counts();
        let status = json!({
            "daemon": {
                "version": env!("CARGO_PKG_VERSION"),
                "pid": std::process::id(),
                "socket": self.place.path(),
                "seconds": (clock::now() - self.started) / 1_000_000_000,
                "all_namespaces": self.privileged,
                "disposers_lost": disposed.lost,
                "disposers_hanging": disposed.hanging,
                "files_kept": disposed.kept,
            },
            "vnics": vnics,
        });
        status.to_string()
    }

    fn vnic(&self, vnic: &VnicStatus) -> Value {
        let guid: Vec<String> =
            vnic.guid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        let gids: Vec<String> =
            vnic.gids.iter().map(|gid| Ipv6Addr::from(*gid).to_string()).collect();
        json!({
            "name": vnic.name,
            "namespace": vnic.key.inode,
            "node_guid": guid.join(":"),
            "gids": gids,
            "port": self.namespaces.port_state(vnic.key),
            "datapath": datapath_name(vnic.policy),
            "adoption": vnic.policy.adoption.name(),
            "rate": vnic.policy.limit.map(|limit| limit.bits_per_second),
            "faults": vnic.policy.faults.map(|faults| faults.show()),
            "processes": vnic.processes.iter().map(|p| self.process(p)).collect::<Vec<_>>(),
        })
    }

    fn process(&self, process: &ProcessStatus) -> Value {
        let client = self.clients.get(&process.session);
        json!({
            "session": process.session.0,
            "pid": process.pid,
            "uid": process.uid,
            "name": process.name,
            "mrs": process.mrs,
            "links": process.links,
            "qps": process.qps.iter().map(|qp| self.queue_pair(client, qp)).collect::<Vec<_>>(),
        })
    }

    fn queue_pair(&self, client: Option<&Client>, qp: &QpStatus) -> Value {
        // The process writes these words as it likes; they are shown, nothing else.
        let words = client.and_then(|client| client.counters(qp.slot)).unwrap_or_default();
        let known = words[0] as u32 == qp.qpn;
        let words = if known { words } else { [0; 8] };
        let [head, messages_sent, bytes_sent, messages_received, bytes_received, ..] = words;
        let (path, why) = common_path(&qp.peers);
        let peers: Vec<Value> = qp.peers.iter().map(|p| self.peer(qp.qpn, p)).collect();
        json!({
            "qpn": qp.qpn,
            "type": type_name(qp.qp_type),
            "state": if known { state_name((head >> 32) as u8) } else { "?" },
            "path": path,
            "why": why,
            "datapath": operations_name((head >> 48) as u8, path),
            "peers": peers,
            "waiting_for": qp.waiting_for,
            "messages_sent": messages_sent,
            "bytes_sent": bytes_sent,
            "messages_received": messages_received,
            "bytes_received": bytes_received,
            "operations_mapped": words[5],
            "operations_mediated": words[6],
            "receiver_not_ready": words[7],
        })
    }

    fn peer(&self, qpn: u32, peer: &PeerStatus) -> Value {
        let counters = match peer.path {
            Path::Direct => None,
            _ => self.engine.counters(qpn, peer.qpn),
        };
        json!({
            "qpn": peer.qpn,
            "vnic": peer.vnic,
            "address": peer.gid.map(|gid| address(gid).to_string()),
            "path": peer.path.name(),
            "why": peer.why.phrase(),
            "packets": counters.map(|c: QpCounters| json!({
                "sent": c.sent_packets,
                "sent_bytes": c.sent_bytes,
                "received": c.received_packets,
                "received_bytes": c.received_bytes,
                "resent": c.resent_packets,
                "duplicates": c.duplicate_packets,
                "window": c.window,
                "executed": c.mapped_operations,
                "in_place": c.in_place,
            })),
        })
    }
}

fn type_name(qp_type: u32) -> &'static str {
    match qp_type {
        QP_RC => "RC",
        QP_UC => "UC",
        QP_UD => "UD",
        _ => "?",
    }
}

/// Names of `enum ibv_qp_state`.
fn state_name(state: u8) -> &'static str {
    let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    names.get(usize::from(state)).copied().unwrap_or("?")
}

/// The path of a queue pair, and why: that of its peers, if it is one.
fn common_path(peers: &[PeerStatus]) -> (&'static str, &'static str) {
    let Some(first) = peers.first() else { return ("none", "not connected") };
    let same = |peer: &PeerStatus| (peer.path, peer.why) == (first.path, first.why);
    if peers.iter().all(same) {
        (first.path.name(), first.why.phrase())
    } else if peers.iter().all(|peer| peer.path == first.path) {
        (first.path.name(), "each peer has its own reason")
    } else {
        ("mixed", "each peer has its own path")
    }
}

/// How one-sided operations of a direct link are done; otherwise the path.
fn operations_name(bits: u8, path: &'static str) -> &'static str {
    match bits & 3 {
        1 if path == "direct" => "mapped",
        2 if path == "direct" => "mediated",
        3 if path == "direct" => "mapped+mediated",
        _ => path,
    }
}
