//! Keeps a supervisor's pair windows: made at the start, plugged in later, or mapped.
//!
//! Two threads use them: the supervisor's, which starts proxies and tells daemons of all, and the
//! one that plugs in. A process that is started inherits the windows that are meant for it and no
//! others: so one process is started at a time.

use super::machine_window::Window;
use crate::operator_connection::Operator;
use anyhow::Context;
use omniverb_session::operator::VNIC_NAME_BYTES;
use omniverb_session::pair_window::WindowOwner;
use omniverb_sys::{eventfd, lock, memfd, seqpacket};
use rustix::io::{FdFlags, fcntl_setfd};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes of a pair window's ledger beside one for each page.
const WHOSE_BYTES: u64 = 64;
/// Stands before the number of a descriptor of another machine's window.
const ANOTHERS: &str = "+";
/// Tells a proxy that a window goes; its answer when the machine has released it.
pub(super) const GOES: u8 = b'-';
/// How long the machine's agent may take for that; then the window goes nevertheless.
const LET_GO: Duration = Duration::from_secs(2);

/// The byte that tells a proxy the owner of a window.
fn said(whose: WindowOwner) -> u8 {
    match whose {
        WindowOwner::Own => b'+',
        WindowOwner::Another => b'*',
    }
}

/// The owner that such a byte names.
pub(super) fn whose_said(byte: u8) -> Option<WindowOwner> {
    [WindowOwner::Own, WindowOwner::Another].into_iter().find(|whose| said(*whose) == byte)
}

/// A window in a proxy's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handed {
    pub(super) number: u8,
    /// The number of its descriptor.
    pub(super) descriptor: i32,
    pub(super) whose: WindowOwner,
}

impl Handed {
    fn word(self) -> String {
        let mark = if self.whose == WindowOwner::Another { ANOTHERS } else { "" };
        format!("{}={mark}{}", self.number, self.descriptor)
    }

    /// As that says.
    pub(super) fn read(word: &str) -> Option<Handed> {
        let (number, descriptor) = word.split_once('=')?;
        let (descriptor, whose) = match descriptor.strip_prefix(ANOTHERS) {
            Some(descriptor) => (descriptor, WindowOwner::Another),
            None => (descriptor, WindowOwner::Own),
        };
        let digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
        if !digits(number) || !digits(descriptor) {
            return None;
        }
        let (number, descriptor) = (number.parse().ok()?, descriptor.parse().ok()?);
        Some(Handed { number, descriptor, whose })
    }
}

/// The ledger of a window, with so many bytes beside one for each page.
pub(super) fn ledger(window: &Window, more: u64) -> anyhow::Result<OwnedFd> {
    let pages = window.data.length.div_ceil(4096);
    memfd::create("omniverb-ledger", pages + more).context("cannot make a ledger")
}

/// A pair window, and what the daemon notes of it; of another machine's that one's supervisor has
/// that.
pub(super) struct Pair {
    pub(super) window: Window,
    ledger: Option<OwnedFd>,
    /// Where in the guest's device its data part begins, if it is mapped there with others; `None`:
    /// it has a device of its own.
    pub(super) at: Option<u64>,
}

impl Pair {
    /// Makes one of so many bytes, and names it in this machine's own window.
    pub(super) fn make(own: &Window, number: u8, bytes: u64) -> anyhow::Result<Pair> {
        let window = own.pair(bytes)?;
        own.tell(number, &window, WindowOwner::Own)?;
        Ok(Pair { ledger: Some(ledger(&window, WHOSE_BYTES)?), window, at: None })
    }

    /// Takes another machine's, and names it in this machine's own window. `known`: whether this
    /// name exists.
    pub(super) fn of_another(
        own: &Window,
        number: u8,
        file: OwnedFd,
        known: impl FnOnce(u64) -> bool,
    ) -> anyhow::Result<Pair> {
        let window = Window::of_another(file, known)?;
        own.tell(number, &window, WindowOwner::Another)?;
        Ok(Pair { window, ledger: None, at: None })
    }

    fn whose(&self) -> WindowOwner {
        if self.ledger.is_some() { WindowOwner::Own } else { WindowOwner::Another }
    }

    /// Brings it to the daemon.
    pub(super) fn attach(
        &self,
        operator: &Operator,
        machine: [u8; VNIC_NAME_BYTES],
        number: u8,
    ) -> anyhow::Result<()> {
        let Window { file, data, .. } = &self.window;
        let place = (number.into(), self.at.unwrap_or(0));
        match &self.ledger {
            Some(ledger) => operator.attach_pair(machine, place, *data, [file, ledger]),
            None => operator.join_pair(machine, place, *data, file),
        }
    }
}

