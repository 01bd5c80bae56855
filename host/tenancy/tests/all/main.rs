//! What the daemon decides, asked from outside. One program, since each takes as long to link as
//! to run; `second_directory.rs`, `second_access.rs` and `packed.rs` run parts of it again.

mod adoption;
mod again;
mod bound;
mod captures;
mod connections;
mod consent;
mod disconnect;
mod engine_grants;
mod engine_links;
mod extended;
mod grantees;
mod groups;
mod liars;
mod machines;
mod objects;
mod pace;
mod pair_pages;
mod pairing;
mod pairs;
mod relations;
mod strangers;
mod support;
mod uninvited;
mod walk;
mod yielding;
