//! Loads the public functions of `libibverbs.so.1` and `librdmacm.so.1` that the gateway uses.
//!
//! They are loaded by name when the program starts: so it is built without the libraries, and uses
//! those that `omniverb gateway` leads to.
#![allow(unsafe_code, reason = "functions of C")]

use crate::rdma_objects::{End, Made, NoBytes, Object, Parameters, Ref};
use crate::socket_address::Address;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use omniverb_abi::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp_init_attr, rdma_cm_event,
    rdma_cm_id, rdma_event_channel,
};

macro_rules! functions {
    ($($name:ident: $kind:ty;)*) => {
        /// Addresses of the functions that were loaded.
        pub(crate) struct RdmaLibraries {
            $(pub(crate) $name: $kind,)*
        }

        impl RdmaLibraries {
            fn of(libraries: &[*mut c_void]) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let found = find(libraries, concat!(stringify!($name), "\0"))?;
                        // SAFETY: a function of that name, which the C headers declare so. One that
                        // is safe here does what its arguments say: it uses what is lent to it and
                        // makes what is its caller's.
                        unsafe { core::mem::transmute::<*mut c_void, $kind>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_alloc_pd: extern "C" fn(Ref<'_, ibv_context>) -> Made<ibv_pd>;
    ibv_dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: unsafe extern "C" fn(Ref<'_, ibv_pd>, *mut c_void, usize, c_int) -> Made<ibv_mr>;
    ibv_dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: extern "C" fn(Ref<'_, ibv_context>) -> Made<ibv_comp_channel>;
    ibv_destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: extern "C" fn(
        Ref<'_, ibv_context>, c_int, *mut c_void, Ref<'_, ibv_comp_channel>, c_int,
    ) -> Made<ibv_cq>;
    ibv_destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: extern "C" fn(
        Ref<'_, ibv_comp_channel>, &mut *mut ibv_cq, &mut *mut c_void,
    ) -> c_int;
    ibv_ack_cq_events: extern "C" fn(Ref<'_, ibv_cq>, c_uint);
    rdma_create_event_channel: extern "C" fn() -> Made<rdma_event_channel>;
    rdma_destroy_event_channel: unsafe extern "C" fn(*mut rdma_event_channel);
    rdma_get_cm_event: extern "C" fn(
        Ref<'_, rdma_event_channel>, &mut Made<rdma_cm_event>,
    ) -> c_int;
    rdma_ack_cm_event: unsafe extern "C" fn(*mut rdma_cm_event) -> c_int;
    rdma_create_id: extern "C" fn(
        Ref<'_, rdma_event_channel>, &mut Made<rdma_cm_id>, *mut c_void, c_uint,
    ) -> c_int;
    rdma_destroy_id: unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
    rdma_bind_addr: extern "C" fn(Ref<'_, rdma_cm_id>, &mut Address) -> c_int;
    rdma_listen: extern "C" fn(Ref<'_, rdma_cm_id>, c_int) -> c_int;
    rdma_resolve_addr: extern "C" fn(
        Ref<'_, rdma_cm_id>, &mut Address, &mut Address, c_int,
    ) -> c_int;
    rdma_resolve_route: extern "C" fn(Ref<'_, rdma_cm_id>, c_int) -> c_int;
    rdma_create_qp: unsafe extern "C" fn(
        Ref<'_, rdma_cm_id>, Ref<'_, ibv_pd>, &mut ibv_qp_init_attr,
    ) -> c_int;
    rdma_destroy_qp: unsafe extern "C" fn(Ref<'_, rdma_cm_id>);
    rdma_connect: extern "C" fn(Ref<'_, rdma_cm_id>, &mut Parameters<'_>) -> c_int;
    rdma_accept: extern "C" fn(Ref<'_, rdma_cm_id>, &mut Parameters<'_>) -> c_int;
    rdma_reject: extern "C" fn(Ref<'_, rdma_cm_id>, Option<&c_void>, NoBytes) -> c_int;
    rdma_disconnect: extern "C" fn(Ref<'_, rdma_cm_id>) -> c_int;
    rdma_migrate_id: extern "C" fn(Ref<'_, rdma_cm_id>, Ref<'_, rdma_event_channel>) -> c_int;
}

/// What ends what.
macro_rules! ends {
    ($($object:ty: $how:ident($function:ident);)*) => {
        $(
            impl Object for $object {
                fn end() -> End<Self> {
                    End::$how(rdma().$function)
                }
            }
        )*
    };
}

ends! {
    ibv_pd: Answers(ibv_dealloc_pd);
    ibv_mr: Answers(ibv_dereg_mr);
    ibv_comp_channel: Answers(ibv_destroy_comp_channel);
    ibv_cq: Answers(ibv_destroy_cq);
    rdma_event_channel: Silent(rdma_destroy_event_channel);
    rdma_cm_event: Answers(rdma_ack_cm_event);
    rdma_cm_id: Answers(rdma_destroy_id);
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
