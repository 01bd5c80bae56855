//! Reads and writes rules of policies: as text, or as tables with the same words as keys.

use omniverb_tenancy::{DEFAULT_PRIORITY, Direction, PeerMatch, Rule, RuleAction, rule_operations};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// One rule of a policy. It is written as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleValue(pub Rule);

impl Serialize for RuleValue {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for RuleValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RuleValue, D::Error> {
        from.deserialize_any(TextOrTable)
    }
}

struct TextOrTable;

impl<'de> Visitor<'de> for TextOrTable {
    type Value = RuleValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rule")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<RuleValue, E> {
        text.parse().map(RuleValue).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RuleValue, A::Error> {
        let table = RuleTable::deserialize(MapAccessDeserializer::new(map))?;
        table.rule().map(RuleValue).map_err(A::Error::custom)
    }
}

/// A rule with its words as keys.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    direction: Word<Direction>,
    action: Word<RuleAction>,
    operations: Vec<String>,
    from: Option<Word<PeerMatch>>,
    to: Option<Word<PeerMatch>>,
    port: Option<std::num::NonZero<u16>>,
    priority: Option<u16>,
}

/// A value that is written as text.
struct Word<T>(T);

impl<'de, T: FromStr<Err = String>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Word<T>, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Word).map_err(D::Error::custom)
    }
}

impl RuleTable {
    fn rule(self) -> Result<Rule, String> {
        let RuleTable { direction, action, operations, from, to, port, priority } = self;
        let direction = direction.0;
        let (peer, wrong) = match direction {
            Direction::Ingress => (from, to),
            Direction::Egress => (to, from),
        };
        if wrong.is_some() {
            let (side, word) = (direction.word(), direction.peer_word());
            return Err(format!("the peer of an {side} rule is given by {word:?}"));
        }
        Ok(Rule {
            direction,
            action: action.0,
            operations: rule_operations(operations.iter().map(String::as_str))?,
            peer: peer.map_or(PeerMatch::Any, |peer| peer.0),
            port: port.map(std::num::NonZero::get),
            priority: priority.unwrap_or(DEFAULT_PRIORITY),
        })
    }
}
