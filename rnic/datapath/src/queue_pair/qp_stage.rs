//! Tracks the stage of the application's RC or UC queue pair, from start to end.

/// How far the application's QP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before RTS: what it asks for is not taken.
    Receives,
    /// RTS.
    Sends,
    /// It was closed. A reliable service still answers what the application did before that.
    Leaving,
    /// Nothing is left to be said about it.
    Silent,
    /// The connection failed, or was broken off; the application is still there.
    Closed,
    /// So it was, and the application has gone.
    Gone,
}

impl Stage {
    /// Whether nothing more is taken from the application.
    pub fn is_closed(self) -> bool {
        matches!(self, Stage::Closed | Stage::Gone)
    }

    /// The connection failed, or is broken off.
    pub fn close(&mut self) {
        *self = match self {
            Stage::Receives | Stage::Sends | Stage::Closed => Stage::Closed,
            Stage::Leaving | Stage::Silent | Stage::Gone => Stage::Gone,
        }
    }

    /// The application goes. True: this was not known.
    pub fn leave(&mut self) -> bool {
        let (next, news) = match *self {
            Stage::Receives | Stage::Sends => (Stage::Leaving, true),
            Stage::Closed => (Stage::Gone, true),
            left => (left, false),
        };
        *self = next;
        news
    }
}
