//! Names the messages of a channel besides news, and the reasons why a channel ends.

use crate::broker_connection::BrokerConnection;
use omniverb_formats::letter::Letter;
use std::collections::VecDeque;
use std::io;

/// Why a channel has ended.
#[derive(Debug)]
pub(crate) enum EndReason {
    /// The process here has ended, or its part was taken back.
    Local { is_reset: bool },
    /// The same over there.
    Remote { is_reset: bool },
    /// The way is lost, or somebody has said what makes no sense.
    Lost,
}

impl From<io::Error> for EndReason {
    fn from(_: io::Error) -> Self {
        EndReason::Lost
    }
}

/// What is said to the other gateway, besides news, and to the broker.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) letters: VecDeque<Letter>,
    pub(crate) broker: Option<BrokerConnection>,
}

impl Outbox {
    /// To the other gateway, as soon as there is room.
    pub(crate) fn letter(&mut self, letter: Letter) {
        self.letters.push_back(letter);
    }

    /// The broker, which is connected to when it is needed first.
    pub(crate) fn broker(&mut self) -> io::Result<&BrokerConnection> {
        match &mut self.broker {
            Some(broker) => Ok(broker),
            none => Ok(none.insert(BrokerConnection::new()?)),
        }
    }
}
