//! Writes the log: one line per event on stderr, with the priority prefix that the systemd journal
//! reads.
//!
//! It is bounded, so that a client cannot fill the disk by misbehaving.

use omniverb_session::printable;
use omniverb_sys::clock;
use omniverb_sys::log_rate_limit::LogBudget;
use std::fmt::Display;
use std::io::Write;

/// How important a line is; also the least important that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What stops the daemon or a part of it.
    Error,
    /// An event that an operator should look at.
    Warning,
    /// That the daemon serves, that operators ended links.
    #[default]
    Info,
    /// Every client that goes, and why; packets that are dropped; connections that fail.
    Debug,
}

/// How its lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The program's name and a word for how important the line is, for people.
    Words,
    /// A number for that as systemd's journal reads it: `<4>`.
    Priorities,
}

/// Writes the log.
#[derive(Debug)]
pub struct Journal {
    /// Less important events are not logged.
    level: Level,
    form: Form,
    lines: LogBudget,
    /// The same of errors: no flood of warnings hides one.
    errors: LogBudget,
}

impl Journal {
    /// Logs events that are at least as important as `level`.
    #[must_use]
    pub fn new(level: Level, form: Form) -> Journal {
        Journal {
            level,
            form,
            lines: LogBudget::new(clock::now()),
            errors: LogBudget::new(clock::now()),
        }
    }

    /// Another one like this, for another thread.
    pub(crate) fn another(&self) -> Journal {
        Journal::new(self.level, self.form)
    }

    /// Logs a line that no one machine or vNIC causes.
    pub fn log(&mut self, level: Level, text: impl Display) {
        self.log_of(None, level, text);
    }

    /// Logs a line that a machine or a vNIC causes, which may do so without end.
    pub(crate) fn log_of(&mut self, source: Option<&str>, level: Level, text: impl Display) {
        if level > self.level {
            return;
        }
        let lines = match level {
            Level::Error => &mut self.errors,
            _ => &mut self.lines,
        };
        let Some(left_out) = lines.take(source, clock::now()) else { return };
        if left_out > 0 {
            self.write(Level::Warning, format_args!("{left_out} lines not logged"));
        }
        self.write(level, text);
    }

    /// Writes a line of the audit, which has limits of its own.
    pub(crate) fn audit(&self, text: impl Display) {
        self.write(Level::Info, text);
    }

    fn write(&self, level: Level, text: impl Display) {
        let (priority, word) = match level {
            Level::Error => (3, "error"),
            Level::Warning => (4, "warning"),
            Level::Info => (6, "info"),
            Level::Debug => (7, "debug"),
        };
        // Names of others may be in it.
        let text = printable::clean(&text.to_string());
        // A log that cannot be written must not stop the daemon.
        let mut stderr = std::io::stderr().lock();
        let _ = match self.form {
            Form::Priorities => writeln!(stderr, "<{priority}>{text}"),
            Form::Words => writeln!(stderr, "omniverbd: {word}: {text}"),
        };
    }
}
