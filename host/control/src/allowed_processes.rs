//! Decides which processes may use the tenants' socket, if the configuration says so.
//!
//! In: the kernel's credentials of a connected process, and the cgroup that the helper has found: a
//! daemon that serves tenants may not look at their processes itself. Out: yes, no, or a question
//! for the helper. A rule lists users, groups and cgroups; a process that fits one entry may
//! connect.

use crate::daemon_log::{Journal, Level};
use omniverb_sys::clock;
use omniverb_sys::pidfd::Peer;
use omniverb_sys::user_and_group_check::UsersAndGroups;
use omniverb_terms::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// An entry: the processes that fit it may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// Users and groups.
    pub people: UsersAndGroups,
    /// Paths of cgroups: a process in one of them or below.
    pub cgroups: Vec<String>,
}

impl Allow {
    fn fits_cgroup(&self, path: &str) -> bool {
        self.cgroups.iter().any(|cgroup| is_below(path, cgroup))
    }
}

/// True if a cgroup is another one or below it. A path with `..` is outside of all that we see.
pub(crate) fn is_below(path: &str, cgroup: &str) -> bool {
    let rest = path.strip_prefix(cgroup.trim_end_matches('/'));
    let inside = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    inside && path.starts_with('/') && !path.split('/').any(|part| part == "..")
}

/// The processes that may use the tenants' socket, and the log of refused ones: one line a second,
/// with the number of refusals it stands for.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    allow: Option<Allow>,
    second: u64,
    unsaid: u64,
}

impl Admission {
    pub(crate) fn new(allow: Option<Allow>) -> Admission {
        Admission { allow, ..Admission::default() }
    }

    /// The processes that it admits; `None`: all.
    pub(crate) fn allow(&self) -> Option<&Allow> {
        self.allow.as_ref()
    }

    /// Whether a connected process may use the socket, or may if its cgroup fits.
    pub(crate) fn admits(
        &mut self,
        peer: &Peer,
        socket: &OwnedFd,
        journal: &mut Journal,
    ) -> Result<(), Errno> {
        let Some(allow) = &self.allow else { return Ok(()) };
        if !allow.cgroups.is_empty() || allow.people.have(peer, socket.as_fd()) {
            return Ok(());
        }
        Err(self.refuse(peer, journal))
    }

    /// The same, once the cgroup is known.
    pub(crate) fn admits_from(
        &mut self,
        peer: &Peer,
        socket: &OwnedFd,
        cgroup: &str,
        journal: &mut Journal,
    ) -> Result<(), Errno> {
        let Some(allow) = &self.allow else { return Ok(()) };
        if allow.fits_cgroup(cgroup) || allow.people.have(peer, socket.as_fd()) {
            return Ok(());
        }
        Err(self.refuse(peer, journal))
    }

    fn refuse(&mut self, peer: &Peer, journal: &mut Journal) -> Errno {
        let second = clock::now() / 1_000_000_000;
        self.unsaid += 1;
        if second != self.second {
            self.second = second;
            let count = std::mem::take(&mut self.unsaid);
            let Peer { pid, uid, gid } = *peer;
            let text = format_args!(
                "not allowed to connect: uid {uid} gid {gid} pid {pid} ({count} refused since this \
                 was said last)"
            );
            journal.log(Level::Warning, text);
        }
        Errno::EACCES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_entry_covers_the_cgroups_below_it() {
        let below = Allow { cgroups: vec!["/a".into(), "/b/c".into()], ..Allow::default() };
        assert!(below.fits_cgroup("/a/x") && below.fits_cgroup("/b/c"));
        assert!(!below.fits_cgroup("/b") && !Allow::default().fits_cgroup("/"));
    }

    #[test]
    fn cgroups_are_compared_by_whole_names() {
        assert!(is_below("/kubepods.slice/pod1", "/kubepods.slice"));
        assert!(is_below("/kubepods.slice", "/kubepods.slice/"));
        assert!(is_below("/anything", "/"));
        assert!(!is_below("/kubepods.slice2", "/kubepods.slice"));
        assert!(!is_below("/kubepods.slice/../user.slice", "/kubepods.slice"));
        assert!(!is_below("/../kubepods.slice", "/"));
        assert!(!is_below("", "/"));
    }
}
