//! Encodes what the daemon tells the broker at its start, with the socket to listen at.

use omniverb_formats::address_range::Range;
use omniverb_formats::broker_message::{self, Reply};
use omniverb_sys::helper_process::{HelperStart, OWN_PROGRAM};
use omniverb_sys::user_and_group_check::UsersAndGroups;
use std::io;

/// Most bytes of an order: some sixteen thousand users and groups.
pub(crate) const BYTES: usize = 64 << 10;

/// The broker's settings and the users that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupParameters {
    /// How it starts its own helpers. Whatever the daemon's program is called, the broker's is the
    /// same: [`OWN_PROGRAM`].
    pub helpers: HelperStart,
    /// Users that may connect; `None`: all.
    pub allowed: Option<UsersAndGroups>,
    /// To which addresses connections are light.
    pub light: Vec<Range>,
}

/// Words of a range.
const RANGE: usize = broker_message::BYTES / size_of::<u32>();

impl StartupParameters {
    /// As a message: words, of which the first two say yes or no, the third how many ranges there
    /// are, and the fourth how many users; then those, and the groups.
    ///
    /// # Errors
    /// `InvalidInput` if too many are allowed to fit.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let nobody = UsersAndGroups::default();
        let people = self.allowed.as_ref().unwrap_or(&nobody);
        let users = u32::try_from(people.users.len()).unwrap_or(u32::MAX);
        let are_threads = self.helpers == HelperStart::Threads;
        let ranges = u32::try_from(self.light.len()).unwrap_or(u32::MAX);
        let head = [are_threads.into(), self.allowed.is_some().into(), ranges, users];
        let mut bytes: Vec<u8> = head.iter().copied().flat_map(u32::to_ne_bytes).collect();
        bytes.extend(self.light.iter().flat_map(|range| Reply::Range(*range).encode()));
        let people = people.users.iter().chain(&people.groups);
        bytes.extend(people.flat_map(|word| word.to_ne_bytes()));
        if bytes.len() > BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "too many users, groups and ranges",
            ));
        }
        Ok(bytes)
    }

    /// From a message, if it is one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<StartupParameters> {
        let (words, rest) = bytes.as_chunks();
        let words: Vec<u32> = words.iter().copied().map(u32::from_ne_bytes).collect();
        let [are_threads @ 0..=1, is_limited @ 0..=1, ranges, users, rest_of @ ..] = &words[..]
        else {
            return None;
        };
        let ranges = usize::try_from(*ranges).ok()?.checked_mul(RANGE)?;
        let (ranges, people) = rest_of.split_at_checked(ranges)?;
        let range = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().copied().flat_map(u32::to_ne_bytes).collect();
            match Reply::decode(&bytes) {
                Some(Reply::Range(range)) => Some(range),
                _ => None,
            }
        };
        let light = ranges.chunks_exact(RANGE).map(range).collect::<Option<_>>()?;
        let (users, groups) = people.split_at_checked(usize::try_from(*users).ok()?)?;
        let people = || UsersAndGroups { users: users.to_vec(), groups: groups.to_vec() };
        let allowed = (*is_limited == 1).then(people);
        let helpers = match are_threads {
            1 => HelperStart::Threads,
            _ => HelperStart::Program(OWN_PROGRAM.into()),
        };
        rest.is_empty().then_some(StartupParameters { helpers, allowed, light })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_what_it_was() {
        let people = UsersAndGroups { users: vec![0, 7, u32::MAX], groups: vec![5] };
        let helpers = HelperStart::Program(OWN_PROGRAM.into());
        let ranges = ["10.0.0.0/8:7", "::/0"].map(|range| range.parse().unwrap());
        for allowed in [None, Some(UsersAndGroups::default()), Some(people)] {
            let light = if allowed.is_some() { ranges.to_vec() } else { Vec::new() };
            let helpers = if allowed.is_some() { HelperStart::Threads } else { helpers.clone() };
            let order = StartupParameters { helpers, allowed, light };
            let bytes = order.encode().unwrap();
            assert_eq!(StartupParameters::decode(&bytes), Some(order));
            assert_eq!(StartupParameters::decode(&bytes[1..]), None);
        }
        let many = UsersAndGroups { users: vec![1; BYTES / 4], groups: Vec::new() };
        let light = Vec::new();
        assert!(StartupParameters { helpers, allowed: Some(many), light }.encode().is_err());
        assert_eq!(StartupParameters::decode(b"L"), None);
    }
}
