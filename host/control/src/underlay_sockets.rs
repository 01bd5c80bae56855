//! Keeps the sockets of UDP port 4791 at this host's underlay addresses.
//!
//! In: the addresses that tenants and policies have, and what the helper could open. Out: which
//! sockets are asked for, and which are closed. They are asked for as soon as an address is
//! configured, so that no other process of the host has the port first, and again and again if they
//! cannot be had.

use omniverb_netns::{Presence, UnderlaySocket};
use omniverb_sys::netns::{Namespace, NetnsIdentity};
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What has become of the socket of an address.
#[derive(Debug)]
enum State {
    /// The helper is at it, in this namespace, if there is one.
    Asked(Option<NetnsIdentity>),
    /// It is there.
    Open,
    /// It cannot be had.
    Failed(io::Error),
    /// It is to be asked for.
    Due,
}

/// One that is wanted.
#[derive(Debug)]
struct Wanted {
    presence: Presence,
    state: State,
    /// Why it could not be had when that was logged.
    told: Option<io::ErrorKind>,
}

/// What there is to say of a socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It is there, after it could not be had.
    Opened,
    /// It cannot be had, for another reason than before.
    Failed,
}

/// The sockets, and the network namespace that they are in.
#[derive(Debug, Default)]
pub(crate) struct UnderlaySockets {
    /// The path of the namespace; `None`: the daemon's own.
    path: Option<PathBuf>,
    /// The one that was behind the path when it was looked at.
    seen: Option<NetnsIdentity>,
    wanted: BTreeMap<IpAddr, Wanted>,
    /// They are looked at again in a while.
    pub(crate) is_retry_set: bool,
}

impl UnderlaySockets {
    /// In the namespace that this path names, or in the daemon's own.
    pub(crate) fn new(path: Option<PathBuf>) -> UnderlaySockets {
        UnderlaySockets { path, ..UnderlaySockets::default() }
    }

    /// The namespace as messages name it.
    pub(crate) fn place(&self) -> String {
        match &self.path {
            Some(path) => format!("the underlay_namespace {}", path.display()),
            None => "this network namespace".into(),
        }
    }

    /// The namespace.
    ///
    /// # Errors
    /// `ENOENT` and the like: there is none at the path, or it may not be looked at.
    pub(crate) fn namespace(&self) -> io::Result<Namespace> {
        let Some(path) = &self.path else { return Namespace::current() };
        // A pipe would have us wait.
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let file = std::fs::File::options().read(true).custom_flags(nonblocking).open(path)?;
        let namespace = Namespace::received(file.into())?;
        // Any other file is none, on whatever file system it is.
        match namespace.identity().device == Namespace::current()?.identity().device {
            true => Ok(namespace),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no network namespace")),
        }
    }

    /// The path of the namespace, if it is not the daemon's own.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// If another namespace is at the path than before, all sockets are to be asked for again:
    /// those that are to be closed.
    pub(crate) fn look_at_namespace(&mut self) -> Option<Vec<IpAddr>> {
        let found = self.namespace().ok().map(|namespace| namespace.identity());
        let before = std::mem::replace(&mut self.seen, found);
        // One that cannot be looked at is there all the same: its sockets keep it.
        if before.is_none() || found.is_none() || before == found {
            self.seen = found.or(before);
            return None;
        }
        let mut closed = Vec::new();
        for (ip, wanted) in &mut self.wanted {
            if matches!(wanted.state, State::Open) {
                closed.push(*ip);
            }
            // Of what the helper is at, its answer says where it is.
            if !matches!(wanted.state, State::Asked(_)) {
                wanted.state = State::Due;
            }
        }
        Some(closed)
    }

    /// These are wanted from now on, and no others. Those that are to be closed.
    pub(crate) fn want(&mut self, wanted: &BTreeMap<IpAddr, Presence>) -> Vec<IpAddr> {
        let stays = |ip: &IpAddr, it: &Wanted| wanted.get(ip) == Some(&it.presence);
        let gone = self.wanted.extract_if(.., |ip, it| !stays(ip, it));
        let closed = gone.filter(|(_, it)| matches!(it.state, State::Open)).map(|(ip, _)| ip);
        let closed = closed.collect();
        for (ip, presence) in wanted {
            self.wanted.entry(*ip).or_insert(Wanted {
                presence: *presence,
                state: State::Due,
                told: None,
            });
        }
        closed
    }

