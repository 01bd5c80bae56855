//! The library's thread: takes messages of nodes and events of connections, and calls back.
//!
//! It sleeps unless there is something to take, or to call back for; how it waits for the latter
//! the program says.

use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use omniverb_sys::lock;
use omniverb_terms::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::dma_context::Program;
use crate::limits::LOOK;
use crate::wakes_and_callbacks::WaitMode;
use crate::{connection_events, signal_free_thread};

/// Looks at completions before descriptors are looked at again.
const LOOKS: usize = 64;

/// Starts the thread.
pub(crate) fn start(program: &Arc<Program>) -> Result<(), Errno> {
    let its = program.clone();
    let thread = signal_free_thread::spawn("omniverb-dma", move || run(&its))?;
    *lock(&program.thread) = Some(thread);
    Ok(())
}

fn run(program: &Program) {
    program.shared.set_event_thread();
    let mut busy = BTreeSet::new();
    // Looks at completions by itself, and when it last called back.
    let mut looking = None;
    let mut limit = None;
    while !program.stops.load(Ordering::Acquire) {
        let only_look = !busy.is_empty() || program.shared.is_due() || looking.is_some();
        let news = wait(program, if only_look { Some(Duration::ZERO) } else { limit });
        if news.wake {
            program.shared.woken();
        }
        if news.connections {
            connection_events::take_all(program);
        }
        if news.completions {
            while let Some(number) = program.device.news() {
                busy.insert(number);
            }
        }
        busy.retain(|number| program.node(*number).is_some_and(|node| node.serve()));
        limit = program.sweep();
        if program.shared.call() && program.shared.waits != WaitMode::Sleeps {
            looking = Some(Instant::now());
        }
        if program.shared.waits == WaitMode::Spins
            && program.shared.calling.load(Ordering::Relaxed) > 0
        {
            looking = looking.or_else(|| Some(Instant::now()));
        }
        looking = looking.and_then(|since| look(program, since));
        if looking.is_none() && program.shared.looks.swap(false, Ordering::Relaxed) {
            // A thread that started a transfer meanwhile asked for no news of it. One that does so
            // from now on sees, by the node's lock, that it has to.
            let calling = program.nodes().into_iter().filter(|node| node.is_calling());
            busy.extend(calling.filter(|node| node.serve()).map(|node| node.number));
        }
    }
}

struct PendingWork {
    wake: bool,
    connections: bool,
    completions: bool,
}

/// Waits until there is something on a descriptor, no longer than so.
fn wait(program: &Program, limit: Option<Duration>) -> PendingWork {
    // SAFETY: open as long as the program's things are.
    let (events, completions) = unsafe {
        let events = BorrowedFd::borrow_raw((*program.events.0).fd);
        (events, BorrowedFd::borrow_raw((*program.device.channel).fd))
    };
    let mut all = [
        PollFd::from_borrowed_fd(program.shared.waking(), PollFlags::IN),
        PollFd::from_borrowed_fd(events, PollFlags::IN),
        PollFd::from_borrowed_fd(completions, PollFlags::IN),
    ];
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    poll(&mut all, limit.as_ref()).ok();
    let has = |at: usize| !all[at].revents().is_empty();
    PendingWork { wake: has(0), connections: has(1), completions: has(2) }
}

/// Looks for completions that are to be called back, without being told of them, some times; when
/// it last called back. None: it has looked long enough.
fn look(program: &Program, mut since: Instant) -> Option<Instant> {
    program.shared.looks.store(true, Ordering::Relaxed);
    let nodes = program.nodes();
    let calling = || program.shared.calling.load(Ordering::Relaxed) > 0;
    for _ in 0..LOOKS {
        if calling() {
            nodes.iter().filter(|node| node.is_calling()).for_each(|node| node.look());
        }
        if program.shared.call() {
            since = Instant::now();
        } else if since.elapsed() >= LOOK && (program.shared.waits == WaitMode::Mixed || !calling())
        {
            return None;
        }
        // A thread that yields its processor on a busy machine gets it back milliseconds later, and
        // one that sleeps at once. So it is kept: for so short a time, or because the program says
        // so.
        std::hint::spin_loop();
    }
    Some(since)
}
