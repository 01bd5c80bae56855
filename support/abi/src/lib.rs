//! The C structs and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`, as `repr(C)`
//! types.
//!
//! Applications compiled against that header read and write these structs directly, through
//! inline functions that never enter a library: the layout is as much ABI as the symbols are.
//! Nothing here has behaviour. The layouts are those of rdma-core 64, which extend those of every
//! older release without moving a field; `tests/layout.rs` compares them with the installed header.
//!
//! Names are the C names, which readers know from verbs.h. C enums are plain
//! `u32` fields with `IBV_*` constants beside them: an application can put any number there, and a
//! Rust enum with an unknown discriminant would be undefined behaviour.
#![expect(missing_docs, reason = "fields and constants mean what verbs.h says; types have docs")]

pub mod addressing;
pub mod after_release_44;
pub mod connection;
pub mod constants;
pub mod context;
pub mod device;
pub mod device_constants;
pub mod memory;
pub mod queue;
pub mod queue_attr;
pub mod unsupported_verbs;
pub mod work_requests;

pub use addressing::*;
pub use after_release_44::*;
pub use connection::*;
pub use constants::*;
pub use context::*;
pub use device::*;
pub use device_constants::*;
pub use memory::*;
pub use queue::*;
pub use queue_attr::*;
pub use unsupported_verbs::*;
pub use work_requests::*;