/// All of a machine's, by their numbers from one on.
pub(super) struct Pairs(Mutex<Inner>);

struct Inner {
    all: BTreeMap<u8, Pair>,
    /// Numbers that no window can have any more: what has one is still in the machine.
    lost: BTreeSet<u8>,
    /// The socket by which the running proxy gets more.
    proxy: Option<OwnedFd>,
}

impl Pairs {
    pub(super) fn new(all: Vec<Pair>) -> Pairs {
        let all = (1..).zip(all).collect();
        Pairs(Mutex::new(Inner { all, lost: BTreeSet::new(), proxy: None }))
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.0).all.len()
    }

    /// How many numbers are not to be had for others.
    pub(super) fn taken(&self) -> usize {
        let inner = lock(&self.0);
        inner.all.len() + inner.lost.len()
    }

    /// The first number up to `most` that is to be had.
    pub(super) fn free_number(&self, most: u8) -> Option<u8> {
        let inner = lock(&self.0);
        (1..=most).find(|number| !inner.all.contains_key(number) && !inner.lost.contains(number))
    }

    /// Whether there is one that is called so.
    pub(super) fn has(&self, called: u64) -> bool {
        lock(&self.0).all.values().any(|pair| pair.window.head.number == called)
    }

    /// Whether the one of this number is mapped.
    pub(super) fn is_mapped(&self, number: u8) -> bool {
        lock(&self.0).all.get(&number).is_some_and(|pair| pair.at.is_some())
    }

    /// Those that are mapped, and their numbers.
    pub(super) fn mapped(&self) -> io::Result<Vec<(u8, OwnedFd)>> {
        let inner = lock(&self.0);
        let mapped = inner.all.iter().filter(|(_, pair)| pair.at.is_some());
        mapped.map(|(number, pair)| Ok((*number, pair.window.file.try_clone()?))).collect()
    }

    /// Hands each over, one at a time: a message has not many descriptors.
    pub(super) fn hand_over(
        &self,
        mut to: impl FnMut(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<()> {
        lock(&self.0).all.values().try_for_each(|pair| to(&pair.window.file))
    }

    /// Starts a process that has the windows, too: with the numbers of their descriptors there.
    pub(super) fn start(&self, command: &mut Command) -> anyhow::Result<(Child, Vec<i32>)> {
        let inner = lock(&self.0);
        let copies = copies(inner.all.values().map(|pair| &pair.window.file))?;
        let numbers = copies.iter().map(AsRawFd::as_raw_fd).collect();
        Ok((command.spawn()?, numbers))
    }

    /// Starts one that has none of them.
    pub(super) fn start_without(&self, command: &mut Command) -> io::Result<Child> {
        let _alone = lock(&self.0);
        command.spawn()
    }

    /// Starts a proxy. The numbers of its descriptors end its command line: of a socket, by which
    /// it gets windows that come later, and of the existing ones.
    pub(super) fn start_proxy(&self, command: &mut Command) -> anyhow::Result<Child> {
        let mut inner = lock(&self.0);
        let (ours, theirs) = seqpacket::pair()?;
        let socket = copies([&theirs].into_iter())?;
        let copies = copies(inner.all.values().map(|pair| &pair.window.file))?;
        command.args(socket.iter().map(|file| file.as_raw_fd().to_string()));
        command.args(copies.iter().zip(&inner.all).map(|(file, (number, pair))| {
            let (number, descriptor) = (*number, file.as_raw_fd());
            Handed { number, descriptor, whose: pair.whose() }.word()
        }));
        let proxy = command.spawn()?;
        inner.proxy = Some(ours);
        Ok(proxy)
    }

    /// Another one, which the machine has. The proxy that runs has it before the daemon does.
    pub(super) fn add(
        &self,
        number: u8,
        pair: Pair,
        operator: &Operator,
        machine: [u8; VNIC_NAME_BYTES],
    ) -> anyhow::Result<()> {
        let mut inner = lock(&self.0);
        if let Some(proxy) = &inner.proxy {
            // One that has ended is followed by another, which has all.
            let word = [said(pair.whose()), number];
            let _ = seqpacket::try_send(proxy.as_fd(), &word, &[pair.window.file.as_fd()]);
        }
        inner.all.insert(number, pair);
        let pair = inner.all.get(&number).context("none")?;
        // The other thread tells a later daemon of all of them.
        pair.attach(operator, machine, number)
    }

    /// One is to go: no later proxy gets it, and the machine is told. Waits until it has released
    /// it, or has had time to.
    pub(super) fn let_go(&self, number: u8) {
        let proxy = {
            let mut inner = lock(&self.0);
            inner.all.remove(&number);
            inner.lost.insert(number);
            inner.proxy.as_ref().and_then(|proxy| proxy.try_clone().ok())
        };
        let Some(proxy) = proxy else { return };
        if seqpacket::try_send(proxy.as_fd(), &[GOES, number], &[]).is_ok() {
            wait_for_word(&proxy, number, Instant::now() + LET_GO);
        }
    }

    /// A window that has gone is not in the machine any more: its number is free.
    pub(super) fn is_gone(&self, number: u8) {
        lock(&self.0).lost.remove(&number);
    }

    /// Brings all to a daemon.
    pub(super) fn attach(&self, operator: &Operator, machine: [u8; VNIC_NAME_BYTES]) {
        for (number, pair) in &lock(&self.0).all {
            // A daemon that knows of none hangs up: then there are none, and all goes by the
            // engine.
            if pair.attach(operator, machine, *number).is_err() {
                break;
            }
        }
    }
}

/// Waits until a proxy reports that the machine has released window `number`, or it is time, or the
/// proxy sends a malformed message: it serves a hostile guest, and may send anything, without end.
fn wait_for_word(proxy: &OwnedFd, number: u8, until: Instant) {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || !eventfd::readable(proxy.as_fd(), Some(left)).unwrap_or(false) {
            return;
        }
        let mut word = [0; 2];
        match seqpacket::receive(proxy.as_fd(), &mut word, seqpacket::BlockingMode::NonBlocking) {
            Ok((2, files)) if files.is_empty() && word != [GOES, number] => {
                // Of one before that took too long.
            }
            Ok((_, files)) if !files.is_empty() => {
                // It has no reason to send any, and closing them can take as long as it likes.
                let thread = std::thread::Builder::new().name("omniverb-closes".into());
                let _ = thread.spawn(move || drop(files));
                return;
            }
            _ => return,
        }
    }
}

