//! Writes a device's files as sysfs has them, each replaced in one step.
//!
//! No reader sees half of a file.

use super::current_device_values::Values;
use super::folder_writer::{File, Folder};
use anyhow::Context;
use omniverb_session::limits::GIDS_MAX;
use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::net::Ipv6Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Where the device's files are.
const DEVICE: &str = "sys/class/infiniband/omv0";
/// The node that programs look for.
const NODE: &str = "sys/class/infiniband_verbs/uverbs0";
/// A file in a folder that has all others.
const COMPLETE: &str = "complete";
/// The version of the device, as `ibv_query_device` tells it.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A folder with the files of a device.
#[derive(Debug, Default)]
pub(super) struct Tree(BTreeMap<String, File>);

impl Tree {
    /// Writes these values into `folder`; true if it had others before. Files that others put there
    /// stay.
    pub(super) fn show(&mut self, folder: &Folder, values: &Values) -> anyhow::Result<bool> {
        let wanted = files(values);
        let mut changed = false;
        for (name, file) in &wanted {
            if self.0.get(name) != Some(file) {
                folder.write(name, file).with_context(|| format!("cannot write {name}"))?;
                changed = true;
            }
        }
        for name in self.0.keys().filter(|name| !wanted.contains_key(*name)) {
            let _ = folder.remove(name);
            changed = true;
        }
        self.0 = wanted;
        Ok(changed)
    }

    /// Removes what is in `folder` and not of this tree: what a supervisor left that was killed.
    pub(super) fn remove_others(&self, folder: &Folder) {
        self.remove_others_in(folder, "");
    }

    fn remove_others_in(&self, folder: &Folder, within: &str) {
        for (name, is_folder) in folder.entries(within).unwrap_or_default() {
            let name = if within.is_empty() { name } else { format!("{within}/{name}") };
            if is_folder {
                self.remove_others_in(folder, &name);
            } else if name != COMPLETE && !self.0.contains_key(&name) {
                let _ = folder.remove(&name);
            }
        }
    }
}

/// Makes a folder that no other user may write to, whatever the umask says, if it is not there.
pub(super) fn make_folder(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// A folder has all its files.
pub(super) fn is_complete(folder: &Path) -> bool {
    folder.join(COMPLETE).exists()
}

/// Says so of one.
pub(super) fn complete(folder: &Folder) -> anyhow::Result<()> {
    folder.write(COMPLETE, &File::Text(String::new())).context("cannot write")
}

fn files(values: &Values) -> BTreeMap<String, File> {
    let mut all = BTreeMap::new();
    let mut text = |name: String, text: String| {
        all.insert(name, File::Text(text + "\n"));
    };
    let guid = guid(values.node_guid);
    let processors = processors();
    let mask = mask(&processors);
    for (name, value) in [
        ("node_type", "1: CA"),
        ("node_guid", guid.as_str()),
        ("sys_image_guid", guid.as_str()),
        ("node_desc", "omv0"),
        ("fw_ver", VERSION),
        ("hw_rev", "1"),
        ("hca_type", "Omniverb"),
        ("board_id", "omniverb"),
        ("device/numa_node", "-1"),
        ("device/local_cpulist", processors.as_str()),
        ("device/local_cpus", mask.as_str()),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/rate", "100 Gb/sec (4X EDR)"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/lid", "0x0"),
        ("ports/1/lid_mask_count", "0"),
        ("ports/1/sm_lid", "0x0"),
        ("ports/1/sm_sl", "0"),
        ("ports/1/cap_mask", "0x04000000"),
        ("ports/1/pkeys/0", "0xffff"),
    ] {
        text(format!("{DEVICE}/{name}"), value.into());
    }
    for (name, value) in counters(values) {
        text(format!("{DEVICE}/ports/1/{name}"), value.to_string());
    }
    for index in 0..GIDS_MAX {
        let entry = values.gids.get(index);
        let gid = entry.map_or(Ipv6Addr::UNSPECIFIED, |(gid, _)| *gid);
        text(format!("{DEVICE}/ports/1/gids/{index}"), groups(gid));
        let Some((_, interface)) = entry else { continue };
        // Of empty entries there is nothing to say; sysfs refuses to be asked.
        let of = format!("{DEVICE}/ports/1/gid_attrs");
        text(format!("{of}/types/{index}"), "RoCE v2".into());
        if let Some(interface) = interface {
            text(format!("{of}/ndevs/{index}"), interface.clone());
        }
    }
    for (name, value) in [("ibdev", "omv0"), ("abi_version", "1"), ("dev", "1:7")] {
        text(format!("{NODE}/{name}"), value.into());
    }
    text("sys/class/infiniband_verbs/abi_version".into(), "6".into());
    // There is no device for management datagrams; programs that list ports ask for this first.
    text("sys/class/infiniband_mad/abi_version".into(), "5".into());
    if values.has_connection_manager {
        text("sys/class/misc/rdma_cm/abi_version".into(), "4".into());
        text("sys/class/misc/rdma_cm/dev".into(), "1:7".into());
    }
    let mut link = |name: String, aim: &str| {
        all.insert(name, File::Link(aim.into()));
    };
    link(format!("{NODE}/device"), "../../infiniband/omv0/device");
    if let Some(interface) = values.gids.first().and_then(|(_, interface)| interface.as_deref()) {
        let aim = format!("/sys/class/net/{interface}");
        link(format!("{DEVICE}/device/net/{interface}"), &aim);
    }
    // A device that can be opened and refuses what is written to it: everything is done without
    // one. (Stock libraries take the success of a write to /dev/null for an answer, and crash.)
    link("dev/infiniband/uverbs0".into(), "/dev/full");
    if values.has_connection_manager {
        link("dev/infiniband/rdma_cm".into(), "/dev/full");
    }
    all
}

