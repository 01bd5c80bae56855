//! The structs of the private node of `libibverbs.so.1` (`omniverb_private.h`).

use core::ffi::c_int;

use omniverb_session::DESCRIPTORS_MAX;
use omniverb_session::limits::MESSAGE_BYTES_MAX;

/// `struct omniverb_private`.
#[repr(C)]
pub(crate) struct PrivateClient {
    _opaque: [u8; 0],
}

/// `struct omniverb_private_answer`.
#[repr(C)]
pub(crate) struct PrivateAnswer {
    pub(crate) bytes: usize,
    pub(crate) descriptors: u32,
    pub(crate) descriptor: [c_int; DESCRIPTORS_MAX],
    pub(crate) message: [u64; MESSAGE_BYTES_MAX / 8],
}
