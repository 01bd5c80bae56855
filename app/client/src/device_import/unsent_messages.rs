//! Keeps messages to another process whose socket is full: they are sent before what comes later,
//! by the thread that hears of the other process.

use omniverb_sys::{lock, seqpacket};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

/// Messages that wait: one for each object that may have been imported.
const WAITING_MAX: usize = 1 << 16;

/// Messages, the oldest first.
#[derive(Default)]
pub(super) struct Outbox(Mutex<VecDeque<Vec<u8>>>);

fn send_all(waiting: &mut VecDeque<Vec<u8>>, socket: BorrowedFd<'_>) -> bool {
    while let Some(message) = waiting.front() {
        match seqpacket::try_send(socket, message, &[]) {
            Ok(()) => _ = waiting.pop_front(),
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}

impl Outbox {
    /// Sends a message, or lets it wait. False: the other is gone, or too many wait.
    pub(super) fn say(&self, socket: BorrowedFd<'_>, message: &[u8]) -> bool {
        let mut waiting = lock(&self.0);
        if waiting.len() >= WAITING_MAX {
            return false;
        }
        waiting.push_back(message.to_vec());
        send_all(&mut waiting, socket)
    }

    /// Sends what waits. `None`: the other is gone. Otherwise, whether nothing waits any more.
    pub(super) fn flush(&self, socket: BorrowedFd<'_>) -> Option<bool> {
        let mut waiting = lock(&self.0);
        send_all(&mut waiting, socket).then(|| waiting.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn nothing_is_lost_and_nothing_overtakes() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let outbox = Outbox::default();
        let all = 0..2000u32;
        assert!(all.clone().all(|n| outbox.say(ours.as_fd(), &n.to_ne_bytes())));
        assert_eq!(outbox.flush(ours.as_fd()), Some(false), "more than a socket takes");
        for n in all {
            let mut bytes = [0; 4];
            seqpacket::receive(theirs.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking)
                .unwrap();
            assert_eq!(u32::from_ne_bytes(bytes), n);
            assert!(outbox.flush(ours.as_fd()).is_some());
        }
        assert_eq!(outbox.flush(ours.as_fd()), Some(true));
        drop(theirs);
        assert!(!outbox.say(ours.as_fd(), b"gone"));
    }
}
