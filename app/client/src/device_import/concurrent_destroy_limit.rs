//! Limits how many objects are destroyed for all importers at a time. That takes a thread, and a
//! connection stays for as long; the others ask again.

use omniverb_sys::lock;
use std::sync::{Arc, Mutex};

/// Processes at a time.
const ENDINGS_MAX: usize = 8;

/// The processes that do so; each does one thing at a time, by whatever connection.
#[derive(Default)]
pub(super) struct DestroyLimit(Mutex<Vec<i32>>);

/// One does, until this is dropped.
pub(super) struct DestroyPermit {
    of: Arc<DestroyLimit>,
    process: i32,
}

impl DestroyLimit {
    /// `None`: not now.
    pub(super) fn begin(self: &Arc<Self>, process: i32) -> Option<DestroyPermit> {
        let mut now = lock(&self.0);
        if now.len() >= ENDINGS_MAX || now.contains(&process) {
            return None;
        }
        now.push(process);
        Some(DestroyPermit { of: self.clone(), process })
    }
}

impl Drop for DestroyPermit {
    fn drop(&mut self) {
        lock(&self.of.0).retain(|process| *process != self.process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_process_and_so_many_in_all() {
        let endings = Arc::<DestroyLimit>::default();
        let mut all: Vec<_> = (1..9).map(|process| endings.begin(process).unwrap()).collect();
        assert!(endings.begin(9).is_none() && endings.begin(1).is_none());
        all.pop();
        assert!(endings.begin(1).is_none());
        let ninth = endings.begin(9);
        assert!(ninth.is_some());
        drop((all, ninth));
        assert!(lock(&endings.0).is_empty());
    }
}
