//! Tests that a hung thread is logged and, if the daemon needs it, ends the signs of life.

#[path = "all/support/mod.rs"]
mod support;

use omniverb_control::{Settings, SignOfLife};
use omniverb_sys::thread_watchdog::{ThreadPulse, ThreadPulses};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::*;

static SIGNS: AtomicU64 = AtomicU64::new(0);

fn signs() -> u64 {
    SIGNS.load(Ordering::Relaxed)
}

/// Stands for a thread of the daemon: has its pulse, and hangs for as long as it is told to.
struct Double {
    orders: mpsc::Sender<mpsc::Receiver<()>>,
}

impl Double {
    fn new(pulse: ThreadPulse) -> Double {
        let (orders, taken) = mpsc::channel::<mpsc::Receiver<()>>();
        std::thread::spawn(move || {
            while let Ok(order) = taken.recv() {
                pulse.work();
                let _ = order.recv();
                pulse.rest();
            }
        });
        Double { orders }
    }

    /// Hangs until this is dropped.
    fn hang(&self) -> mpsc::Sender<()> {
        let (until, order) = mpsc::channel();
        self.orders.send(order).unwrap();
        until
    }
}

/// What status says of those that are stuck.
fn stuck(daemon: &Daemon) -> (Vec<String>, u64) {
    let daemon = &daemon.status()["daemon"];
    let name = |stuck: &serde_json::Value| {
        assert!(stuck["seconds"].is_u64());
        stuck["thread"].as_str().unwrap().to_owned()
    };
    let list = daemon["stuck"].as_array().unwrap().iter().map(name).collect();
    (list, daemon["stuck_so_far"].as_u64().unwrap())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_hung_thread_is_logged_and_ends_the_signs_of_life() {
    let pulses = ThreadPulses::default();
    let (packets, files) =
        (Double::new(pulses.vital("packets")), Double::new(pulses.minor("files")));
    let send = || {
        SIGNS.fetch_add(1, Ordering::Relaxed);
    };
    let daemon = Daemon::start(Settings {
        watchdog: Some(Duration::from_millis(1500)),
        sign_of_life: Some(SignOfLife { every: Duration::from_millis(50), send }),
        pulses,
        ..Settings::default()
    });
    let go_on = |what: &str| {
        let before = signs();
        until(what, || signs() > before + 3);
    };
    go_on("signs of life");
    // The daemon's own threads sleep or work, and none is stuck.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(stuck(&daemon), (vec![], 0));

    let hanging = files.hang();
    until("it is told", || stuck(&daemon) == (vec!["files".into()], 1));
    go_on("others can do without it");
    drop(hanging);
    until("it goes on", || stuck(&daemon) == (vec![], 1));

    let hanging = packets.hang();
    until("it is told", || stuck(&daemon) == (vec!["packets".into()], 2));
    let silent_since = signs();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(signs(), silent_since, "no sign of life while it hangs");
    drop(hanging);
    until("it goes on", || stuck(&daemon) == (vec![], 2));
    go_on("signs of life again");
}

#[test]
fn without_patience_no_thread_is_watched() {
    let pulses = ThreadPulses::default();
    let packets = Double::new(pulses.vital("packets"));
    let daemon = Daemon::start(Settings { watchdog: None, pulses, ..Settings::default() });
    let _hanging = packets.hang();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(stuck(&daemon), (vec![], 0));
}
