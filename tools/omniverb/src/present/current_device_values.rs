//! Asks for the current values of our device.
//!
//! In: the daemon's answers, our network namespace. Out: values, without a form.

use crate::find_drop_in_library;
use crate::tenant_connection::{self, Client};
use omniverb_sys::local_addresses;
use omniverb_sys::local_addresses::Address;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use serde_json::Value;
use std::net::Ipv6Addr;
use std::path::Path;

/// The contents of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Values {
    /// In network byte order.
    pub(super) node_guid: [u8; 8],
    /// The table: each GID, and the name of the interface that has the address, if one has.
    pub(super) gids: Vec<(Ipv6Addr, Option<String>)>,
    pub(super) counters: Counters,
    /// There is a librdmacm of ours. The stock one takes a node that it can open for the kernel's.
    pub(super) has_connection_manager: bool,
}

/// The device's counters since its daemon was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) messages_sent: u64,
    pub(super) bytes_sent: u64,
    pub(super) messages_received: u64,
    pub(super) bytes_received: u64,
    /// SENDs, of the messages sent.
    pub(super) sends: u64,
    /// Receives that got one, of the messages received.
    pub(super) receives: u64,
    /// Messages for which a peer's process had no receive.
    pub(super) not_ready_heard: u64,
    /// Messages of a peer's process for which there was no receive.
    pub(super) not_ready_said: u64,
    /// Requests that failed because they were not answered in time.
    pub(super) retries_exceeded: u64,
    /// Requests that failed for want of a receive.
    pub(super) rnr_retries_exceeded: u64,
    pub(super) packets: Packets,
}

/// Packets by way of the engine, and what they said: of direct links there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packets {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Of those sent.
    pub(super) resent: u64,
    /// Of those received.
    pub(super) duplicates: u64,
    /// Of those sent: could not be.
    pub(super) unsent: u64,
    /// Gaps before requests of peers.
    pub(super) out_of_order: u64,
    /// RNR NAKs received.
    pub(super) not_ready_heard: u64,
    /// RNR NAKs sent.
    pub(super) not_ready_said: u64,
    /// NAKs received because of gaps.
    pub(super) gaps_heard: u64,
    /// Times that sending began anew.
    pub(super) retries: u64,
}

/// Asks again and again.
#[derive(Debug, Default)]
pub(super) struct Source {
    values: Values,
    /// With which addresses the table was fetched.
    addresses: Vec<Address>,
    /// Which daemon counts.
    daemon: u64,
    /// Counters of queue pairs that ended under earlier daemons.
    before: Counters,
    /// Those, and the ones that ended since.
    ended: Counters,
}

impl Source {
    /// Reads the current values. Those of a daemon that does not answer are its last ones.
    pub(super) fn look(&mut self, socket: &Path) -> anyhow::Result<&Values> {
        let addresses = local_addresses::list().unwrap_or_default();
        if self.values.gids.is_empty() || addresses != self.addresses {
            let (client, welcome) = Client::verbs(socket)?;
            self.values.node_guid = welcome.node_guid;
            self.values.gids = table(&client)?;
            self.values.has_connection_manager = find_drop_in_library::has_connection_manager();
            self.addresses = addresses;
        }
        self.count(socket)?;
        Ok(&self.values)
    }

    fn count(&mut self, socket: &Path) -> anyhow::Result<()> {
        // First what is over, then what is not: what ends in between is missing for a moment, and
        // is not counted twice.
        let rows = Client::connect(socket)?.vnics(socket)?;
        let status = tenant_connection::status(socket)?;
        let empty = Vec::new();
        let rows = rows["vnics"].as_array().unwrap_or(&empty);
        let daemon = status["daemon"]["pid"].as_u64().unwrap_or(0);
        if daemon != self.daemon {
            // It counts from zero what ends; what goes on goes on counting.
            (self.daemon, self.before) = (daemon, self.ended);
        }
        let mut now = self.before;
        rows.iter().for_each(|row| now.add(&row["ended"]));
        self.ended = now;
        let qps = status["vnics"].as_array().into_iter().flatten();
        let qps = qps.flat_map(|vnic| vnic["processes"].as_array().into_iter().flatten());
        qps.flat_map(|process| process["qps"].as_array().into_iter().flatten())
            .for_each(|qp| now.add(qp));
        self.values.counters.rise_to(&now);
        Ok(())
    }
}

