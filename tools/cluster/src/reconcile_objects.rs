//! Plans the changes that lead a daemon's objects to the wanted ones, and makes them.
//!
//! In: the wanted objects, and what the daemon has. Out: calls of the daemon, each of which it
//! does as a whole or not at all. Many changes go in one call. A refused call is halved until the
//! changes stand alone that are refused, so that one bad object does not stop the others.

use crate::object_name::{Fields, Kind, ObjectId, Wanted, WantedObjects};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Rounds in which refused changes are tried again, as long as others are made.
const ATTEMPTS_MAX: usize = 4;
/// Refused changes that are tried in pairs: two vNICs that exchange their places need each other.
const PAIRED_MAX: usize = 32;

/// One change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has these fields from now on.
    Put(ObjectId, Fields),
    /// It is deleted.
    Delete(ObjectId),
}

impl Change {
    /// The object that is changed.
    #[must_use]
    pub fn id(&self) -> &ObjectId {
        match self {
            Change::Put(id, _) | Change::Delete(id) => id,
        }
    }

    fn json(&self) -> Value {
        match self {
            Change::Put(id, fields) => {
                json!({ "do": "put", "kind": id.kind.word(), "name": id.name, "fields": fields })
            }
            Change::Delete(id) => {
                json!({ "do": "delete", "kind": id.kind.word(), "name": id.name })
            }
        }
    }
}

/// The text of a call that makes these changes.
#[must_use]
pub fn call_text(changes: &[Change]) -> String {
    let changes: Vec<Value> = changes.iter().map(Change::json).collect();
    json!({ "source": "cluster", "changes": changes }).to_string()
}

/// The cluster's objects in a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Objects that it has.
    pub names: BTreeSet<ObjectId>,
    /// Fields of those that it was given while we know it.
    pub given: BTreeMap<ObjectId, Fields>,
}

/// The changes that lead from what is present to what is wanted, in an order that is possible: what
/// others name is made before them and deleted after them.
#[must_use]
pub fn plan(wanted: &WantedObjects, present: &Present) -> Vec<Change> {
    let is_extra = |id: &&ObjectId| !wanted.contains_key(*id);
    let deletes: Vec<&ObjectId> = present.names.iter().filter(is_extra).collect();
    let delete_of = |kinds: &[Kind]| {
        let of_kinds = deletes.iter().filter(|id| kinds.contains(&id.kind));
        of_kinds.map(|id| Change::Delete((*id).clone())).collect::<Vec<_>>()
    };
    let mut changes = delete_of(&[Kind::Vnic, Kind::Address]);
    changes.extend(wanted.iter().filter_map(|(id, object)| match object {
        Wanted::Fields(fields) if present.given.get(id) != Some(fields) => {
            Some(Change::Put(id.clone(), fields.clone()))
        }
        _ => None,
    }));
    changes.extend(delete_of(&[Kind::Tenant, Kind::Policy]));
    changes
}

/// Why a call did not do anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The daemon refuses it, for this reason.
    Refused(String),
    /// The daemon did not answer.
    Lost(String),
}

/// The result of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Changes that were made.
    pub made: usize,
    /// Objects whose change was refused, and why.
    pub refused: BTreeMap<ObjectId, String>,
}

/// Makes changes by calls of at most `bytes_max` bytes of text each, and notes in `present` the
/// objects that the daemon has then.
///
/// # Errors
/// The daemon did not answer. Changes made until then are noted.
pub fn make(
    changes: Vec<Change>,
    bytes_max: usize,
    present: &mut Present,
    mut call: impl FnMut(&str) -> Result<(), CallError>,
) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let mut left = changes;
    for _ in 0..ATTEMPTS_MAX {
        let before = outcome.made;
        let mut round = Round { bytes_max, refused: Vec::new(), outcome: &mut outcome };
        round.make(&left, present, &mut call)?;
        round.pair(present, &mut call)?;
        left = round.refused.iter().map(|(change, _)| change.clone()).collect();
        let refused = round.refused;
        outcome.refused =
            refused.into_iter().map(|(change, why)| (change.id().clone(), why)).collect();
        if left.is_empty() || outcome.made == before {
            break;
        }
    }
    Ok(outcome)
}

struct Round<'a> {
    bytes_max: usize,
    refused: Vec<(Change, String)>,
    outcome: &'a mut Outcome,
}

impl Round<'_> {
    /// Calls for as many changes at once as there is room for.
    fn make(
        &mut self,
        changes: &[Change],
        present: &mut Present,
        call: &mut impl FnMut(&str) -> Result<(), CallError>,
    ) -> Result<(), String> {
        let empty = call_text(&[]).len();
        let mut rest = changes;
        while !rest.is_empty() {
            let mut bytes = empty;
            let fits = rest.iter().take_while(|change| {
                bytes += change.json().to_string().len() + 1;
                bytes <= self.bytes_max
            });
            let count = fits.count();
            if count == 0 {
                let text =
                    format!("it is too large: a change has at most {} bytes", self.bytes_max);
                self.refused.push((rest[0].clone(), text));
                rest = &rest[1..];
                continue;
            }
            self.call(&rest[..count], present, call)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Calls for each two refused changes together.
    fn pair(
        &mut self,
        present: &mut Present,
        call: &mut impl FnMut(&str) -> Result<(), CallError>,
    ) -> Result<(), String> {
        let mut first = 0;
        while self.refused.len() <= PAIRED_MAX && first < self.refused.len() {
            let mut is_made = false;
            for second in first + 1..self.refused.len() {
                let pair = [&self.refused[first].0, &self.refused[second].0].map(Clone::clone);
                let text = call_text(&pair);
                match if text.len() <= self.bytes_max { call(&text) } else { continue } {
                    Ok(()) => {
                        pair.iter().for_each(|change| present.note(change));
                        self.outcome.made += pair.len();
                        self.refused.remove(second);
                        self.refused.remove(first);
                        is_made = true;
                        break;
                    }
                    Err(CallError::Lost(why)) => return Err(why),
                    Err(CallError::Refused(_)) => {}
                }
            }
            first += usize::from(!is_made);
        }
        Ok(())
    }

    fn call(
        &mut self,
        changes: &[Change],
        present: &mut Present,
        call: &mut impl FnMut(&str) -> Result<(), CallError>,
    ) -> Result<(), String> {
        match call(&call_text(changes)) {
            Ok(()) => {
                self.outcome.made += changes.len();
                changes.iter().for_each(|change| present.note(change));
                Ok(())
            }
            Err(CallError::Lost(why)) => Err(why),
            Err(CallError::Refused(why)) if changes.len() == 1 => {
                self.refused.push((changes[0].clone(), why));
                Ok(())
            }
            Err(CallError::Refused(_)) => {
                let (first, second) = changes.split_at(changes.len() / 2);
                self.call(first, present, call)?;
                self.call(second, present, call)
            }
        }
    }
}

impl Present {
    fn note(&mut self, change: &Change) {
        match change {
            Change::Put(id, fields) => {
                self.names.insert(id.clone());
                self.given.insert(id.clone(), fields.clone());
            }
            Change::Delete(id) => {
                self.names.remove(id);
                self.given.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests;
