use super::*;
use crate::key_handshake::{ANSWER_BYTES, REQUEST_BYTES};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;
const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

/// Numbers from a seed (xorshift64*).
#[derive(Clone)]
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn is_one_in(&mut self, most: u64) -> bool {
        most > 0 && self.next().is_multiple_of(most)
    }
}

fn tunnel(key: u8, seed: u64, lifetime: u64, now: u64) -> Tunnel {
    let mut numbers = Seeded(seed.wrapping_mul(2) | 1);
    let random = move |bytes: &mut [u8]| bytes.fill_with(|| numbers.next() as u8);
    Tunnel::new(vec![TenantKey::new([key; 16])], lifetime, Box::new(random), now)
}

fn from_to(local: IpAddr, remote: IpAddr) -> (Addresses, u32) {
    (Addresses { local, remote }, 0)
}

/// Sends one packet; the datagram, if it leaves at once.
fn seal(of: &mut Tunnel, (local, remote): (IpAddr, IpAddr), packet: &[u8], now: u64) -> Vec<u8> {
    let mut sealed = Vec::new();
    of.seal(from_to(local, remote), 0xc001, (packet, packet.len()), &mut sealed, now);
    sealed
}

/// What a tunnel makes of a datagram: the packet, if it is one.
fn take(at: &mut Tunnel, (local, remote): (IpAddr, IpAddr), datagram: &[u8], now: u64) -> Vec<u8> {
    let ends = from_to(local, remote);
    if is_message(datagram) {
        at.hear(ends, datagram, now, || true);
        return Vec::new();
    }
    let mut datagram = datagram.to_vec();
    at.open(ends, &mut datagram, now, || true)
        .map(|(_, packet)| packet.to_vec())
        .unwrap_or_default()
}

/// Passes all that is to be sent from one to the other and back, until nothing is left; the packets
/// that arrived at either.
fn exchange(a: &mut Tunnel, b: &mut Tunnel, now: u64) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    loop {
        let (mut any, before) = (false, arrived.len());
        while let Some(out) = a.next_outgoing() {
            any = true;
            let datagrams = out.bytes.chunks(out.segment);
            arrived.extend(datagrams.map(|one| take(b, (B, A), one, now)));
        }
        while let Some(out) = b.next_outgoing() {
            any = true;
            let datagrams = out.bytes.chunks(out.segment);
            arrived.extend(datagrams.map(|one| take(a, (A, B), one, now)));
        }
        arrived.retain(|packet| !packet.is_empty());
        if !any && before == arrived.len() {
            return arrived;
        }
    }
}

#[test]
fn the_first_packets_wait_for_the_key_and_arrive() {
    let (mut a, mut b) = (tunnel(1, 1, 60 * SECOND, 0), tunnel(1, 2, 60 * SECOND, 0));
    let mut sealed = Vec::new();
    let train = [&[1; 100][..], &[2; 100], &[3; 50]].concat();
    let held = a.seal(from_to(A, B), 7, (&train, 100), &mut sealed, 0);
    assert_eq!((held, sealed.len()), (SealOutcome::Held, 0));
    assert_eq!(exchange(&mut a, &mut b, 1), [vec![1; 100], vec![2; 100], vec![3; 50]]);
    let now = a.seal(from_to(A, B), 7, (&train, 100), &mut sealed, 2);
    assert_eq!((now, sealed.len()), (SealOutcome::Now(140), 140 + 140 + 90));
    assert!(!sealed.windows(8).any(|window| window == [2; 8]), "none of it can be read");
    let mut datagram = sealed[140..280].to_vec();
    let (port, packet) = b.open(from_to(B, A), &mut datagram, 3, || true).unwrap();
    assert_eq!((port, &*packet), (7, &[2; 100][..]));
    // From another address, at another, and once more.
    let c = IpAddr::from([10, 0, 0, 3]);
    for (ends, why) in [
        (from_to(B, c), DropReason::Unknown),
        (from_to(c, A), DropReason::Unknown),
        (from_to(B, A), DropReason::Replayed),
    ] {
        let mut datagram = sealed[140..280].to_vec();
        assert_eq!(b.open(ends, &mut datagram, 3, || false), Err(why));
    }
    for at in 0..140 {
        let mut datagram = sealed[..140].to_vec();
        datagram[at] ^= 4;
        assert!(b.open(from_to(B, A), &mut datagram, 3, || false).is_err(), "{at}");
    }
    assert_eq!(
        a.seal(from_to(A, [239, 1, 1, 1].into()), 7, (&train, 100), &mut sealed, 2),
        SealOutcome::Dropped
    );
}

