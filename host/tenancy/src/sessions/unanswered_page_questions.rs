//! Counts questions for its pages that an owner has not answered.

use crate::accounts::Receipt;

/// Their number, by receipts. Any answer, late or not, is to one of them: an owner that answers
/// unasked questions has no more room for questions than its quota.
#[derive(Debug, Default)]
pub(crate) struct Questions(Vec<Receipt>);

impl Questions {
    /// One more is asked.
    pub(crate) fn ask(&mut self, receipt: Receipt) {
        self.0.push(receipt);
    }

    /// One was answered.
    pub(crate) fn answered(&mut self) {
        self.0.pop();
    }

    /// The charges for all of them.
    pub(crate) fn receipts(&self) -> impl Iterator<Item = &Receipt> {
        self.0.iter()
    }
}
