//! Tests that no thread uses a region for a peer once it is removed: the application may free the
//! memory.

use crate::guarded_buffer::Buffer;
use crate::two_device_fixture::{Options, Pair, poll, post, to_init, to_rts, to_state};
use crate::work_request_helpers::{Work, remote, whole};
use omniverb_terms::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 16 << 10;

#[test]
fn nothing_is_written_after_removal() {
    let pair = Arc::new(Pair::new());
    let options = Options::new(Service::Rc);
    let qps = pair.connected(&options);
    let here = Buffer::pattern(BYTES, 1);
    let local = pair.sides[0].register(&here);
    let over = Arc::new(AtomicBool::new(false));
    let responder = {
        let (qp, over) = (qps[1].clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                qp.pump();
            }
        })
    };
    let there = Buffer::new(BYTES);
    let sentinel = vec![0x55; BYTES];
    let end = Instant::now() + Duration::from_secs(2);
    let mut round = 0u32;
    while Instant::now() < end {
        round += 1;
        let target = pair.sides[1].register(&there);
        for id in 0..12 {
            post(&qps[0], &Work::write(id, remote(&target, 0)).sge(whole(&local)));
        }
        for _ in 0..round % 97 * 20 {
            std::hint::spin_loop();
        }
        pair.sides[1].shared.regions.remove(target.lkey);
        // It is the application's alone from here on. Its end first: copies go upwards.
        for at in (0..BYTES).step_by(512).rev() {
            there.write(at, &sentinel[..512]);
        }
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_micros(20) {
            std::hint::spin_loop();
        }
        assert!(there.all() == sentinel, "round {round}: written after removal");
        // The WRITEs that came too late broke the connection.
        for qp in &qps {
            to_state(qp, omniverb_device::qp_attributes::State::Reset);
            to_init(qp, &options);
        }
        pair.join(&qps, options.ring_bytes);
        qps.iter().for_each(|qp| to_rts(qp, &options));
        poll(&qps[0].send_cq);
    }
    over.store(true, Ordering::Relaxed);
    responder.join().unwrap();
    assert!(round > 20);
}
