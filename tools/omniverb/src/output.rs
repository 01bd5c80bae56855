//! Text for standard output.

use anyhow::Context;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Writes it. A reader that has seen enough is no error.
pub(crate) fn write(text: &str) -> anyhow::Result<ExitCode> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write"),
        _ => Ok(ExitCode::SUCCESS),
    }
}
