//! Names the kinds of connections: between two queue pairs like each other, or the two ends of XRC.

use omniverb_terms::Service;

/// What a connection joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Two queue pairs that both send and receive.
    #[default]
    Plain,
    /// Those of XRC: the end that asks sends, the other receives. What is answered has the target's
    /// queue pair in another field.
    Extended,
}

impl Kind {
    /// That of a queue pair with this service.
    pub fn of(service: Service) -> Kind {
        if service.is_extended() { Kind::Extended } else { Kind::Plain }
    }
}
