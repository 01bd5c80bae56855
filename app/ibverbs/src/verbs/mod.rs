//! Verbs that need the device: one file per kind of object.

pub mod device;
