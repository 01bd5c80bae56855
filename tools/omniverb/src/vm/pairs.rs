//! The pair windows that a keeper has: those that its machine is started with, and those that are
//! plugged in while it runs (`later.rs`), some of which may be another machine's.
//!
//! Two threads use them: the keeper's, which starts porters and tells daemons of all, and the one
//! that plugs in. A process that is started inherits the windows that are meant for it and no
//! others: so one process is started at a time.

use super::window::Window;
use crate::operator::Operator;
use anyhow::Context;
use omniverb_session::operator::VNIC_NAME_BYTES;
use omniverb_session::pair::Whose;
use omniverb_sys::{lock, memfd, socket};
use rustix::io::{FdFlags, fcntl_setfd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Mutex;

/// Bytes of a pair window's ledger beside one for each page.
const WHOSE_BYTES: u64 = 64;
/// What stands before the number of a descriptor of another machine's window.
const ANOTHERS: &str = "+";

/// As a porter is told whose a window is that it is handed.
fn said(whose: Whose) -> u8 {
    match whose {
        Whose::Own => b'+',
        Whose::Another => b'*',
    }
}

/// Whose it is, as that says.
pub(super) fn whose_said(byte: u8) -> Option<Whose> {
    [Whose::Own, Whose::Another].into_iter().find(|whose| said(*whose) == byte)
}

/// The number of a descriptor, as a porter is told it when it is started, and whose window it is.
pub(super) fn whose_of_word(word: &str) -> Option<(i32, Whose)> {
    let (number, whose) = match word.strip_prefix(ANOTHERS) {
        Some(number) => (number, Whose::Another),
        None => (word, Whose::Own),
    };
    let digits = number.bytes().all(|digit| digit.is_ascii_digit());
    number.parse().ok().filter(|_| digits).map(|number| (number, whose))
}

/// What a daemon notes of a window, with so many bytes beside one for each page.
pub(super) fn ledger(window: &Window, more: u64) -> anyhow::Result<OwnedFd> {
    let pages = window.data.length.div_ceil(4096);
    memfd::create("omniverb-ledger", pages + more).context("cannot make a ledger")
}

/// A pair window, and what the daemon notes of it; of another machine's that one's keeper has that.
pub(super) struct Pair {
    pub(super) window: Window,
    ledger: Option<OwnedFd>,
}

impl Pair {
    /// One of so many bytes, of the machine with this window: it is told of it.
    pub(super) fn make(own: &Window, number: u8, bytes: u64) -> anyhow::Result<Pair> {
        let window = own.pair(bytes)?;
        own.tell(number, &window, Whose::Own)?;
        Ok(Pair { ledger: Some(ledger(&window, WHOSE_BYTES)?), window })
    }

    /// One that is another machine's: the machine with this window is told of it. `known`: whether
    /// there is one that is called so.
    pub(super) fn of_another(
        own: &Window,
        number: u8,
        file: OwnedFd,
        known: impl FnOnce(u64) -> bool,
    ) -> anyhow::Result<Pair> {
        let window = Window::of_another(file, known)?;
        own.tell(number, &window, Whose::Another)?;
        Ok(Pair { window, ledger: None })
    }

    fn whose(&self) -> Whose {
        if self.ledger.is_some() { Whose::Own } else { Whose::Another }
    }

    /// Brings it to the daemon.
    pub(super) fn attach(
        &self,
        operator: &Operator,
        machine: [u8; VNIC_NAME_BYTES],
        number: u8,
    ) -> anyhow::Result<()> {
        let (window, number) = (&self.window, number.into());
        match &self.ledger {
            Some(ledger) => {
                operator.attach_pair(machine, number, window.data, [&window.file, ledger])
            }
            None => operator.join_pair(machine, number, window.data, &window.file),
        }
    }
}

/// All of a machine's, by their numbers from one on.
pub(super) struct Pairs(Mutex<Inner>);

struct Inner {
    all: Vec<Pair>,
    /// Where the porter that runs is told of more.
    porter: Option<OwnedFd>,
}

impl Pairs {
    pub(super) fn new(all: Vec<Pair>) -> Pairs {
        Pairs(Mutex::new(Inner { all, porter: None }))
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.0).all.len()
    }

    /// Whether there is one that is called so.
    pub(super) fn has(&self, called: u64) -> bool {
        lock(&self.0).all.iter().any(|pair| pair.window.head.number == called)
    }

    /// Hands each to somebody, one at a time: a message has not many descriptors.
    pub(super) fn hand_over(
        &self,
        mut to: impl FnMut(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<()> {
        lock(&self.0).all.iter().try_for_each(|pair| to(&pair.window.file))
    }

    /// Starts a process that has the windows, too: with the numbers of their descriptors there.
    pub(super) fn start(&self, command: &mut Command) -> anyhow::Result<(Child, Vec<i32>)> {
        let inner = lock(&self.0);
        let copies = copies(inner.all.iter().map(|pair| &pair.window.file))?;
        let numbers = copies.iter().map(AsRawFd::as_raw_fd).collect();
        Ok((command.spawn()?, numbers))
    }

    /// Starts one that has none of them.
    pub(super) fn start_without(&self, command: &mut Command) -> io::Result<Child> {
        let _alone = lock(&self.0);
        command.spawn()
    }

    /// Starts a porter. Behind its other words come the numbers of its descriptors: of a socket, by
    /// which it is told of windows that come later, and of those that there are.
    pub(super) fn start_porter(&self, command: &mut Command) -> anyhow::Result<Child> {
        let mut inner = lock(&self.0);
        let (ours, theirs) = socket::pair()?;
        let windows = inner.all.iter().map(|pair| &pair.window.file);
        let copies = copies(std::iter::once(&theirs).chain(windows))?;
        let whose = std::iter::once(Whose::Own).chain(inner.all.iter().map(Pair::whose));
        command.args(copies.iter().zip(whose).map(|(file, whose)| {
            let mark = if whose == Whose::Another { ANOTHERS } else { "" };
            format!("{mark}{}", file.as_raw_fd())
        }));
        let porter = command.spawn()?;
        inner.porter = Some(ours);
        Ok(porter)
    }

    /// Another one, which the machine has. The porter that runs has it before the daemon does.
    pub(super) fn add(
        &self,
        pair: Pair,
        operator: &Operator,
        machine: [u8; VNIC_NAME_BYTES],
    ) -> anyhow::Result<()> {
        let mut inner = lock(&self.0);
        if let Some(porter) = &inner.porter {
            // One that has ended is followed by another, which has all.
            let word = [said(pair.whose())];
            let _ = socket::try_send(porter.as_fd(), &word, &[pair.window.file.as_fd()]);
        }
        inner.all.push(pair);
        let number = u8::try_from(inner.all.len()).context("too many")?;
        let pair = inner.all.last().context("none")?;
        // A daemon that follows this one is told of all by the other thread.
        pair.attach(operator, machine, number)
    }

    /// Brings all to a daemon.
    pub(super) fn attach(&self, operator: &Operator, machine: [u8; VNIC_NAME_BYTES]) {
        for (number, pair) in (1..).zip(&lock(&self.0).all) {
            // A daemon that knows of none hangs up: then there are none, and all goes by the
            // engine.
            if pair.attach(operator, machine, number).is_err() {
                break;
            }
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

    #[test]
    fn a_porter_is_told_whose_a_window_is() {
        assert_eq!(whose_of_word("12"), Some((12, Whose::Own)));
        assert_eq!(whose_of_word("+12"), Some((12, Whose::Another)));
        for wrong in ["", "+", "-1", "++3", "x"] {
            assert_eq!(whose_of_word(wrong), None, "{wrong}");
        }
        for whose in [Whose::Own, Whose::Another] {
            assert_eq!(whose_said(said(whose)), Some(whose));
        }
        assert_eq!(whose_said(0), None);
    }
}
