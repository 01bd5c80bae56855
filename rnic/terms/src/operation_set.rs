//! Names sets of operations that one queue pair asks of another.

use core::fmt;

/// A set of operations. Rules accept and deny them, links refuse them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operations(u32);

impl Operations {
    /// None of them.
    pub const NONE: Operations = Operations(0);
    /// Connecting: RC, UC and XRC links, requests of rdma_cm, sockets that share memory.
    pub const CONNECT: Operations = Operations(1);
    /// Messages of UD.
    pub const DATAGRAM: Operations = Operations(2);
    /// SEND on a connected queue pair.
    pub const SEND: Operations = Operations(4);
    /// RDMA READ.
    pub const READ: Operations = Operations(8);
    /// RDMA WRITE, with and without immediate data, atomic WRITE and FLUSH.
    pub const WRITE: Operations = Operations(16);
    /// Compare and swap, fetch and add.
    pub const ATOMIC: Operations = Operations(32);
    /// All of them.
    pub const ALL: Operations = Operations(63);
    /// Those that a connected link refuses while it goes on.
    pub const ON_LINKS: Operations =
        Operations(Operations::SEND.0 | Operations::READ.0 | Operations::WRITE.0 | 32);

    /// Each with its word in rules.
    pub const WORDS: [(&'static str, Operations); 6] = [
        ("connect", Operations::CONNECT),
        ("datagram", Operations::DATAGRAM),
        ("send", Operations::SEND),
        ("read", Operations::READ),
        ("write", Operations::WRITE),
        ("atomic", Operations::ATOMIC),
    ];

    /// The set of these bits; unknown ones are dropped.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Operations {
        Operations(bits & Operations::ALL.0)
    }

    /// The set as bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `others` are in the set.
    #[must_use]
    #[inline(always)]
    pub const fn contains(self, others: Operations) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These, and `others`.
    #[must_use]
    pub const fn with(self, others: Operations) -> Operations {
        Operations(self.0 | others.0)
    }

    /// These without `others`.
    #[must_use]
    pub const fn without(self, others: Operations) -> Operations {
        Operations(self.0 & !others.0)
    }

    /// Those that are in both sets.
    #[must_use]
    pub const fn in_both(self, others: Operations) -> Operations {
        Operations(self.0 & others.0)
    }

    /// All operations that are not in the set.
    #[must_use]
    pub const fn complement(self) -> Operations {
        Operations::ALL.without(self)
    }
}

impl fmt::Display for Operations {
    /// As rules say it: `read,write`, or `all`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Operations::ALL {
            return f.write_str("all");
        }
        let mut separator = "";
        for (word, operation) in Operations::WORDS {
            if self.contains(operation) {
                write!(f, "{separator}{word}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_what_they_say() {
        let some = Operations::READ.with(Operations::WRITE);
        assert!(some.contains(Operations::READ) && !some.contains(Operations::SEND));
        assert_eq!(some.complement().with(some), Operations::ALL);
        assert_eq!(some.without(Operations::READ), Operations::WRITE);
        assert_eq!(some.in_both(Operations::ON_LINKS), some);
        assert_eq!(Operations::from_bits(u32::MAX), Operations::ALL);
        assert!(Operations::WORDS.iter().all(|(_, one)| one.bits().is_power_of_two()));
    }

    #[test]
    fn a_set_is_written_as_its_words() {
        extern crate std;
        use std::string::ToString;
        assert_eq!(Operations::ALL.to_string(), "all");
        assert_eq!(Operations::READ.with(Operations::WRITE).to_string(), "read,write");
        assert_eq!(Operations::NONE.to_string(), "");
    }
}
