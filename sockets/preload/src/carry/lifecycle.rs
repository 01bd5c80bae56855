//! Starts carrying in a process, and ends it.

use core::ffi::CStr;

use super::{broker, connection_watch, kernel_fallback, links, usage_report};
use crate::{light, memory_owner, process_exit};

/// At the start of the program.
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
            || !broker::begin(libc::getenv(c"OMNIVERB_SOCKET".as_ptr()))
        {
            return;
        }
        usage_report::begin(libc::getenv(c"OMNIVERB_SOCKETS_REPORT".as_ptr()));
        connection_watch::begin();
        links::turn_on();
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

/// The process is about to end.
pub(crate) fn ends(end: process_exit::End) {
    if !memory_owner::is_this_process() {
        return;
    }
    let is_on = links::is_on();
    usage_report::write([is_on.then(links::count), light::is_on().then(light::count)]);
    if is_on {
        kernel_fallback::finish();
        process_exit::ends(end);
    }
}
