//! Reads facts about a container's network namespace: its name, interfaces, addresses and bridges.

use omniverb_sys::netns::{self, Namespace, NetnsIdentity};
use omniverb_sys::network_interfaces::{self, bridge_of, namespace_id};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Where namespaces have names: those of `ip netns`, CNI and Podman, and Docker's.
pub(crate) const FOLDERS: [&str; 2] = ["/run/netns", "/run/docker/netns"];
/// Budget: names of network namespaces that are looked at in a folder, each time.
pub(crate) const NAMESPACE_NAMES_MAX: usize = 16384;
/// Bytes of a namespace's name that are told.
pub const NAME_BYTES: usize = 255;
/// Bytes of an interface's name, at most one less than the kernel's `IFNAMSIZ`.
pub const INTERFACE_NAME_BYTES: usize = 15;
/// Budget: interfaces of a container that rules look at.
pub const INTERFACES_MAX: usize = 32;
/// Budget: addresses of a container that rules look at.
pub const CONTAINER_ADDRESSES_MAX: usize = 128;

/// An interface of a container, which is no loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerInterface {
    /// Its name in the container, which a privileged container can choose.
    pub name: String,
    /// Packets can pass. While a platform sets the interface up, they cannot yet.
    pub is_up: bool,
    /// The bridge of the helper's namespace that its other end is a port of.
    pub bridge: Option<String>,
    /// Its addresses, which a privileged container can choose.
    pub addresses: Vec<IpAddr>,
}

/// Facts of a container for rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// The name that the namespace has in `/run/netns` or `/run/docker/netns`.
    pub name: Option<String>,
    /// Its interfaces, at most [`INTERFACES_MAX`].
    pub interfaces: Vec<ContainerInterface>,
}

/// The facts of a namespace, and its number that never comes back, where the kernel has one. The
/// calling thread has to be in the host's namespace.
pub(crate) fn collect(namespace: &Namespace) -> io::Result<(ContainerFacts, Option<u64>)> {
    let number = namespace_id(namespace.as_fd())?;
    let (found, cookie) =
        namespace.run(|| Ok((network_interfaces::list()?, netns::cookie().ok())))?;
    let mut room = CONTAINER_ADDRESSES_MAX;
    let mut interfaces = Vec::new();
    for mut interface in found.into_iter().take(INTERFACES_MAX) {
        let bridge = match (interface.peer, number) {
            (Some(peer), Some(number)) => bridge_of(peer, interface.index, number)?,
            _ => None,
        };
        interface.addresses.truncate(room);
        room -= interface.addresses.len();
        let network_interfaces::Interface { name, is_up, addresses, .. } = interface;
        interfaces.push(ContainerInterface { name, is_up, bridge, addresses });
    }
    Ok((ContainerFacts { name: name_of(namespace.identity()), interfaces }, cookie))
}

/// All names of namespaces, with what they name; `device` is that of their file system.
pub(crate) fn named(device: u64) -> impl Iterator<Item = (PathBuf, NetnsIdentity)> {
    let folders = FOLDERS.into_iter().filter_map(|folder| fs::read_dir(folder).ok());
    let entries = folders.flat_map(|folder| folder.flatten().take(NAMESPACE_NAMES_MAX));
    entries.filter_map(move |entry| Some((entry.path(), identity_at(entry.path(), device)?)))
}

/// Which namespace is at a path, if one is.
pub(crate) fn identity_at(path: PathBuf, device: u64) -> Option<NetnsIdentity> {
    let status = fs::metadata(path).ok().filter(|status| status.dev() == device)?;
    Some(NetnsIdentity { device, inode: status.ino() })
}

fn name_of(identity: NetnsIdentity) -> Option<String> {
    let (path, _) = named(identity.device).find(|(_, other)| *other == identity)?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_namespace_has_facts() {
        let ours = Namespace::current().unwrap();
        let (facts, cookie) = collect(&ours).unwrap();
        assert_eq!(cookie, netns::cookie().ok());
        assert!(facts.interfaces.iter().all(|interface| interface.name != "lo"));
        assert!(facts.interfaces.len() <= INTERFACES_MAX);
        assert_eq!(identity_at("/dev/null".into(), ours.identity().device), None);
        let path = PathBuf::from("/proc/self/ns/net");
        assert_eq!(identity_at(path, ours.identity().device), Some(ours.identity()));
    }
}
