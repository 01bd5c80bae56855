//! What the daemon's thread wakes up for, and how that is written as a token of the poller: a kind
//! in the top byte, a session's number below.

use omniverb_tenancy::SessionId;

/// One of the two sockets that can be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entrance {
    /// For processes that want a device.
    Tenants,
    /// For those who may see and change everything.
    Operators,
}

/// What has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    /// Whoever started the daemon wants it to end.
    Termination,
    /// Somebody connects at one of the doors.
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
    /// A machine's porter asks something at its door, or has closed it.
    Machine(SessionId),
    /// A process has ended that had been parted with before.
    Leaver(SessionId),
    /// The engine has something to tell.
    Engine,
    /// The recorder has begun or ended captures.
    Recorder,
    /// A disposer has closed files, or there are some for it.
    Disposal,
    /// The broker of sockets has died.
    Broker,
    /// Files are gone that somebody might have had yet.
    Held,
}

/// Bits of a token that are the number's.
const NUMBER: u64 = (1 << 56) - 1;

impl Ready {
    pub(crate) fn token(self) -> u64 {
        let (kind, number) = match self {
            Ready::Termination => (1, 0),
            Ready::Connection(Entrance::Tenants) => (2, 0),
            Ready::Connection(Entrance::Operators) => (3, 0),
            Ready::Helper => (4, 0),
            Ready::Calls(id) => (5, id.0),
            Ready::Events(id) => (6, id.0),
            Ready::Process(id) => (7, id.0),
            Ready::Operator(id) => (8, id.0),
            Ready::Engine => (9, 0),
            Ready::Recorder => (10, 0),
            Ready::Disposal => (11, 0),
            Ready::Machine(id) => (12, id.0),
            Ready::Leaver(id) => (13, id.0),
            Ready::Broker => (14, 0),
            Ready::Held => (15, 0),
        };
        kind << 56 | number & NUMBER
    }

    /// `None`: no token of ours.
    pub(crate) fn of(token: u64) -> Option<Ready> {
        let id = SessionId(token & NUMBER);
        Some(match token >> 56 {
            1 => Ready::Termination,
            2 => Ready::Connection(Entrance::Tenants),
            3 => Ready::Connection(Entrance::Operators),
            4 => Ready::Helper,
            5 => Ready::Calls(id),
            6 => Ready::Events(id),
            7 => Ready::Process(id),
            8 => Ready::Operator(id),
            9 => Ready::Engine,
            10 => Ready::Recorder,
            11 => Ready::Disposal,
            12 => Ready::Machine(id),
            13 => Ready::Leaver(id),
            14 => Ready::Broker,
            15 => Ready::Held,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_say_what_they_were_made_of() {
        let id = SessionId(NUMBER);
        for ready in [
            Ready::Termination,
            Ready::Connection(Entrance::Tenants),
            Ready::Connection(Entrance::Operators),
            Ready::Helper,
            Ready::Calls(id),
            Ready::Events(id),
            Ready::Process(id),
            Ready::Operator(id),
            Ready::Engine,
            Ready::Recorder,
            Ready::Disposal,
            Ready::Machine(id),
            Ready::Leaver(id),
            Ready::Broker,
            Ready::Held,
        ] {
            assert_eq!(Ready::of(ready.token()), Some(ready));
        }
        assert_eq!((Ready::of(0), Ready::of(u64::MAX)), (None, None));
    }
}
