//! Checks whether a channel to another network namespace may still be read, as the broker says.

use omniverb_connection::light::connection_slot::Closing;

use super::broker;
use super::channel::CrossNamespace;
use super::state::State;
use crate::carry::broker as mail;
use crate::tsc_clock;

impl State {
    /// Something may be taken out of a channel: it is not over, as far as the mail says, which is
    /// read first. `false`, for a while: it cannot be read now.
    #[inline]
    pub(super) fn may_go_on(&mut self, index: usize) -> bool {
        match &self.channels[index] {
            Some(channel) if channel.across.is_some() && mail::has_mail() => self.is_still(index),
            channel => channel.is_some(),
        }
    }

    #[cold]
    fn is_still(&mut self, index: usize) -> bool {
        let Some(name) = self.channels[index].as_ref().map(|channel| channel.name) else {
            return false;
        };
        let is_read = broker::take(self);
        let channel = self.channel_of(index, name);
        let Some(across) = channel.and_then(|channel| channel.across.as_mut()) else {
            return false;
        };
        if is_read {
            across.clear_put_off();
        }
        is_read || !across.put_off_until_limit(tsc_clock::nanoseconds())
    }

    /// A broker that has come anew hears of channels to other network namespaces: it may be told by
    /// the daemon that they are over. Without one they are, after a while.
    pub(super) fn say_still(&mut self) {
        let now = broker::connection();
        let is_unsaid = |across: &&mut CrossNamespace| across.broker != now || now == 0;
        for index in 0..self.channels_end {
            let Some(channel) = self.channels[index].as_mut() else { continue };
            let Some(across) = channel.across.as_mut().filter(is_unsaid) else { continue };
            let said = broker::still(channel.name, across.ends);
            if !across.note_broker(said, tsc_clock::nanoseconds) {
                self.lose(index, Closing::Reset);
            }
        }
    }
}
