//! Plugs windows into a running machine, and out of it, by a thread of its supervisor.
//!
//! In: the daemon's messages that one is wanted, that another machine's is to be in this one, too
//! (decision 0042), or that one is unused. Out: one more, or one less, in QEMU and at the daemon.
//! There are two ways into a machine (decision 0048). A window is *mapped*, if there is a mapper
//! (`window_mapper_process.rs`) and the guest's driver knows of such memory; else it is *plugged
//! in*, as a device of its own, by a process started for that, which runs as an unused user
//! ([`talk`]): QEMU runs a hostile guest and may send anything. A window that was refused some
//! times is not tried again.

#[cfg(test)]
mod tests;

use super::machine_folder::Monitor;
use super::machine_window::{Neighbours, Window};
use super::pair_windows::{Pair, Pairs};
use super::qemu_monitor::{Beside, Next, Refusal, Talk};
use super::window_mapper_process::{Driver, Mapped};
use crate::operator_connection::{Home, Operator, PairCall};
use anyhow::Context;
use omniverb_session::operator::VNIC_NAME_BYTES;
use omniverb_session::pair_window::{PlugTrouble, WindowOwner};
use omniverb_sys::{clock, eventfd, memfd, pidfd, seqpacket};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The command line of a process that talks to QEMU.
const PLUG: [&str; 2] = ["vm", "plug"];
/// How often it is tried in vain, and how long to wait after each.
pub(super) const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// How long QEMU may take to plug in a window (ns), and how long until the process that talks to it
/// is killed.
const TALK: u64 = 10_000_000_000;
const CHILD: Duration = Duration::from_secs(20);
/// Bytes that are read at a time.
const PIECE: usize = 4096;

/// How a window comes into a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlugMethod {
    Mapped,
    Plugged,
    None,
}

/// Plugs in windows.
pub(super) struct Later {
    pub(super) machine: [u8; VNIC_NAME_BYTES],
    /// Its own window.
    pub(super) own: Arc<Window>,
    pub(super) wanted: Neighbours,
    pub(super) pairs: Arc<Pairs>,
    /// Where windows are plugged in, if they can be.
    pub(super) monitor: Option<Monitor>,
    /// The mapper, if there is one.
    pub(super) mapped: Option<Arc<Mapped>>,
    pub(super) home: Home,
    pub(super) program: PathBuf,
    pub(super) tries: u32,
    /// Tries of other machines' windows: those are counted apart, since their length is not this
    /// machine's choice.
    pub(super) tries_of_others: u32,
    pub(super) trouble: Option<PlugTrouble>,
}

impl Later {
    /// Serves the daemon that the machine is attached to, and the next one whenever it is attached
    /// again.
    pub(super) fn serve(mut self, attached: &Receiver<()>) {
        while attached.recv().is_ok() {
            // A daemon that is gone, or that knows nothing of this: the next one may.
            let _ = self.serve_one();
        }
    }

    fn serve_one(&mut self) -> anyhow::Result<()> {
        let operator = self.home.connect()?;
        // Which way they come the guest's driver says.
        if let Some(mapped) = &self.mapped {
            if mapped.driver_now() == Driver::Unknown {
                let none = (0, false, false);
                operator.await_pair(self.machine, none, Some(PlugTrouble::NoDriver))?;
            }
            mapped.driver();
        }
        // Those that are to be there from the beginning.
        while self.mapped.is_some()
            && self.pairs.len() < self.wanted.count.into()
            && self.left() > 0
        {
            self.bring(None, &operator)?;
        }
        loop {
            let can_take_out = self.way() == PlugMethod::Mapped && self.tries > 0;
            let trouble = self.trouble.or_else(|| self.why_not_mapped());
            let room = (self.left(), self.tries_of_others > 0, can_take_out);
            match operator.await_pair(self.machine, room, trouble)? {
                PairCall::Own => self.bring(None, &operator)?,
                PairCall::Another(file) => self.bring(Some(file), &operator)?,
                PairCall::Over(number) => self.take_out(number, &operator)?,
                PairCall::Nothing => break,
            }
        }
        // It knows how many there are, and why, for as long as we are there.
        operator.wait_over()
    }

