//! Peers that do what no peer does: the device neither panics nor touches what it must not, and
//! goes on serving others.

use crate::fuzz_input::Script;
use crate::guarded_buffer::{Buffer, pattern};
use crate::hostile_peer_input::{Victim, run};
use crate::two_device_fixture::{Options, Pair, poll, post};
use crate::work_request_helpers::{Work, whole};
use omniverb_link::Response;
use omniverb_ring::shared_atomics::Ordering;
use omniverb_ring::{UserMemory, WordMemory};
use omniverb_terms::{Rkey, Service};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Runs `body` elsewhere; fails if it takes longer than a hang would.
fn within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(body);
    let end = Instant::now() + limit;
    while !thread.is_finished() {
        assert!(Instant::now() < end, "hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn random_attacks() {
    let rounds = if cfg!(debug_assertions) { 400 } else { 5000 };
    within(Duration::from_secs(300), move || {
        for seed in 0..rounds {
            let script = pattern(200 + seed as usize % 3000, seed);
            let result = std::panic::catch_unwind(|| run(&script));
            assert!(result.is_ok(), "seed {seed}");
        }
    });
}

/// Another thread flips words of the link while the device reads them.
#[test]
fn words_that_change_while_they_are_read() {
    within(Duration::from_secs(120), || {
        for kind in 0..8u8 {
            let over = Arc::new(AtomicBool::new(false));
            let start = [kind];
            let mut victim = Victim::new(&mut Script::new(&start));
            let end = Instant::now() + Duration::from_millis(250);
            let mut round = u64::from(kind) << 32;
            while Instant::now() < end {
                let memory = victim.joint.memory.clone();
                let (over_, seed) = (over.clone(), round);
                over.store(false, Ordering::Relaxed);
                let scribbler = std::thread::spawn(move || {
                    let mut seed = seed;
                    while !over_.load(Ordering::Relaxed) {
                        let bytes = pattern(4096, seed);
                        let mut script = Script::new(&bytes);
                        while !script.is_over() {
                            // Mostly where the records are that are being read.
                            let at = match script.byte() % 4 {
                                0 => script.number(memory.len()) & !7,
                                1 => script.number(2) * 0x1000 + script.number(32) * 8,
                                _ => (0x2000 + (32 << 10) + script.number(2048)) & !7,
                            };
                            memory.store(at, script.word(), Ordering::Relaxed);
                        }
                        seed += 1;
                    }
                });
                for _ in 0..20 {
                    let bytes = pattern(600, round);
                    let mut script = Script::new(&bytes);
                    while !script.is_over() {
                        victim.step(&mut script);
                    }
                    round += 1;
                }
                over.store(true, Ordering::Relaxed);
                scribbler.join().unwrap();
            }
            victim.work();
            victim.check();
        }
    });
}

/// READ answers without bytes, without end: the requester does not sit there for ever.
#[test]
fn empty_answers_without_end() {
    within(Duration::from_secs(20), || {
        let pair = Pair::new();
        let options = Options::new(Service::Rc);
        let qps = pair.connected(&options);
        let joint = pair.joint(options.ring_bytes);
        let qps = [qps[0].clone(), qps[1].clone()];
        pair.attach(0, &qps, &joint).unwrap();
        let mut attacker = pair.endpoint(1, &joint);
        attacker.open(10_000);
        let here = Buffer::new(64);
        let local = pair.sides[0].register(&here);
        post(&qps[0], &Work::read(1, (0, Rkey(5))).sge(whole(&local)));
        // The whole ring full of them, its end leading to its start again.
        while attacker.send_response(&Response::ReadData { last: false }, UserMemory::EMPTY)
            == Ok(true)
        {}
        let ring =
            omniverb_link::layout::response_ring(1, options.ring_bytes.0, options.ring_bytes.1);
        let header = joint.memory.load(ring, Ordering::Relaxed);
        for at in (0..options.ring_bytes.1).step_by(8) {
            joint.memory.store(ring + at, header, Ordering::Relaxed);
        }
        pair.sides[0].shared.progress();
        poll(&qps[0].send_cq);
        qps[0].peer_died(qps[1].number);
        assert_eq!(poll(&qps[0].send_cq).len(), 0, "it failed already");
        assert_eq!(qps[0].state(), omniverb_device::qp_attributes::State::Err);
    });
}

/// Requests without bytes, without end: they keep no other work from its turn.
#[test]
fn empty_requests_without_end() {
    within(Duration::from_secs(20), || {
        let pair = Pair::new();
        let options = Options::new(Service::Uc);
        let qps = pair.connected(&options);
        let joint = pair.joint(options.ring_bytes);
        pair.attach(0, &qps, &joint).unwrap();
        let ring = omniverb_link::layout::request_ring(1, options.ring_bytes.0);
        // A SEND record that is in the middle of its message: UC skips it.
        let header = 1u64 << 63 | 1 << 32;
        for at in (0..options.ring_bytes.0).step_by(8) {
            joint.memory.store(ring + at, header, Ordering::Relaxed);
        }
        pair.sides[1].ringer.page.want_kick();
        pair.sides[0].ringer.page.set_ready(joint.slot);
        for _ in 0..100 {
            pair.sides[0].shared.progress();
            assert_eq!(qps[0].recv_cq.poll(&mut [omniverb_device::Wc::default()]), 0);
        }
    });
}
