//! What the daemon tells the broker with the socket to listen at.

use omniverb_sys::child::{Helpers, OWN_PROGRAM};
use omniverb_sys::people::People;
use std::io;

/// Most bytes of an order: some sixteen thousand users and groups.
pub(crate) const BYTES: usize = 64 << 10;

/// How it is to serve, and whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// How it starts its own helpers. Whatever the daemon's program is called, the broker's is the
    /// same: [`OWN_PROGRAM`].
    pub helpers: Helpers,
    /// Who may connect; `None`: everybody.
    pub allowed: Option<People>,
}

impl Order {
    /// As a message: words, of which the first two say yes or no, and the third how many users
    /// there are in front of the groups.
    ///
    /// # Errors
    /// `InvalidInput` if too many are allowed to fit.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let nobody = People::default();
        let people = self.allowed.as_ref().unwrap_or(&nobody);
        let users = u32::try_from(people.users.len()).unwrap_or(u32::MAX);
        let are_threads = self.helpers == Helpers::Threads;
        let head = [are_threads.into(), self.allowed.is_some().into(), users];
        let words = head.iter().chain(&people.users).chain(&people.groups);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        if bytes.len() > BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many users and groups"));
        }
        Ok(bytes)
    }

    /// From a message, if it is one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Order> {
        let (words, rest) = bytes.as_chunks();
        let words: Vec<u32> = words.iter().copied().map(u32::from_ne_bytes).collect();
        let [are_threads @ 0..=1, is_limited @ 0..=1, users, people @ ..] = &words[..] else {
            return None;
        };
        let (users, groups) = people.split_at_checked(usize::try_from(*users).ok()?)?;
        let people = || People { users: users.to_vec(), groups: groups.to_vec() };
        let allowed = (*is_limited == 1).then(people);
        let helpers = match are_threads {
            1 => Helpers::Threads,
            _ => Helpers::Program(OWN_PROGRAM.into()),
        };
        rest.is_empty().then_some(Order { helpers, allowed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_what_it_was() {
        let people = People { users: vec![0, 7, u32::MAX], groups: vec![5] };
        let helpers = Helpers::Program(OWN_PROGRAM.into());
        for allowed in [None, Some(People::default()), Some(people)] {
            let helpers = if allowed.is_some() { Helpers::Threads } else { helpers.clone() };
            let order = Order { helpers, allowed };
            let bytes = order.encode().unwrap();
            assert_eq!(Order::decode(&bytes), Some(order));
            assert_eq!(Order::decode(&bytes[1..]), None);
        }
        let many = People { users: vec![1; BYTES / 4], groups: Vec::new() };
        assert!(Order { helpers, allowed: Some(many) }.encode().is_err());
        assert_eq!(Order::decode(b"L"), None);
    }
}
