//! Users in whose name epoll instances are made that others will hold.
//!
//! Whoever *makes* an epoll instance pays for all that anybody adds to it, out of a limit for all
//! instances of its real user (`fs.epoll.max_user_watches`). Made in root's name, one that a
//! hostile process holds could be filled until nobody of root's can watch anything any more. So
//! some threads have a real user number each that nobody else has, and make them; the effective
//! one, by which rights go, stays. They do nothing else, give up all privileges, and never wait for
//! anything but the next request. Each watch is kernel memory, charged to whoever adds it: to use
//! up the limits of all takes more than a limited container has.

use crate::privileges::keep_only;
use rustix::event::epoll;
use rustix::process::{Uid, geteuid, getuid};
use rustix::thread::set_thread_res_uid;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// First of the numbers: above those of users and of containers' users (`systemd` gives out up to
/// 0x6fff0000), below those that are negative for somebody.
const FIRST: u32 = 0x7000_0000;

/// Enough that their limits together are out of reach, few enough to cost nothing.
const COUNT: u32 = 16;

const STACK_BYTES: usize = 64 << 10;

type Answer = io::Result<OwnedFd>;

/// The threads.
#[derive(Debug)]
pub struct Payers(Vec<SyncSender<SyncSender<Answer>>>);

impl Payers {
    /// Starts them, while there is the privilege for it (`CAP_SETUID`). `None` without: then epoll
    /// instances are made in one's own name, who is not root as a rule.
    #[must_use]
    pub fn start() -> Option<Payers> {
        if !getuid().is_root() || !geteuid().is_root() {
            return None;
        }
        let started = (0..COUNT).map_while(start_one).collect::<Vec<_>>();
        (!started.is_empty()).then_some(Payers(started))
    }

    /// Has an epoll instance made, and something done with it: by the first, counted from `who`,
    /// with whom that is not over the limit of watches.
    ///
    /// # Errors
    /// `ENOSPC` if it is with all of them, otherwise what the kernel says.
    pub(crate) fn first_who_can(
        &self,
        who: u64,
        act: impl Fn(OwnedFd) -> io::Result<OwnedFd>,
    ) -> io::Result<OwnedFd> {
        let first = usize::try_from(who % self.0.len().max(1) as u64).unwrap_or(0);
        let mut outcome = Err(io::Error::from_raw_os_error(libc::ENOSPC));
        for payer in self.0.iter().cycle().skip(first).take(self.0.len()) {
            outcome = ask(payer).and_then(&act);
            if !matches!(&outcome, Err(error) if error.raw_os_error() == Some(libc::ENOSPC)) {
                break;
            }
        }
        outcome
    }
}

fn ask(payer: &SyncSender<SyncSender<Answer>>) -> Answer {
    let gone = || io::Error::other("the thread that makes epoll instances is gone");
    let (answer, view) = sync_channel(1);
    payer.send(answer).map_err(|_| gone())?;
    view.recv().map_err(|_| gone())?
}

/// `None` if the thread cannot be had, or cannot be somebody else.
fn start_one(number: u32) -> Option<SyncSender<SyncSender<Answer>>> {
    let (requests, waiting) = sync_channel(1);
    let (tell, is_other) = sync_channel(1);
    let thread = std::thread::Builder::new().name("payer".into()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || {
        let other = set_thread_res_uid(Uid::from_raw(FIRST + number), Uid::ROOT, Uid::ROOT);
        let fine = other.is_ok() && keep_only(&[]).is_ok();
        if tell.send(fine).is_ok() && fine {
            serve(waiting);
        }
    });
    (spawned.is_ok() && is_other.recv() == Ok(true)).then_some(requests)
}

fn serve(requests: Receiver<SyncSender<Answer>>) {
    for answer in requests {
        let view = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from);
        // There is room, and who asked waits for it.
        let _ = answer.send(view);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake;

    #[test]
    fn others_pay_and_we_stay_ourselves() {
        let before = (getuid(), geteuid());
        let Some(payers) = Payers::start() else {
            assert!(!getuid().is_root() || !crate::netns::may_enter_others());
            return;
        };
        assert_eq!((getuid(), geteuid()), before);
        for who in [0, 1, 15, 16, u64::MAX] {
            let (waker, sleeper) = wake::direction(Some(&payers), who).unwrap();
            waker.signal();
            assert!(sleeper.take());
        }
        let real: Vec<String> = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
            .filter(|status| status.starts_with("Name:\tpayer\n"))
            .filter_map(|status| {
                status.lines().find_map(|l| l.strip_prefix("Uid:\t")).map(Into::into)
            })
            .collect();
        assert!(real.contains(&format!("{FIRST}\t0\t0\t0")), "{real:?}");
    }

    #[test]
    fn who_is_over_the_limit_is_passed_over() {
        let Some(payers) = Payers::start() else { return };
        let tried = std::cell::Cell::new(0);
        let outcome = payers.first_who_can(3, |view| {
            tried.set(tried.get() + 1);
            match tried.get() {
                1..4 => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
                _ => Ok(view),
            }
        });
        assert!(outcome.is_ok() && tried.get() == 4);
        let none = |_| Err(io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(payers.first_who_can(0, none).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        let other = |_| Err(io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(payers.first_who_can(0, other).unwrap_err().raw_os_error(), Some(libc::EMFILE));
    }
}
