//! Reads the `[vnic]` tables: quotas of every vNIC, and values of a certain one
//! (`[vnic."vnic-4099-k7mw"]`).

use omniverb_control::VnicObject;
use omniverb_tenancy::{Adoption, Datapath};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Everything under `[vnic]`.
#[derive(Debug, Default)]
pub(crate) struct VnicTable {
    pub(crate) quotas: Quotas,
    pub(crate) named: BTreeMap<String, VnicObject>,
}

/// Quotas of a vNIC.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    pub(crate) processes: Option<usize>,
    pub(crate) queue_pairs: Option<usize>,
    pub(crate) memory_regions: Option<usize>,
    pub(crate) links: Option<usize>,
    pub(crate) datagram_links_per_neighbour: Option<usize>,
    pub(crate) probes: Option<usize>,
}

pub(crate) fn optional_datapath<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Datapath>, D::Error> {
    match String::deserialize(from)?.as_str() {
        "direct" => Ok(Some(Datapath::Direct)),
        "forwarded" => Ok(Some(Datapath::Forwarded)),
        other => Err(D::Error::custom(format!("{other:?} is neither direct nor forwarded"))),
    }
}

pub(crate) fn optional_adoption<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Adoption>, D::Error> {
    let word = String::deserialize(from)?;
    let none = || D::Error::custom(format!("{word:?} is none of exact, trusting and off"));
    Adoption::from_name(&word).ok_or_else(none).map(Some)
}

impl<'de> Deserialize<'de> for VnicTable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<VnicTable, D::Error> {
        from.deserialize_map(Entries)
    }
}

/// Numbers are quotas, tables are vNICs.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = VnicTable;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VnicTable, A::Error> {
        let mut table = VnicTable::default();
        let quotas = &mut table.quotas;
        while let Some(key) = map.next_key::<String>()? {
            let quota = match key.as_str() {
                "processes" => &mut quotas.processes,
                "queue_pairs" => &mut quotas.queue_pairs,
                "memory_regions" => &mut quotas.memory_regions,
                "links" => &mut quotas.links,
                "datagram_links_per_neighbour" => &mut quotas.datagram_links_per_neighbour,
                "probes" => &mut quotas.probes,
                _ => {
                    let named = map.next_value_seed(NamedSeed(&key))?;
                    table.named.insert(key, named);
                    continue;
                }
            };
            *quota = Some(map.next_value()?);
        }
        Ok(table)
    }
}

/// A vNIC's table; anything else under that name is a quota that does not exist.
struct NamedSeed<'a>(&'a str);

impl<'de> serde::de::DeserializeSeed<'de> for NamedSeed<'_> {
    type Value = VnicObject;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<VnicObject, D::Error> {
        struct Table<'a>(&'a str);
        impl<'de> Visitor<'de> for Table<'_> {
            type Value = VnicObject;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "a table for vNIC `{}` (it is no quota)", self.0)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<VnicObject, A::Error> {
                VnicObject::deserialize(serde::de::value::MapAccessDeserializer::new(map))
            }
        }
        from.deserialize_any(Table(self.0))
    }
}
