//! Rules for XRC (annex A14): as RC, but each request names an SRQ, and only one end asks.

use crate::scripted_upper_layer::*;
use omniverb_terms::{Placement, Rkey, Selectivity, Service};
use omniverb_transport::{Config, Operation, Request, RequestId, Status, SubmitError};
use omniverb_wire::{AtomicEth, Opcode, PacketPosition, Reth};

const XRC: u8 = 0xa0;

fn of(service: Service) -> End {
    End::new(Config { service, ..config() })
}

fn request(code: u8, psn: u32, srq: u32, parts: PacketParts) -> HandmadePacket {
    make(XRC | code, psn, PacketParts { srq: Some(srq), ask: true, ..parts })
}

#[test]
fn every_request_names_its_queue() {
    let mut end = of(Service::XrcSend);
    let submit = |end: &mut End, id, operation, srq, length| {
        let (id, place) = (RequestId(id), PacketPosition::Only);
        end.connection
            .submit(Request { id, operation, srq, length, place, is_fenced: false })
            .unwrap();
    };
    let (address, key) = (0x1000, Rkey(7));
    let write = Operation::Write { address, key, total: 1, immediate: None, solicited: false };
    submit(&mut end, 1, SEND, 5, 300);
    submit(&mut end, 2, write, 0xff_ffff, 1);
    submit(&mut end, 3, READ, 6, 1);
    submit(&mut end, 4, ADD, 7, 8);
    assert_eq!(
        end.sent(),
        [
            "XRC SEND-FIRST psn 1000 srq 5",
            "XRC SEND-LAST psn 1001 ask srq 5",
            "XRC WRITE-ONLY psn 1002 ask srq 16777215 0x1000+1 rkey 0x7",
            "XRC READ-REQUEST psn 1003 ask srq 6 0x1000+1 rkey 0x7",
            "XRC FETCH-ADD psn 1004 ask srq 7 0x2000 rkey 0x7 add 0x1",
        ]
    );
    // An answer of RC is none.
    end.receive(&ack(1002));
    assert_eq!(end.statuses(), []);
    end.receive(&make(XRC | ACKNOWLEDGE, 1002, acknowledging()));
    assert_eq!(end.statuses(), [(1, Status::Success), (2, Status::Success)]);
}

/// What annex A19 adds is of RC only.
#[test]
fn atomic_writes_and_flushes_are_not_of_it() {
    let mut end = of(Service::XrcSend);
    let (address, key, srq) = (0x1000, Rkey(7), 5);
    let (placement, selectivity) = (Placement::GLOBAL, Selectivity::Range);
    let flush = Operation::Flush { address, key, length: 8, placement, selectivity };
    let eight = Operation::AtomicWrite { address, key, value: [1; 8] };
    for (operation, length) in [(flush, 0), (eight, 8)] {
        let (id, place) = (RequestId(1), PacketPosition::Only);
        let request = Request { id, operation, srq, length, place, is_fenced: false };
        assert_eq!(end.connection.submit(request), Err(SubmitError::Sequence));
    }
    assert_eq!([0xbc, 0xbd].map(Opcode::from_byte), [None; 2]);
}

fn acknowledging() -> PacketParts {
    use omniverb_wire::{Aeth, CREDITS_INVALID, Syndrome};
    PacketParts {
        aeth: Some(Aeth::new(Syndrome::Ack(CREDITS_INVALID), 0)),
        ..PacketParts::default()
    }
}

#[test]
fn the_upper_layer_gets_the_srq_number() {
    let mut end = of(Service::XrcRecv);
    let reth = Some(Reth::new(0x4000, Rkey(7), 10));
    let atomic = Some(AtomicEth::new(0x2000, Rkey(7), 5, 0));
    end.receive(&request(SEND_ONLY, 500, 5, PacketParts { payload: 9, ..PacketParts::default() }));
    end.receive(&request(
        WRITE_ONLY,
        501,
        6,
        PacketParts { reth, payload: 10, ..PacketParts::default() },
    ));
    end.receive(&request(READ_REQUEST, 502, 7, PacketParts { reth, ..PacketParts::default() }));
    end.receive(&request(FETCH_ADD, 503, 8, PacketParts { atomic, ..PacketParts::default() }));
    assert_eq!(end.script.srqs, [5, 6, 7, 8]);
    assert_eq!(
        end.sent(),
        [
            "XRC ACK psn 501 msn 2",
            "XRC READ-RESPONSE-ONLY psn 502 msn 3",
            "XRC ATOMIC-ACKNOWLEDGE psn 503 msn 4 original 0x0"
        ]
        .map(|line| line.replace("XRC ACK", "ACK"))
    );
}

#[test]
fn packets_of_other_services_are_dropped() {
    let mut receiver = of(Service::XrcRecv);
    receiver.receive(&send(500, 1));
    assert_eq!((receiver.sent(), receiver.script.take_log()), (vec![], vec![]));
    let mut plain = end();
    plain.receive(&request(SEND_ONLY, 500, 5, PacketParts::default()));
    assert_eq!((plain.sent(), plain.script.take_log()), (vec![], vec![]));
}

/// The end that asks has nobody who could serve.
#[test]
fn the_end_that_asks_is_not_asked() {
    let mut end = of(Service::XrcSend);
    end.receive(&request(SEND_ONLY, 500, 5, PacketParts::default()));
    end.receive(&request(SEND_ONLY, 507, 5, PacketParts::default()));
    assert_eq!((end.sent(), end.script.take_log()), (vec![], vec![]));
}

#[test]
fn answers_have_no_queue() {
    for code in 0..=255u8 {
        let Some(opcode) = Opcode::from_byte(code) else { continue };
        let extended = code & 0xe0 == XRC;
        assert_eq!(opcode.has_srq(), extended && !opcode.operation.is_response(), "{code:#x}");
    }
}
