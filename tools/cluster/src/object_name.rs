//! Names objects: the kinds that there are, and what a name may be.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes of the longest name, as the daemon has it.
pub const NAME_BYTES_MAX: usize = 63;

/// Fields of an object, by the keys of the configuration file.
pub type Fields = Map<String, Value>;

/// The kinds of objects, in the order in which they are made: a later one names earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An owner of vNICs.
    Tenant,
    /// Settings shared by several vNICs.
    Policy,
    /// A device of a network namespace.
    Vnic,
    /// An address of another host's vNIC in a virtual network, which that host's agent announces.
    Address,
}

impl Kind {
    /// Those that people describe.
    pub const ALL: [Kind; 3] = [Kind::Tenant, Kind::Policy, Kind::Vnic];

    /// The word for it in keys, files and messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Tenant => "tenant",
            Kind::Policy => "policy",
            Kind::Vnic => "vnic",
            Kind::Address => "address",
        }
    }

    /// The kind of this word, if people describe it.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// The kind that the daemon has this word for.
    #[must_use]
    pub fn of_row(word: &str) -> Option<Kind> {
        Kind::from_word(word).or((word == Kind::Address.word()).then_some(Kind::Address))
    }
}

/// An object by its kind and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    /// The kind of the object.
    pub kind: Kind,
    /// The name of the object.
    pub name: String,
}

impl ObjectId {
    /// The object of this kind and name.
    #[must_use]
    pub fn new(kind: Kind, name: &str) -> ObjectId {
        ObjectId { kind, name: name.to_owned() }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.word(), self.name)
    }
}

/// The wanted state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It has these fields.
    Fields(Fields),
    /// It stays as it is, whatever that is.
    Held,
}

/// Objects as a host is to have them.
pub type WantedObjects = BTreeMap<ObjectId, Wanted>;

/// The hosts that an object is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All of them.
    All,
    /// The one of this name. Objects for it decide before those for all.
    Host(String),
}

/// Whether a text is the name of an object, a host or a tenant.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(is_sign)
}
