//! Names enumerated values as every other libibverbs prints them: people read the names and scripts
//! match them.

use core::ffi::{CStr, c_char};

/// The name at `index`, or "unknown".
fn name(names: &[&'static CStr], index: usize) -> *const c_char {
    names.get(index).copied().unwrap_or(c"unknown").as_ptr()
}

/// What kind of node a device is.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_node_type_str(node_type: i32) -> *const c_char {
    let names = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&names, usize::try_from(node_type).unwrap_or(usize::MAX))
}

/// What state a port is in.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_port_state_str(state: u32) -> *const c_char {
    let names = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name(&names, state as usize)
}

/// What an asynchronous event says.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_event_type_str(event: u32) -> *const c_char {
    let names = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"device speed change",
    ];
    name(&names, event as usize)
}

/// How a work request ended.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_wc_status_str(status: u32) -> *const c_char {
    let names = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&names, status as usize)
}

/// The name of a send opcode's constant.
#[unsafe(no_mangle)]
pub extern "C" fn ov_ibv_wr_opcode_str(opcode: u32) -> *const c_char {
    let names = [
        c"IBV_WR_RDMA_WRITE",
        c"IBV_WR_RDMA_WRITE_WITH_IMM",
        c"IBV_WR_SEND",
        c"IBV_WR_SEND_WITH_IMM",
        c"IBV_WR_RDMA_READ",
        c"IBV_WR_ATOMIC_CMP_AND_SWP",
        c"IBV_WR_ATOMIC_FETCH_AND_ADD",
        c"IBV_WR_LOCAL_INV",
        c"IBV_WR_BIND_MW",
        c"IBV_WR_SEND_WITH_INV",
        c"IBV_WR_TSO",
        c"IBV_WR_DRIVER1",
        c"unknown",
        c"unknown",
        c"IBV_WR_FLUSH",
        c"IBV_WR_ATOMIC_WRITE",
    ];
    name(&names, opcode as usize)
}
