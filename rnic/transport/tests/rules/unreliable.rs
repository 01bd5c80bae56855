//! Rules for the unreliable connection.

use crate::script::{MTU, Made, Parts, SEND, Script, config, make, words};
use omniverb_transport::{Delivery, Operation, Request, RequestId, SubmitError, Unreliable};
use omniverb_wire::{DATAGRAM_MAX, Packet, Place, Reth};

struct End {
    connection: Unreliable,
    script: Script,
}

impl End {
    fn new() -> End {
        End { connection: Unreliable::new(config()).unwrap(), script: Script::default() }
    }
    fn receive(&mut self, packet: &Made) {
        packet.parsed(|packet| self.connection.handle_packet(packet, &mut self.script));
    }
}

fn packet(code: u8, psn: u32, payload: usize) -> Made {
    let reth = matches!(code, 0x26 | 0x2a).then(|| Reth::new(0x4000, 7, 300));
    make(code, psn, Parts { reth, payload, ..Parts::default() })
}

#[test]
fn is_over_when_it_has_left_and_asks_for_nothing() {
    let mut end = End::new();
    let request = |id, operation, length| Request {
        id: RequestId(id),
        operation,
        length,
        place: Place::Only,
        fence: false,
    };
    end.connection.submit(request(1, SEND, 300)).unwrap();
    let read = Operation::Read { address: 0, key: 0 };
    assert_eq!(end.connection.submit(request(2, read, 1)), Err(SubmitError::Sequence));
    let mut datagram = [0; DATAGRAM_MAX];
    let mut sent = Vec::new();
    while let Some(length) = end.connection.poll_transmit(&mut datagram, &mut end.script) {
        sent.push(words(&Packet::parse(&datagram[..length]).unwrap()));
    }
    assert_eq!(sent, ["20 1000", "22 1001"]);
    assert!(end.connection.poll_event().is_some());
}

#[test]
fn a_gap_drops_the_message_and_the_next_one_begins_anywhere() {
    let mut end = End::new();
    end.receive(&packet(0x20, 500, MTU));
    end.receive(&packet(0x22, 502, 1)); // 501 is missing
    end.receive(&packet(0x21, 503, MTU));
    end.receive(&packet(0x24, 700, 9));
    end.receive(&packet(0x26, 710, MTU));
    end.receive(&packet(0x28, 711, 44));
    end.receive(&packet(0x26, 712, MTU));
    end.receive(&packet(0x28, 713, 45)); // longer than announced
    end.receive(&packet(0x24, 714, 2));
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
    end.receive(&packet(0x20, 500, MTU));
    end.receive(&packet(0x22, 501, 1));
    end.receive(&packet(0x24, 502, 3));
    assert_eq!(end.script.take_log(), ["send First 0+256", "send Only 0+3"]);
    assert_eq!(end.connection.dropped, 1);
}
