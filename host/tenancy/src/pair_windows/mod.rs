//! Windows that virtual machines share with neighbours: which there are (`table.rs`), and which
//! link is given a place in one (`sharing.rs`).

pub(crate) mod sharing;
pub(crate) mod table;
