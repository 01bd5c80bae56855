//! Tests which sleepers are woken across a window.

use super::*;
use crate::vm::serial_port_multiplexer::{News, Reads, Relay};
use omniverb_sys::{doorbell_listener, memfd};
use std::os::fd::OwnedFd;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const DATA: Part = Part { offset: 8192, length: (4 << 20) - 8192 };

fn bridge(file: &OwnedFd, side: Side) -> WakeBridge {
    let mut bridge = WakeBridge::new(side).unwrap();
    bridge.add(1, file, DATA, WindowOwner::Own).unwrap();
    // Once at the beginning it tells.
    assert!(omniverb_sys::eventfd::readable(bridge.rung(), Some(LIMIT)).unwrap());
    bridge.take();
    bridge
}

const QUIET: Duration = Duration::from_millis(300);

/// The last word was that of a change.
fn until_quiet(bridge: &WakeBridge) {
    while omniverb_sys::eventfd::readable(bridge.rung(), Some(QUIET)).unwrap() {
        bridge.take();
    }
}

fn bell(file: &OwnedFd, number: u64) -> [DoorbellPage<Window>; 2] {
    let at = DATA.offset
        + pair_window::bell_pages(DATA.length).offset
        + number * pair_window::BELL_BYTES;
    let memory = Extent::new(file, at, pair_window::BELL_BYTES).map(Access::ReadWrite).unwrap();
    [0, PAGE].map(|at| DoorbellPage::new(memory.part(at, PAGE).unwrap()))
}

/// A ring for the other side is sent; a ring for this one wakes its sleeper, and no other, when a
/// message comes.
#[test]
fn a_sleeper_across_the_wake_bridge_is_woken_by_a_message() {
    let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
    let host = bridge(&file, Side::Host);
    let last = pair_window::bells(DATA.length) - 1;
    for number in [0, last] {
        let [ours, theirs] = bell(&file, number);
        doorbell_listener::ring(&theirs);
        assert!(omniverb_sys::eventfd::readable(host.rung(), Some(LIMIT)).unwrap());
        host.take();
        let (seen, woken) = (futex::low(ours.rung()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while futex::low(ours.rung()) == seen {
                    futex::wait(ours.rung(), seen, LIMIT);
                }
                woken.store(true, Ordering::SeqCst);
            });
            // As another kernel rings: no sleeper here is woken by that.
            ours.count_ring();
            let end = std::time::Instant::now() + LIMIT / 2;
            host.wake();
            while !woken.load(Ordering::SeqCst) {
                assert!(std::time::Instant::now() < end, "not in time");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
}

/// By the port itself, where that has room; and its receiver reads nothing in the window.
#[test]
fn rung_doorbells_are_named() {
    let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
    let (host, there) = (bridge(&file, Side::Host), bridge(&file, Side::Machine));
    let (port, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let relay = Relay::new(port.into(), Reads::Always).unwrap();
    let mut agent = Relay::new(far.into(), Reads::Always).unwrap();
    host.speak_by(Some(relay.voice()));
    // A new listener reports once, or more often, that any may have been rung. After the second
    // report of one doorbell that is over: so it is not taken for a later ring.
    for number in (0..pair_window::bells(DATA.length)).chain(0..pair_window::bells(DATA.length)) {
        doorbell_listener::ring(&bell(&file, number)[1]);
        let news = agent.wait(&[], Some(20_000)).unwrap();
        let [News::Frame(frame)] = &news[..] else { panic!("{news:?}") };
        let name = [1, u8::try_from(number).unwrap()];
        assert_eq!((frame.kind, &frame.bytes[..]), (FrameKind::Rung, &name[..]));
    }
    host.take();
    let [_, theirs] = bell(&file, 5);
    let (seen, woken) = (futex::low(theirs.rung()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            futex::wait(theirs.rung(), seen, LIMIT);
            woken.store(true, Ordering::SeqCst);
        });
        // The one that listens for the other side, and any in this test's kernel.
        theirs.count_ring();
        futex::wake(theirs.rung(), u32::MAX >> 1);
        let news = agent.wait(&[], Some(20_000)).unwrap();
        let [News::Frame(frame)] = &news[..] else { panic!("{news:?}") };
        assert_eq!((frame.kind, &frame.bytes[..]), (FrameKind::Rung, &[1, 5][..]));
    });
    assert!(woken.load(Ordering::SeqCst));
    assert!(!omniverb_sys::eventfd::readable(host.rung(), Some(Duration::ZERO)).unwrap());
    // Its counter does not change: it is woken by what was said.
    let (seen, slept) = (futex::low(theirs.rung()), AtomicBool::new(true));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = std::time::Instant::now();
            futex::wait(theirs.rung(), seen, LIMIT);
            slept.store(begun.elapsed() >= LIMIT, Ordering::SeqCst);
            woken.store(false, Ordering::SeqCst);
        });
        while woken.load(Ordering::SeqCst) {
            there.wake_named(&[9, 9, 1, 77, 1, 5, 1]);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(!slept.load(Ordering::SeqCst));
    // Without a port for names the port's thread sends a message.
    host.speak_by(None);
    doorbell_listener::ring(&theirs);
    assert!(omniverb_sys::eventfd::readable(host.rung(), Some(LIMIT)).unwrap());
}

