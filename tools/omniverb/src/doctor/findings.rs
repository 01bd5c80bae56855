//! Collects and prints the doctor's findings, with their grades.

use omniverb_session::printable;
use std::fmt::Display;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grade {
    Good,
    /// Works, but worse than it could.
    Note,
    Bad,
}

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<(Grade, String)>);

impl Findings {
    /// Something that is as it should be.
    pub(super) fn good(&mut self, text: impl Display) {
        self.add(Grade::Good, text.to_string());
    }

    /// Something that could be better, and how.
    pub(super) fn note(&mut self, text: impl Display, mend: impl Display) {
        self.add(Grade::Note, format!("{text}: {mend}"));
    }

    /// Something that does not work, and how to mend it.
    pub(super) fn bad(&mut self, text: impl Display, mend: impl Display) {
        self.add(Grade::Bad, format!("{text}: {mend}"));
    }

    /// In the order in which they were found.
    pub(super) fn all(&self) -> &[(Grade, String)] {
        &self.0
    }

    fn add(&mut self, grade: Grade, text: String) {
        self.0.push((grade, printable::clean(&text.replace('\n', " "))));
    }
}
