//! What the environment says about pages.

use omniverb_session::{ADOPTION_OFF_VALUE, ADOPTION_VARIABLE};

/// Whether no pages of this process are to be granted. Heeded in setuid programs as well: a user
/// that starts one can make it slower by this, and nothing else.
pub(crate) fn keeps_pages() -> bool {
    std::env::var_os(ADOPTION_VARIABLE).is_some_and(|value| value == ADOPTION_OFF_VALUE)
}