    /// The next one that is to be asked for. `place`: the namespace that it will be in.
    pub(crate) fn next_due(&mut self, place: Option<NetnsIdentity>) -> Option<UnderlaySocket> {
        let mut all = self.wanted.iter_mut();
        let (ip, wanted) = all.find(|(_, wanted)| matches!(wanted.state, State::Due))?;
        wanted.state = State::Asked(place);
        Some(UnderlaySocket { ip: *ip, presence: wanted.presence })
    }

    /// Those that could not be had are to be asked for again.
    pub(crate) fn try_again(&mut self) {
        for wanted in self.wanted.values_mut() {
            if matches!(wanted.state, State::Failed(_)) {
                wanted.state = State::Due;
            }
        }
    }

    /// Whether they have to be looked at again in a while: some could not be had, or another
    /// namespace may come to the path.
    pub(crate) fn is_retry_due(&self) -> bool {
        let has_failed = |wanted: &Wanted| matches!(wanted.state, State::Failed(_));
        !self.wanted.is_empty() && (self.path.is_some() || self.wanted.values().any(has_failed))
    }

    /// What has become of one that was asked for. `None`: it is not wanted so any more, or another
    /// namespace is at the path by now, and its socket is of no use.
    pub(crate) fn found(
        &mut self,
        socket: UnderlaySocket,
        outcome: Result<(), io::Error>,
    ) -> Option<Option<News>> {
        let now = self.namespace().ok().map(|namespace| namespace.identity());
        let wanted = self.wanted.get_mut(&socket.ip)?;
        let State::Asked(place) = wanted.state else { return None };
        if wanted.presence != socket.presence {
            return None;
        }
        // One that cannot be looked at is there all the same, as above.
        if let (Some(place), Some(now)) = (place, now)
            && place != now
        {
            wanted.state = State::Due;
            return None;
        }
        self.seen = self.seen.or(place);
        let kind = outcome.as_ref().err().map(io::Error::kind);
        wanted.state = match outcome {
            Ok(()) => State::Open,
            Err(error) => State::Failed(error),
        };
        let before = std::mem::replace(&mut wanted.told, kind);
        Some(match (before, kind) {
            (Some(_), None) => Some(News::Opened),
            (before, now) if now.is_some() && before != now => Some(News::Failed),
            _ => None,
        })
    }

    /// Why an address has no socket, if it is to have one and there was none to be had.
    pub(crate) fn problem(&self, ip: IpAddr) -> Option<&io::Error> {
        match self.wanted.get(&ip)? {
            Wanted { state: State::Failed(error), .. } => Some(error),
            _ => None,
        }
    }

