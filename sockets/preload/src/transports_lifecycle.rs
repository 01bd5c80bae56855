//! Starts carried and light connections in a process, and ends them.

use core::ffi::CStr;

use crate::holder_count_at_exit::End;
use crate::{carry, light, usage_report, vfork_check};

/// Starts what `OMNIVERB_SOCKETS` asks for, before the program's `main`.
pub(crate) fn begin() {
    let is_light = match variable(c"OMNIVERB_SOCKETS").map_or(&b"carry"[..], CStr::to_bytes) {
        b"carry" => false,
        b"light" => true,
        _ => return,
    };
    if !vfork_check::detects_forks() || !carry::begin(variable(c"OMNIVERB_SOCKET")) {
        return;
    }
    if let Some(file) = variable(c"OMNIVERB_SOCKETS_REPORT") {
        usage_report::begin(file);
    }
    if is_light {
        // Connections that cannot be are carried.
        light::begin();
    } else if let Some(ranges) = variable(c"OMNIVERB_SOCKETS_LIGHT") {
        light::begin_within(ranges);
    }
}

/// A variable of the environment, before the program's `main`: no thread changes it meanwhile.
fn variable<'a>(name: &CStr) -> Option<&'a CStr> {
    // SAFETY: a string, or null; and as said above.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// Ends all connections as the process is about to end.
pub(crate) fn finish(end: End) {
    if !vfork_check::is_this_process() {
        return;
    }
    usage_report::write([
        carry::is_on().then(carry::link_counts),
        light::is_on().then(light::count),
    ]);
    carry::finish(end);
}
