//! Chooses the daemon that serves this process.
//!
//! It is the one that the environment names, or the host's and then the user's own. The first two
//! are trusted by their path: only a user that may write there can have put them there. The user's
//! own is at a place that others can take first, so it is looked at
//! (`omniverb_sys::user_daemon_socket`). A setuid program knows the host's only.

use omniverb_session::{SOCKET_VARIABLE, SYSTEM_SOCKET};
use omniverb_sys::{seqpacket_deadline, user_daemon_socket};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A place where a daemon may listen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    trust: Trust,
}

/// Why a listener at a place is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Only a user that may write there can have put it there.
    Path,
    /// It is shown to be this user's.
    Shown,
}

impl Candidate {
    /// Connects to the listener there, if it is to be trusted; until `deadline`, in nanoseconds of
    /// the clock.
    pub(crate) fn connect(&self, deadline: u64) -> io::Result<OwnedFd> {
        match self.trust {
            Trust::Shown => user_daemon_socket::connect(&self.path, deadline),
            Trust::Path => seqpacket_deadline::connect(&self.path, deadline),
        }
    }
}

/// The places to try, in this order.
pub(crate) fn candidates() -> Vec<Candidate> {
    let named = user_daemon_socket::variable(SOCKET_VARIABLE).map(PathBuf::from);
    choose(named, user_daemon_socket::path())
}

fn choose(named: Option<PathBuf>, own: Option<PathBuf>) -> Vec<Candidate> {
    if let Some(path) = named {
        return vec![Candidate { path, trust: Trust::Path }];
    }
    let system = Candidate { path: SYSTEM_SOCKET.into(), trust: Trust::Path };
    let own = own.map(|path| Candidate { path, trust: Trust::Shown });
    std::iter::once(system).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_all_and_the_users_own_is_last_and_looked_at() {
        let paths = |list: Vec<Candidate>| -> Vec<(String, Trust)> {
            list.into_iter().map(|c| (c.path.display().to_string(), c.trust)).collect()
        };
        assert_eq!(
            paths(choose(Some("/a".into()), Some("/b".into()))),
            [("/a".into(), Trust::Path)]
        );
        let both = [(SYSTEM_SOCKET.into(), Trust::Path), ("/b".into(), Trust::Shown)];
        assert_eq!(paths(choose(None, Some("/b".into()))), both);
        assert_eq!(paths(choose(None, None)), both[..1], "a setuid program");
    }
}
