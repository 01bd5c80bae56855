//! `rdma_set_option`: kept here, and sent with what they are about.

use core::ffi::{c_int, c_void};

use omniverb_abi::*;
use omniverb_session::cm::{CM_FAMILY_ONLY, CM_REUSE};
use omniverb_terms::Errno;

use crate::errno::{ENOSYS, outcome};
use crate::id_state::IdShell;

/// An option's value, by its length.
enum Value {
    Byte(u8),
    Flag(bool),
}

/// # Safety
/// `value` has `length` bytes.
unsafe fn read(value: *const c_void, length: usize) -> Result<Value, Errno> {
    if value.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe {
        match length {
            1 => Ok(Value::Byte(value.cast::<u8>().read())),
            4 => Ok(Value::Flag(value.cast::<c_int>().read_unaligned() != 0)),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// # Safety
/// As [`ov_rdma_set_option`].
unsafe fn set(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> Result<(), Errno> {
    // Paths are not to choose from on RoCE.
    if level != RDMA_OPTION_ID {
        return Err(ENOSYS);
    }
    // SAFETY: the caller's promise.
    let (value, shell) = unsafe { (read(value, length)?, IdShell::of(id)) };
    // SAFETY: the caller's promise.
    let qp_type = unsafe { (*id).qp_type };
    let mut state = shell.state();
    let bound = state.is_bound;
    let mut flag = |bit: u32, on: bool| {
        // How the address is shared was decided when it was bound. A kernel may decide anew.
        if bound {
            let same = (state.options.flags & bit != 0) == on;
            return if same { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let flags = state.options.flags & !bit;
        state.options.flags = if on { flags | bit } else { flags };
        Ok(())
    };
    match (name, value) {
        (RDMA_OPTION_ID_REUSEADDR, Value::Flag(on)) => flag(CM_REUSE, on),
        (RDMA_OPTION_ID_AFONLY, Value::Flag(on)) => flag(CM_FAMILY_ONLY, on),
        (RDMA_OPTION_ID_TOS, Value::Byte(tos)) => {
            state.options.tos = tos;
            Ok(())
        }
        (RDMA_OPTION_ID_ACK_TIMEOUT, Value::Byte(timeout)) => {
            if timeout > 31 || !matches!(qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND) {
                return Err(Errno::EINVAL);
            }
            state.options.ack_timeout = timeout;
            Ok(())
        }
        (RDMA_OPTION_ID_TOS..=RDMA_OPTION_ID_ACK_TIMEOUT, _) => Err(Errno::EINVAL),
        _ => Err(ENOSYS),
    }
}

/// Sets an option of an identifier.
///
/// # Safety
/// `id` is live, `value` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ov_rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    outcome(unsafe { set(id, level, name, value, length) })
}
