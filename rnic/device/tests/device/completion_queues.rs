//! Completion queues: events, overflow, capacity.

use crate::fake_platform::Channel;
use crate::two_device_fixture::{Options, Pair, poll, post, receive, to_state};
use crate::work_request_helpers::Work;
use omniverb_device::limits::REMIND_AFTER;
use omniverb_device::qp_attributes::State;
use omniverb_device::{AsyncEvent, Cq, Notify, Wc, send_flags};
use omniverb_terms::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Bench {
    pair: Pair,
    qps: [Arc<omniverb_device::Qp>; 2],
    channel: Arc<Channel>,
    cq: Arc<Cq>,
}

/// Side 1 receives into a CQ with a channel.
fn bench(capacity: u32) -> Bench {
    let pair = Pair::new();
    let channel = Arc::new(Channel::default());
    let cq = Cq::new(&pair.sides[1].shared, capacity, Some(channel.clone()));
    cq.cookie.store(42, Ordering::Relaxed);
    let options = Options::new(Service::Rc);
    let listening = options.clone().with(|o| o.recv_cq = Some(cq.clone()));
    let qps = pair.connected_with([&options, &listening]);
    (0..60).for_each(|id| receive(&qps[1], id, &[]));
    Bench { pair, qps, channel, cq }
}

impl Bench {
    fn send(&self, flags: u32) {
        post(&self.qps[0], &Work::send(0).flags(send_flags::SIGNALED | flags));
        self.pair.settle();
    }

    /// Time passes, and the progress thread takes a turn.
    fn pass(&self, nanoseconds: u64) {
        let side = &self.pair.sides[1];
        side.world.clock.fetch_add(nanoseconds, Ordering::Relaxed);
        side.shared.progress();
    }

    /// How many events there were; leaves the queue empty.
    fn events(&self) -> usize {
        poll(&self.cq);
        let events = std::mem::take(&mut *self.channel.events.lock().unwrap());
        assert!(events.iter().all(|cookie| *cookie == 42));
        events.len()
    }
}

#[test]
fn an_event_needs_to_be_asked_for_each_time() {
    let bench = bench(100);
    bench.send(0);
    assert_eq!(bench.events(), 0);
    bench.cq.arm(Notify::Any);
    assert_eq!(bench.events(), 0, "what was polled already raises none");
    bench.send(0);
    bench.send(0);
    assert_eq!(bench.events(), 1);
    bench.cq.arm(Notify::Any);
    bench.cq.arm(Notify::Any);
    bench.send(0);
    assert_eq!(bench.events(), 1);
}

#[test]
fn entries_before_arming_raise_no_event() {
    let bench = bench(100);
    bench.send(0);
    bench.cq.arm(Notify::Any);
    assert!(bench.channel.events.lock().unwrap().is_empty(), "it came before");
    // As ibv_rc_pingpong does: an event, another completion, armed anew, both polled.
    bench.send(0);
    assert_eq!(bench.channel.events.lock().unwrap().len(), 1);
    bench.send(0);
    bench.cq.arm(Notify::Any);
    assert_eq!(bench.events(), 1, "none for the last one, which came while it was not armed");
    bench.pass(REMIND_AFTER);
    assert_eq!(bench.events(), 0, "all of it was polled");
    bench.send(0);
    assert_eq!(bench.events(), 1, "armed all the time");
}

#[test]
fn a_poll_of_a_few_gets_another_event_for_the_rest() {
    let bench = bench(100);
    let few = || assert_eq!(bench.cq.poll(&mut [Wc::default()]), 1);
    let told = || std::mem::take(&mut *bench.channel.events.lock().unwrap()).len();
    // Polls, then arms.
    (0..3).for_each(|_| bench.send(0));
    few();
    bench.cq.arm(Notify::Any);
    assert_eq!(told(), 1, "some were left");
    // Arms, then polls: the event comes when the next poll does not.
    bench.cq.arm(Notify::Solicited);
    assert_eq!(told(), 0, "not solicited");
    bench.cq.arm(Notify::Any);
    assert_eq!(told(), 1);
    few();
    assert_eq!(told(), 0, "not armed");
    bench.send(0);
    bench.cq.arm(Notify::Any);
    assert_eq!(told(), 1, "left before");
    assert_eq!(bench.events(), 0);
    bench.send(0);
    bench.send(0);
    bench.cq.arm(Notify::Any);
    few();
    assert_eq!(told(), 0);
    bench.pass(REMIND_AFTER / 2);
    assert_eq!(told(), 0, "it may poll at once");
    bench.pass(REMIND_AFTER);
    assert_eq!(told(), 1);
    bench.pass(2 * REMIND_AFTER);
    assert_eq!(told(), 0, "one for each arming");
    // One by one, until nothing is left.
    assert_eq!(bench.events(), 0);
    (0..2).for_each(|_| bench.send(0));
    bench.cq.arm(Notify::Any);
    few();
    few();
    bench.pass(REMIND_AFTER);
    assert_eq!(bench.events(), 0);
}

