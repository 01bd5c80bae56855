//! Decides what a host has to change so that its tenants, policies and vNICs are as etcd has them.
//!
//! In: keys and values of etcd as bytes ([`etcd_key_layout`], [`etcd_value`]), or a file
//! ([`object_file`]). Out: the objects that hold for a host ([`cluster_objects`]), the changes that
//! lead there in the order that the daemon accepts ([`reconcile_objects`]), addresses of virtual
//! networks that hosts announce ([`address_announcements`]), and reports of problems, each once
//! ([`problem_reports`]). Nothing here does I/O or knows the time. Only the daemon knows the
//! meaning of an object's fields.
#![forbid(unsafe_code)]

pub mod address_announcements;
pub mod cluster_objects;
pub mod etcd_key_layout;
pub mod etcd_value;
pub mod object_differences;
pub mod object_file;
pub mod object_name;
pub mod problem_reports;
pub mod reconcile_objects;
pub mod sealed_field;
