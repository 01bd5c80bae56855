//! Writes the man pages and shell completions of the programs into dist/share, by `deploy/manual`.

use crate::run_program::{cargo, root, run as execute};
use anyhow::Result;

/// `cargo xtask man`; `profile` is what cargo is told of how to build.
pub(crate) fn write(profile: &[&str]) -> Result<()> {
    let mut command = cargo();
    command.args(["run", "--quiet", "-p", "omniverb_manual"]).args(profile);
    execute(command.arg("--").arg(root().join("dist")))
}
