//! Holds what others share with the progress thread, which runs in `client::progress_thread`.

use crate::deferred_daemon_calls::DeferredCall;
use crate::fd_readiness_thread::FdReadinessThread;
use crate::signal_free_thread::{spawn_listener, spawn_quietly};
use crate::unsent_event_replies::UnsentReplies;
use omniverb_session::Message;
use omniverb_sys::DoorbellSleeper;
use omniverb_sys::epoll::Interest;
use omniverb_sys::lock;
use omniverb_terms::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What others share with the thread.
pub(crate) struct Progress {
    /// Its sleep, which the peers' bells end, too.
    pub(crate) sleep: DoorbellSleeper,
    pub(crate) daemon_listener: Arc<FdReadinessThread>,
    started: AtomicBool,
    /// Something came that there was no room for: the thread looks again by itself.
    comes_back: AtomicBool,
    asleep: AtomicBool,
    tasks: Mutex<Vec<DeferredCall>>,
    /// The events socket that is listened to.
    listening: Mutex<Option<Arc<OwnedFd>>>,
    /// What is to be sent there.
    answers: Mutex<UnsentReplies>,
}

impl Progress {
    pub(crate) fn new() -> Result<Arc<Progress>, Errno> {
        Ok(Arc::new(Progress {
            sleep: DoorbellSleeper::new(spawn_listener),
            daemon_listener: FdReadinessThread::new()?,
            started: AtomicBool::new(false),
            comes_back: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            tasks: Mutex::default(),
            listening: Mutex::default(),
            answers: Mutex::default(),
        }))
    }

    /// Makes the thread take a turn soon.
    pub(crate) fn attend(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.sleep.nudge();
        }
    }

    /// Leaves a task to the thread.
    pub(crate) fn run(&self, task: DeferredCall) {
        lock(&self.tasks).push(task);
        // Also when it is awake: a task should not wait for the next tick.
        self.asleep.store(false, Ordering::SeqCst);
        self.sleep.nudge();
    }

    /// Has `work` done by the thread, if it does not run. `work` ends when the process does.
    pub(crate) fn start(&self, work: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
        if self.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let listens = self.daemon_listener.start(self.sleep.nudger());
        listens.and_then(|()| spawn_quietly("omniverb", work)).inspect_err(|_| {
            self.started.store(false, Ordering::Release);
        })
    }

    /// The thread is about to sleep: from now on [`Self::attend`] ends that.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The thread is awake: it looks by itself what there is to do.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Takes what was left to the thread.
    pub(crate) fn take_tasks(&self) -> Vec<DeferredCall> {
        std::mem::take(&mut *lock(&self.tasks))
    }

    /// Listens to this events socket of the daemon's from now on, or to none.
    pub(crate) fn listen_to(&self, events: Option<Arc<OwnedFd>>) {
        let added = |new: &Arc<OwnedFd>| self.daemon_listener.add(new);
        *lock(&self.listening) = events.filter(added);
    }

    /// Listens to this one no longer, whose daemon is gone, and forgets what was to be sent there.
    pub(crate) fn stop_listening(&self, old: &OwnedFd) {
        self.daemon_listener.remove(old);
        lock(&self.answers).clear();
    }

    /// Answers the daemon, now or when there is room.
    pub(crate) fn answer(&self, to: &OwnedFd, message: Message) {
        let mut answers = lock(&self.answers);
        answers.push(to.as_fd(), message);
        if !answers.is_empty() {
            self.daemon_listener.again(to, Interest::Both);
        }
    }

    /// For the thread itself: what has come is to be taken a moment later.
    pub(crate) fn come_back(&self) {
        self.comes_back.store(true, Ordering::Relaxed);
    }

    /// Whether it is.
    pub(crate) fn comes_back(&self) -> bool {
        self.comes_back.load(Ordering::Relaxed)
    }

    /// Whether there is something to take, now that the moment is over.
    pub(crate) fn hears(&self) -> bool {
        self.daemon_listener.take() | self.comes_back.swap(false, Ordering::Relaxed)
    }

    /// There may be room for answers.
    pub(crate) fn flush_answers(&self, to: &OwnedFd) {
        let mut answers = lock(&self.answers);
        if !answers.is_empty() {
            answers.flush(to.as_fd());
        }
    }

    /// Wants to be told of what else comes from the daemon, and of room for answers.
    pub(crate) fn listen_on(&self) {
        if let Some(events) = self.listening() {
            let idle = lock(&self.answers).is_empty();
            self.daemon_listener
                .again(&events, if idle { Interest::Input } else { Interest::Both });
        }
    }

    /// The events socket that is listened to; the session may have a newer one already.
    pub(crate) fn listening(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.listening).clone()
    }
}
