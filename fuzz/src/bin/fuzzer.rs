//! Runs the fuzz targets under libFuzzer: `FUZZ_TARGET` names one.
//!
//! One program for all of them, since building is what takes long.
#![no_main]

use omniverb_fuzz::{TARGETS, Target};
use std::sync::LazyLock;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().copied().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("FUZZ_TARGET={name:?} is no target"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET.1(bytes));
