//! Which daemon serves this process.
//!
//! The one that the environment names, or the host's and then the user's own. The first two are
//! believed by their path: only who may write there can have put them there. The user's own is at
//! a place that others can take first, so it is looked at (`omniverb_sys::own`). A setuid program
//! knows the host's only.

use omniverb_session::{SOCKET_VARIABLE, SYSTEM_SOCKET};
use omniverb_sys::{limited, own};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A place to try.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    /// Must be shown to be the user's.
    own: bool,
}

impl Candidate {
    pub(crate) fn connect(&self, deadline: u64) -> io::Result<OwnedFd> {
        match self.own {
            true => own::connect(&self.path, deadline),
            false => limited::connect(&self.path, deadline),
        }
    }
}

/// In order.
pub(crate) fn candidates() -> Vec<Candidate> {
    let named = own::variable(SOCKET_VARIABLE).map(PathBuf::from);
    choose(named, own::path())
}

fn choose(named: Option<PathBuf>, own: Option<PathBuf>) -> Vec<Candidate> {
    if let Some(path) = named {
        return vec![Candidate { path, own: false }];
    }
    let system = Candidate { path: SYSTEM_SOCKET.into(), own: false };
    let own = own.map(|path| Candidate { path, own: true });
    std::iter::once(system).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_all_and_the_users_own_is_last_and_looked_at() {
        let paths = |list: Vec<Candidate>| -> Vec<(String, bool)> {
            list.into_iter().map(|c| (c.path.display().to_string(), c.own)).collect()
        };
        assert_eq!(paths(choose(Some("/a".into()), Some("/b".into()))), [("/a".into(), false)]);
        let both = [(SYSTEM_SOCKET.into(), false), ("/b".into(), true)];
        assert_eq!(paths(choose(None, Some("/b".into()))), both);
        assert_eq!(paths(choose(None, None)), both[..1], "a setuid program");
    }
}
