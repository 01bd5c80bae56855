//! Stands in for what `cargo xtask dist` makes of `interposed_functions.toml`, so that unit tests
//! can be linked.
//!
//! Slots are filled by the C library's own functions when a test asks for that.

use core::cell::Cell;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::symbol_lookup::{Search, symbol};

thread_local! {
    static WORDS: Cell<Option<&'static [AtomicU32; 2]>> = const { Cell::new(None) };
}

#[unsafe(no_mangle)]
extern "C" fn ov_sockets_thread() -> *const [AtomicU32; 2] {
    let words = WORDS.get().unwrap_or_else(|| Box::leak(Box::default()));
    WORDS.set(Some(words));
    words
}

/// No names, one table.
#[unsafe(no_mangle)]
static ov_sockets_rows: [usize; 0] = [];
#[unsafe(no_mangle)]
static ov_sockets_rows_end: [usize; 0] = [];

/// Fills the slot of this name (`ov_next_` and the function's).
pub(crate) fn fill(slot: &AtomicPtr<c_void>, name: &CStr) {
    let name = &name.to_bytes_with_nul()["ov_next_".len()..];
    if let Ok(name) = CStr::from_bytes_with_nul(name) {
        slot.store(symbol(name, Search::All), Ordering::Relaxed);
    }
}
