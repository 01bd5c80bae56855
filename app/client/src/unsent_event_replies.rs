//! What the progress thread answers on the events socket, without ever waiting for the daemon.

use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{Message, encode};
use omniverb_sys::seqpacket;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;

/// Answers that wait for room: as many as the daemon has questions for one process at a time. Of
/// pages that were let go of as many more: peers have a say in how many these are, and whether
/// pages are moved for nothing does not depend on that.
const ANSWERS_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct UnsentReplies {
    waiting: VecDeque<Message>,
}

impl UnsentReplies {
    /// Sends an answer, now or later. One too many is dropped: the daemon takes that for a refusal.
    pub(crate) fn push(&mut self, to: BorrowedFd<'_>, answer: Message) {
        let lets_go = |message: &Message| matches!(message, Message::LetGo(_));
        let kind = lets_go(&answer);
        if self.waiting.iter().filter(|one| lets_go(one) == kind).count() < ANSWERS_MAX {
            self.waiting.push_back(answer);
        }
        self.flush(to);
    }

    /// Sends what there is room for.
    pub(crate) fn flush(&mut self, to: BorrowedFd<'_>) {
        while let Some(answer) = self.waiting.front() {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let length = encode(0, answer, &mut bytes);
            match seqpacket::try_send(to, &bytes[..length], &[]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Sent; or the daemon is gone: then it is as good as never answered.
                _ => drop(self.waiting.pop_front()),
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The daemon that was to hear them is gone.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::body::{Adopted, Extent, LetGo};
    use omniverb_terms::Errno;
    use std::os::fd::AsFd;

    #[test]
    fn a_daemon_that_does_not_listen_is_not_waited_for() {
        let (ours, daemon) = seqpacket::pair().unwrap();
        let answer = |token| Adopted { token, errno: Errno(1), epoch: 0 };
        let mut answers = UnsentReplies::default();
        let mut pushed = 0;
        while answers.waiting.len() < ANSWERS_MAX {
            answers.push(ours.as_fd(), answer(pushed).into());
            pushed += 1;
        }
        answers.push(ours.as_fd(), answer(u64::MAX).into());
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        for token in 0..pushed {
            let (length, _) = seqpacket::receive(
                daemon.as_fd(),
                &mut bytes,
                seqpacket::BlockingMode::NonBlocking,
            )
            .unwrap();
            let (_, found) = omniverb_session::decode(&bytes[..length]).unwrap();
            assert_eq!(found, answer(token).into());
            answers.flush(ours.as_fd());
        }
        assert!(answers.is_empty());
        // What peers let us let go of does not keep any other answer back.
        while answers.waiting.len() < ANSWERS_MAX {
            let memory = Extent { offset: 0, length: 4096 };
            answers.push(ours.as_fd(), LetGo { memory, times: 1, reserved: 0 }.into());
        }
        answers.push(ours.as_fd(), answer(7).into());
        assert_eq!(answers.waiting.back(), Some(&answer(7).into()));
        drop(daemon);
        answers.push(ours.as_fd(), answer(0).into());
        assert!(answers.is_empty());
    }
}
