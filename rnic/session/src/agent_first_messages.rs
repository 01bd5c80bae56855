//! Encodes the first message of a virtual machine's agent on its port, and what its proxy says
//! after it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The contents of a frame of the kind [`crate::vm::FrameKind::Begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentBegin {
    /// The number of the window that the agent goes by.
    pub window: u64,
    /// Random: what was said before is told from what is said since.
    pub number: u64,
    /// Which boot of its guest this is, as the guest says: another one after each; zeros if that is
    /// not known.
    pub boot: [u8; 16],
}

impl AgentBegin {
    /// As it travels.
    #[must_use]
    pub fn written(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    /// What somebody begins with; `None`: it is nothing of that kind.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<AgentBegin> {
        AgentBegin::read_from_bytes(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_begins_with_is_understood_if_it_is_whole() {
        let begin = AgentBegin { window: 7, number: 8, boot: [9; 16] };
        let bytes = begin.written();
        assert_eq!((bytes.len(), AgentBegin::read(&bytes)), (32, Some(begin)));
        for length in [0, 8, 16, 31] {
            assert_eq!(AgentBegin::read(&bytes[..length]), None, "{length}");
        }
        assert_eq!(AgentBegin::read(&[bytes, vec![0]].concat()), None);
    }
}
