//! Writes lines to standard error, with priorities where the journal reads them.

use omniverb_session::printable;

/// How urgent a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Something does not work.
    Error,
    /// Something is left out.
    Warning,
    /// Ordinary events of the agent.
    Info,
}

/// Writes a line. Text from outside cannot make two lines of it.
pub(crate) fn log(level: Level, text: &str) {
    let (priority, word) = match level {
        Level::Error => ("<3>", "error"),
        Level::Warning => ("<4>", "warning"),
        Level::Info => ("<6>", "info"),
    };
    let text = printable::clean(text);
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => eprintln!("{priority}{text}"),
        None => eprintln!("omniverb-agent: {word}: {text}"),
    }
}
