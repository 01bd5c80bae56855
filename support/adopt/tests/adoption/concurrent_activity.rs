//! Tests programs that do something awkward at the same time: direct I/O, child processes, signals;
//! and an operator that kills the helper.

use crate::page_contents::scramble;
use crate::raw_syscall_helpers::{self, Memory, PAGE};
use crate::stress::{StopOnDrop, count_in, cycle};
use crate::{Outcome, cycles, require};
use omniverb_adopt::{Access, AdoptError, Strategy, adopt, adopt_with};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BLOCKS: usize = 64;

/// A file of recognisable blocks, opened for direct I/O.
fn direct_file() -> Result<File, String> {
    let path = std::env::temp_dir().join(format!("adopt-direct-{}", std::process::id()));
    let mut file = File::create(&path).unwrap();
    for block in 0..BLOCKS {
        let words: Vec<u8> = (0..PAGE / 8)
            .flat_map(|word| scramble((block * PAGE + word) as u64).to_ne_bytes())
            .collect();
        file.write_all(&words).unwrap();
    }
    file.sync_all().unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    std::fs::remove_file(&path).unwrap();
    direct.map_err(|error| format!("no direct I/O on {}: {error}", path.display()))
}

/// A device stores into the pages while they move.
pub fn direct_io() -> Outcome {
    require(Strategy::Stop)?;
    let file = direct_file()?;
    let buffer = Memory::anonymous(8 * PAGE);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        let reader = scope.spawn(|| {
            let mut reads = 0usize;
            while !stop.load(Ordering::Relaxed) {
                let block = reads % BLOCKS;
                let page = buffer.part((1 + reads % 6) * PAGE, PAGE);
                let at = (block * PAGE) as u64;
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(at)).unwrap();
                assert_eq!(page.read_from(file.as_raw_fd()), PAGE as isize);
                for word in 0..page.words() {
                    let expected = scramble((block * PAGE + word) as u64);
                    assert_eq!(page.get(word), expected, "the device's store was lost");
                }
                page.fill(0);
                reads += 1;
            }
            reads
        });
        cycle(buffer, Strategy::Stop, cycles(500));
        drop(stopping);
        assert!(reader.join().unwrap() > 100);
    });
    Ok(())
}

/// Write protection does not see a device's stores, so it is not used where there may be some.
pub fn direct_io_excludes_userfault() -> Outcome {
    require(Strategy::Userfault)?;
    let _file = direct_file()?;
    let memory = Memory::anonymous(PAGE);
    let refused = adopt_with(memory.address, PAGE, Access::ReadWrite, &[Strategy::Userfault]);
    assert_eq!(refused.err(), Some(AdoptError::NotPermitted));
    adopt(memory.address, PAGE, Access::ReadWrite).unwrap().release().unwrap();
    Ok(())
}

/// Other threads start programs all the time (a thread in `vfork()` cannot be stopped).
pub fn spawning(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let buffer = Memory::heap(5 * PAGE + 600);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        let spawner = scope.spawn(|| {
            let mut started = 0;
            while !stop.load(Ordering::Relaxed) || started < 20 {
                let output = Command::new("/bin/echo").arg("here").output().unwrap();
                assert!(output.status.success() && output.stdout == b"here\n");
                started += 1;
            }
        });
        let words: Vec<_> = (0..buffer.words() / 64).map(|group| (buffer, group * 64)).collect();
        let counter = scope.spawn({
            let stop = &stop;
            move || count_in(&words, stop)
        });
        cycle(buffer, strategy, cycles(300));
        drop(stopping);
        spawner.join().unwrap();
        counter.join().unwrap();
    });
    Ok(())
}

/// A thread that cannot be stopped makes the attempt fail, not wait for it, and the threads that
/// were stopped for nothing do not notice.
pub fn gives_up() -> Outcome {
    require(Strategy::Stop)?;
    const NAP_MS: i32 = 500;
    let (byte, release) = std::io::pipe().unwrap();
    let buffer = Memory::heap(5 * PAGE + 600);
    let attempt = || {
        adopt_with(buffer.address, buffer.length, Access::ReadWrite, &[Strategy::Stop]).map(drop)
    };
    thread::scope(|scope| {
        // Closed with this scope, whatever becomes of it, which ends the wait, too.
        let mut release = release;
        let busy = scope.spawn(|| raw_syscall_helpers::uninterruptible_until(byte.as_fd()));
        let sleeper = scope.spawn(|| raw_syscall_helpers::epoll_nap(NAP_MS));
        thread::sleep(Duration::from_millis(50));
        for _ in 0..3 {
            assert_eq!(attempt(), Err(AdoptError::Busy));
            assert!(!busy.is_finished());
        }
        release.write_all(b"x").unwrap();
        busy.join().unwrap();
        while attempt() == Err(AdoptError::Busy) {}
        assert_eq!(sleeper.join().unwrap(), 0, "a sleeper noticed");
    });
    Ok(())
}

