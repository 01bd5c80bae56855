//! Keeps the GID table and addresses of a vNIC, and the sessions that wait for them to be read.

use super::gid_table::{VnicAddress, sorted};
use crate::row_keys::SessionId;
use omniverb_session::body::GidEntry;
use omniverb_terms::Gid;
use std::net::IpAddr;

/// The names of a vNIC. Read on demand, once for all that wait meanwhile.
#[derive(Debug, Default)]
pub(crate) struct GidsAndAddresses {
    table: Vec<GidEntry>,
    /// All its addresses, sorted; the table has only some of them.
    addresses: Vec<IpAddr>,
    /// When they were read last, in nanoseconds; `None`: never.
    read_at: Option<u64>,
    /// Sessions that wait; `Some` while they are being read.
    reading: Option<Vec<SessionId>>,
}

/// The results of reading addresses.
#[derive(Debug)]
pub(crate) struct Read {
    /// Sessions that waited for that.
    pub(crate) waiting: Vec<SessionId>,
    /// The table before, if there was one, and it was another.
    pub(crate) before: Option<Vec<GidEntry>>,
}

impl GidsAndAddresses {
    /// The GID table.
    pub(crate) fn table(&self) -> &[GidEntry] {
        &self.table
    }

    /// The entry of a GID, if it is in the table.
    pub(crate) fn entry(&self, gid: Gid) -> Option<&GidEntry> {
        self.table.iter().find(|entry| entry.gid == gid)
    }

    /// An address is one of the vNIC's, in its table or not.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.binary_search(&address.to_canonical()).is_ok()
    }

    /// All its addresses.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// They have been read.
    pub(crate) fn are_known(&self) -> bool {
        self.read_at.is_some()
    }

    /// They were read, and that is at least so many nanoseconds ago.
    pub(crate) fn are_old(&self, now: u64, kept: u64) -> bool {
        self.read_at.is_some_and(|at| now.saturating_sub(at) >= kept)
    }

    /// `session`, if there is one, waits for their being read anew. True: they are not being read
    /// yet, and the caller has that done.
    pub(crate) fn wait(&mut self, session: Option<SessionId>) -> bool {
        let begins = self.reading.is_none();
        self.reading.get_or_insert_default().extend(session);
        begins
    }

    /// A session has ended.
    pub(crate) fn wait_no_more(&mut self, session: SessionId) {
        if let Some(reading) = &mut self.reading {
            reading.retain(|waiting| *waiting != session);
        }
    }

    /// They have been read.
    pub(crate) fn found(
        &mut self,
        table: Vec<GidEntry>,
        addresses: &[VnicAddress],
        now: u64,
    ) -> Read {
        let changed = self.are_known() && self.table != table;
        let before = std::mem::replace(&mut self.table, table);
        self.addresses = sorted(addresses);
        self.read_at = Some(now);
        let waiting = self.reading.take().unwrap_or_default();
        Read { waiting, before: changed.then_some(before) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(last: u8) -> GidEntry {
        GidEntry { gid: IpAddr::from([10, 0, 0, last]).into(), ifindex: 2, mtu: 1500 }
    }

    #[test]
    fn names_are_read_once_for_all_waiters_and_changes_reported() {
        let mut names = GidsAndAddresses::default();
        assert!(names.wait(Some(SessionId(1))), "no read is under way yet");
        assert!(!names.wait(Some(SessionId(2))) && !names.wait(None));
        names.wait_no_more(SessionId(1));
        assert!(!names.are_known() && !names.are_old(u64::MAX, 0));
        let first = names.found(vec![entry(1)], &[], 5);
        assert_eq!((first.waiting, first.before), (vec![SessionId(2)], None));
        assert!(names.are_known() && !names.are_old(9, 5) && names.are_old(10, 5));
        assert!(names.wait(None), "once more");
        assert!(names.found(vec![entry(1)], &[], 6).before.is_none());
        let changed = names.found(vec![entry(2)], &[], 7);
        assert_eq!(changed.before, Some(vec![entry(1)]));
        assert!(names.entry(entry(2).gid).is_some() && names.entry(entry(1).gid).is_none());
    }
}
