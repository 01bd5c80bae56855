//! Loads the public functions of `libibverbs.so.1` and `librdmacm.so.1` that the gateway uses.
//!
//! They are loaded by name when the program starts: so it is built without the libraries, and uses
//! those that `omniverb gateway` leads to.
#![allow(unsafe_code, reason = "functions of C")]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use libc::sockaddr;
use omniverb_abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp_init_attr, rdma_cm_event,
    rdma_cm_id, rdma_conn_param, rdma_event_channel,
};

macro_rules! functions {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// Addresses of the functions that were loaded.
        pub(crate) struct RdmaLibraries {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl RdmaLibraries {
            fn of(libraries: &[*mut c_void]) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let found = find(libraries, name)?;
                        // SAFETY: a function of that name, which the C headers declare so.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(
        *mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int
    ) -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, c_uint) -> ();
    rdma_create_event_channel() -> *mut rdma_event_channel;
    rdma_destroy_event_channel(*mut rdma_event_channel) -> ();
    rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
    rdma_destroy_id(*mut rdma_cm_id) -> c_int;
    rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr) -> c_int;
    rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
    rdma_resolve_addr(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
    rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
    rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
    rdma_destroy_qp(*mut rdma_cm_id) -> ();
    rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    rdma_disconnect(*mut rdma_cm_id) -> c_int;
    rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
}

/// What was loaded, and stays so.
static LOADED: std::sync::OnceLock<RdmaLibraries> = std::sync::OnceLock::new();

/// Loads them; at the start, before anything else of this is used.
///
/// # Errors
/// What the loader says.
pub(crate) fn load() -> Result<(), String> {
    let libraries = [c"libibverbs.so.1", c"librdmacm.so.1"].map(|name| {
        // SAFETY: a name. What the library does when it is loaded is what it does everywhere.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if library.is_null() { Err(loader_error()) } else { Ok(library) }
    });
    let [verbs, manager] = libraries;
    let libraries = RdmaLibraries::of(&[verbs?, manager?])?;
    _ = LOADED.set(libraries);
    Ok(())
}

/// What was loaded at the start.
pub(crate) fn rdma() -> &'static RdmaLibraries {
    LOADED.get().unwrap_or_else(|| unreachable!("loaded at the start"))
}

fn find(libraries: &[*mut c_void], name: &str) -> Result<*mut c_void, String> {
    let name = name.as_ptr().cast::<c_char>();
    // SAFETY: open libraries, and a string with its end.
    let mut found = libraries.iter().map(|library| unsafe { libc::dlsym(*library, name) });
    found.find(|address| !address.is_null()).ok_or_else(loader_error)
}

fn loader_error() -> String {
    // SAFETY: a string of the loader's, of this thread, or null.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into() }
    }
}
