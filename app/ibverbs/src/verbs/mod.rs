//! Verbs that need the device: one file per kind of object.
//!
//! Every object that C sees is the head of a *shell*: the C struct first, our own state behind it.
//! A shell lives from its create verb to its destroy verb; in between, the C pointer is the shell.

pub mod address_handle;
mod advise_mr;
pub mod async_event;
mod clocks;
pub mod completion_channel;
pub mod completion_counter;
pub mod context;
mod contexts_of_one_cmd_fd;
pub mod cq;
pub mod cq_ex;
pub mod device_list;
pub mod device_memory;
pub mod ethernet_address;
mod event_wait;
mod exported_objects;
pub mod gid_table;
mod importable_objects;
pub mod memory_region;
mod memory_window;
pub mod modify_and_query_qp;
pub mod multicast;
mod null_mr;
mod object_counts;
pub mod object_limits;
pub mod open_device;
mod parent_domain_allocators;
pub mod post;
pub mod protection_domain;
mod qp_attr_codec;
pub mod qp_create;
pub mod qp_ex;
pub mod qp_handle;
pub mod query_device;
pub mod registration_by_attributes;
mod shared_qp_maker;
pub mod srq;
mod thread_and_parent_domains;
mod thread_domain_and_dm_handles;
mod work_request_builder;
mod xrc_domain;
