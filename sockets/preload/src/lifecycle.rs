//! Starts carried and light connections in a process, and ends them.

use core::ffi::CStr;

use crate::process_exit::End;
use crate::{carry, light, memory_owner, usage_report};

/// Starts what `OMNIVERB_SOCKETS` asks for, before the program's `main`.
pub(crate) fn begin() {
    // SAFETY: before the program's `main`: nobody changes the environment, and nobody carries yet.
    unsafe {
        let route = libc::getenv(c"OMNIVERB_SOCKETS".as_ptr());
        let route = if route.is_null() { c"carry" } else { CStr::from_ptr(route) };
        let is_light = match route.to_bytes() {
            b"carry" => false,
            b"light" => true,
            _ => return,
        };
        if !memory_owner::detects_forks()
            || !carry::begin(libc::getenv(c"OMNIVERB_SOCKET".as_ptr()))
        {
            return;
        }
        usage_report::begin(libc::getenv(c"OMNIVERB_SOCKETS_REPORT".as_ptr()));
        if is_light {
            // Connections that cannot be are carried.
            light::begin();
            return;
        }
        let ranges = libc::getenv(c"OMNIVERB_SOCKETS_LIGHT".as_ptr());
        if !ranges.is_null() {
            light::begin_within(CStr::from_ptr(ranges));
        }
    }
}

/// Ends all connections as the process is about to end.
pub(crate) fn finish(end: End) {
    if !memory_owner::is_this_process() {
        return;
    }
    usage_report::write([
        carry::is_on().then(carry::link_counts),
        light::is_on().then(light::count),
    ]);
    carry::finish(end);
}
