//! Rules for runs: packets in the middle of a WRITE that are made and taken in one go.

use crate::scripted_upper_layer::*;
use omniverb_terms::{Rkey, Service};
use omniverb_transport::{AddressedPackets, Config, Operation};
use omniverb_wire::{DATAGRAM_MAX, Packet, Reth};

fn request(total: u64, immediate: Option<[u8; 4]>) -> Operation {
    Operation::Write { address: 0x9000, key: Rkey(7), total, immediate, solicited: false }
}

/// Packets that [`omniverb_transport::Connection::poll_alike`] adds to each, when it may add four.
fn with_alike(end: &mut End) -> Vec<(String, usize)> {
    let mut datagrams = vec![0; 5 * DATAGRAM_MAX];
    let mut list = Vec::new();
    while let Some(sent) = end.connection.poll_transmit(end.now, &mut datagrams, &mut end.script) {
        let length = sent.length;
        let room = &mut datagrams[..];
        let alike = end.connection.poll_alike(end.now, room, length, 4, &mut end.script);
        for (index, datagram) in datagrams.chunks(length).take(1 + alike).enumerate() {
            list.push((line(&Packet::parse(datagram).unwrap()), index));
        }
    }
    list
}

#[test]
fn packets_in_the_middle_of_a_write_are_made_in_one_go_and_no_others() {
    let wide = Config { window: 1000, window_floor: 1000, ..config() };
    let whole = Config { naming: AddressedPackets::Every, ask_every: Some(1000), ..wide };
    let submit = |end: &mut End| {
        end.submit(1, request(256 * 12, None), 256 * 12);
        end.submit(2, request(600, Some([1; 4])), 600);
        end.submit(3, SEND, 256 * 3);
    };
    let mut end = End::new(whole.clone());
    submit(&mut end);
    let expected = end.sent();
    let mut end = End::new(whole.clone());
    submit(&mut end);
    let (found, indices): (Vec<_>, Vec<_>) = with_alike(&mut end).into_iter().unzip();
    assert_eq!(found, expected, "the same packets");
    // Not the last of a message, nor one that asks, nor a SEND.
    assert_eq!(indices, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0, 0, 1, 0, 0, 0, 0]);
    end.receive(&ack(1017));
    assert_eq!(end.statuses().len(), 3);
    // What is sent again is judged one by one.
    let mut end = End::new(whole.clone());
    submit(&mut end);
    with_alike(&mut end);
    end.receive(&sequence_nak(1002));
    assert!(with_alike(&mut end).iter().all(|(_, index)| *index == 0));
    // As long as the peer waits for an answer, it takes turns with requests.
    let mut end = End::new(whole.clone());
    submit(&mut end);
    end.receive(&read(500, 0x1000, 7, 256 * 4));
    let codes: Vec<String> = with_alike(&mut end).into_iter().map(|(text, _)| text).collect();
    let answers: Vec<usize> =
        (0..codes.len()).filter(|at| codes[*at].starts_with("READ-RESPONSE-FIRST")).collect();
    let others = (0..codes.len())
        .filter(|at| codes[*at].starts_with("READ-RESPONSE-ONLY"))
        .collect::<Vec<_>>();
    assert_eq!((answers, others), (vec![0, 2, 4], vec![6]));
    // So is everything that a plain RoCE peer gets, or a narrow window lets through.
    for config in [
        Config { naming: AddressedPackets::First, ..whole.clone() },
        Config { window: 2, window_floor: 2, ..whole },
    ] {
        let mut end = End::new(config);
        submit(&mut end);
        assert!(with_alike(&mut end).iter().all(|(_, index)| *index == 0));
    }
}

#[test]
fn a_run_is_taken_in_one_go_if_it_is_what_is_expected() {
    let named = |psn, before: u32| {
        let reth = Some(Reth::new(0x4000 + u64::from(before), Rkey(7), 1200 - before));
        make(WRITE_FIRST, psn, PacketParts { reth, payload: 256, ..PacketParts::default() })
    };
    let middle = || [named(501, 256), named(502, 512), named(503, 768)];
    let last = || {
        let reth = Some(Reth::new(0x4400, Rkey(7), 176));
        make(
            WRITE_ONLY,
            504,
            PacketParts { ask: true, reth, payload: 176, ..PacketParts::default() },
        )
    };
    let new = |config: Config| {
        let mut end = End::new(config);
        end.script.places_runs = true;
        end
    };
    let all = Config { naming: AddressedPackets::Every, ..config() };
    let mut end = new(all.clone());
    end.receive(&named(500, 0));
    assert!(end.receive_run(&middle()));
    assert!(!end.receive_run(&middle()), "again");
    end.receive(&last());
    assert_eq!(end.sent(), ["ACK psn 504 msn 1"]);
    let log = end.script.take_log();
    assert_eq!(log[1..], ["run Middle 256+[256, 256, 256]", "write 4000 7 1200 Last 1024+176"]);
    // From its first packet on; each counts when acknowledgements are due unasked.
    let mut end = new(Config { acknowledge_every: 4, ..all.clone() });
    let [second, third, fourth] = middle();
    assert!(end.receive_run(&[named(500, 0), second, third, fourth]));
    assert_eq!(end.sent(), ["ACK psn 503 msn 0"]);
    // It is of RC, so a queue pair of XRC does not take it.
    for service in [Service::XrcRecv, Service::XrcSend] {
        let mut end = new(Config { service, ..all.clone() });
        assert!(!end.receive_run(&[named(500, 0), named(501, 256)]), "{service}");
        assert_eq!(end.script.take_log(), [""; 0], "{service}");
    }
    // Not before what is missing, not in the middle of something else, not where it means
    // something else, and not if the layer above says no.
    let mut end = new(all.clone());
    assert!(!end.receive_run(&middle()));
    end.receive(&write(WRITE_FIRST, 500, Some(2000), 256));
    assert!(!end.receive_run(&middle()));
    assert_eq!(end.sent(), ["ACK psn 500 msn 0"]);
    let mut end = new(config());
    end.receive(&write(WRITE_FIRST, 500, Some(1200), 256));
    assert!(!end.receive_run(&middle()));
    let mut end = End::new(all.clone());
    end.receive(&named(500, 0));
    assert!(!end.receive_run(&middle()));
    let mut end = new(Config { path_mtu: 512, ..all });
    assert!(!end.receive_run(&[named(500, 0), named(501, 256)]), "no full packets");
}
