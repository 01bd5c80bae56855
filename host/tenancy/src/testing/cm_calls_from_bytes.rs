//! Calls of the connection manager that make some sense, out of a few bytes.

use omniverb_session::Message;
use omniverb_session::cm::{
    AcceptCmId, BindCmId, CM_FAMILY_ONLY, CM_REUSE, CmAddress, CmParameters, ConnectCmId,
    CreateCmId, DestroyCmId, DisconnectCmId, EstablishCmId, FAMILY_IPV4, ListenCmId, QueryCmId,
    RejectCmId, ResolveCmId,
};
use omniverb_terms::{Gid, Qpn};
use std::net::Ipv4Addr;

/// An address of some vNIC's, loopback, or any.
fn address(byte: u8) -> CmAddress {
    let ip: Gid = match byte & 7 {
        0 => Ipv4Addr::UNSPECIFIED.into(),
        7 => Ipv4Addr::LOCALHOST.into(),
        number => Ipv4Addr::new(10, 0, 0, number).into(),
    };
    CmAddress { family: FAMILY_IPV4, port: u16::from(byte >> 3 & 3), interface: 0, ip }
}

/// A call of the connection manager, as a program may make it or not.
pub(super) fn call([what, which, one, other]: [u8; 4]) -> Message {
    let (id, private) = (u32::from(which % 8), [one; 224]);
    let flags = u32::from(which >> 4) & (CM_REUSE | CM_FAMILY_ONLY);
    let qpn = Qpn(u32::from(one % 16) + 2);
    let parameters = CmParameters {
        responder_resources: one,
        initiator_depth: other,
        private_length: other % 64,
        ..CmParameters::NONE
    };
    match what % 12 {
        0 => {
            // The last two are the ends of XRC.
            let kinds = [(0x106, 2), (0x111, 4), (0x106, 2), (0x13f, 9), (0x13f, 10)];
            let (space, qp_type) = kinds[usize::from(one) % kinds.len()];
            CreateCmId { space, qp_type }.into()
        }
        1 => BindCmId { id, flags, address: address(one) }.into(),
        2 => ListenCmId { id, backlog: u32::from(one % 4) }.into(),
        3 => {
            let local = if other & 0x80 == 0 { CmAddress::NONE } else { address(other) };
            ResolveCmId { id, flags, local, remote: address(one) }.into()
        }
        4 | 5 => ConnectCmId { id, qpn, parameters, private }.into(),
        6 | 7 => AcceptCmId { id, qpn, parameters, private }.into(),
        8 => {
            let (reason, private_length) = (u16::from(one), u16::from(other));
            RejectCmId { id, reason, private_length, private }.into()
        }
        9 if one & 1 == 0 => QueryCmId { id, reserved: 0 }.into(),
        9 => EstablishCmId { id, reserved: 0 }.into(),
        10 => DisconnectCmId { id, reserved: 0 }.into(),
        _ => DestroyCmId { id, taken: u32::from(one % 4) }.into(),
    }
}
