//! Names vNICs: by names that no other vNIC has, now or later.
//!
//! A name is made of a number that the kernel gives only once (a namespace's cookie), and of a mark
//! of the boot that it counts in. Nothing in it can be chosen by a tenant. Where the kernel does
//! not count, the daemon does, with a mark of its own.

use crate::vnic_attachment_identity::{Attachment, Evidence};
use omniverb_tenancy::VnicId;

/// What names and GUIDs are made with, besides evidence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    /// The same as long as the machine runs.
    pub(crate) boot: u64,
    /// Random, of this daemon alone.
    pub(crate) daemon: u64,
}

/// The name of the vNIC with this evidence.
pub(crate) fn name(marks: &Marks, evidence: &Evidence, id: VnicId) -> String {
    let kind = match evidence.attachment {
        Attachment::Namespace => "vnic",
        // Operators' names are no kernel's, and the same in every boot.
        Attachment::Machine(name) => return format!("vm-{name}"),
        #[cfg(test)]
        Attachment::Double => "double",
    };
    match evidence.serial {
        Some(serial) => format!("{kind}-{serial}-{}", word(mix(marks.boot))),
        // Another form, so it is no name of the first kind whatever the words are.
        None => format!("{kind}-d{}-{}", id.0, word(mix(marks.daemon))),
    }
}

/// The inode number in a name of the old form, `net-INODE`.
pub(crate) fn inode_in(name: &str) -> Option<u64> {
    name.strip_prefix("net-")?.parse().ok()
}

/// A locally administered EUI-64, the same whenever the same place comes back.
pub(crate) fn guid(boot: u64, evidence: &Evidence) -> [u8; 8] {
    let [device, inode] = evidence.place;
    let kind = evidence.attachment.code() - Attachment::Namespace.code();
    let mixed = mix(mix(boot ^ inode ^ kind) ^ device);
    let mut guid = mixed.to_be_bytes();
    guid[0] = (guid[0] & 0xfc) | 0x02;
    guid
}

/// Four letters and digits, none of which looks like another.
fn word(number: u64) -> String {
    const LETTERS: [u8; 32] = *b"abcdefghijkmnpqrstuvwxyz23456789";
    (0..4).map(|at| char::from(LETTERS[(number >> (5 * at)) as usize % LETTERS.len()])).collect()
}

/// Spreads the bits of a number over all of it (the finaliser of splitmix64).
fn mix(number: u64) -> u64 {
    let a = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(serial: Option<u64>) -> Evidence {
        Evidence { attachment: Attachment::Namespace, place: [4, 4_026_532_243], serial }
    }

    #[test]
    fn a_name_is_of_one_boot_and_fits_where_names_go() {
        let marks = Marks { boot: 1, daemon: 2 };
        let named = |marks: &Marks, serial| name(marks, &evidence(serial), VnicId(7));
        let first = named(&marks, Some(4097));
        assert!(first.starts_with("vnic-4097-"), "{first}");
        assert_eq!(first, named(&Marks { daemon: 9, ..marks }, Some(4097)), "the next daemon");
        assert_ne!(first, named(&Marks { boot: 3, ..marks }, Some(4097)), "the next boot");
        assert_ne!(first, named(&marks, Some(4098)));
        let counted = named(&marks, None);
        assert!(counted.starts_with("vnic-d7-"), "{counted}");
        assert_ne!(counted, named(&Marks { daemon: 9, ..marks }, None), "the next daemon");
        assert!(named(&marks, Some(u64::MAX)).len() < 31, "as a process is told it");
    }

    #[test]
    fn the_old_form_is_an_inode_number() {
        assert_eq!(inode_in("net-4026532243"), Some(4_026_532_243));
        for other in ["net-", "net-x", "host", "vnic-1-abcd", "net-99999999999999999999"] {
            assert_eq!(inode_in(other), None, "{other}");
        }
    }
}
