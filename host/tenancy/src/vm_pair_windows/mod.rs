//! Windows that virtual machines share with neighbours: which there are (`window_table.rs`), and
//! which link is given a place in one (`window_assignment.rs`).

pub(crate) mod window_assignment;
pub(crate) mod window_table;
