//! What other libraries of this process may have asked on its connection to the daemon, what they
//! are told of it, and descriptors of theirs that its progress thread looks after.
//!
//! In: a message of the session's protocol, as bytes. Out: the answer, and its descriptors. There
//! is one connection in a process, and one owner of what is said on it: what would change what the
//! owner believes to hold is refused here, not in the daemon, which cannot tell the two apart.

use super::Client;
use crate::sibling_library_event_subscribers::Listener;
use crate::sibling_library_fds::ReadyCallback;
use omniverb_session::limits::MESSAGE_BYTES_MAX;
use omniverb_session::{DecodeError, Message, decode, encode};
use omniverb_sys::epoll::Interest;
use omniverb_terms::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An answer as the daemon gave it, with the tag of the question.
pub struct DaemonAnswer {
    /// The message is at their beginning.
    pub message: [u8; MESSAGE_BYTES_MAX],
    /// Bytes of it.
    pub bytes: usize,
    /// What belongs to it; at most [`omniverb_session::DESCRIPTORS_MAX`].
    pub files: Vec<OwnedFd>,
}

impl Client {
    /// Asks the daemon what another library wants to know, as if the owner asked: with its limits
    /// of time, in its turn, and of the next daemon if the last one is gone.
    ///
    /// # Errors
    /// errno: `EPROTO` for a message of another version, `EINVAL` for no message, `EPERM` for one
    /// that is the owner's to send, `EDEADLK` in a call of a watch, `EIO` in a forked child; and
    /// what the daemon answers, or the owner is told when it does not.
    pub fn ask_for_another(&self, question: &[u8]) -> Result<DaemonAnswer, Errno> {
        let (tag, question) = decode(question).map_err(|error| match error {
            DecodeError::Version => Errno::EPROTO,
            DecodeError::Length | DecodeError::Kind => Errno::EINVAL,
        })?;
        if !is_for_all(&question) {
            return Err(Errno::EPERM);
        }
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        if self.watches.is_calling_me() {
            return Err(Errno::EDEADLK);
        }
        let answer = self.call_with_files(&question)?;
        let mut message = [0; MESSAGE_BYTES_MAX];
        let bytes = encode(tag, &answer.said, &mut message);
        Ok(DaemonAnswer { message, bytes, files: answer.files })
    }
}

impl Client {
    /// Has the progress thread call `ready` whenever there is something in `file`, or room, for as
    /// long as that is so. It must not block, and may watch and unwatch. Returns the watch's
    /// number.
    ///
    /// # Errors
    /// errno: `EPERM` if such a file is never waited for, `EIO` in a forked child.
    pub fn watch(
        self: &Arc<Self>,
        file: impl Into<Arc<OwnedFd>>,
        interest: Interest,
        ready: ReadyCallback,
    ) -> Result<u64, Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        self.start_progress()?;
        self.watches.begin(file, interest, ready)
    }

    /// Ends a watch. Its call is not made any more once this has returned; only within that call
    /// itself this does not wait for its end.
    ///
    /// # Errors
    /// errno: `ENOENT` if there is none of this number, `EIO` in a forked child.
    pub fn unwatch(&self, number: u64) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        self.watches.end(number)
    }
}

impl Client {
    /// Has the progress thread call `listener` with each message about connections that the daemon
    /// sends by itself, and with none when that daemon is gone. It puts the message away and
    /// returns. Returns the listener's number.
    ///
    /// # Errors
    /// errno: `EIO` in a forked child, or what starting a thread says.
    pub fn listen_for_another(self: &Arc<Self>, listener: Listener) -> Result<u64, Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        self.start_progress()?;
        Ok(self.subscribers.add(listener))
    }

    /// Ends that. Nothing is told once this has returned.
    ///
    /// # Errors
    /// errno: `ENOENT` if there is none of this number, `EIO` in a forked child.
    pub fn stop_listening_for_another(&self, number: u64) -> Result<(), Errno> {
        if !self.is_ours() {
            return Err(Errno::EIO);
        }
        self.subscribers.remove(number)
    }
}

/// Whether every library may ask this: it leaves what the owner holds as it is.
fn is_for_all(question: &Message) -> bool {
    // A new message has to be decided here.
    match question {
        Message::QueryGids(_) => true,
        // Ids of the connection manager belong to their makers, by their numbers.
        Message::CreateCmId(_)
        | Message::BindCmId(_)
        | Message::ListenCmId(_)
        | Message::ResolveCmId(_)
        | Message::ConnectCmId(_)
        | Message::AcceptCmId(_)
        | Message::RejectCmId(_)
        | Message::EstablishCmId(_)
        | Message::DisconnectCmId(_)
        | Message::DestroyCmId(_)
        | Message::QueryCmId(_) => true,
        // Whose connection it is, and what is made on it, linked and granted.
        Message::Hello(_)
        | Message::CreateQp(_)
        | Message::DestroyQp(_)
        | Message::ConnectQp(_)
        | Message::DisconnectQp(_)
        | Message::AttachGroup(_)
        | Message::RegMr(_)
        | Message::DeregMr(_)
        | Message::RequestGrant(_)
        | Message::CarriedPort(_)
        | Message::AttachLink(_)
        | Message::QpFailed(_)
        | Message::Adopted(_)
        | Message::Pinned(_)
        | Message::Released(_)
        | Message::LetGo(_) => false,
        // Not the daemon's.
        Message::HandOver(_)
        | Message::HandedOver(_)
        | Message::OpenQp(_)
        | Message::QpOpened(_) => false,
        // Asked without a session, on a connection that ends with the answer.
        Message::QueryStatus(_) | Message::QueryVnic(_) => false,
        // No questions.
        Message::Welcome(_)
        | Message::Gids(_)
        | Message::QpCreated(_)
        | Message::Connected(_)
        | Message::GroupAttached(_)
        | Message::MrRegistered(_)
        | Message::Done(_)
        | Message::LinkReady(_)
        | Message::LinkClosed(_)
        | Message::LinkRefuses(_)
        | Message::PeerPort(_)
        | Message::GiveLink(_)
        | Message::Adopt(_)
        | Message::Pin(_)
        | Message::Granted(_)
        | Message::GrantDenied(_)
        | Message::GidsChanged(_)
        | Message::BellClosed(_)
        | Message::TraceBegin(_)
        | Message::TraceLink(_)
        | Message::TraceEnd(_)
        | Message::GrantEnded(_)
        | Message::TakeBack(_)
        | Message::CmIdCreated(_)
        | Message::CmIdBound(_)
        | Message::CmIdResolved(_)
        | Message::CmIdQueried(_)
        | Message::CmHappened(_)
        | Message::Status(_)
        | Message::Failed(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::body::{DestroyQp, Hello, QueryGids, ROLE_VERBS};
    use omniverb_terms::Qpn;

    #[test]
    fn only_the_owner_sets_its_words() {
        let hello = Hello { role: ROLE_VERBS, resume: 0, name: [0; 16] };
        assert!(!is_for_all(&hello.into()));
        assert!(!is_for_all(&DestroyQp { qpn: Qpn(1), reserved: 0 }.into()));
        assert!(!is_for_all(&Message::Failed(Errno(1))));
        assert!(is_for_all(&QueryGids { reserved: 0 }.into()));
    }
}
