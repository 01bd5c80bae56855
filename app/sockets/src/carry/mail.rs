//! What the broker has said is heard, and done.

use super::{broker, leaving, over};

/// Looks whether there is anything. For calls that have no link in their hands yet: some may be
/// left.
#[inline(always)]
pub(super) fn look() {
    if broker::look() && over::take_parted() {
        leaving::those_that_are_over();
    }
}
