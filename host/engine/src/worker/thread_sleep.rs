//! Sleeps until a command, a doorbell, a socket or a deadline.

use crate::network::roce_port::Sockets;
use omniverb_sys::{EventFd, Poller, Timer};
use omniverb_terms::VnicId;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Tokens of the poller: a kind in the top byte, a number below.
mod token {
    pub(super) const COMMANDS: u64 = 1 << 56;
    pub(super) const TIMER: u64 = 2 << 56;
    pub(super) const BELLS: u64 = 3 << 56;
    pub(super) const VNIC: u64 = 4 << 56;
    pub(super) const NUMBER: u64 = (1 << 56) - 1;
}

/// The place of the first socket of a vNIC's PSP port.
pub(super) const PSP_SOCKET: usize = 2;

/// A ready source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awake {
    Commands,
    Bells,
    /// The alarm went off, and is silent again.
    Alarm,
    /// A socket of a vNIC, by its place among them; from [`PSP_SOCKET`] on of its PSP port.
    Socket(VnicId, usize),
}

pub(super) struct Watcher {
    poller: Poller,
    alarm: Timer,
    /// Sources that the last wait found and that were not taken yet, as tokens; the next one last.
    ready: Vec<u64>,
}

impl Watcher {
    pub(super) fn new(commands: &EventFd, bells: &EventFd) -> io::Result<Watcher> {
        let (poller, alarm) = (Poller::new()?, Timer::new()?);
        poller.add(commands, token::COMMANDS)?;
        poller.add(bells, token::BELLS)?;
        poller.add(&alarm, token::TIMER)?;
        Ok(Watcher { poller, alarm, ready: Vec::new() })
    }

    /// Watches the sockets of a vNIC from now on.
    pub(super) fn add(&self, vnic: VnicId, sockets: &Arc<Sockets>) -> io::Result<()> {
        self.add_from(vnic, sockets, 0)
    }

    /// Watches the sockets of a vNIC's PSP port from now on.
    pub(super) fn add_psp(&self, vnic: VnicId, sockets: &Arc<Sockets>) -> io::Result<()> {
        self.add_from(vnic, sockets, PSP_SOCKET as u64)
    }

    fn add_from(&self, vnic: VnicId, sockets: &Arc<Sockets>, first: u64) -> io::Result<()> {
        // At most two: IPv4 and IPv6.
        for (socket, index) in sockets.files().zip(first..first + 2) {
            self.poller.add(socket.as_fd(), token::VNIC | vnic.0 << 2 | index)?;
        }
        Ok(())
    }

    /// Watches the sockets of a vNIC no longer.
    pub(super) fn remove(&self, sockets: &Arc<Sockets>) {
        for socket in sockets.files() {
            let _ = self.poller.remove(socket);
        }
    }

    /// Has the alarm go off `at` that time, in nanoseconds of the monotonic clock.
    pub(super) fn set_alarm(&self, at: u64) {
        let _ = self.alarm.set(at);
    }

    /// Waits. [`Watcher::next`] returns ready sources.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.poller.wait(timeout, &mut self.ready)?;
        self.ready.reverse();
        Ok(())
    }

    /// Takes the ready sources, one after the other.
    pub(super) fn next(&mut self) -> Option<Awake> {
        let ready = self.ready.pop()?;
        let number = ready & token::NUMBER;
        Some(match ready & !token::NUMBER {
            token::COMMANDS => Awake::Commands,
            token::VNIC => Awake::Socket(VnicId(number >> 2), (number & 3) as usize),
            token::BELLS => Awake::Bells,
            _ => {
                self.set_alarm(u64::MAX / 2);
                Awake::Alarm
            }
        })
    }
}
