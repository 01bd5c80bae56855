//! Says which QPNs a vNIC of a virtual network may have.

use omniverb_vgid::{QpnOffset, QpnRange};
use std::ops::Range;

/// QPNs of a vNIC unless it says otherwise, and the least that it may have.
pub(crate) const QPNS: u32 = 1024;
/// Among which they are chosen, in steps of as many.
pub(crate) const NUMBERS: Range<u32> = 0x40_0000..0xc0_0000;

/// The QPNs from a chosen offset on, if they fit.
pub(crate) fn chosen(offset: u32, count: u32) -> Option<QpnRange> {
    let fits = NUMBERS.contains(&offset) && offset.saturating_add(count) <= NUMBERS.end;
    QpnRange::new(QpnOffset::new(offset)?, count).filter(|_| fits)
}
