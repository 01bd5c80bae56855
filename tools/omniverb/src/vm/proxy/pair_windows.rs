//! Keeps the pair windows of a proxy's machine, as its supervisor adds and removes them.

use super::ProxyEnd;
use crate::vm::pair_window_wakes::WakeBridge;
use crate::vm::{machine_window, pair_windows};
use omniverb_session::pair_window::WindowOwner;
use omniverb_sys::{memfd, seqpacket};
use std::os::fd::{AsFd, OwnedFd};

/// A machine's pair windows, as its proxy has them.
pub(in crate::vm) struct PairWindows {
    pub(in crate::vm) bridge: WakeBridge,
    /// Which there are: bit `number - 1` of each.
    pub(in crate::vm) present: u64,
    /// Those that go, of which the machine may still have something.
    pub(in crate::vm) going: u64,
    /// Where its supervisor hands it others that have come, if any do, and says which go.
    pub(in crate::vm) more: Option<OwnedFd>,
}

impl PairWindows {
    /// Adds a window that the machine has; no other has its number.
    pub(in crate::vm) fn add(
        &mut self,
        number: u8,
        file: &OwnedFd,
        whose: WindowOwner,
    ) -> Result<(), ProxyEnd> {
        let bit = bit(number).filter(|bit| self.present & bit == 0).ok_or(ProxyEnd::Broken)?;
        let bytes = memfd::size(file.as_fd()).map_err(|_| ProxyEnd::Broken)?;
        let added = self.bridge.add(number, file, machine_window::data(bytes), whose);
        added.map_err(|_| ProxyEnd::Broken)?;
        self.present |= bit;
        Ok(())
    }

    /// The supervisor has another one, or one less. `false`: nothing came.
    pub(super) fn take(&mut self) -> Result<bool, ProxyEnd> {
        let Some(from) = &self.more else { return Ok(false) };
        let mut word = [0; 2];
        match seqpacket::receive(from.as_fd(), &mut word, seqpacket::BlockingMode::NonBlocking) {
            Ok((2, files)) => match (word, files.into_iter().next()) {
                ([pair_windows::GOES, number], None) => {
                    let bit = bit(number).ok_or(ProxyEnd::Broken)?;
                    self.bridge.remove(number);
                    self.present &= !bit;
                    self.going |= bit;
                }
                ([whose, number], Some(file)) => {
                    let whose = pair_windows::whose_said(whose).ok_or(ProxyEnd::Broken)?;
                    // Another proxy has all.
                    self.add(number, &file, whose)?;
                    self.going &= !bit(number).unwrap_or(0);
                    self.bridge.wake_all();
                }
                _ => return Err(ProxyEnd::Broken),
            },
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            // The supervisor was killed.
            Ok(_) | Err(_) => {
                self.more = None;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The machine's agent has these, and nothing of the others.
    pub(super) fn found(&mut self, found: u64) {
        let gone = self.going & !found;
        self.going &= found;
        let Some(to) = &self.more else { return };
        for number in (1..=u64::BITS as u8).filter(|number| bit(*number).unwrap_or(0) & gone != 0) {
            // A supervisor that does not hear it waits no longer.
            let _ = seqpacket::try_send(to.as_fd(), &[pair_windows::GOES, number], &[]);
        }
    }
}

/// The bit of a window of this number.
fn bit(number: u8) -> Option<u64> {
    1_u64.checked_shl(u32::from(number).checked_sub(1)?)
}