/// Copies of descriptors that a process has, too, that is started while they are there.
fn copies<'a>(files: impl Iterator<Item = &'a OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    let copy = |file: &OwnedFd| {
        let copy = file.try_clone()?;
        fcntl_setfd(&copy, FdFlags::empty())?;
        Ok(copy)
    };
    files.map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy that never stops talking is heard for as long as it may take, and no longer.
    #[test]
    fn a_proxy_that_sends_other_messages_is_not_waited_for() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let (over, stop) = std::sync::mpsc::channel::<()>();
        let talker = std::thread::spawn(move || {
            let other = || seqpacket::try_send(theirs.as_fd(), &[GOES, 7], &[]);
            let full = |said: &io::Result<()>| {
                said.is_ok() || matches!(said, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
            };
            while full(&other()) && stop.try_recv().is_err() {}
        });
        wait_for_word(&ours, 3, Instant::now() + Duration::from_millis(50));
        drop((over, ours));
        talker.join().unwrap();
    }

    #[test]
    fn an_awaited_message_ends_the_wait() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let far = || Instant::now() + Duration::from_secs(3600);
        for word in [[GOES, 2], [GOES, 3], [GOES, 4]] {
            seqpacket::send(theirs.as_fd(), &word, &[]).unwrap();
        }
        wait_for_word(&ours, 3, far());
        let mut word = [0; 2];
        seqpacket::receive(ours.as_fd(), &mut word, seqpacket::BlockingMode::NonBlocking).unwrap();
        assert_eq!(word, [GOES, 4], "what is behind it stays");
        // A malformed message ends it, too: too short, with a descriptor, from a closed socket.
        seqpacket::send(theirs.as_fd(), &[GOES], &[]).unwrap();
        wait_for_word(&ours, 3, far());
        seqpacket::send(theirs.as_fd(), &[GOES, 4], &[theirs.as_fd()]).unwrap();
        wait_for_word(&ours, 3, far());
    }

    #[test]
    fn a_proxy_is_told_the_owner_of_a_window() {
        let own = Handed { number: 3, descriptor: 12, whose: WindowOwner::Own };
        let another = Handed { whose: WindowOwner::Another, ..own };
        assert_eq!((own.word(), another.word()), ("3=12".to_owned(), "3=+12".to_owned()));
        assert_eq!([own, another].map(|one| Handed::read(&one.word())), [Some(own), Some(another)]);
        for wrong in ["", "3", "3=", "3=+", "=12", "3=-1", "-3=1", "3=++3", "3=x", "300=1"] {
            assert_eq!(Handed::read(wrong), None, "{wrong}");
        }
        for whose in [WindowOwner::Own, WindowOwner::Another] {
            assert_eq!(whose_said(said(whose)), Some(whose));
        }
        assert_eq!(whose_said(0), None);
    }
}
