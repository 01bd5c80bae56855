//! Names the messages of a channel besides news, and the reasons why a channel ends.

use crate::broker::Broker;
use omniverb_formats::letter::Letter;
use std::collections::VecDeque;
use std::io;

/// Why a channel has ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The process here has ended, or its part was taken back.
    Here { is_cut: bool },
    /// The same over there.
    There { is_cut: bool },
    /// The way is lost, or somebody has said what makes no sense.
    Lost,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        End::Lost
    }
}

/// What is said to the other gateway, besides news, and to the broker.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) letters: VecDeque<Letter>,
    pub(crate) broker: Option<Broker>,
}

impl Said {
    /// To the other gateway, as soon as there is room.
    pub(crate) fn letter(&mut self, letter: Letter) {
        self.letters.push_back(letter);
    }

    /// The broker, which is connected to when it is needed first.
    pub(crate) fn broker(&mut self) -> io::Result<&Broker> {
        match &mut self.broker {
            Some(broker) => Ok(broker),
            none => Ok(none.insert(Broker::new()?)),
        }
    }
}
