//! Writes text to standard output.

use anyhow::Context;
use omniverb_session::printable;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Writes it, without what would command a terminal. A reader that has seen enough is no error.
pub(crate) fn write(text: &str) -> anyhow::Result<ExitCode> {
    let text = printable::clean_lines(text);
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write"),
        _ => Ok(ExitCode::SUCCESS),
    }
}
