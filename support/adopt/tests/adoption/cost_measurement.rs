//! Measures what adoption and release cost, per size and strategy: the table of the decision
//! record.

use crate::raw_syscall_helpers::{Memory, in_child};
use crate::require;
use omniverb_adopt::{Access, Strategy, adopt_with};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

const SIZES: [(usize, &str); 3] = [(4 << 10, "4 KiB"), (1 << 20, "1 MiB"), (64 << 20, "64 MiB")];
const ROUNDS: usize = 41;

pub fn table() {
    println!("median of {ROUNDS} rounds, microseconds; all pages in use; two other threads: one");
    println!("computing, one asleep in the kernel (none for SingleThread)\n");
    println!("| size | strategy | adopt | release |");
    println!("|---|---|---:|---:|");
    for (bytes, name) in SIZES {
        for strategy in Strategy::ALL {
            in_child(|| row(bytes, name, strategy));
        }
    }
}

fn row(bytes: usize, name: &str, strategy: Strategy) {
    if require(strategy).is_err() {
        return println!("| {name} | {strategy:?} | not permitted | |");
    }
    let stop = AtomicBool::new(false);
    let (waker, sleep) = std::sync::mpsc::channel::<()>();
    thread::scope(|scope| {
        if strategy != Strategy::SingleThread {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            scope.spawn(move || sleep.recv());
        }
        let memory = Memory::anonymous(bytes);
        memory.fill(1);
        let (mut out, mut back): (Vec<_>, Vec<_>) = (0..ROUNDS)
            .map(|_| {
                let (pages, adopted) = loop {
                    let begin = Instant::now();
                    match adopt_with(memory.address, bytes, Access::ReadWrite, &[strategy]) {
                        Ok(pages) => break (pages, begin.elapsed()),
                        Err(error) => eprintln!("{strategy:?}, {name}: {error}, once more"),
                    }
                };
                memory.fill(1);
                let begin = Instant::now();
                crate::give_back(pages, &[strategy]);
                (adopted, begin.elapsed())
            })
            .unzip();
        out.sort();
        back.sort();
        let (out, back) = (out[ROUNDS / 2].as_micros(), back[ROUNDS / 2].as_micros());
        println!("| {name} | {strategy:?} | {out} | {back} |");
        stop.store(true, Ordering::Relaxed);
        drop(waker);
    });
}
