//! Drops privileges that a process does not need, for good.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, getpid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use std::io;

/// What a process may do, as far as this crate's users ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// Entering namespaces (CAP_SYS_ADMIN).
    Enter,
    /// Seeing which namespaces a process of another user is in (CAP_SYS_PTRACE).
    Look,
    /// Reading files of any user (CAP_DAC_READ_SEARCH).
    ReadAll,
    /// Socket buffers beyond the system's usual limit, and addresses of interfaces (CAP_NET_ADMIN).
    NetworkSettings,
    /// UDP ports below 1024 (CAP_NET_BIND_SERVICE).
    LowPorts,
    /// Any number of descriptors in sockets, unread (CAP_SYS_RESOURCE).
    ManyDescriptors,
    /// Hearing of interfaces of all network namespaces (CAP_NET_BROADCAST).
    HearAll,
}

impl Privilege {
    fn capability(self) -> CapabilitySet {
        match self {
            Privilege::Enter => CapabilitySet::SYS_ADMIN,
            Privilege::Look => CapabilitySet::SYS_PTRACE,
            Privilege::ReadAll => CapabilitySet::DAC_READ_SEARCH,
            Privilege::NetworkSettings => CapabilitySet::NET_ADMIN,
            Privilege::LowPorts => CapabilitySet::NET_BIND_SERVICE,
            Privilege::ManyDescriptors => CapabilitySet::SYS_RESOURCE,
            Privilege::HearAll => CapabilitySet::NET_BROADCAST,
        }
    }
}

/// Keeps these, as far as they are there, and gives up all others: in this thread and those that
/// it starts, and in all programs that they ever run. So call it before there is a second thread.
///
/// # Errors
/// What the kernel says.
pub fn keep_only(privileges: &[Privilege]) -> io::Result<()> {
    // Not even by running a program with more.
    set_no_new_privs(true)?;
    let now = capabilities(None)?;
    let wanted: CapabilitySet = privileges.iter().map(|p| p.capability()).collect();
    if now.effective.contains(CapabilitySet::SETPCAP) {
        // Numbers that this kernel does not know are refused, which ends the list.
        for number in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << number);
            if wanted.contains(one) {
                continue;
            }
            match remove_capability_from_bounding_set(one) {
                Err(Errno::INVAL) => break,
                result => result?,
            }
        }
    }
    let kept = wanted & now.permitted;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })?;
    // Before Linux 4.3 there is no such set.
    let _ = clear_ambient_capability_set();
    Ok(())
}

/// Behind it are unused users: no distribution and no container gives out numbers from 0x7000_0000
/// on (systemd's `docs/UIDS-GIDS.md`), but domains do, up to this one (sssd's
/// `ldap_idmap_range_max`, FreeIPA's ranges).
const NOBODYS_FIRST: u32 = 2_000_200_000;

/// Becomes a user and a group of its own, if it is root: one that no file and no other process
/// belongs to. Another user stays what it is. No other process can look into this one afterwards.
/// Call it before there is a second thread.
///
/// # Errors
/// What the kernel says: `EINVAL` in a user namespace that does not have such users.
pub fn become_nobody() -> io::Result<()> {
    if geteuid().is_root() {
        // Numbers of processes are less than 2^22.
        let number = NOBODYS_FIRST + getpid().as_raw_nonzero().get().cast_unsigned();
        let (uid, gid) = (Uid::from_raw(number), Gid::from_raw(number));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sets of the calling thread, from the kernel's own mouth.
    fn sets() -> Vec<(String, u64)> {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let lines = text.lines().filter_map(|line| line.split_once(":\t"));
        let sets = lines.filter(|(name, _)| name.starts_with("Cap"));
        sets.map(|(name, hex)| (name.into(), u64::from_str_radix(hex, 16).unwrap())).collect()
    }

    #[test]
    fn nothing_is_left_but_what_is_kept() {
        // Another thread, which takes the loss with it.
        std::thread::spawn(|| {
            keep_only(&[Privilege::ManyDescriptors]).unwrap();
            let kept = CapabilitySet::SYS_RESOURCE.bits();
            let before = std::fs::read_to_string("/proc/self/status").unwrap();
            let root = before.contains("\nUid:\t0\t");
            for (name, set) in sets() {
                if root || name != "CapBnd" {
                    assert_eq!(set & !kept, 0, "{name}");
                }
            }
            assert!(rustix::thread::no_new_privs().unwrap());
            // A program that root runs gets nothing back.
            let status = std::process::Command::new("cat").arg("/proc/self/status").output();
            let text = String::from_utf8(status.unwrap().stdout).unwrap();
            let effective = text.lines().find(|line| line.starts_with("CapEff:")).unwrap();
            let effective = u64::from_str_radix(effective.split_once('\t').unwrap().1, 16).unwrap();
            assert_eq!(effective & !kept, 0);
        })
        .join()
        .unwrap();
    }
}
