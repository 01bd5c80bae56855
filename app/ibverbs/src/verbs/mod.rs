//! Verbs that need the device: one file per kind of object.
//!
//! Every object that C sees is the head of a *shell*: the C struct first, our own state behind it.
//! A shell lives from its create verb to its destroy verb; in between, the C pointer is the shell.

pub mod address;
mod advice;
mod allocators;
pub mod buffer;
mod builder;
pub mod channel;
pub mod context;
pub mod counter;
mod counts;
pub mod cq;
pub mod cq_ex;
pub mod device;
pub mod device_memory;
mod domain;
pub mod ethernet;
pub mod event;
mod exported;
mod family;
pub mod gid;
pub mod limits;
pub mod memory;
pub mod multicast;
mod mw;
mod nothing;
mod objects;
pub mod open;
mod opened;
pub mod pd;
pub mod post;
pub mod qp;
pub mod qp_attr;
pub mod qp_create;
pub mod qp_ex;
mod qp_words;
pub mod query;
pub mod srq;
mod time;
mod users;
mod wait;
mod xrcd;
