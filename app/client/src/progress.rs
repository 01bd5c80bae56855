//! The progress thread.
//!
//! It sleeps until a peer kicks, the daemon tells something, or a timer is due. While nobody polls
//! it asks for kicks before it waits. After any activity it takes a turn every millisecond; after
//! two quiet ones, by when nobody can have missed that kicks are wanted, it sleeps without a limit.
//! It waits for nothing else: what needs an answer of the daemon is done in `calls.rs`, and what
//! the daemon has no room for waits in `answers.rs`.
// UNSAFETY: blocks signals for the new thread, which only the C library's mask calls can do.
#![expect(unsafe_code)]

use crate::Client;
use crate::answers::Answers;
use crate::calls::{Call, Calls};
use crate::ears::Ears;
use crate::errno::errno_of;
use crate::lock::lock;
use omniverb_device::progress::Turn;
use omniverb_session::Message;
use omniverb_sys::Sleeper;
use omniverb_sys::clock;
use omniverb_terms::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// How long to wait between turns while there is activity.
const TICK: Duration = Duration::from_millis(1);
/// How often bells that have links, or have none any more, are looked for, in nanoseconds, by a
/// thread that is awake.
const HEAR_EVERY: u64 = 100_000_000;
/// How often to look for a daemon that went away.
const RECONNECT: Duration = Duration::from_millis(100);

/// Address space for a stack: messages are kilobytes, and builds without optimisation keep many.
const STACK_BYTES: usize = 1 << 20;

/// What others share with the thread.
pub(crate) struct Progress {
    /// Its sleep, which the peers' bells end, too.
    pub(crate) sleep: Sleeper,
    pub(crate) ears: Arc<Ears>,
    started: AtomicBool,
    asleep: AtomicBool,
    errands: Mutex<Vec<Call>>,
    /// The events socket that is listened to.
    listening: Mutex<Option<Arc<OwnedFd>>>,
    /// What is to be sent there.
    answers: Mutex<Answers>,
    calls: Arc<Calls>,
}

impl Progress {
    pub(crate) fn new() -> Result<Arc<Progress>, Errno> {
        Ok(Arc::new(Progress {
            sleep: Sleeper::new(spawn_listener),
            ears: Ears::new()?,
            started: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            errands: Mutex::default(),
            listening: Mutex::default(),
            answers: Mutex::default(),
            calls: Arc::default(),
        }))
    }

    /// Makes the thread take a turn soon.
    pub(crate) fn attend(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.sleep.nudge();
        }
    }

    /// Leaves an errand to the thread.
    pub(crate) fn run(&self, errand: Call) {
        lock(&self.errands).push(errand);
        // Also when it is awake: an errand should not wait for the next tick.
        self.asleep.store(false, Ordering::SeqCst);
        self.sleep.nudge();
    }

    /// Starts the thread, if it does not run.
    pub(crate) fn start(&self, client: &Arc<Client>) -> Result<(), Errno> {
        if self.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let weak = Arc::downgrade(client);
        let listens = self.ears.start(self.sleep.nudger());
        listens.and_then(|()| spawn_quietly("omniverb", move || run(&weak))).inspect_err(|_| {
            self.started.store(false, Ordering::Release);
        })
    }

    /// Listens to the daemon's present events socket.
    pub(crate) fn listen(&self, client: &Client) -> bool {
        let events = client.session.events();
        let listening = self.listening();
        let same = match (&listening, &events) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if !same {
            if let Some(old) = listening {
                self.ears.remove(&old);
                lock(&self.answers).clear();
                client.daemon_lost();
            }
            let added = |new: &Arc<OwnedFd>| self.ears.add(new);
            *lock(&self.listening) = events.filter(added);
            if self.listening().is_some() {
                client.take_older_back(client.bells.era());
            }
        }
        self.listening().is_some()
    }

    /// Answers the daemon, now or when there is room.
    pub(crate) fn answer(&self, to: &OwnedFd, message: Message) {
        let mut answers = lock(&self.answers);
        answers.push(to.as_fd(), message);
        if !answers.is_empty() {
            self.ears.again(to, true);
        }
    }

    /// There may be room for answers.
    pub(crate) fn flush_answers(&self, to: &OwnedFd) {
        let mut answers = lock(&self.answers);
        if !answers.is_empty() {
            answers.flush(to.as_fd());
        }
    }

    /// Wants to be told of what else comes from the daemon, and of room for answers.
    fn listen_on(&self) {
        if let Some(events) = self.listening() {
            self.ears.again(&events, !lock(&self.answers).is_empty());
        }
    }

    /// The events socket that is listened to; the session may have a newer one already.
    pub(crate) fn listening(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.listening).clone()
    }
}

