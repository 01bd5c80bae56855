//! Verbs that need the device: one file per kind of object.
//!
//! Every object that C sees is the head of a *shell*: the C struct first, our own state behind it.
//! A shell lives from its create verb to its destroy verb; in between, the C pointer is the shell.

pub mod address_handle;
mod advise_mr;
mod parent_domain_allocators;
pub mod buffer_registration;
mod work_request_builder;
pub mod completion_channel;
pub mod context;
pub mod completion_counter;
mod object_counts;
pub mod cq;
pub mod cq_ex;
pub mod device;
pub mod device_memory;
mod thread_domain;
pub mod ethernet_address;
pub mod async_event;
mod exported_objects;
mod command_file;
pub mod gid;
pub mod object_limits;
pub mod memory_region;
pub mod multicast;
mod memory_window;
mod null_mr;
mod importable_objects;
pub mod open_device;
mod shared_qp;
pub mod protection_domain;
pub mod post;
pub mod qp;
pub mod qp_attr;
pub mod qp_create;
pub mod qp_ex;
mod qp_attr_codec;
pub mod query_device;
pub mod srq;
mod clocks;
mod parent_objects;
mod event_wait;
mod xrc_domain;
