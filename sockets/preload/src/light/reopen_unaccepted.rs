//! Opens connections again that were refused before a program had accepted them.
//!
//! Their listening socket was closed, or its process is gone. The kernel's connections would wait
//! at the same socket for the other processes that have it. So the broker is asked once more, and
//! they open again there; if no process listens any more they are reset, as the kernel's are.
//!
//! No call waits for the broker here: what is left to do is done by a later call.

use omniverb_connection::light::Frame;
use omniverb_connection::light::connection_slot::{Closing, Flag};
use omniverb_connection::light::frame::{DATA_MAX, HEADER};

use super::broker::{self, ChannelRoute};
use super::channel::FOR_ANSWERS;
use super::connections_without_channel::Due;
use super::route_lookup::{RouteLookup, is_full, look_up_route};
use super::state::State;
use crate::tsc_clock;

/// Why a connection is not where it was.
pub(super) enum RefusalCause {
    /// The other end has said `Close`.
    Refused,
    /// The same, since there was no room for it.
    Full,
    /// The channel is no more.
    Lost,
}

/// What has become of a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// Its other process is gone.
    Gone,
    /// It makes no sense.
    ProtocolError,
    /// The two were told to part.
    Parted,
}

/// What has become of an attempt to open again.
enum Reopening {
    Done,
    /// There is no room in the channel now.
    Later,
    Never,
}

impl State {
    /// The other end has not accepted it: whether it goes elsewhere.
    pub(super) fn leaves(&mut self, at: u32, why: RefusalCause) -> bool {
        let slot = self.slots.at(at);
        if !slot.is_unaccepted() && !slot.is_moving() {
            return false;
        }
        let (to, has_moved) = (slot.names.to, slot.has_moved());
        let may = match why {
            RefusalCause::Refused => slot.refuse(),
            RefusalCause::Full => slot.defer(),
            RefusalCause::Lost => slot.lose_unaccepted(),
        };
        if !may {
            self.slots.at(at).settle_acceptance(&mut self.pool);
        }
        if matches!(why, RefusalCause::Full) {
            is_full(self, &to);
        }
        match has_moved {
            true => broker::leaves_alone(self, &to),
            false => broker::forgets(self, &to),
        }
        may
    }

    /// Detaches a connection from the channel of the process that has refused it.
    pub(super) fn detach(&mut self, at: u32) {
        self.slots.at(at).detach();
        let waits_for_room = self.slots.at(at).waits_for_room();
        self.slots.append(&mut self.unaccepted.list, at);
        if !waits_for_room {
            self.unaccepted.add_one();
        }
        // A sleeper may have to look when nothing comes.
        self.has_news = true;
    }

    /// Opens unaccepted connections at other processes that listen, as far as these are known by
    /// now.
    #[cold]
    pub(super) fn retry_unaccepted(&mut self) {
        broker::look(self);
        let now = tsc_clock::nanoseconds();
        let Some(turn) = self.unaccepted.due(now) else { return };
        // The broker is to know first of channels that are no more.
        self.say_gone();
        self.channels.iter_mut().flatten().for_each(|channel| channel.has_strays = false);
        // Not asked for each of many.
        let mut later = None;
        for _ in 0..self.unaccepted.list.count() {
            let Some(at) = self.slots.pop(&mut self.unaccepted.list) else { return };
            let slot = self.slots.at(at);
            let (to, socket, is_reset) = (slot.names.to, slot.socket, slot.has(Flag::ResetOnClose));
            // A process that has refused it twice may be just leaving; where there was no room
            // there may be some later.
            let may_open = turn == Due::All || !slot.has_moved() && !slot.waits_for_room();
            let may_ask = may_open && turn != Due::None;
            let same = later.filter(|(address, _)| *address == to).map(|(_, socket)| socket);
            let outcome = match same {
                Some(socket) => RouteLookup::Unannounced(socket),
                None => look_up_route(self, to, (may_ask, turn == Due::All)),
            };
            let is_other = |other: u64| other != 0 && other as u32 != socket;
            let moved = match outcome {
                _ if is_reset || socket == 0 => Reopening::Never,
                RouteLookup::Channel(way) if is_other(way.socket) => Reopening::Never,
                RouteLookup::Channel(way) if may_open => self.opens_again(at, &way),
                RouteLookup::Unannounced(other) if is_other(other) => Reopening::Never,
                RouteLookup::Unannounced(_) | RouteLookup::Pending
                    if turn == Due::All && !self.slots.at(at).retry_later() =>
                {
                    Reopening::Never
                }
                RouteLookup::Unannounced(socket) => {
                    later = Some((to, socket));
                    Reopening::Later
                }
                RouteLookup::Channel(_) | RouteLookup::Pending => Reopening::Later,
                RouteLookup::Nowhere => Reopening::Never,
            };
            match moved {
                Reopening::Done => {}
                Reopening::Later => self.slots.append(&mut self.unaccepted.list, at),
                Reopening::Never => self.gives_up(at),
            }
        }
        self.unaccepted.were_looked_after(now);
    }

    fn opens_again(&mut self, at: u32, way: &ChannelRoute) -> Reopening {
        // It is asked for once more.
        let Some(index) = self.channel_named(way.name) else { return Reopening::Later };
        let kept = self.slots.at(at).queue.len();
        let frames = kept.div_ceil(DATA_MAX) * 2 * HEADER;
        let least = Frame::Open.takes() + kept + frames + 2 * HEADER + FOR_ANSWERS;
        if self.lacks_room(index, least, |channel| &mut channel.has_strays) {
            return Reopening::Later;
        }
        let Some(channel) = self.channels[index].as_mut() else { return Reopening::Later };
        if !channel.may_open(way.left) {
            return Reopening::Later;
        }
        let Some(id) = channel.ids.allocate(at) else {
            channel.clear_opens();
            return Reopening::Never;
        };
        let slot = self.slots.at(at);
        slot.reopen(index as u16, id);
        if slot.waits_for_credit() {
            channel.awaits_accept();
        }
        channel.open(id, &slot.names);
        let mut done = 0;
        while done < kept {
            let bytes = (kept - done).min(DATA_MAX);
            let place = channel.put(Frame::Data(bytes as u32), id);
            slot.queue.look_from(&self.pool, done, bytes, |before, piece| {
                channel.fill_from(place + before as u64, piece);
            });
            done += bytes;
        }
        channel.sends(id, done);
        if slot.next_owed().is_some() {
            self.owe(at);
            self.pay(index);
        }
        if let Some(channel) = self.channels[index].as_mut() {
            channel.publish();
            channel.clear_opens();
        }
        self.news(at);
        Reopening::Done
    }

    /// There is no listener any more.
    fn gives_up(&mut self, at: u32) {
        self.slots.at(at).give_up(&mut self.pool);
        self.news(at);
        self.settle(at);
    }

    /// A channel is no more: so are its connections, but for those that go elsewhere.
    pub(super) fn loses(&mut self, at: u32, loss: Loss) {
        let was_asked = self.slots.at(at).is_unaccepted();
        // Unless the other end may still give it to its program.
        let may = self.slots.at(at).is_moving() || loss == Loss::Gone && was_asked;
        if may && self.leaves(at, RefusalCause::Lost) {
            return self.settle(at);
        }
        let slot = self.slots.at(at);
        slot.settle_acceptance(&mut self.pool);
        let is_reset = was_asked || loss == Loss::Parted;
        slot.lost_channel(if is_reset { Closing::Reset } else { Closing::Orderly });
        slot.clear_flag(Flag::NoRoom);
        self.news(at);
        self.settle(at);
    }
}
