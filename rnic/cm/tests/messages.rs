//! Tests messages: a REQ that is known to be right, round trips, and arbitrary bytes.

use omniverb_cm::testing::fuzz_entry_points;
use omniverb_cm::{
    Disconnect, IpHeader, Mad, Message, Path, PortSpace, Received, Reject, Rejected, Reply,
    Request, Resolve, Resolved, ServiceId, Transport, Wait, reject_reason,
};
use omniverb_terms::{Gid, Psn, Qkey, Qpn, Service};
use omniverb_transport::unreliable_datagram;
use omniverb_wire::{DATAGRAM_MAX, IcrcFlow, IcrcVerdict, Packet};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// From the IPv4 header to the ICRC.
const REQUEST: &str = "\
    4500013400004000401100000a4d00010a4d0002c3c012b7012000006400ffff0000000100000007\
    80010000000000010107020300000000000000011122334400100000000000001122334400000000\
    0000000001061d2f02fc00fffe00000100000000000000000000150100000001000000a0abcdefa7\
    ffff37f0ffffffff00000000000000000000ffff0a4d000100000000000000000000ffff0a4d0002\
    7c3df000004000880000000000000000000000000000000000000000000000000000000000000000\
    0000000000000000000000000040c3500000000000000000000000000a4d00010000000000000000\
    000000000a4d00020000000000000000000000000000000000000000000000000000000000000000\
    000000000000000000000000000000000000000000000000571fd4ab";

fn mapped(last: u8) -> Gid {
    Ipv4Addr::new(10, 77, 0, last).into()
}

fn request() -> Mad {
    let header = IpHeader {
        port: 50000,
        source: Ipv4Addr::new(10, 77, 0, 1).into(),
        destination: Ipv4Addr::new(10, 77, 0, 2).into(),
    };
    let mut private = [0; 92];
    private[..IpHeader::BYTES].copy_from_slice(&header.to_bytes());
    Mad {
        transaction: 0x1_1122_3344,
        modifier: 0,
        message: Message::Request(Request {
            communication: 0x1122_3344,
            vendor: 0,
            options: 0,
            service: ServiceId { space: PortSpace::Tcp, port: 7471 }.to_u64(),
            device: 0x02fc_00ff_fe00_0001,
            queue_key: Qkey(0),
            queue_pair: Qpn(0x15),
            responder_resources: 1,
            initiator_depth: 1,
            contexts: (0, 0),
            remote_timeout: 20,
            local_timeout: 20,
            transport: Transport::Of(Service::Rc),
            has_flow_control: false,
            psn: Psn::new(0xab_cdef),
            retry_count: 7,
            partition_key: 0xffff,
            path_mtu: 3,
            has_datagram_channels: false,
            rnr_retry: 7,
            manager_retries: 15,
            has_srq: false,
            primary: Path {
                local_lid: 0xffff,
                remote_lid: 0xffff,
                local_gid: mapped(1),
                remote_gid: mapped(2),
                flow_label: 0x7c3df,
                rate: 0,
                traffic_class: 0,
                hop_limit: 64,
                service_level: 0,
                is_subnet_local: false,
                ack_timeout: 17,
            },
            alternate: Path::default(),
            may_propose_path: false,
            private,
        }),
    }
}

#[test]
fn a_captured_request_decodes_to_its_fields() {
    let digits: Vec<u32> = REQUEST.chars().filter_map(|c| c.to_digit(16)).collect();
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    let flow = IcrcFlow {
        source: Ipv4Addr::new(10, 77, 0, 1).into(),
        destination: Ipv4Addr::new(10, 77, 0, 2).into(),
        source_port: 0xc3c0,
    };
    let known = &bytes[28..];
    assert_eq!(flow.check(known, None), IcrcVerdict::Exact);
    let packet = Packet::parse(known).unwrap();
    let arrived = unreliable_datagram::read(&packet, Qkey::GENERAL_SERVICES).unwrap();
    assert_eq!(arrived.source, Qpn::GENERAL_SERVICES);
    assert_eq!(Mad::parse(arrived.message.data), Ok(request()));
    // The same packet, built anew.
    let mut buffer = [0; DATAGRAM_MAX];
    let address = unreliable_datagram::Address {
        destination: Qpn::GENERAL_SERVICES,
        queue_key: Qkey::GENERAL_SERVICES,
        source: Qpn::GENERAL_SERVICES,
    };
    let mad = request().to_bytes();
    let message = unreliable_datagram::Message { immediate: None, is_solicited: false, data: &mad };
    let length = unreliable_datagram::write(&mut buffer, &address, Psn::new(7), &message).unwrap();
    // It was sent by somebody who does not set MigReq.
    buffer[1] &= !0x40;
    flow.seal(&mut buffer[..length], 0);
    assert_eq!(buffer[..length], *known);
}

