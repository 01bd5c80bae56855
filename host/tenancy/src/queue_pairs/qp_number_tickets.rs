//! Makes and checks tickets: proofs of ownership that processes show to the next daemon.
//!
//! A daemon does not know the numbers that its predecessor gave out. So that no process can claim
//! another's, the predecessor gave a ticket with each number: a keyed hash (SipHash-2-4 with 128
//! bits of key and of output) over the number and everything that makes it the owner's, under a
//! secret that daemons hand on to each other. A ticket is only compared with the hash of its
//! bearer's own claim, so one in other hands, or of another boot, is worth nothing.
//!
//! Only a number needs one. A memory key is a process's own: others name it through a queue pair of
//! that process, and every process may have the same keys.

use omniverb_terms::{Qpn, Service};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use subtle::ConstantTimeEq;

/// A secret that only successive daemons share.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Everything a ticket is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) qpn: Qpn,
    pub(crate) service: Service,
    /// The proof of its vNIC ([`Identity::proof`](crate::Identity)).
    pub(crate) vnic: [u64; 4],
    pub(crate) uid: u32,
    pub(crate) issued: u64,
}

/// Makes tickets and checks them.
#[derive(Debug)]
pub(crate) struct Tickets {
    secret: Secret,
    /// Constant as long as the machine runs.
    boot: u64,
    last: u64,
    /// Until when claims are believed; zero: there is nothing that could have survived.
    until: u64,
}

impl Tickets {
    pub(crate) fn new(secret: [u64; 2], boot: u64) -> Tickets {
        Tickets { secret: Secret(secret), boot, last: 0, until: 0 }
    }

    /// Goes on with the secret of the earlier daemon; `until`: when no process is left that could
    /// still announce its numbers.
    pub(crate) fn inherit(&mut self, secret: Secret, until: u64) {
        (self.secret, self.until) = (secret, until);
    }

    pub(crate) fn secret(&self) -> Secret {
        self.secret
    }

    /// True while what survived a restart may announce itself.
    pub(crate) fn are_taken(&self, now: u64) -> bool {
        now < self.until
    }

    /// A number of an issue that is later than all before.
    pub(crate) fn issue(&mut self, now: u64) -> u64 {
        self.last = now.max(self.last + 1);
        self.last
    }

    /// A ticket of this issue was shown: numbers given out from now on are later.
    pub(crate) fn seen(&mut self, issued: u64) {
        self.last = self.last.max(issued);
    }

    pub(crate) fn make(&self, claim: &Claim) -> [u8; 16] {
        let Secret([one, other]) = self.secret;
        let mut hasher = SipHasher24::new_with_keys(one, other);
        // Every field has its length, so no two claims are the same bytes.
        hasher.write(b"omniverb qp 1");
        hasher.write(&self.boot.to_le_bytes());
        hasher.write(&claim.qpn.0.to_le_bytes());
        hasher.write(&claim.service.qp_type().to_le_bytes());
        claim.vnic.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
        hasher.write(&claim.uid.to_le_bytes());
        hasher.write(&claim.issued.to_le_bytes());
        hasher.finish128().as_bytes()
    }

    /// Compares in the same time whatever the bytes are.
    pub(crate) fn proves(&self, claim: &Claim, ticket: [u8; 16]) -> bool {
        self.make(claim).ct_eq(&ticket).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_holds_for_one_claim_only() {
        let tickets = Tickets::new([3, 4], 5);
        let vnic = [1, 4, 77, 6];
        let claim = Claim { qpn: Qpn(9), service: Service::Rc, vnic, uid: 1000, issued: 8 };
        let ticket = tickets.make(&claim);
        assert!(tickets.proves(&claim, ticket));
        for other in [
            Claim { qpn: Qpn(10), ..claim },
            Claim { service: Service::Uc, ..claim },
            Claim { vnic: [2, 4, 77, 6], ..claim },
            Claim { vnic: [1, 4, 78, 6], ..claim },
            Claim { vnic: [1, 4, 77, 7], ..claim },
            Claim { uid: 0, ..claim },
            Claim { issued: 9, ..claim },
        ] {
            assert!(!tickets.proves(&other, ticket), "{other:?}");
        }
        for bit in 0..128 {
            let forged = u128::from_le_bytes(ticket) ^ 1 << bit;
            assert!(!tickets.proves(&claim, forged.to_le_bytes()));
        }
        assert!(!Tickets::new([3, 5], 5).proves(&claim, ticket), "another secret");
        assert!(!Tickets::new([3, 4], 6).proves(&claim, ticket), "another boot");
        assert!(Tickets::new([3, 4], 5).proves(&claim, ticket), "the next daemon");
        assert_eq!(format!("{:?}", Secret([1, 2])), "Secret");
    }

    #[test]
    fn later_issues_have_larger_numbers() {
        let mut tickets = Tickets::new([0, 0], 0);
        let issued: Vec<_> = [5, 5, 4, 9].map(|now| tickets.issue(now)).into();
        assert_eq!(issued, [5, 6, 7, 9]);
        assert!(!tickets.are_taken(0));
        tickets.inherit(Secret([0, 0]), 100);
        assert!(tickets.are_taken(99) && !tickets.are_taken(100));
    }
}