/// All signals blocked while it lives: a thread started meanwhile takes none of the application's.
struct Masked(libc::sigset_t);

impl Masked {
    fn new() -> Masked {
        // SAFETY: both sets are plain memory that the calls fill in; blocking signals for a
        // moment has no other effect.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut old = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
            Masked(old)
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: restores the set that `new` saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Starts a thread that takes none of the application's signals.
pub(crate) fn spawn_quietly(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let masked = Masked::new();
    let spawned = std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(work);
    drop(masked);
    spawned.map(drop).map_err(|error| errno_of(&error))
}

fn spawn_listener(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    spawn_quietly(name, work).map_err(|errno| io::Error::from_raw_os_error(errno.raw()))
}

fn run(client: &Weak<Client>) {
    let (mut quiet, mut deadline) = (0, None);
    let (mut reconnect_at, mut hear_at) = (0, 0);
    loop {
        let Some(client) = client.upgrade() else { return };
        let progress = client.progress.clone();
        let connected = progress.listen(&client);
        if quiet >= 2 {
            progress.asleep.store(true, Ordering::SeqCst);
            // Whoever came before that saw an awake thread and left it to this turn, a timer that
            // began included.
            let turn = client.shared.progress();
            deadline = turn.deadline;
            if turn.busy {
                progress.asleep.store(false, Ordering::SeqCst);
                quiet = 0;
            }
        }
        let mut timeout = match (quiet, deadline) {
            (0 | 1, _) => Some(TICK),
            (_, None) => None,
            (_, Some(due)) => Some(Duration::from_nanos(due_in(due)).max(TICK)),
        };
        if !connected {
            timeout = Some(timeout.map_or(RECONNECT, |timeout| timeout.min(RECONNECT)));
        }
        // The client is not kept alive by its own sleeping thread... but contexts never go away
        // while the process lives, so holding it costs nothing.
        let mut active = progress.sleep.wait(timeout);
        progress.asleep.store(false, Ordering::SeqCst);
        if active {
            client.shared.rung();
        }
        if progress.ears.take() {
            client.take_events();
            progress.listen_on();
        }
        client.watches.call();
        active |= client.run_errands();
        if clock::now() >= hear_at {
            hear_at = clock::now() + HEAR_EVERY;
            client.hear_bells();
        }
        let mut turn = client.shared.progress();
        if !turn.polled && client.want_kicks() {
            // Whoever rang just before that left no kick.
            let again = client.shared.progress();
            turn = Turn { busy: turn.busy | again.busy, ..again };
        }
        deadline = turn.deadline;
        quiet = if active || turn.busy { 0 } else { quiet + 1 };
        if !connected && clock::now() >= reconnect_at {
            reconnect_at = clock::now() + RECONNECT.as_nanos() as u64;
            client.have_called(Call::Reconnect);
        }
    }
}

fn due_in(due: u64) -> u64 {
    due.saturating_sub(clock::now())
}

impl Client {
    /// Has this done by the thread for it.
    pub(crate) fn have_called(&self, call: Call) {
        self.progress.calls.ask(&self.me, call);
    }

    fn run_errands(&self) -> bool {
        let errands = std::mem::take(&mut *lock(&self.progress.errands));
        let any = !errands.is_empty();
        for errand in errands {
            self.have_called(errand);
        }
        any
    }

    /// Asks all peers to kick; true if some would not have until now.
    fn want_kicks(&self) -> bool {
        let mut news = false;
        for bell in self.shared.bells.all().iter().filter(|bell| !bell.page.wants_kick()) {
            bell.page.want_kick();
            news = true;
        }
        news
    }
}
