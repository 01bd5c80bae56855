//! Rules for the unreliable connection.

use crate::scripted_upper_layer::*;
use omniverb_terms::Rkey;
use omniverb_transport::{
    Delivery, MESSAGE_MAX, Operation, Request, RequestId, SubmitError, Unreliable,
};
use omniverb_wire::{DATAGRAM_MAX, Packet, PacketPosition, Reth};

struct End {
    connection: Unreliable,
    script: ScriptedUpperLayer,
}

impl End {
    fn new() -> End {
        End {
            connection: Unreliable::new(config()).unwrap(),
            script: ScriptedUpperLayer::default(),
        }
    }
    fn receive(&mut self, packet: &HandmadePacket) {
        packet.parsed(|packet| self.connection.handle_packet(packet, &mut self.script));
    }
}

fn packet(code: u8, psn: u32, payload: usize) -> HandmadePacket {
    let reth =
        matches!(code, UC_WRITE_FIRST | UC_WRITE_ONLY).then(|| Reth::new(0x4000, Rkey(7), 300));
    make(code, psn, PacketParts { reth, payload, ..PacketParts::default() })
}

#[test]
fn is_over_when_it_has_left_and_asks_for_nothing() {
    let mut end = End::new();
    let request = |id, operation, length| Request {
        id: RequestId(id),
        operation,
        srq: 0,
        length,
        place: PacketPosition::Only,
        is_fenced: false,
    };
    end.connection.submit(request(1, SEND, 300)).unwrap();
    let read = Operation::Read { address: 0, key: Rkey(0) };
    assert_eq!(end.connection.submit(request(2, read, 1)), Err(SubmitError::Sequence));
    let mut datagram = [0; DATAGRAM_MAX];
    let mut sent = Vec::new();
    while let Some(length) = end.connection.poll_transmit(&mut datagram, &mut end.script) {
        sent.push(line(&Packet::parse(&datagram[..length]).unwrap()));
    }
    assert_eq!(sent, ["UC SEND-FIRST psn 1000", "UC SEND-LAST psn 1001"]);
    assert!(end.connection.poll_event().is_some());
}

#[test]
fn a_gap_drops_the_message_and_the_next_one_begins_anywhere() {
    let mut end = End::new();
    end.receive(&packet(UC_SEND_FIRST, 500, MTU));
    end.receive(&packet(UC_SEND_LAST, 502, 1)); // 501 is missing
    end.receive(&packet(UC_SEND_MIDDLE, 503, MTU));
    end.receive(&packet(UC_SEND_ONLY, 700, 9));
    end.receive(&packet(UC_WRITE_FIRST, 710, MTU));
    end.receive(&packet(UC_WRITE_LAST, 711, 44));
    end.receive(&packet(UC_WRITE_FIRST, 712, MTU));
    end.receive(&packet(UC_WRITE_LAST, 713, 45)); // longer than announced
    end.receive(&packet(UC_SEND_ONLY, 714, 2));
    let log = end.script.take_log();
    let expected = [
        "send First 0+256",
        "send Only 0+9",
        "write 4000 7 300 First 0+256",
        "write 4000 7 300 Last 256+44",
        "write 4000 7 300 First 0+256",
        "send Only 0+2",
    ];
    assert_eq!(log, expected);
}

#[test]
fn without_a_receive_the_whole_message_is_dropped() {
    let mut end = End::new();
    end.script.answers.push_back(Delivery::NotReady);
    end.receive(&packet(UC_SEND_FIRST, 500, MTU));
    end.receive(&packet(UC_SEND_LAST, 501, 1));
    end.receive(&packet(UC_SEND_ONLY, 502, 3));
    assert_eq!(end.script.take_log(), ["send First 0+256", "send Only 0+3"]);
    assert_eq!(end.connection.dropped, 1);
}

#[test]
fn an_operation_begins_with_a_permit_and_goes_on_without() {
    let mut end = End::new();
    end.connection.operations().require();
    for (id, place, length) in [
        (1, PacketPosition::First, 256),
        (2, PacketPosition::Last, 300),
        (3, PacketPosition::Only, 0),
    ] {
        let request =
            Request { id: RequestId(id), operation: SEND, srq: 0, length, place, is_fenced: false };
        end.connection.submit(request).unwrap();
    }
    let mut datagram = [0; DATAGRAM_MAX];
    let mut count = |end: &mut End| {
        std::iter::from_fn(|| end.connection.poll_transmit(&mut datagram, &mut end.script)).count()
    };
    assert_eq!((count(&mut end), end.connection.operations().is_awaited()), (0, true));
    end.connection.operations().give();
    assert_eq!((count(&mut end), end.connection.operations().is_awaited()), (3, true));
    end.connection.operations().give();
    assert_eq!((count(&mut end), count(&mut end)), (1, 0));
    assert!(!end.connection.operations().is_awaited(), "there is nothing to send");
}

#[test]
fn a_send_without_an_end_is_refused_and_another_message_begins() {
    let mut end = End::new();
    let mut submit = |id, place, length| {
        let (operation, is_fenced) = (SEND, false);
        let request = Request { id: RequestId(id), operation, srq: 0, length, place, is_fenced };
        end.connection.submit(request)
    };
    assert_eq!(submit(1, PacketPosition::First, MESSAGE_MAX - 256), Ok(()));
    assert_eq!(submit(2, PacketPosition::Middle, 256), Ok(()));
    assert_eq!(submit(3, PacketPosition::Middle, 256), Err(SubmitError::Length));
    assert_eq!(submit(3, PacketPosition::First, 256), Ok(()), "a message may break off");
    assert_eq!(submit(4, PacketPosition::Last, 300), Ok(()));
}
