//! Writes the agent's first message on the port: its presence and its windows.

use super::Agent;
use crate::vm::{own_boot_id, privileged_device_opener};
use omniverb_session::agent_first_messages::AgentBegin;
use omniverb_session::vm::{Frame, FrameKind};
use omniverb_sys::random;

impl Agent {
    /// Goes by another window if the host does not know this one.
    pub(super) fn try_window(&mut self) -> anyhow::Result<()> {
        if self.sharing.try_next(self.relay.has_begun())? {
            self.begin();
        }
        Ok(())
    }

    /// Announces itself, without sessions.
    pub(super) fn begin(&mut self) {
        let (window, number) = self.sharing.own().unwrap_or((self.window.clone(), 0));
        self.window = window;
        let boot = own_boot_id::id().unwrap_or_default();
        let bytes = AgentBegin { window: number, number: random::number(), boot }.written();
        self.relay.begin(&Frame { kind: FrameKind::Begin, session: 0, bytes });
        self.told = None;
        self.wakes.clear();
        self.keeping.begin_anew();
        // Doorbells in pair windows outlive wake bridges.
        self.sharing.begin(self.relay.voice());
        self.tell_pairs();
        if self.network.is_some() {
            self.relay.say(FrameKind::Port, 0, Vec::new());
        }
        // Starts from a random session number, so that no message to an earlier session reaches a
        // later one.
        self.last = random::number() as u32;
    }

    /// Tells the host which windows it shares with neighbours; also that there are none, if more
    /// can come.
    pub(super) fn tell_pairs(&mut self) {
        if self.sharing.bits() != 0 || self.opener.is_some() {
            self.say_pairs();
        }
    }

    pub(super) fn say_pairs(&mut self) {
        self.has_said_pairs = true;
        let bits = self.sharing.bits().to_le_bytes().to_vec();
        self.relay.say(FrameKind::Pairs, 0, bits);
    }

    /// A device was plugged in.
    pub(super) fn device(&mut self) {
        let Some((devices, opener)) = &mut self.opener else { return };
        match privileged_device_opener::take(devices) {
            Ok(Some(device)) => {
                if self.sharing.add(device) {
                    self.tell_pairs();
                }
            }
            Ok(None) => {}
            Err(_) => {
                let _ = opener.wait();
                self.opener = None;
            }
        }
    }
}
