//! Encodes messages to bytes, and decodes them.

use crate::message_macros::messages;
use crate::{VERSION, body::*, carried_links::*, cm::*, limits::MESSAGE_BYTES_MAX};
use omniverb_terms::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What every message starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`VERSION`].
    pub version: u16,
    /// A [`Kind`].
    pub kind: u16,
    /// In answers: none, or why it failed. In calls and events: none.
    pub errno: Errno,
    /// Chosen by the caller, repeated in the answer.
    pub tag: u64,
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Shorter than a header, or not the length its kind has.
    Length,
    /// Another protocol version.
    Version,
    /// No such kind.
    Kind,
}

messages! {
    1 Hello, 2 Welcome, 3 QueryGids, 4 Gids, 5 CreateQp, 6 QpCreated, 7 DestroyQp, 8 ConnectQp,
    9 Connected, 10 DisconnectQp, 11 RegMr, 12 MrRegistered, 13 DeregMr, 14 RequestGrant, 15 Done,
    20 LinkReady, 21 LinkClosed, 22 Adopt, 23 Adopted, 24 Granted, 25 GrantDenied, 26 GidsChanged,
    27 BellClosed, 28 TraceBegin, 29 TraceLink, 30 TraceEnd, 31 TakeBack, 32 LinkRefuses,
    35 Released, 36 QpFailed,
    41 Status, 48 QueryStatus, 49 QueryVnic,
    64 CreateCmId, 65 CmIdCreated, 66 BindCmId, 67 CmIdBound, 68 ListenCmId, 69 ResolveCmId,
    70 CmIdResolved, 71 ConnectCmId, 72 AcceptCmId, 73 RejectCmId, 74 EstablishCmId,
    75 DisconnectCmId, 76 DestroyCmId, 77 QueryCmId, 78 CmIdQueried, 79 CmHappened,
    80 AttachGroup, 81 GroupAttached, 82 HandOver, 83 HandedOver,
    84 OpenQp, 85 QpOpened, 86 LetGo, 87 Pin, 88 Pinned, 89 GrantEnded,
    90 CarriedPort, 91 PeerPort, 92 AttachLink, 93 GiveLink,
}

const _: () = assert!(size_of::<Header>() + size_of::<Status>() <= MESSAGE_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_terms::Service;

    #[test]
    fn a_message_survives_the_wire() {
        let create = CreateQp { issued: 1, ticket: [3; 16], ..CreateQp::new(Service::Rc, 7, 9) };
        let message = Message::from(create);
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(42, &message, &mut bytes);
        assert_eq!(decode(&bytes[..length]), Ok((42, message)));
        assert_eq!(decode(&bytes[..length - 1]), Err(DecodeError::Length));
        assert_eq!(decode(&bytes[..length + 1]), Err(DecodeError::Length));
    }

    #[test]
    fn a_failure_carries_its_errno() {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let length = encode(1, &Message::Failed(Errno::ENOMEM), &mut bytes);
        assert_eq!(decode(&bytes[..length]), Ok((1, Message::Failed(Errno::ENOMEM))));
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(decode(&[]), Err(DecodeError::Length));
        assert_eq!(decode(&[0; 16]), Err(DecodeError::Version));
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[2..4].copy_from_slice(&999u16.to_ne_bytes());
        assert_eq!(decode(&bytes), Err(DecodeError::Kind));
    }
}
