//! Hands the newest input from the thread that follows etcd or a file to the applier.
//!
//! Only the newest counts. One that was not taken yet is dropped when the next one comes: an etcd
//! that changes all the time fills nothing while the daemon is slow.

use omniverb_cluster::address_announcements::Announcements;
use omniverb_cluster::object_name::WantedObjects;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The objects that hold for this host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Input {
    /// Objects as the host is to have them.
    pub(crate) wanted: WantedObjects,
    /// Addresses of virtual networks that hosts announce.
    pub(crate) announcements: Announcements,
    /// Faults of the cluster's values.
    pub(crate) problems: BTreeMap<String, String>,
    /// The revision of etcd that this is.
    pub(crate) revision: i64,
}

/// Why there is no input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoInput {
    /// None has come since the last one.
    NotYet,
    /// Its sender is gone.
    Closed,
}

#[derive(Default)]
struct State {
    newest: Option<Input>,
    is_over: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that inputs are given to.
pub(crate) struct InputSender(Arc<Shared>);

/// The end that they are taken from.
pub(crate) struct InputReceiver(Arc<Shared>);

/// Two ends, with nothing between them.
pub(crate) fn channel() -> (InputSender, InputReceiver) {
    let shared = Arc::new(Shared::default());
    (InputSender(shared.clone()), InputReceiver(shared))
}

impl InputSender {
    /// This is the newest input.
    pub(crate) fn send(&self, input: Input) {
        let before = self.0.state().newest.replace(input);
        self.0.changed.notify_one();
        // It may be large: not under the lock.
        drop(before);
    }
}

impl Drop for InputSender {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_one();
    }
}

impl InputReceiver {
    /// The newest input, once; waits for one for so long.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn receive(&self, limit: Duration) -> Result<Input, NoInput> {
        let is_empty = |state: &mut State| state.newest.is_none() && !state.is_over;
        let waited = self.0.changed.wait_timeout_while(self.0.state(), limit, is_empty);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (state.newest.take(), state.is_over) {
            (Some(input), _) => Ok(input),
            (None, true) => Err(NoInput::Closed),
            (None, false) => Err(NoInput::NotYet),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_is_kept() {
        let (sender, receiver) = channel();
        let of = |revision| Input { revision, ..Input::default() };
        assert_eq!(receiver.receive(Duration::ZERO).unwrap_err(), NoInput::NotYet);
        (0..1000).for_each(|revision| sender.send(of(revision)));
        assert_eq!(receiver.receive(Duration::ZERO).unwrap().revision, 999);
        assert_eq!(receiver.receive(Duration::ZERO).unwrap_err(), NoInput::NotYet);
        let giver = std::thread::spawn(move || sender.send(of(7)));
        assert_eq!(receiver.receive(Duration::from_secs(60)).unwrap().revision, 7);
        giver.join().unwrap();
        assert_eq!(receiver.receive(Duration::from_secs(60)).unwrap_err(), NoInput::Closed);
    }
}
