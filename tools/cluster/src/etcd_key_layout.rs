//! Defines the keys in etcd: version 1 of the layout.
//!
//! `docs/operator/cluster.md` describes it for people. A key that cannot be parsed here is not
//! ours, or of a later version, and is reported.

use crate::object_name::{Kind, ObjectId, Scope, is_name};
use std::net::IpAddr;

/// The prefix of all keys.
pub const PREFIX: &str = "/omniverb/v1/";
/// The number that the entry [`Key::Cluster`] has for this layout.
pub const VERSION: u64 = 1;
/// Bytes of the longest key.
pub const KEY_BYTES_MAX: usize = 256;

/// A key of the layout.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Says that there is a cluster, and which. Without it nothing below the prefix counts. It
    /// stands among the objects of all hosts, so that one watch tells of both in their order.
    Cluster,
    /// An object, for all hosts or one.
    Object(Scope, ObjectId),
    /// A host whose agent runs, on a lease.
    Live(String),
    /// The place of a tenant's virtual IP address, on the lease of the host where it is.
    Address {
        /// The tenant that has the address.
        tenant: String,
        /// The virtual address.
        ip: IpAddr,
    },
}

impl Key {
    /// The key as etcd has it.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Key::Cluster => format!("{}cluster", objects_of(&Scope::All)),
            Key::Object(scope, id) => {
                format!("{}{}/{}", objects_of(scope), id.kind.word(), id.name)
            }
            Key::Live(host) => format!("{}{host}", live()),
            Key::Address { tenant, ip } => format!("{}{tenant}/{ip}", addresses()),
        }
    }

    /// The key of these bytes.
    ///
    /// # Errors
    /// What is wrong with it, in words for an operator.
    pub fn parse(bytes: &[u8]) -> Result<Key, String> {
        if bytes.len() > KEY_BYTES_MAX {
            return Err(format!("the key has more than {KEY_BYTES_MAX} bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "the key is no text".to_owned())?;
        let rest = text.strip_prefix(PREFIX).ok_or("the key is not of layout v1")?;
        let words: Vec<&str> = rest.split('/').collect();
        let object = |scope: Scope, kind: &str, name: &str| {
            let kind = Kind::from_word(kind).ok_or(format!("there is no kind {kind:?}"))?;
            named(name)?;
            Ok(Key::Object(scope, ObjectId::new(kind, name)))
        };
        match words[..] {
            ["all", "cluster"] => Ok(Key::Cluster),
            ["all", kind, name] => object(Scope::All, kind, name),
            ["host", host, kind, name] => object(Scope::Host(named(host)?.into()), kind, name),
            ["live", host] => Ok(Key::Live(named(host)?.into())),
            ["address", tenant, address] => {
                let ip: IpAddr = address.parse().map_err(|_| "that is no IP address")?;
                // One address has one key.
                match ip.to_string() == address {
                    true => Ok(Key::Address { tenant: named(tenant)?.into(), ip }),
                    false => Err(format!("the address is written {ip}")),
                }
            }
            _ => Err("the key is not of layout v1".into()),
        }
    }
}

fn named(text: &str) -> Result<&str, String> {
    match is_name(text) {
        true => Ok(text),
        false => Err("a name has 1 to 63 letters, digits and any of . _ - @".into()),
    }
}

/// The prefix of the keys of a scope's objects.
#[must_use]
pub fn objects_of(scope: &Scope) -> String {
    match scope {
        Scope::All => format!("{PREFIX}all/"),
        Scope::Host(host) => format!("{PREFIX}host/{host}/"),
    }
}

/// The prefix of the keys of hosts whose agents run.
#[must_use]
pub fn live() -> String {
    format!("{PREFIX}live/")
}

/// The prefix of the keys of addresses.
#[must_use]
pub fn addresses() -> String {
    format!("{PREFIX}address/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_are_as_the_operator_guide_has_them() {
        let gold = ObjectId::new(Kind::Policy, "gold");
        for (text, key) in [
            ("/omniverb/v1/all/cluster", Key::Cluster),
            ("/omniverb/v1/all/policy/gold", Key::Object(Scope::All, gold.clone())),
            ("/omniverb/v1/host/h1/policy/gold", Key::Object(Scope::Host("h1".into()), gold)),
            ("/omniverb/v1/live/h1", Key::Live("h1".into())),
            (
                "/omniverb/v1/address/blue/10.0.0.1",
                Key::Address { tenant: "blue".into(), ip: [10, 0, 0, 1].into() },
            ),
        ] {
            assert_eq!((key.text().as_str(), Key::parse(text.as_bytes())), (text, Ok(key)));
        }
    }

    #[test]
    fn other_keys_are_refused() {
        for (text, word) in [
            ("/omniverb/v2/all/policy/gold", "layout"),
            ("/omniverb/v1/all/policy/", "a name"),
            ("/omniverb/v1/all/policy/a/b", "layout"),
            ("/omniverb/v1/all/colour/red", "colour"),
            ("/omniverb/v1/host//policy/gold", "a name"),
            ("/omniverb/v1/address/blue/10.0.0.01", "address"),
            ("/omniverb/v1/address/blue/fd00:0::1", "written fd00::1"),
            ("/omniverb/v1/", "layout"),
        ] {
            assert!(Key::parse(text.as_bytes()).unwrap_err().contains(word), "{text}");
        }
        assert!(Key::parse(b"/omniverb/v1/all/policy/\xff").unwrap_err().contains("no text"));
        assert!(Key::parse(&[b'/'; KEY_BYTES_MAX + 1]).unwrap_err().contains("bytes"));
    }

    proptest! {
        #[test]
        fn parsed_keys_are_written_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            words in "(all|host/h1|live|address|cluster)(/(vnic|tenant|::1|a@b)){0,3}",
        ) {
            for bytes in [bytes, format!("{PREFIX}{words}").into_bytes()] {
                if let Ok(key) = Key::parse(&bytes) {
                    prop_assert_eq!(key.text().into_bytes(), bytes);
                }
            }
        }
    }
}
