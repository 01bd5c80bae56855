//! Queues letters to the other gateway, and names the reasons why a channel ends.

use crate::broker_connection::BrokerConnection;
use omniverb_formats::gateway_message::GatewayMessage;
use std::collections::VecDeque;
use std::io;

/// Why a channel has ended.
#[derive(Debug)]
pub(crate) enum EndReason {
    /// The process here has ended, or its part was taken back.
    Local { is_reset: bool },
    /// The same over there.
    Remote { is_reset: bool },
    /// The connection is lost, or the other side has sent something invalid.
    Lost,
}

impl From<io::Error> for EndReason {
    fn from(_: io::Error) -> Self {
        EndReason::Lost
    }
}

/// Letters to the other gateway, besides news; and the connection to the broker.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) letters: VecDeque<GatewayMessage>,
    pub(crate) broker: Option<BrokerConnection>,
}

impl Outbox {
    /// Queues a letter, which goes as soon as there is room.
    pub(crate) fn letter(&mut self, letter: GatewayMessage) {
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