/// Queued signals arrive exactly once, however often their thread is stopped.
pub fn signals(strategy: Strategy) -> Outcome {
    require(strategy)?;
    let buffer = Memory::heap(5 * PAGE + 600);
    let stop = AtomicBool::new(false);
    let signal = raw_syscall_helpers::count_signals();
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        let (tell, told) = std::sync::mpsc::channel();
        let (done, all_sent) = std::sync::mpsc::channel::<()>();
        let words: Vec<_> = (0..buffer.words() / 64).map(|group| (buffer, group * 64)).collect();
        let (stop, sent) = (&stop, &sent);
        let counter = scope.spawn(move || {
            tell.send(raw_syscall_helpers::own_thread()).unwrap();
            let count = count_in(&words, stop);
            // Alive until the last signal was sent to this thread.
            let _ = all_sent.recv();
            count
        });
        let target = told.recv().unwrap();
        let sender = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let more = usize::from(raw_syscall_helpers::send_to_thread(target, signal));
                sent.fetch_add(more, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(20));
            }
            drop(done);
        });
        cycle(buffer, strategy, cycles(500));
        // On a busy machine it takes more of them.
        while sent.load(Ordering::Relaxed) <= 100 {
            cycle(buffer, strategy, 10);
        }
        drop(stopping);
        sender.join().unwrap();
        counter.join().unwrap();
    });
    let (received, sent) = (raw_syscall_helpers::signals_counted(), sent.into_inner());
    assert!(received > 100 && received == sent, "{received} signals received of {sent}");
    Ok(())
}

/// A daemon adopts as root and gives up its privileges. What was granted can still be taken back;
/// a new adoption may or may not work, but never does harm.
pub fn privileges_given_up() -> Outcome {
    require(Strategy::Userfault)?;
    let buffer = Memory::heap(5 * PAGE + 600);
    let pages = adopt(buffer.address, buffer.length, Access::ReadWrite).unwrap();
    let peer = Memory::of_file(&pages.memfd(), pages.page_length(), true).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        let words: Vec<_> = (0..buffer.words() / 64).map(|group| (buffer, group * 64)).collect();
        let counter = scope.spawn({
            let stop = &stop;
            move || count_in(&words, stop)
        });
        raw_syscall_helpers::give_up_privileges();
        crate::give_back(pages, &Strategy::ALL);
        peer.fill(0xEE);
        thread::sleep(Duration::from_millis(10));
        match adopt(buffer.address, buffer.length, Access::ReadWrite) {
            Ok(pages) => crate::give_back(pages, &Strategy::ALL),
            Err(error) => assert_eq!(error, AdoptError::NotPermitted),
        }
        drop(stopping);
        counter.join().expect("a store was lost");
    });
    Ok(())
}

/// Killing the helper at random moments costs at most an attempt, never a store.
pub fn helper_is_killed() -> Outcome {
    require(Strategy::Stop)?;
    let process = std::process::id();
    let listing = format!("/proc/{process}/task/{process}/children");
    if std::fs::read(&listing).is_err() {
        return Err("this kernel does not list children".into());
    }
    let killer = raw_syscall_helpers::start_child(|| {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut round = 0u64;
        loop {
            round += 1;
            for child in std::fs::read_to_string(&listing).unwrap_or_default().split_whitespace() {
                let child = child.parse().unwrap();
                if child != own {
                    let wait = Duration::from_micros(scramble(round) % 4000);
                    let seen = Instant::now();
                    while seen.elapsed() < wait {
                        std::hint::spin_loop();
                    }
                    // A number is not used again so soon.
                    raw_syscall_helpers::kill(child);
                }
            }
        }
    });
    let buffer = Memory::anonymous(600 * PAGE);
    let stop = AtomicBool::new(false);
    let (mut moved, mut failed) = (0, 0);
    thread::scope(|scope| {
        let stopping = StopOnDrop(&stop);
        let words: Vec<_> = (0..600).map(|page| (buffer, page * 512 + page % 512)).collect();
        let counter = scope.spawn({
            let stop = &stop;
            move || count_in(&words, stop)
        });
        let (begin, mut round) = (Instant::now(), 0);
        // As many as wanted, and until each has happened.
        while round < cycles(1_000) / 10 || moved == 0 || failed == 0 {
            if begin.elapsed() > Duration::from_secs(20) {
                break;
            }
            round += 1;
            let mut held = match adopt_with(
                buffer.address,
                buffer.length,
                Access::ReadWrite,
                &[Strategy::Stop],
            ) {
                Ok(pages) => pages,
                Err(error) => {
                    assert_eq!(error, AdoptError::Busy);
                    failed += 1;
                    continue;
                }
            };
            moved += 1;
            while let Err(again) = held.release_with(&[Strategy::Stop]) {
                assert_eq!(again.error, AdoptError::Busy);
                held = again.pages;
                failed += 1;
            }
        }
        drop(stopping);
        counter.join().expect("a store was lost");
    });
    raw_syscall_helpers::kill(killer);
    raw_syscall_helpers::reap(killer);
    assert!(moved > 0 && failed > 0, "{moved} moves, {failed} killed: too one-sided to tell");
    Ok(())
}
