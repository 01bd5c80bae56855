//! Lists the events that wake the daemon's thread, and encodes them as tokens of the poller.
//!
//! A token has a kind in the top byte, and a session's number below.

use omniverb_tenancy::SessionId;

/// One of the two sockets that can be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entrance {
    /// For processes that want a device.
    Tenants,
    /// For operators, which may see and change everything.
    Operators,
}

/// What has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// The starter of the daemon wants it to end.
    Termination,
    /// A connection waits at one of the listeners.
    Connection(Entrance),
    /// The helper has answered.
    Helper,
    /// A client calls, or has room for answers again.
    Calls(SessionId),
    /// A client says something unasked, or has room for events again.
    Events(SessionId),
    /// A client's process has ended.
    Process(SessionId),
    /// An operator calls, or is gone.
    Operator(SessionId),
    /// A machine's proxy asks something at its machine socket, or has closed it.
    Machine(SessionId),
    /// A process has ended that had been parted with before.
    DepartedProcess(SessionId),
    /// The engine has something to tell.
    Engine,
    /// The recorder has begun or ended captures.
    Recorder,
    /// A disposer has closed files, or there are some for it.
    Disposal,
    /// The broker of sockets has died.
    Broker,
    /// The configuration is to be read again.
    Reload,
    /// Files are gone that a process might have had until now.
    Held,
}

/// Bits of a token that are the number's.
const NUMBER: u64 = (1 << 56) - 1;

impl Wakeup {
    pub(crate) fn token(self) -> u64 {
        let (kind, number) = match self {
            Wakeup::Termination => (1, 0),
            Wakeup::Connection(Entrance::Tenants) => (2, 0),
            Wakeup::Connection(Entrance::Operators) => (3, 0),
            Wakeup::Helper => (4, 0),
            Wakeup::Calls(id) => (5, id.0),
            Wakeup::Events(id) => (6, id.0),
            Wakeup::Process(id) => (7, id.0),
            Wakeup::Operator(id) => (8, id.0),
            Wakeup::Engine => (9, 0),
            Wakeup::Recorder => (10, 0),
            Wakeup::Disposal => (11, 0),
            Wakeup::Machine(id) => (12, id.0),
            Wakeup::DepartedProcess(id) => (13, id.0),
            Wakeup::Broker => (14, 0),
            Wakeup::Held => (15, 0),
            Wakeup::Reload => (16, 0),
        };
        kind << 56 | number & NUMBER
    }

    /// `None`: no token of ours.
    pub(crate) fn of(token: u64) -> Option<Wakeup> {
        let id = SessionId(token & NUMBER);
        Some(match token >> 56 {
            1 => Wakeup::Termination,
            2 => Wakeup::Connection(Entrance::Tenants),
            3 => Wakeup::Connection(Entrance::Operators),
            4 => Wakeup::Helper,
            5 => Wakeup::Calls(id),
            6 => Wakeup::Events(id),
            7 => Wakeup::Process(id),
            8 => Wakeup::Operator(id),
            9 => Wakeup::Engine,
            10 => Wakeup::Recorder,
            11 => Wakeup::Disposal,
            12 => Wakeup::Machine(id),
            13 => Wakeup::DepartedProcess(id),
            14 => Wakeup::Broker,
            15 => Wakeup::Held,
            16 => Wakeup::Reload,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_decode_to_their_wakeup() {
        let id = SessionId(NUMBER);
        for ready in [
            Wakeup::Termination,
            Wakeup::Connection(Entrance::Tenants),
            Wakeup::Connection(Entrance::Operators),
            Wakeup::Helper,
            Wakeup::Calls(id),
            Wakeup::Events(id),
            Wakeup::Process(id),
            Wakeup::Operator(id),
            Wakeup::Engine,
            Wakeup::Recorder,
            Wakeup::Disposal,
            Wakeup::Machine(id),
            Wakeup::DepartedProcess(id),
            Wakeup::Broker,
            Wakeup::Held,
            Wakeup::Reload,
        ] {
            assert_eq!(Wakeup::of(ready.token()), Some(ready));
        }
        assert_eq!((Wakeup::of(0), Wakeup::of(u64::MAX)), (None, None));
    }
}
