//! The files of a device, as sysfs has them: what they are called and what they say, and keeping a
//! folder so. A file that changes is replaced in one step, so nobody reads half of one.

use super::values::Values;
use anyhow::Context;
use omniverb_session::limits::GIDS_MAX;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::Ipv6Addr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Where the device's files are.
const DEVICE: &str = "sys/class/infiniband/omv0";
/// The node that programs look for.
const NODE: &str = "sys/class/infiniband_verbs/uverbs0";
/// A file in a folder that has all others.
const COMPLETE: &str = "complete";
/// The version of the device, as `ibv_query_device` tells it.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum File {
    Text(String),
    Link(String),
}

/// A folder with the files of a device.
#[derive(Debug, Default)]
pub(super) struct Tree(BTreeMap<String, File>);

impl Tree {
    /// Makes what is in `folder` say this; true if it said something else before. What somebody
    /// else put there stays.
    pub(super) fn show(&mut self, folder: &Path, values: &Values) -> anyhow::Result<bool> {
        let wanted = files(values);
        let mut changed = false;
        for (name, file) in &wanted {
            if self.0.get(name) != Some(file) {
                write(&folder.join(name), file).with_context(|| format!("cannot write {name}"))?;
                changed = true;
            }
        }
        for name in self.0.keys().filter(|name| !wanted.contains_key(*name)) {
            let _ = std::fs::remove_file(folder.join(name));
            changed = true;
        }
        self.0 = wanted;
        Ok(changed)
    }

    /// Removes what is in `folder` and not of this tree: what a keeper left that was killed.
    pub(super) fn remove_others(&self, folder: &Path) {
        self.remove_others_in(folder, "");
    }

    fn remove_others_in(&self, folder: &Path, within: &str) {
        for entry in std::fs::read_dir(folder.join(within)).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = if within.is_empty() { name } else { format!("{within}/{name}") };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.remove_others_in(folder, &name);
            } else if name != COMPLETE && !self.0.contains_key(&name) {
                let _ = std::fs::remove_file(folder.join(name));
            }
        }
    }
}

/// A folder by a descriptor: another one that is put in its place later is not written to.
#[derive(Debug)]
pub(super) struct Pinned {
    _folder: OwnedFd,
    path: PathBuf,
}

impl Pinned {
    /// What is at a path now, if that is a folder and no link.
    pub(super) fn new(folder: &Path) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(folder, flags, Mode::empty())?;
        let path = format!("/proc/self/fd/{}/.", folder.as_raw_fd()).into();
        Ok(Self { _folder: folder, path })
    }

    /// By which this process reaches it.
    pub(super) fn path(&self) -> &Path {
        &self.path
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
pub(super) fn complete(folder: &Path) -> anyhow::Result<()> {
    write(&folder.join(COMPLETE), &File::Text(String::new())).context("cannot write")
}

fn write(path: &Path, file: &File) -> std::io::Result<()> {
    let parent = path.parent().unwrap_or(path);
    let beside = parent.join(".new");
    let make = || {
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match file {
            // New, so not through a link.
            File::Text(text) => OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o644)
                .open(&beside)?
                .write_all(text.as_bytes()),
            File::Link(aim) => symlink(aim, &beside),
        }
    };
    match make() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_folder(parent)?;
            make()?;
        }
        result => result?,
    }
    std::fs::rename(&beside, path)
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

/// By the names that InfiniBand devices have for them. Data is counted in words of four bytes. What
/// cannot happen to a device without a cable is zero for good; of what is not known there is no
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
    fn a_folder_that_is_put_in_its_place_is_not_written_to() {
        let top = std::env::temp_dir().join(format!("omniverb-pin-{}", std::process::id()));
        let (folder, moved, others) = (top.join("shown"), top.join("moved"), top.join("others"));
        make_folder(&folder).unwrap();
        make_folder(&others).unwrap();
        let pinned = Pinned::new(&folder).unwrap();
        std::fs::rename(&folder, &moved).unwrap();
        symlink(&others, &folder).unwrap();
        assert!(Pinned::new(&folder).is_err(), "a link");
        omniverb_sys::own::check_folder(pinned.path()).unwrap();
        let mut tree = Tree::default();
        assert!(tree.show(pinned.path(), &Values::default()).unwrap());
        complete(pinned.path()).unwrap();
        assert!(is_complete(&moved) && moved.join(DEVICE).is_dir());
        assert_eq!(std::fs::read_dir(&others).unwrap().count(), 0);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_folder_says_what_is_true_and_only_that() {
        let folder = std::env::temp_dir().join(format!("omniverb-tree-{}", std::process::id()));
        let mut values = Values::default();
        let (lo, eth): (Ipv6Addr, Ipv6Addr) = ("::1".parse().unwrap(), "fe80::1".parse().unwrap());
        values.gids = vec![(eth, Some("eth0".into())), (lo, None)];
        let mut tree = Tree::default();
        assert!(tree.show(&folder, &values).unwrap());
        assert!(!tree.show(&folder, &values).unwrap(), "nothing is new");
        let read = |name: &str| std::fs::read_to_string(folder.join(DEVICE).join(name));
        assert_eq!(read("ports/1/gid_attrs/ndevs/0").unwrap(), "eth0\n");
        assert!(read("ports/1/gid_attrs/ndevs/1").is_err());
        assert_eq!(read("ports/1/gid_attrs/types/1").unwrap(), "RoCE v2\n");
        assert!(read("ports/1/gid_attrs/types/2").is_err());
        assert_eq!(read("ports/1/gids/31").unwrap(), format!("{}0000\n", "0000:".repeat(7)));
        values.gids.pop();
        values.counters.bytes_sent = 4000;
        assert!(tree.show(&folder, &values).unwrap());
        assert!(read("ports/1/gid_attrs/types/1").is_err());
        assert_eq!(read("ports/1/counters/port_xmit_data").unwrap(), "1000\n");
        // What somebody who is gone left there.
        let old = folder.join(DEVICE).join("ports/1/gids/77");
        std::fs::write(&old, "").unwrap();
        complete(&folder).unwrap();
        tree.remove_others(&folder);
        assert!(!old.exists() && is_complete(&folder));
        assert_eq!(read("ports/1/counters/port_xmit_data").unwrap(), "1000\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let folder = std::env::temp_dir().join(format!("omniverb-link-{}", std::process::id()));
        make_folder(&folder).unwrap();
        let victim = folder.join("victim");
        std::fs::write(&victim, "whole").unwrap();
        for name in [".new", COMPLETE] {
            symlink(&victim, folder.join(name)).unwrap();
        }
        complete(&folder).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "whole");
        assert!(!folder.join(COMPLETE).is_symlink());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