    /// One more, or one try less.
    fn bring(&mut self, another: Option<OwnedFd>, operator: &Operator) -> anyhow::Result<()> {
        let whose = if another.is_some() { WindowOwner::Another } else { WindowOwner::Own };
        match self.plug(another) {
            Ok((number, pair)) => {
                self.trouble = None;
                self.pairs.add(number, pair, operator, self.machine)?;
            }
            Err(trouble) => {
                self.is_in_vain(whose, trouble);
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    fn is_in_vain(&mut self, whose: WindowOwner, trouble: PlugTrouble) {
        self.trouble = Some(trouble);
        let tries = match whose {
            WindowOwner::Own => &mut self.tries,
            WindowOwner::Another => &mut self.tries_of_others,
        };
        *tries = tries.saturating_sub(1);
    }

    /// The way that a window comes now.
    fn way(&self) -> PlugMethod {
        match self.mapped.as_ref().map(|mapped| mapped.driver_now()) {
            Some(Driver::Knows) => PlugMethod::Mapped,
            _ if self.monitor.is_some() => PlugMethod::Plugged,
            _ => PlugMethod::None,
        }
    }

    /// Why windows are not mapped that should be.
    fn why_not_mapped(&self) -> Option<PlugTrouble> {
        match self.mapped.as_ref()?.driver_now() {
            Driver::KnowsNot => Some(PlugTrouble::NoRegion),
            Driver::Gone => Some(PlugTrouble::NoMapper),
            Driver::Knows | Driver::Unknown => None,
        }
    }

    /// How many more there may be.
    fn left(&self) -> u32 {
        let left = usize::from(self.wanted.most).saturating_sub(self.pairs.taken());
        let none = self.tries == 0 || self.way() == PlugMethod::None;
        if none { 0 } else { u32::try_from(left).unwrap_or(0) }
    }

    /// Unplugs an unused one: the machine's agent releases it before it goes.
    fn take_out(&self, number: u8, operator: &Operator) -> anyhow::Result<()> {
        let is_mapped = self.pairs.is_mapped(number);
        self.own.forget(number)?;
        self.pairs.let_go(number);
        // A window that was plugged in stays there; so does one that QEMU does not release.
        if is_mapped && self.mapped.as_ref().is_some_and(|mapped| mapped.unmap(number).is_ok()) {
            self.pairs.is_gone(number);
        }
        operator.part_pair(self.machine, number)
    }

    /// The next window: one of this machine's, or this one of another's.
    fn make(&self, number: u8, another: Option<OwnedFd>) -> anyhow::Result<Pair> {
        let Some(file) = another else {
            return Pair::make(&self.own, number, self.wanted.bytes);
        };
        Pair::of_another(&self.own, number, file, |called| self.pairs.has(called))
    }

    /// Plugs in another one, or maps it: its number.
    fn plug(&self, another: Option<OwnedFd>) -> Result<(u8, Pair), PlugTrouble> {
        let number = self.pairs.free_number(self.wanted.most).ok_or(PlugTrouble::Host)?;
        let made = self.plug_as(number, another);
        if made.is_err() {
            // The machine looks for none of that number.
            let _ = self.own.forget(number);
        }
        Ok((number, made?))
    }

    fn plug_as(&self, number: u8, another: Option<OwnedFd>) -> Result<Pair, PlugTrouble> {
        let bytes = match &another {
            Some(file) => memfd::size(file.as_fd()).map_err(|_| PlugTrouble::Host)?,
            None => self.wanted.bytes,
        };
        let mapped = self.mapped.as_ref().filter(|_| self.way() == PlugMethod::Mapped);
        if let Some(mapped) = mapped.filter(|mapped| mapped.slots.holds(bytes)) {
            let mut pair = self.make(number, another).map_err(|_| PlugTrouble::Host)?;
            mapped.map(number, &pair.window.file)?;
            pair.at = Some(mapped.slots.at(number));
            return Ok(pair);
        }
        // A window without a place there may have a device of its own.
        let why_not = if mapped.is_some() { PlugTrouble::TooLong } else { PlugTrouble::NoMapper };
        let monitor = self.monitor.as_ref().ok_or(why_not)?;
        let monitor = monitor.connect().map_err(|_| PlugTrouble::NoMonitor)?;
        let pair = self.make(number, another).map_err(|_| PlugTrouble::Host)?;
        let code = self.have_it_plugged(number, monitor, &pair);
        match code.map_err(|_| PlugTrouble::Host)? {
            Some(0) => Ok(pair),
            code => Err(code.and_then(trouble_of).unwrap_or(PlugTrouble::Host)),
        }
    }

    /// Has a process do it: what it ends with.
    fn have_it_plugged(
        &self,
        number: u8,
        monitor: OwnedFd,
        pair: &Pair,
    ) -> anyhow::Result<Option<i32>> {
        let mut talker = Command::new(&self.program);
        let bytes = pair.window.data.offset + pair.window.data.length;
        talker.args(PLUG).arg(number.to_string()).arg(bytes.to_string());
        talker.stdin(monitor).stdout(pair.window.file.try_clone()?).stderr(Stdio::null());
        talker.env_clear().current_dir("/");
        let mut talker_runs = self.pairs.start_without(&mut talker)?;
        drop(talker);
        let life = pidfd::of(talker_runs.id().cast_signed());
        // Whatever it has been made to do, it is over then.
        if !life.is_ok_and(|life| eventfd::readable(life.as_fd(), Some(CHILD)).unwrap_or(false)) {
            let _ = talker_runs.kill();
        }
        Ok(talker_runs.wait()?.code())
    }
}

/// Troubles of the process's own: its codes, for which none of a shell's are.
const TROUBLES: [(PlugTrouble, u8); 4] = [
    (PlugTrouble::Silent, 10),
    (PlugTrouble::Malformed, 11),
    (PlugTrouble::Memory, 12),
    (PlugTrouble::Device, 13),
];

fn trouble_of(code: i32) -> Option<PlugTrouble> {
    let found = TROUBLES.iter().find(|(_, number)| i32::from(*number) == code);
    found.map(|(trouble, _)| *trouble)
}

/// The exit code of such a process.
pub(super) fn code(outcome: Result<(), PlugTrouble>) -> u8 {
    let Err(trouble) = outcome else { return 0 };
    TROUBLES.iter().find(|(one, _)| *one == trouble).map_or(1, |(_, code)| *code)
}

/// Talks to QEMU at its monitor until it has this window, of so many bytes and with this number.
pub(super) fn talk(
    monitor: &OwnedFd,
    window: &OwnedFd,
    number: u8,
    bytes: u64,
) -> Result<(), PlugTrouble> {
    talk_until(monitor, window, Talk::new(number, bytes), clock::now() + TALK)
}

fn talk_until(
    monitor: &OwnedFd,
    window: &OwnedFd,
    mut talk: Talk,
    deadline: u64,
) -> Result<(), PlugTrouble> {
    loop {
        match talk.next() {
            Next::Say(text, beside) => {
                let files = [window.as_fd()];
                let files = if beside == Beside::Window { &files[..] } else { &[] };
                // A socket that has no room for so little is not read.
                let said = seqpacket::try_send(monitor.as_fd(), text.as_bytes(), files);
                said.map_err(|_| PlugTrouble::Silent)?;
            }
            Next::Listen => {
                let left = Duration::from_nanos(deadline.saturating_sub(clock::now()));
                let mut piece = [0; PIECE];
                let came = match eventfd::readable(monitor.as_fd(), Some(left)) {
                    Ok(came) => came && !left.is_zero(),
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::INTR) => continue,
                    Err(_) => false,
                };
                match came.then(|| rustix::io::read(monitor, &mut piece)) {
                    Some(Ok(length)) if length > 0 => talk.hear(&piece[..length]),
                    Some(Err(Errno::INTR | Errno::AGAIN)) => {}
                    _ => return Err(PlugTrouble::Silent),
                }
            }
            Next::Over(outcome) => {
                return outcome.map_err(|refusal| match refusal {
                    Refusal::Malformed => PlugTrouble::Malformed,
                    Refusal::Memory => PlugTrouble::Memory,
                    Refusal::Device => PlugTrouble::Device,
                });
            }
        }
    }
}

/// Starts the thread.
pub(super) fn start(later: Later, attached: Receiver<()>) -> anyhow::Result<()> {
    let thread = std::thread::Builder::new().name("omniverb-later".into());
    thread.spawn(move || later.serve(&attached)).context("cannot start a thread")?;
    Ok(())
}