#[test]
fn what_a_poll_of_several_steps_takes_raises_no_event() {
    let bench = bench(100);
    let told = || std::mem::take(&mut *bench.channel.events.lock().unwrap()).len();
    let take = || assert_eq!(bench.cq.poll(&mut [Wc::default()]), 1);
    bench.cq.arm(Notify::Any);
    bench.send(0);
    assert_eq!(told(), 1);
    bench.cq.arm(Notify::Any);
    bench.cq.begin_poll();
    take();
    bench.send(0);
    take();
    bench.cq.end_poll();
    assert_eq!(told(), 0, "taken between begin and end");
    bench.send(0);
    assert_eq!(told(), 1, "armed still");
    bench.cq.arm(Notify::Any);
    bench.cq.begin_poll();
    take();
    bench.send(0);
    assert_eq!(told(), 0);
    bench.cq.end_poll();
    assert_eq!(told(), 1, "not taken");
    assert_eq!(bench.events(), 0);
}

#[test]
fn a_queue_armed_for_solicited_events_ignores_others() {
    let bench = bench(100);
    bench.cq.arm(Notify::Solicited);
    bench.send(0);
    assert_eq!(bench.events(), 0);
    bench.send(send_flags::SOLICITED);
    assert_eq!(bench.events(), 1);
    // What was asked for first is not weakened, and what was weak is strengthened.
    bench.cq.arm(Notify::Any);
    bench.cq.arm(Notify::Solicited);
    bench.send(0);
    assert_eq!(bench.events(), 1);
    bench.cq.arm(Notify::Solicited);
    bench.cq.arm(Notify::Any);
    bench.send(0);
    assert_eq!(bench.events(), 1);
    // A failure counts as solicited.
    bench.cq.arm(Notify::Solicited);
    to_state(&bench.qps[1], State::Err);
    assert_eq!(bench.events(), 1);
}

#[test]
fn a_queue_that_overflows_says_so_once_and_its_queue_pairs_fail() {
    let bench = bench(4);
    for _ in 0..4 {
        bench.send(0);
    }
    assert!(bench.pair.sides[1].events().is_empty());
    bench.send(0);
    bench.send(0);
    let events = bench.pair.sides[1].events();
    let errors = events.iter().filter(|event| **event == AsyncEvent::CqError).count();
    assert_eq!(errors, 1, "{events:?}");
    bench.pair.settle();
    assert_eq!(bench.qps[1].state(), State::Err, "its QPs fail (specification 11.6.3.1)");
    assert_eq!(poll(&bench.cq).len(), 4);
}

#[test]
fn capacity_can_change() {
    let bench = bench(4);
    assert_eq!(bench.cq.capacity(), 4);
    (0..4).for_each(|_| bench.send(0));
    assert!(!bench.cq.resize(3).unwrap());
    assert!(bench.cq.resize(6).unwrap());
    (0..2).for_each(|_| bench.send(0));
    assert!(bench.pair.sides[1].events().is_empty());
    assert_eq!(bench.cq.poll(&mut [Wc::default(); 2]), 2);
    assert_eq!(bench.cq.poll(&mut []), 0);
    assert_eq!(poll(&bench.cq).len(), 4);
}

#[test]
fn a_queue_with_queue_pairs_is_busy() {
    let bench = bench(4);
    assert!(bench.cq.is_busy());
    bench.qps[1].destroy();
    assert!(!bench.cq.is_busy());
}

#[test]
fn reset_takes_its_completions_along() {
    let bench = bench(100);
    let other = Options::new(Service::Rc).with(|o| o.recv_cq = Some(bench.cq.clone()));
    let others = bench.pair.connected_with([&Options::new(Service::Rc), &other]);
    receive(&others[1], 7, &[]);
    bench.send(0);
    post(&others[0], &Work::send(0));
    bench.pair.settle();
    to_state(&bench.qps[1], State::Reset);
    let left = poll(&bench.cq);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].qp_num, others[1].number.0);
}