#[test]
fn an_unanswered_address_is_reported_once_and_retried() {
    let mut a = tunnel(1, 1, 60 * SECOND, 0);
    assert!(seal(&mut a, (A, B), &[1; 50], 0).is_empty());
    let mut requests = 0;
    let mut now = 0;
    while now < 3 * SECOND {
        now = a.next_timeout().min(3 * SECOND);
        a.timeout(now);
        requests += std::iter::from_fn(|| a.next_outgoing()).count();
        assert!(now >= SECOND || a.events.len() == usize::from(now >= 800_000_000));
    }
    assert_eq!(requests, 8);
    assert_eq!(a.next_event(), Some(TunnelEvent::Refused(B, Refusal::NoAnswer)));
    assert_eq!((a.held_bytes, a.asking.len()), (0, 0), "nothing is kept for it");
    let mut sealed = Vec::new();
    let dropped = a.seal(from_to(A, B), 1, (&[1; 50], 50), &mut sealed, 3 * SECOND);
    assert_eq!(dropped, SealOutcome::Dropped);
    assert!(a.next_outgoing().is_none(), "not asked again at once");
    // It comes up later.
    let mut b = tunnel(1, 2, 60 * SECOND, 0);
    let held = a.seal(from_to(A, B), 1, (&[1; 50], 50), &mut sealed, 4 * SECOND);
    assert_eq!(held, SealOutcome::Held);
    a.heard_plain(from_to(A, B).0);
    assert_eq!(a.next_event(), None, "once");
    assert_eq!(exchange(&mut a, &mut b, 4 * SECOND), [vec![1; 50]]);
    assert_eq!(a.next_event(), Some(TunnelEvent::Established(B)));
    // Of another tenant, and one that speaks in plain.
    let (mut a, mut c) = (tunnel(1, 1, 60 * SECOND, 0), tunnel(9, 2, 60 * SECOND, 0));
    seal(&mut a, (A, B), &[1; 50], 0);
    assert!(exchange(&mut a, &mut c, 0).is_empty());
    assert_eq!((c.peers.len(), c.counters().answered), (0, 0), "a stranger leaves nothing");
    a.heard_plain(from_to(A, B).0);
    assert_eq!(a.next_event(), Some(TunnelEvent::Refused(B, Refusal::Plain)));
}