    /// All addresses without a socket, and why.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (IpAddr, &io::Error)> + Clone {
        self.wanted.iter().filter_map(|(ip, wanted)| match &wanted.state {
            State::Failed(error) => Some((*ip, error)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn wanted(list: &[(u8, Presence)]) -> BTreeMap<IpAddr, Presence> {
        list.iter().map(|(last, presence)| (ip(*last), *presence)).collect()
    }

    fn due(all: &mut UnderlaySockets) -> Vec<UnderlaySocket> {
        let place = all.namespace().ok().map(|namespace| namespace.identity());
        std::iter::from_fn(|| all.next_due(place)).collect()
    }

    const HERE: Presence = Presence::Present;
    const ADDED: Presence = Presence::Added;

    #[test]
    fn sockets_are_asked_for_once_and_again_if_they_cannot_be_had() {
        let mut all = UnderlaySockets::default();
        assert!(all.want(&wanted(&[(1, HERE), (2, ADDED)])).is_empty());
        let [one, two] = [(1, HERE), (2, ADDED)]
            .map(|(last, presence)| UnderlaySocket { ip: ip(last), presence });
        assert_eq!(due(&mut all), [one, two]);
        assert!(due(&mut all).is_empty(), "they are asked for");
        let busy = || io::Error::from(io::ErrorKind::AddrInUse);
        assert_eq!(all.found(two, Ok(())), Some(None));
        assert_eq!(all.found(one, Err(busy())), Some(Some(News::Failed)));
        assert!(all.is_retry_due() && all.problem(ip(1)).is_some() && all.problem(ip(2)).is_none());
        all.try_again();
        assert_eq!(due(&mut all), [one]);
        assert_eq!(all.found(one, Err(busy())), Some(None), "it was said");
        all.try_again();
        due(&mut all);
        let gone = io::Error::from(io::ErrorKind::AddrNotAvailable);
        assert_eq!(all.found(one, Err(gone)), Some(Some(News::Failed)), "for another reason");
        assert_eq!(all.problems().count(), 1);
        all.try_again();
        due(&mut all);
        assert_eq!(all.found(one, Ok(())), Some(Some(News::Opened)));
        assert!(!all.is_retry_due());
        // What is the same stays; what is another way is another.
        assert!(all.want(&wanted(&[(1, HERE), (2, ADDED)])).is_empty());
        assert_eq!(all.want(&wanted(&[(1, ADDED)])), [ip(1), ip(2)]);
        let other = UnderlaySocket { presence: ADDED, ..one };
        assert_eq!(due(&mut all), [other]);
        assert_eq!(all.found(one, Ok(())), None, "an answer to an older question");
        all.want(&wanted(&[]));
        assert_eq!(all.found(other, Ok(())), None, "it is not wanted any more");
    }

    /// Whether that was noticed meanwhile or not.
    #[test]
    fn what_the_helper_opened_in_the_namespace_before_is_of_no_use() {
        let folder = std::env::temp_dir().join(format!("underlay-race-{}", std::process::id()));
        let path = folder.join("name");
        std::fs::create_dir_all(&folder).unwrap();
        std::os::unix::fs::symlink("/proc/self/ns/net", &path).unwrap();
        let other = Some(NetnsIdentity { device: 1, inode: 1 });
        for is_noticed in [false, true] {
            let mut all = UnderlaySockets::new(Some(path.clone()));
            all.want(&wanted(&[(1, HERE)]));
            all.seen = other.filter(|_| is_noticed);
            let socket = all.next_due(other).unwrap();
            if is_noticed {
                assert_eq!(all.look_at_namespace(), Some(Vec::new()));
                assert!(due(&mut all).is_empty(), "the helper is at it");
            }
            assert_eq!(all.found(socket, Ok(())), None);
            assert_eq!(due(&mut all), [socket]);
            assert_eq!(all.found(socket, Ok(())), Some(None));
        }
        // One that has gone is there all the same.
        let mut all = UnderlaySockets::new(Some(path.clone()));
        all.want(&wanted(&[(1, HERE)]));
        let socket = due(&mut all)[0];
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(all.found(socket, Ok(())), Some(None));
        assert!(all.seen.is_some());
    }

    #[test]
    fn another_namespace_at_the_path_has_all_asked_for_again() {
        let folder = std::env::temp_dir().join(format!("underlay-{}", std::process::id()));
        let path = folder.join("name");
        std::fs::create_dir_all(&folder).unwrap();
        let mut all = UnderlaySockets::new(Some(path.clone()));
        all.want(&wanted(&[(1, HERE)]));
        assert!(all.look_at_namespace().is_none() && all.namespace().is_err());
        assert!(all.is_retry_due(), "it may come");
        std::fs::write(&path, "no namespace").unwrap();
        assert_eq!(all.namespace().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/self/ns/net", &path).unwrap();
        assert!(all.look_at_namespace().is_none() && all.namespace().is_ok());
        let socket = due(&mut all)[0];
        all.found(socket, Ok(()));
        assert!(all.look_at_namespace().is_none() && due(&mut all).is_empty());
        // As if it had been another one.
        all.seen = Some(NetnsIdentity { device: 1, inode: 1 });
        assert_eq!(all.look_at_namespace(), Some(vec![ip(1)]));
        assert_eq!(due(&mut all), [socket]);
        assert_eq!(all.found(socket, Ok(())), Some(None));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