/// By the names that InfiniBand devices have for them. Data is counted in words of four bytes.
/// Errors that a device without a cable cannot have are zero for good; an unknown value has no
/// file.
fn counters(values: &Values) -> Vec<(&'static str, u64)> {
    let counted = &values.counters;
    let packets = &counted.packets;
    let not_ready_heard = counted.not_ready_heard + packets.not_ready_heard;
    vec![
        ("counters/port_xmit_data", counted.bytes_sent / 4),
        ("counters/port_rcv_data", counted.bytes_received / 4),
        ("counters/port_xmit_packets", counted.messages_sent),
        ("counters/port_rcv_packets", counted.messages_received),
        ("counters/unicast_xmit_packets", counted.messages_sent),
        ("counters/unicast_rcv_packets", counted.messages_received),
        ("counters/symbol_error", 0),
        ("counters/link_error_recovery", 0),
        ("counters/link_downed", 0),
        ("counters/local_link_integrity_errors", 0),
        ("counters/excessive_buffer_overrun_errors", 0),
        ("counters/VL15_dropped", 0),
        // All that Linux's rdma_rxe has.
        ("hw_counters/sent_pkts", packets.sent),
        ("hw_counters/rcvd_pkts", packets.received),
        ("hw_counters/duplicate_request", packets.duplicates),
        ("hw_counters/out_of_seq_request", packets.out_of_order),
        ("hw_counters/rcvd_rnr_err", not_ready_heard),
        ("hw_counters/send_rnr_err", counted.not_ready_said + packets.not_ready_said),
        ("hw_counters/rcvd_seq_err", packets.gaps_heard),
        // No answer is put off: the thread that receives one deals with it.
        ("hw_counters/ack_deferred", 0),
        ("hw_counters/retry_exceeded_err", counted.retries_exceeded),
        ("hw_counters/retry_rnr_exceeded_err", counted.rnr_retries_exceeded),
        ("hw_counters/completer_retry_err", packets.retries),
        ("hw_counters/send_err", packets.unsent),
        ("hw_counters/link_downed", 0),
        ("hw_counters/rdma_sends", counted.sends),
        ("hw_counters/rdma_recvs", counted.receives),
        // Names that mlx5 has for two of them.
        ("hw_counters/rnr_nak_retry_err", not_ready_heard),
        ("hw_counters/retrans_pkts", packets.resent),
        ("hw_counters/lifespan", 1000),
    ]
}

fn guid(bytes: [u8; 8]) -> String {
    let pairs = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    pairs.collect::<Vec<_>>().join(":")
}

/// A GID as sysfs writes it: nothing left out.
fn groups(gid: Ipv6Addr) -> String {
    gid.segments().map(|group| format!("{group:04x}")).join(":")
}

/// Which processors there are, as the kernel writes it: "0-3,6". None is nearer than another.
fn processors() -> String {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    if text.trim().is_empty() { "0".into() } else { text.trim().into() }
}

/// Such a list as a mask: words of 32 bits, the highest first.
fn mask(list: &str) -> String {
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
            continue;
        };
        for processor in first..=last.min(first.saturating_add(1 << 16)) {
            words.resize(words.len().max(processor / 32 + 1), 0);
            words[processor / 32] |= 1 << (processor % 32);
        }
    }
    words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_sysfs() {
        assert_eq!(guid([0x82, 0x3d, 0xb3, 0xa3, 0x98, 0xfa, 0x47, 2]), "823d:b3a3:98fa:4702");
        let four = groups("::ffff:10.0.0.1".parse().unwrap());
        assert_eq!(four, "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(mask("0-3,6"), "0000004f");
        assert_eq!(mask("0,33"), "00000002,00000001");
        assert_eq!(mask(""), "00000000");
    }

    #[test]
    fn a_folder_has_current_values_only() {
        let folder = std::env::temp_dir().join(format!("omniverb-tree-{}", std::process::id()));
        let mut values = Values::default();
        let (lo, eth): (Ipv6Addr, Ipv6Addr) = ("::1".parse().unwrap(), "fe80::1".parse().unwrap());
        values.gids = vec![(eth, Some("eth0".into())), (lo, None)];
        make_folder(&folder).unwrap();
        let kept = Folder::open(&folder).unwrap();
        let mut tree = Tree::default();
        assert!(tree.show(&kept, &values).unwrap());
        assert!(!tree.show(&kept, &values).unwrap(), "nothing is new");
        let read = |name: &str| std::fs::read_to_string(folder.join(DEVICE).join(name));
        assert_eq!(read("ports/1/gid_attrs/ndevs/0").unwrap(), "eth0\n");
        assert!(read("ports/1/gid_attrs/ndevs/1").is_err());
        assert_eq!(read("ports/1/gid_attrs/types/1").unwrap(), "RoCE v2\n");
        assert!(read("ports/1/gid_attrs/types/2").is_err());
        assert_eq!(read("ports/1/gids/31").unwrap(), format!("{}0000\n", "0000:".repeat(7)));
        values.gids.pop();
        values.counters.bytes_sent = 4000;
        assert!(tree.show(&kept, &values).unwrap());
        assert!(read("ports/1/gid_attrs/types/1").is_err());
        assert_eq!(read("ports/1/counters/port_xmit_data").unwrap(), "1000\n");
        // A file that an earlier supervisor left there.
        let old = folder.join(DEVICE).join("ports/1/gids/77");
        std::fs::write(&old, "").unwrap();
        complete(&kept).unwrap();
        tree.remove_others(&kept);
        assert!(!old.exists() && is_complete(&folder));
        assert_eq!(read("ports/1/counters/port_xmit_data").unwrap(), "1000\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
