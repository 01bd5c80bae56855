//! Clocks: that of the device, which stamps completions, and that of the wall.
//!
//! The device counts nanoseconds of the system's monotonic clock.

use core::ffi::c_int;

use omniverb_abi::{IBV_VALUES_MASK_RAW_CLOCK, ibv_context, ibv_values_ex};
use omniverb_terms::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::context::ContextShell;

/// `hca_core_clock`: the device's counts in a millisecond.
pub(super) const KILOHERTZ: u64 = 1_000_000;

/// `ibv_query_rt_values_ex`: the raw clock, all of it in the field of nanoseconds, as programs are
/// used to that.
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the inline's arguments.
    unsafe {
        if (*values).comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Errno::EOPNOTSUPP.raw();
        }
        if (*values).comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let now = ContextShell::of(context).shared().host.now();
            (*values).raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now.cast_signed() };
        }
    }
    0
}

/// What the clock on the wall showed when the device's was `stamp`, and is `now`: nanoseconds since
/// 1970.
pub(super) fn on_the_wall(stamp: u64, now: u64) -> u64 {
    let wall = clock_gettime(ClockId::Realtime);
    let wall = wall.tv_sec.cast_unsigned() * 1_000_000_000 + wall.tv_nsec.cast_unsigned();
    wall.wrapping_sub(now.wrapping_sub(stamp))
}
