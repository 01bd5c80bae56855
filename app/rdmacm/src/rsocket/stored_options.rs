//! Options that every program sets, and that mean little or nothing here.

use core::ffi::c_int;

/// What `rgetsockopt` gives back of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) reuse: bool,
    pub(crate) keep_alive: bool,
    pub(crate) out_of_band: bool,
    pub(crate) lingers: bool,
    pub(crate) no_delay: bool,
    pub(crate) only_six: bool,
    /// Seconds.
    pub(crate) keep_idle: c_int,
    pub(crate) tos: c_int,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            reuse: false,
            keep_alive: false,
            out_of_band: false,
            lingers: true,
            no_delay: false,
            only_six: false,
            keep_idle: 7200,
            tos: 0,
        }
    }
}