/// Two machines with one window: the agent of the one hears a ring of its process; its proxy wakes
/// the other's proxy, and that one's agent the sleeper there.
#[test]
fn a_wake_passes_two_bridges() {
    let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
    let of = |side, whose| {
        let mut bridge = WakeBridge::new(side).unwrap();
        bridge.add(1, &file, DATA, whose).unwrap();
        assert!(omniverb_sys::eventfd::readable(bridge.rung(), Some(LIMIT)).unwrap());
        // It sleeps before the next one does: a ring wakes the oldest sleeper.
        until_quiet(&bridge);
        bridge
    };
    let [first, second] = bell(&file, 3);
    for (page, from, to) in [
        (&first, WindowOwner::Own, WindowOwner::Another),
        (&second, WindowOwner::Another, WindowOwner::Own),
    ] {
        let agent = of(Side::Machine, from);
        let (proxy, others) = (of(Side::Host, from), of(Side::Host, to));
        let there = of(Side::Machine, to);
        let _ = futex::low(page.rung());
        // One kernel here stands for three: only this listener is woken by a ring.
        doorbell_listener::ring(page);
        assert!(omniverb_sys::eventfd::readable(agent.rung(), Some(LIMIT)).unwrap());
        proxy.wake();
        assert!(omniverb_sys::eventfd::readable(others.rung(), Some(LIMIT)).unwrap());
        there.wake();
    }
}

/// Doorbells of a window that is gone are not heard and wake no sleeper, and another window may
/// have its number.
#[test]
fn a_window_can_be_removed_from_the_bridge() {
    let file = memfd::create("pair", DATA.offset + DATA.length).unwrap();
    let mut host = bridge(&file, Side::Host);
    host.remove(1);
    let [_, theirs] = bell(&file, 5);
    assert!(host.named.is_empty() && lock(&host.near.pages).is_empty());
    assert!(lock(&host.far.names).is_empty());
    until_quiet(&host);
    doorbell_listener::ring(&theirs);
    assert!(!omniverb_sys::eventfd::readable(host.rung(), Some(QUIET)).unwrap());
    let other = memfd::create("pair", DATA.offset + DATA.length).unwrap();
    host.add(1, &other, DATA, WindowOwner::Own).unwrap();
    host.take();
    doorbell_listener::ring(&bell(&other, 5)[1]);
    assert!(omniverb_sys::eventfd::readable(host.rung(), Some(LIMIT)).unwrap());
}

#[test]
fn a_window_that_is_too_short_is_refused() {
    let file = memfd::create("pair", 8192).unwrap();
    assert!(WakeBridge::new(Side::Host).unwrap().add(1, &file, DATA, WindowOwner::Own).is_err());
}
