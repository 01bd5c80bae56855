//! Decides what a host has to change so that its tenants, policies and vNICs are as etcd has them.
//!
//! In: keys and values of etcd as bytes ([`layout`], [`value`]), or a file ([`object_file`]). Out:
//! the objects that hold for a host ([`cluster_objects`]), the changes that lead there in the order
//! that the daemon accepts ([`change`]), addresses of virtual networks that hosts announce
//! ([`announcements`]), and reports of problems, each once ([`reports`]). Nothing
//! here does I/O or knows the time. Only the daemon knows the meaning of an object's fields.
#![forbid(unsafe_code)]

pub mod announcements;
pub mod change;
pub mod cluster_objects;
pub mod difference;
pub mod layout;
pub mod object;
pub mod object_file;
pub mod reports;
pub mod sealed_field;
pub mod value;
