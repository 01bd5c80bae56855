//! Counts the holders of a vNIC, and releases it with the last one.

use omniverb_sys::lock;
use omniverb_tenancy::VnicId;
use std::sync::{Arc, Mutex, Weak};

/// Keeps a vNIC open as long as it lives.
#[derive(Clone, Debug)]
#[must_use = "an unused vNIC is released"]
pub(crate) struct Hold(Arc<Holding>);

/// Tells whether a vNIC is open.
#[derive(Debug)]
pub(crate) struct WeakHold(Weak<Holding>);

#[derive(Debug)]
struct Holding {
    vnic: VnicId,
    left: UnusedVnics,
}

/// vNICs whose last holder has gone, until they are taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnusedVnics(Arc<Mutex<Vec<VnicId>>>);

impl UnusedVnics {
    /// The first hold of a vNIC, and a weak one that tells whether others exist.
    pub(crate) fn hold(&self, vnic: VnicId) -> (Hold, WeakHold) {
        let holding = Arc::new(Holding { vnic, left: self.clone() });
        let held = WeakHold(Arc::downgrade(&holding));
        (Hold(holding), held)
    }

    /// vNICs released since the last call. They may have been opened again.
    pub(crate) fn take(&self) -> Vec<VnicId> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Hold {
    /// The vNIC that it keeps open.
    pub(crate) fn vnic(&self) -> VnicId {
        self.0.vnic
    }
}

impl WeakHold {
    /// Another hold, if one exists.
    pub(crate) fn another(&self) -> Option<Hold> {
        self.0.upgrade().map(Hold)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        lock(&self.left.0).push(self.vnic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hold_releases_the_vnic() {
        let left = UnusedVnics::default();
        let (one, held) = left.hold(VnicId(7));
        let other = held.another().unwrap();
        assert_eq!((one.vnic(), other.vnic()), (VnicId(7), VnicId(7)));
        drop(one);
        assert_eq!(left.take(), []);
        drop(held.another());
        assert_eq!(left.take(), []);
        drop(other);
        assert!(held.another().is_none());
        assert_eq!((left.take(), left.take()), (vec![VnicId(7)], vec![]));
    }
}
