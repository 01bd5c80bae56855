//! Build, link and check tasks.
fn main() {}