#[test]
fn keys_change_without_a_lost_packet() {
    for (of_a, of_b) in [(SECOND, SECOND), (SECOND, 50 * SECOND), (50 * SECOND, SECOND)] {
        let (mut a, mut b) = (tunnel(1, 1, of_a, 0), tunnel(1, 2, of_b, 0));
        let mut numbers = Vec::new();
        let (mut sent, mut arrived) = (0_u64, 0);
        let (mut delayed, step) = (VecDeque::new(), SECOND / 100);
        for now in (0..30 * SECOND).step_by(step as usize) {
            a.timeout(now);
            b.timeout(now);
            // What was sent a while ago arrives now, and what is said of keys at once.
            for (from, to, back) in [(A, B, false), (B, A, true)] {
                let of = if back { &mut b } else { &mut a };
                let sealed = seal(of, (from, to), &[sent as u8; 64], now);
                sent += 1;
                if !sealed.is_empty() {
                    numbers.push(sealed[4..8].to_vec());
                    delayed.push_back((now, back, sealed));
                }
            }
            arrived += exchange(&mut a, &mut b, now).len() as u64;
            while delayed.front().is_some_and(|(at, ..)| at + 3 * step <= now) {
                let Some((_, back, datagram)) = delayed.pop_front() else { break };
                let packet = if back {
                    take(&mut a, (A, B), &datagram, now)
                } else {
                    take(&mut b, (B, A), &datagram, now)
                };
                arrived += u64::from(!packet.is_empty());
            }
        }
        assert_eq!(arrived, sent - delayed.len() as u64, "{of_a} {of_b}");
        let of_a = |number: &&Vec<u8>| number[0] & 0x80 != 0;
        let changed = numbers.windows(3).filter(|some| some[0] != some[2]).count();
        assert!(changed > 40 && numbers.iter().filter(of_a).count() > 1000, "{changed}");
        assert!(b.receiver_numbers() <= 8 && a.receiver_numbers() <= 8);
    }
}

impl Tunnel {
    fn receiver_numbers(&self) -> usize {
        self.receiver.count()
    }
}