impl Counters {
    fn packets(&mut self) -> [(&'static str, &mut u64); 10] {
        let of = &mut self.packets;
        [
            ("sent", &mut of.sent),
            ("received", &mut of.received),
            ("resent", &mut of.resent),
            ("duplicates", &mut of.duplicates),
            ("unsent", &mut of.unsent),
            ("out_of_order", &mut of.out_of_order),
            ("not_ready_heard", &mut of.not_ready_heard),
            ("not_ready_said", &mut of.not_ready_said),
            ("gaps_heard", &mut of.gaps_heard),
            ("retries", &mut of.retries),
        ]
    }

    fn each(&mut self) -> [(&'static str, &mut u64); 10] {
        [
            ("messages_sent", &mut self.messages_sent),
            ("bytes_sent", &mut self.bytes_sent),
            ("messages_received", &mut self.messages_received),
            ("bytes_received", &mut self.bytes_received),
            ("sends", &mut self.sends),
            ("receives", &mut self.receives),
            ("not_ready_heard", &mut self.not_ready_heard),
            ("not_ready_said", &mut self.not_ready_said),
            ("retries_exceeded", &mut self.retries_exceeded),
            ("rnr_retries_exceeded", &mut self.rnr_retries_exceeded),
        ]
    }

    fn add(&mut self, row: &Value) {
        for (name, count) in self.each() {
            *count = count.wrapping_add(row[name].as_u64().unwrap_or(0));
        }
        // Of what is over there is one row; what goes on has one for each peer.
        let peers = row["peers"].as_array().into_iter().flatten();
        for row in peers.chain([row]) {
            for (name, count) in self.packets() {
                *count = count.wrapping_add(row["packets"][name].as_u64().unwrap_or(0));
            }
        }
    }

    /// A counter never goes back.
    fn rise_to(&mut self, other: &Counters) {
        let mut other = *other;
        for ((_, count), (_, now)) in self.each().into_iter().zip(other.each()) {
            *count = (*count).max(*now);
        }
        for ((_, count), (_, now)) in self.packets().into_iter().zip(other.packets()) {
            *count = (*count).max(*now);
        }
    }
}

fn table(client: &Client) -> anyhow::Result<Vec<(Ipv6Addr, Option<String>)>> {
    let gids = client.gids()?;
    let count = (gids.count as usize).min(gids.entries.len());
    let entries = gids.entries[..count].iter();
    Ok(entries.map(|e| (Ipv6Addr::from(e.gid.bytes()), name_of(e.ifindex))).collect())
}

/// The name of an interface of our network namespace. (`/sys/class/net` may be another one's.)
pub(super) fn name_of(index: u32) -> Option<String> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).ok()?;
    netdevice::index_to_name(&socket, index).ok()
}

/// The number of an interface of our network namespace.
pub(super) fn index_of(name: &str) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).ok()?;
    netdevice::name_to_index(&socket, name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counters_add_up_and_never_go_back() {
        let mut counters = Counters::default();
        counters.add(&json!({ "messages_sent": 3, "bytes_sent": 30 }));
        counters.add(&json!({ "messages_sent": 4, "not_ready_heard": 1, "state": "RTS" }));
        assert_eq!((counters.messages_sent, counters.bytes_sent), (7, 30));
        counters.add(&json!({ "packets": { "sent": 2 }, "peers": null }));
        let peers = json!([{ "packets": { "sent": 3, "resent": 1 } }, { "packets": null }]);
        counters.add(&json!({ "peers": peers }));
        assert_eq!((counters.packets.sent, counters.packets.resent), (5, 1));
        let mut risen = Counters { messages_sent: 9, ..Counters::default() };
        risen.rise_to(&counters);
        assert_eq!((risen.messages_sent, risen.bytes_sent, risen.not_ready_heard), (9, 30, 1));
    }

    #[test]
    fn the_loopback_has_a_name() {
        let index = index_of("lo").unwrap();
        assert_eq!(name_of(index).as_deref(), Some("lo"));
        assert_eq!(name_of(u32::MAX / 2), None);
    }
}
