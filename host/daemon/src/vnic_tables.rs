//! The `[vnic]` table: quotas of every vNIC, and in tables of its own (`[vnic."vnic-4099-k7mw"]`)
//! what holds for a certain one.

use omniverb_session::faults::{self, Faults};
use omniverb_session::tc_units;
use omniverb_tenancy::{Adoption, Datapath, Policy, RateLimit};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Everything under `[vnic]`.
#[derive(Debug, Default)]
pub(crate) struct VnicTable {
    pub(crate) quotas: Quotas,
    pub(crate) named: BTreeMap<String, Named>,
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

/// What holds for one vNIC.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, try_from = "Written")]
pub(crate) struct Named {
    datapath: Option<Datapath>,
    limit: Option<RateLimit>,
    faults: Option<Faults>,
    adoption: Option<Adoption>,
}

/// The same as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    #[serde(deserialize_with = "optional_datapath")]
    datapath: Option<Datapath>,
    #[serde(deserialize_with = "optional_rate")]
    rate: Option<u64>,
    #[serde(deserialize_with = "optional_size")]
    burst: Option<u64>,
    #[serde(deserialize_with = "optional_faults")]
    faults: Option<Faults>,
    #[serde(deserialize_with = "optional_adoption")]
    adoption: Option<Adoption>,
}

impl TryFrom<Written> for Named {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Named, &'static str> {
        let Written { datapath, rate, burst, faults, adoption } = written;
        let limit = match (rate.filter(|rate| *rate != 0), burst) {
            (None, Some(_)) => return Err("a burst needs a rate"),
            (None, None) => None,
            (Some(bits_per_second), burst) => {
                let burst_bytes = burst.unwrap_or_else(|| tc_units::burst_for(bits_per_second));
                let limit = RateLimit { bits_per_second, burst_bytes };
                if !limit.is_sensible() {
                    return Err("rates are 8kbit to 1000tbit, bursts 1500 to 1g");
                }
                Some(limit)
            }
        };
        Ok(Named { datapath, limit, faults, adoption })
    }
}

impl Named {
    /// With what holds in general where it says nothing about that.
    pub(crate) fn policy(&self, general: &Policy) -> Policy {
        Policy {
            datapath: self.datapath.unwrap_or(general.datapath),
            limit: self.limit,
            faults: self.faults,
            adoption: self.adoption.unwrap_or(general.adoption),
        }
    }
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

fn optional_rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    tc_units::rate(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn optional_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    tc_units::size(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn optional_faults<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Faults>, D::Error> {
    faults::faults(&String::deserialize(from)?).map_err(D::Error::custom)
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
    type Value = Named;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Named, D::Error> {
        struct Table<'a>(&'a str);
        impl<'de> Visitor<'de> for Table<'_> {
            type Value = Named;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "a table for vNIC `{}` (it is no quota)", self.0)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Named, A::Error> {
                Named::deserialize(serde::de::value::MapAccessDeserializer::new(map))
            }
        }
        from.deserialize_any(Table(self.0))
    }
}
