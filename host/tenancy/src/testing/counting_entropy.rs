//! Counts instead of drawing random numbers, so that runs can be repeated.

use crate::Entropy;

/// Counts instead of drawing, so that a run can be repeated.
#[derive(Debug, Default)]
pub struct CountingEntropy(u64);

impl Entropy for CountingEntropy {
    fn next(&mut self) -> u64 {
        // The lower half counts, too: queue pair numbers stay small, where a guess finds them.
        let number = self.0;
        self.0 += 0x1_0000_0001;
        number
    }
}
