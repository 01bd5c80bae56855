//! Writes text to standard output.

use anyhow::Context;
use omniverb_session::printable;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Whether standard output is still read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    There,
    /// It has seen enough.
    Gone,
}

/// Writes it, without what would command a terminal. A reader that has seen enough is no error.
pub(crate) fn write(text: &str) -> anyhow::Result<ExitCode> {
    write_until_closed(text).map(|_| ExitCode::SUCCESS)
}

/// Writes it, and says whether there is a reader for more.
pub(crate) fn write_until_closed(text: &str) -> anyhow::Result<Reader> {
    let text = printable::clean_lines(text);
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error).context("cannot write"),
    }
}