/// One run of two hosts over a network with faults, of which one is restarted now and then.
fn run(seed: u64) {
    let mut numbers = Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let [loss, repeat, change, restart] = [
        [0, 20, 5][numbers.next() as usize % 3],
        [0, 10][numbers.next() as usize % 2],
        [0, 10][numbers.next() as usize % 2],
        [0, 700][numbers.next() as usize % 2],
    ];
    let lifetime = SECOND * (1 + numbers.next() % 4);
    let mut ends = [tunnel(1, numbers.next(), lifetime, 0), tunnel(1, numbers.next(), lifetime, 0)];
    let ip = [A, B];
    // Datagrams under way: when they arrive, where, and what.
    let mut network: BTreeMap<(u64, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let mut arrived = std::collections::HashSet::new();
    let (mut order, mut sent, mut last, mut longest) = (0, 0_u64, [0; 2], 0);
    for now in (0..10 * SECOND).step_by(2_500_000) {
        if numbers.is_one_in(restart) {
            let which = numbers.next() as usize % 2;
            ends[which] = tunnel(1, numbers.next(), lifetime, now);
        }
        for which in 0..2 {
            let mut datagrams = Vec::new();
            sent += 1;
            let packet = [&sent.to_be_bytes()[..], &[which as u8; 40]].concat();
            datagrams.push(seal(&mut ends[which], (ip[which], ip[1 - which]), &packet, now));
            ends[which].timeout(now);
            while let Some(out) = ends[which].next_outgoing() {
                datagrams.extend(out.bytes.chunks(out.segment).map(<[u8]>::to_vec));
            }
            while ends[which].next_event().is_some() {}
            datagrams.retain(|datagram| !datagram.is_empty());
            for mut datagram in datagrams {
                if numbers.is_one_in(loss) {
                    continue;
                }
                let copies = 1 + u64::from(numbers.is_one_in(repeat));
                if numbers.is_one_in(change) {
                    let at = numbers.next() as usize % datagram.len();
                    datagram[at] ^= 1 << (numbers.next() % 8);
                }
                for _ in 0..copies {
                    order += 1;
                    let at = now + numbers.next() % 12_000_000;
                    network.insert((at, order), (1 - which, datagram.clone()));
                }
            }
        }
        let later = network.split_off(&(now, u64::MAX));
        for (_, (at, datagram)) in std::mem::replace(&mut network, later) {
            let packet = take(&mut ends[at], (ip[at], ip[1 - at]), &datagram, now);
            if packet.is_empty() {
                continue;
            }
            assert_eq!((packet.len(), &packet[8..]), (48, &[1 - at as u8; 40][..]), "{seed}");
            assert!(arrived.insert(packet), "{seed}: it arrived twice");
            longest = longest.max(now - last[at]);
            last[at] = now;
        }
        for end in &ends {
            assert!(end.peers.len() <= 1 && end.held_bytes <= HELD_BYTES_MAX, "{seed}");
            assert!(end.asking.len() <= 1 && end.receiver_numbers() <= NUMBERS.unused, "{seed}");
        }
    }
    assert!(longest < 3 * SECOND, "{seed}: nothing arrived for {longest} ns");
    let least = if loss == 5 { sent / 2 } else { sent * 3 / 4 };
    assert!(arrived.len() as u64 > least, "{seed}: {} of {sent}", arrived.len());
}

#[test]
fn two_hosts_over_a_network_with_faults() {
    for seed in 0..16 {
        run(seed);
    }
}

#[test]
fn unknown_peers_and_many_addresses_leave_bounded_state() {
    let mut a = tunnel(1, 1, 60 * SECOND, 0);
    let address = |n: u32| IpAddr::from((0x0a00_0000 + n).to_be_bytes());
    // A program names addresses without end.
    for n in 0..5000 {
        seal(&mut a, (A, address(n)), &[1; 4000], u64::from(n));
        while a.next_outgoing().is_some() {}
    }
    assert!(a.peers.len() <= TUNNEL_PEERS_MAX && a.asking.len() <= TUNNEL_PEERS_MAX);
    assert!(a.held_bytes <= HELD_BYTES_MAX);
    a.timeout(5 * SECOND);
    while a.asking.first().is_some() {
        a.timeout(a.next_timeout());
    }
    assert_eq!(a.held_bytes, 0);
    assert!(a.events.len() <= 5000);
    a.outgoing.clear();
    // Strangers send requests, answers, words and packets.
    let before = a.peers.len();
    let mut numbers = Seeded(9);
    for n in 0..4_000 {
        let mut datagram = vec![0; [12, REQUEST_BYTES, ANSWER_BYTES, 100][n % 4]];
        datagram.fill_with(|| numbers.next() as u8);
        match n % 4 {
            0 => datagram[..8].copy_from_slice(&UNKNOWN_SPI),
            1 => datagram[..8].copy_from_slice(b"OVPSP\0\x01\x01"),
            2 => datagram[..8].copy_from_slice(b"OVPSP\0\x01\x02"),
            _ => datagram[..4].copy_from_slice(&[17, 1, 0, 1]),
        }
        assert!(take(&mut a, (A, address(n as u32 + 9000)), &datagram, 6 * SECOND).is_empty());
        assert!(a.outgoing.len() <= 1, "at most a word is sent");
        a.outgoing.clear();
    }
    assert_eq!((a.peers.len(), a.receiver_numbers()), (before, 0));
    // Requests beyond the budget are not looked at.
    a.hear(from_to(A, B), &[0; REQUEST_BYTES], 0, || false);
}

#[test]
fn a_holder_of_the_key_that_starts_again_and_again_has_a_few_numbers() {
    let mut b = tunnel(1, 2, 60 * SECOND, 0);
    for round in 0..200 {
        let mut a = tunnel(1, 100 + round, 60 * SECOND, 0);
        seal(&mut a, (A, B), &[1; 50], 0);
        assert_eq!(exchange(&mut a, &mut b, 0).len(), 1);
        assert!(b.receiver_numbers() <= 5);
    }
}

/// Two tenants on two hosts with one address each. The first host is restarted, and the second
/// tenant has the numbers there that the first one had.
#[test]
fn a_number_that_is_another_tenants_after_a_restart_is_told_of() {
    let block = SpiBlock::new(3);
    let at_first = |key: u8, seed| {
        let mut of = tunnel(key, seed, 60 * SECOND, 0);
        let random = &mut of.random;
        of.receiver = Receiver::with_limits(master_key(random), NUMBERS, Some(block));
        of
    };
    let (mut blue, mut red) = (tunnel(1, 1, 60 * SECOND, 0), tunnel(2, 2, 60 * SECOND, 0));
    let mut before = at_first(1, 3);
    seal(&mut blue, (A, B), &[1; 50], 0);
    assert_eq!(exchange(&mut blue, &mut before, 0).len(), 1);
    let mut after = at_first(2, 4);
    seal(&mut red, (A, B), &[2; 50], 0);
    assert_eq!(exchange(&mut red, &mut after, 0).len(), 1);
    let sealed = seal(&mut blue, (A, B), &[3; 50], SECOND);
    assert_eq!(sealed[4..8], seal(&mut red, (A, B), &[3; 50], SECOND)[4..8], "one number");
    let mut silent = sealed.clone();
    let opened = after.open(from_to(B, A), &mut silent, SECOND, || false);
    assert_eq!((opened, after.outgoing.len()), (Err(DropReason::Forged), 0), "within a budget");
    assert!(take(&mut after, (B, A), &sealed, SECOND).is_empty());
    let word = after.next_outgoing().expect("nobody is told");
    // It is for both who have the number, and the first one that it is shown to does not keep it.
    for of in [&mut red, &mut blue] {
        assert!(!of.hear(from_to(A, B), &word.bytes, SECOND, || true));
    }
    let mut heir = Tunnel::sharing_port(
        SpiBlock::new(4),
        vec![TenantKey::new([1; 16])],
        60 * SECOND,
        Box::new(|bytes| bytes.fill(7)),
        SECOND,
    );
    exchange(&mut blue, &mut heir, SECOND);
    let sealed = seal(&mut blue, (A, B), &[4; 50], SECOND + 1);
    assert_eq!(take(&mut heir, (B, A), &sealed, SECOND + 1), [4; 50]);
    exchange(&mut red, &mut after, SECOND);
    let sealed = seal(&mut red, (A, B), &[5; 50], SECOND + 1);
    assert_eq!(take(&mut after, (B, A), &sealed, SECOND + 1), [5; 50]);
}

/// A group has hosts without processes, which answer nothing.
#[test]
fn copies_hold_few_bytes_tell_nothing_and_take_no_place_of_others() {
    let address = |n: u32| IpAddr::from((0x0a01_0000 + n).to_be_bytes());
    let (mut a, mut b) = (tunnel(1, 1, 60 * SECOND, 0), tunnel(1, 2, 60 * SECOND, 0));
    seal(&mut a, (A, B), &[1; 50], 0);
    assert_eq!(exchange(&mut a, &mut b, 0).len(), 1);
    let copy = |a: &mut Tunnel, to, now| {
        let mut sealed = Vec::new();
        (a.seal_copy(from_to(A, to), 7, &[2; 50], &mut sealed, now), sealed)
    };
    let (mut now, mut asked) = (1, std::collections::BTreeSet::new());
    for _ in 0..40 {
        for n in 0..1000 {
            assert!(!matches!(copy(&mut a, address(n), now).0, SealOutcome::Now(_)));
        }
        while let Some(out) = a.next_outgoing() {
            asked.insert(out.addresses.remote);
        }
        assert!(a.peers.len() <= TUNNEL_PEERS_MAX && a.held_bytes <= HELD_BYTES_MAX / 4);
        assert!(a.asking.len() <= TUNNEL_PEERS_MAX);
        a.timeout(now);
        now += SECOND / 2;
    }
    a.heard_plain(from_to(A, address(1)).0);
    assert_eq!((a.next_event(), asked.len()), (None, 1000), "each is asked in its turn");
    // The one with a key has it still, for copies as well.
    let (outcome, sealed) = copy(&mut a, B, now);
    assert_eq!(outcome, SealOutcome::Now(50 + OVERHEAD_BYTES));
    assert_eq!(take(&mut b, (B, A), &sealed, now), [2; 50]);
    // Those that packets wait for keep their places, too.
    for n in 2000..2000 + TUNNEL_PEERS_MAX as u32 - 1 {
        seal(&mut a, (A, address(n)), &[3; 50], now);
    }
    let held = a.held_bytes;
    assert_eq!(a.peers.values().map(|peer| peer.held_bytes).sum::<usize>(), held);
    assert_eq!(copy(&mut a, address(5000), now).0, SealOutcome::Dropped);
    assert_eq!((held, a.held_bytes), (50 * (TUNNEL_PEERS_MAX - 1), held));
    // What waits of copies leaves packets their room.
    let mut full = tunnel(1, 7, 60 * SECOND, 0);
    for n in 0..200_000 {
        full.outgoing.clear();
        copy(&mut full, address(n % 500), 1);
    }
    assert!((200_000..=HELD_BYTES_MAX / 4).contains(&full.held_bytes), "{}", full.held_bytes);
    assert!(seal(&mut full, (A, B), &[1; 4000], 2).is_empty());
    assert_eq!(full.peers[&from_to(A, B).0].held_bytes, 4000);
    assert!(a.peers.contains_key(&from_to(A, B).0));
    // A packet to one that had copies alone is waited for, and its silence is told.
    let (mut a, mut c) = (tunnel(1, 5, 60 * SECOND, 0), tunnel(1, 6, 60 * SECOND, 0));
    assert_eq!(copy(&mut a, B, 0).0, SealOutcome::Held);
    seal(&mut a, (A, B), &[4; 50], 1);
    (0..20).for_each(|n| a.timeout(n * SECOND / 10));
    assert_eq!(a.next_event(), Some(TunnelEvent::Refused(B, Refusal::NoAnswer)));
    a.timeout(3 * SECOND);
    assert_eq!(copy(&mut a, B, 9 * SECOND).0, SealOutcome::Dropped, "it did not answer before");
    assert_eq!(exchange(&mut a, &mut c, 9 * SECOND), Vec::<Vec<u8>>::new());
    assert_eq!(copy(&mut a, B, 9 * SECOND).0, SealOutcome::Now(50 + OVERHEAD_BYTES));
}

/// Requests that are sent to B for the sake of copies, one each 100 ms, in so many seconds from
/// `begin` on.
fn requests_for_copies(a: &mut Tunnel, begin: u64, seconds: u64) -> usize {
    let mut requests = 0;
    for step in 0..seconds * 10 {
        let now = begin + step * SECOND / 10;
        let mut sealed = Vec::new();
        a.seal_copy(from_to(A, B), 7, &[2; 50], &mut sealed, now);
        a.timeout(now);
        requests += std::iter::from_fn(|| a.next_outgoing()).count();
    }
    requests
}

#[test]
fn a_silent_host_of_a_group_is_asked_ever_more_rarely_until_it_says_something() {
    let (mut a, mut b) = (tunnel(1, 1, 600 * SECOND, 0), tunnel(1, 2, 600 * SECOND, 0));
    let first = requests_for_copies(&mut a, 0, 10);
    assert!((16..=40).contains(&first), "{first}");
    requests_for_copies(&mut a, 10 * SECOND, 190);
    let later = requests_for_copies(&mut a, 200 * SECOND, 100);
    assert!((8..=16).contains(&later), "once a minute: {later}");
    // It has something to receive.
    b.introduce(from_to(B, A), 300 * SECOND);
    assert_eq!(exchange(&mut a, &mut b, 300 * SECOND), Vec::<Vec<u8>>::new());
    let mut sealed = Vec::new();
    a.seal_copy(from_to(A, B), 7, &[2; 50], &mut sealed, 301 * SECOND);
    exchange(&mut a, &mut b, 301 * SECOND);
    let outcome = a.seal_copy(from_to(A, B), 7, &[2; 50], &mut sealed, 302 * SECOND);
    assert_eq!(outcome, SealOutcome::Now(50 + OVERHEAD_BYTES));
    // One that is known is not asked again; a packet does not wait for what copies have met.
    b.introduce(from_to(B, A), 303 * SECOND);
    assert!(b.next_outgoing().is_none());
    let mut silent = tunnel(1, 3, 600 * SECOND, 0);
    requests_for_copies(&mut silent, 0, 60);
    assert!(seal(&mut silent, (A, B), &[1; 50], 60 * SECOND).is_empty());
    assert!(silent.next_outgoing().is_some(), "it is asked at once");
}

#[test]
fn another_lifetime_holds_from_now_on() {
    let mut a = tunnel(1, 1, 60 * SECOND, 0);
    a.set_lifetime(60 * SECOND, 10 * SECOND);
    assert_eq!(a.next_timeout(), 60 * SECOND, "the same changes nothing");
    a.set_lifetime(5 * SECOND, 10 * SECOND);
    assert_eq!(a.next_timeout(), 15 * SECOND);
    a.timeout(15 * SECOND);
    assert_eq!(a.next_timeout(), 20 * SECOND);
    a.set_lifetime(0, 16 * SECOND);
    assert_eq!(a.next_timeout(), 17 * SECOND, "a second at least");
    a.set_lifetime(100 * SECOND, 16 * SECOND);
    a.timeout(17 * SECOND);
    assert_eq!(a.next_timeout(), 117 * SECOND);
}

#[test]
fn other_keys_of_the_tenant_take_the_place_of_the_old_ones() {
    let key = |n: u8| TenantKey::new([n; 16]);
    let (mut a, mut b) = (tunnel(1, 1, 60 * SECOND, 0), tunnel(1, 2, 60 * SECOND, 0));
    seal(&mut a, (A, B), &[1; 50], 0);
    assert_eq!(exchange(&mut a, &mut b, 0).len(), 1);
    b.set_keys(vec![key(2), key(1)], SECOND);
    for now in [1, 2] {
        let datagram = seal(&mut a, (A, B), &[2; 50], now * SECOND);
        assert_eq!(take(&mut b, (B, A), &datagram, now * SECOND), [2; 50]);
    }
    a.set_keys(vec![key(2), key(1)], 3 * SECOND);
    let datagram = seal(&mut a, (A, B), &[3; 50], 3 * SECOND);
    assert_eq!(take(&mut b, (B, A), &datagram, 3 * SECOND), [3; 50]);
    exchange(&mut a, &mut b, 3 * SECOND);
    let datagram = seal(&mut a, (A, B), &[4; 50], 4 * SECOND);
    assert_eq!(datagram[4] & 0x80, 0x80, "by another number");
    assert_eq!(take(&mut b, (B, A), &datagram, 4 * SECOND), [4; 50]);
}

#[test]
fn a_vnic_of_another_tenant_exchanges_nothing_with_hosts_of_the_one_before() {
    for other in [vec![TenantKey::new([9; 16])], Vec::new()] {
        let (mut a, mut b) = (tunnel(1, 1, 60 * SECOND, 0), tunnel(1, 2, 60 * SECOND, 0));
        for (of, ends) in [(&mut a, (A, B)), (&mut b, (B, A))] {
            assert!(seal(of, ends, &[1; 50], 0).is_empty());
        }
        assert_eq!(exchange(&mut a, &mut b, 1).len(), 2);
        b.set_keys(other, 2);
        let sent = seal(&mut a, (A, B), &[2; 50], 3);
        assert!(!sent.is_empty() && take(&mut b, (B, A), &sent, 3).is_empty(), "it was opened");
        assert!(seal(&mut b, (B, A), &[3; 50], 3).is_empty(), "it was sealed");
        assert!(exchange(&mut a, &mut b, 3).is_empty());
        assert!(b.asking.len() <= 1 && b.receiver_numbers() == 0);
    }
}