/// Offsets are those of the whole message, behind the header of 24 bytes.
#[test]
fn the_end_that_sends_asks_for_an_extended_connection() {
    let mut asked = request();
    let Message::Request(said) = &mut asked.message else { unreachable!() };
    said.transport = Transport::Of(Service::XrcSend);
    let mut bytes = asked.to_bytes();
    assert_eq!((bytes[24 + 43] >> 1 & 3, bytes[24 + 51] & 7), (3, 1));
    assert_eq!(Mad::parse(&bytes), Ok(asked));
    for newer in [0, 2, 7] {
        bytes[24 + 51] = bytes[24 + 51] & !7 | newer;
        let Ok(Mad { message: Message::Request(read), .. }) = Mad::parse(&bytes) else { panic!() };
        assert_eq!(read.transport, Transport::Extended(newer));
    }
}

fn array<const N: usize>(seed: u8) -> [u8; N] {
    std::array::from_fn(|at| seed.wrapping_mul(31).wrapping_add(at as u8))
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        (a, b, word, long) in any::<(u32, u32, u32, u64)>(),
        (byte, short, flag) in any::<(u8, u16, bool)>(),
        kind in 0_u8..4,
    ) {
        let (communication, remote, low) = (a, b, word & 0xff_ffff);
        let about = match kind {
            0 => Rejected::Request,
            1 => Rejected::Reply,
            other => Rejected::Other(other),
        };
        let received = Received { communication, remote, private: array(byte) };
        let messages = [
            Message::Wait(Wait {
                communication,
                remote,
                about,
                service_timeout: byte & 31,
                private: array(byte),
            }),
            Message::Reject(Reject {
                communication,
                remote,
                rejected: about,
                information_length: byte & 0x7f,
                reason: reject_reason::STALE_CONNECTION,
                information: array(1),
                private: array(2),
            }),
            Message::Reply(Reply {
                communication,
                remote,
                queue_key: Qkey(word),
                queue_pair: Qpn(low),
                vendor: a & 0xff_ffff,
                options: b,
                context: b & 0xff_ffff,
                psn: Psn::new(low ^ 0xff),
                responder_resources: byte,
                initiator_depth: !byte,
                ack_delay: byte & 31,
                failover: kind,
                has_flow_control: flag,
                rnr_retry: byte & 7,
                has_srq: !flag,
                device: long,
                private: array(3),
            }),
            Message::Ready(received.clone()),
            Message::Disconnected(received),
            Message::Disconnect(Disconnect {
                communication,
                remote,
                queue_pair: Qpn(low),
                private: array(4),
            }),
            Message::Resolve(Resolve {
                request: a,
                partition_key: short,
                service: long,
                private: array(5),
            }),
            Message::Resolved(Resolved {
                request: a,
                status: byte,
                information_length: !byte,
                vendor: low,
                queue_pair: Qpn(b & 0xff_ffff),
                service: long,
                queue_key: Qkey(word),
                information: array(6),
                private: array(7),
            }),
        ];
        for message in messages {
            let mad = Mad { transaction: long, modifier: b, message };
            prop_assert_eq!(Mad::parse(&mad.to_bytes()), Ok(mad));
        }
    }

    #[test]
    fn arbitrary_messages_parse_or_are_refused(
        attribute in 0x10_u8..0x1c,
        bytes in prop::collection::vec(any::<u8>(), 256),
        length in 0_usize..300,
    ) {
        fuzz_entry_points::message(&bytes);
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        fuzz_entry_points::message(&bytes);
        prop_assert_eq!(Mad::parse(&bytes).is_ok(), attribute < 0x19);
        bytes.resize(length, 0);
        prop_assert_eq!(Mad::parse(&bytes).is_ok(), attribute < 0x19 && length == 256);
    }

    #[test]
    fn ip_addresses_and_ports_survive_the_service_id(
        a in any::<u128>(),
        b in any::<u128>(),
        port in any::<u16>(),
    ) {
        let pairs: [(IpAddr, IpAddr); 2] = [
            (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into()),
            (Ipv4Addr::from(a as u32).into(), Ipv4Addr::from(b as u32).into()),
        ];
        for (source, destination) in pairs {
            let header = IpHeader { port, source, destination };
            let fine = |ip: IpAddr| {
                let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
                !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || broadcast)
            };
            let expected = (fine(source) && fine(destination)).then_some(header);
            prop_assert_eq!(IpHeader::read(&header.to_bytes()), expected);
        }
        for space in [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ipoib, PortSpace::Ib] {
            let id = ServiceId { space, port };
            prop_assert_eq!(ServiceId::from_u64(id.to_u64()), Some(id));
        }
    }
}

#[test]
fn the_port_of_a_service() {
    let id = ServiceId { space: PortSpace::Tcp, port: 7471 };
    assert_eq!(id.to_u64(), 0x0106_1d2f);
    assert_eq!(ServiceId::from_u64(0x0000_0001_0106_1d2f), None);
}
