//! Joins a message of the daemon's and the files that came beside it to one value.
//!
//! In: a message and the descriptors that came along. Out: the message with each descriptor at the
//! place that it is for. How many belong to which message, and of which kind, is the protocol's
//! ([`omniverb_session::vm::enclosed`]); it is checked here, once, and a holder of a
//! [`MessageWithFiles`] has all of them and no more. That memory has exactly the bytes that its
//! user needs is seen to where it is mapped. A daemon may be hostile.

use crate::memory_from_daemon;
use omniverb_session::body::{self, Adopt, Granted, LinkReady, TraceBegin, Welcome};
use omniverb_session::vm::enclosed;
use omniverb_session::{Message, pair_window};
use omniverb_sys::{Extent, seqpacket};
use omniverb_terms::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// A message with files.
pub(crate) trait CarriesFiles: Sized {
    /// The files, each at its place.
    type Files;

    /// Puts what came along at its place.
    ///
    /// # Errors
    /// `EPROTO`: there are more or fewer than belong to this message, or of another kind.
    fn take(&self, came: Vec<OwnedFd>) -> Result<Self::Files, Errno>;
}

/// A message and all the files that belong to it.
#[derive(Debug)]
pub(crate) struct MessageWithFiles<T: CarriesFiles> {
    pub(crate) said: T,
    pub(crate) files: T::Files,
}

impl<T: CarriesFiles> MessageWithFiles<T> {
    /// Of what came along, nothing stays open if it is not as it should be.
    ///
    /// # Errors
    /// `EPROTO`.
    pub(crate) fn new(said: T, came: Vec<OwnedFd>) -> Result<MessageWithFiles<T>, Errno> {
        let files = said.take(came)?;
        Ok(MessageWithFiles { said, files })
    }
}

/// Just so many files.
fn all<const N: usize>(came: Vec<OwnedFd>) -> Result<[OwnedFd; N], Errno> {
    came.try_into().map_err(|_| Errno::EPROTO)
}

/// A memory file that has the bytes it is said to have.
fn in_memory(file: OwnedFd, said: body::Extent) -> Result<Extent<OwnedFd>, Errno> {
    let extent = memory_from_daemon::extent(file, said);
    extent.verify().map_err(|_| Errno::EPROTO)?;
    Ok(extent)
}

/// The same of memory for pages, which is said with the number of a pair window if it is in one.
fn for_pages(file: OwnedFd, said: body::Extent) -> Result<Extent<OwnedFd>, Errno> {
    in_memory(file, pair_window::plain(said))
}

/// What a link is made of.
#[derive(Debug)]
pub(crate) struct LinkFiles {
    pub(crate) link: Extent<OwnedFd>,
    /// If the two processes had none in common until now, as far as the daemon knows.
    pub(crate) bell: Option<Extent<OwnedFd>>,
}

impl CarriesFiles for LinkReady {
    type Files = LinkFiles;

    fn take(&self, came: Vec<OwnedFd>) -> Result<LinkFiles, Errno> {
        let (link, bell) = if self.bell_new == 0 {
            let [link] = all(came)?;
            (link, None)
        } else {
            let [link, bell] = all(came)?;
            (link, Some(in_memory(bell, self.bell_memory)?))
        };
        Ok(LinkFiles { link: in_memory(link, self.memory)?, bell })
    }
}

impl CarriesFiles for Granted {
    type Files = Extent<OwnedFd>;

    fn take(&self, came: Vec<OwnedFd>) -> Result<Extent<OwnedFd>, Errno> {
        let [file] = all(came)?;
        for_pages(file, self.memory)
    }
}

impl CarriesFiles for Adopt {
    /// Where the pages are to go; `None`: they are there already.
    type Files = Option<Extent<OwnedFd>>;

    fn take(&self, came: Vec<OwnedFd>) -> Result<Option<Extent<OwnedFd>>, Errno> {
        if self.fresh == 0 {
            let [] = all(came)?;
            return Ok(None);
        }
        let [file] = all(came)?;
        for_pages(file, self.memory).map(Some)
    }
}

impl CarriesFiles for TraceBegin {
    type Files = Extent<OwnedFd>;

    fn take(&self, came: Vec<OwnedFd>) -> Result<Extent<OwnedFd>, Errno> {
        let [file] = all(came)?;
        in_memory(file, self.memory)
    }
}

/// What a process gets with its welcome.
#[derive(Debug)]
pub(crate) struct WelcomeFiles {
    /// Our end of the events socket.
    pub(crate) events: OwnedFd,
    /// Where queue pairs are to count; see `statistics`.
    pub(crate) area: Extent<OwnedFd>,
}

impl CarriesFiles for Welcome {
    type Files = WelcomeFiles;

    fn take(&self, came: Vec<OwnedFd>) -> Result<WelcomeFiles, Errno> {
        let [events, area] = all(came)?;
        if !seqpacket::is_one(events.as_fd()) {
            return Err(Errno::EPROTO);
        }
        Ok(WelcomeFiles { events, area: in_memory(area, self.area)? })
    }
}

/// An answer, whatever it is: handed on to the caller, with its files in their order.
impl CarriesFiles for Message {
    type Files = Vec<OwnedFd>;

    fn take(&self, came: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, Errno> {
        if came.len() == enclosed(self).len() { Ok(came) } else { Err(Errno::EPROTO) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use omniverb_session::body::Done;
    use omniverb_session::vm::EnclosedDescriptor;
    use omniverb_sys::memfd;
    use zerocopy::FromZeros;

    const BYTES: u64 = 8192;
    const PLACE: body::Extent = body::Extent { offset: 0, length: BYTES };

    fn file(kind: EnclosedDescriptor) -> OwnedFd {
        match kind {
            EnclosedDescriptor::Events => seqpacket::pair().unwrap().0,
            EnclosedDescriptor::Memory => memfd::create("test", BYTES).unwrap(),
        }
    }

    /// What belongs to a message is taken; one more, one fewer, and another kind at each place are
    /// not.
    fn check<T: CarriesFiles + Clone + Into<Message>>(said: &T) {
        let kinds = enclosed(&said.clone().into());
        let right = || kinds.iter().map(|kind| file(*kind)).collect::<Vec<_>>();
        let take = |came| said.take(came).map(drop);
        assert_eq!(take(right()), Ok(()));
        for extra in [EnclosedDescriptor::Events, EnclosedDescriptor::Memory] {
            let mut more = right();
            more.push(file(extra));
            assert_eq!(take(more), Err(Errno::EPROTO), "{extra:?} too many");
        }
        for place in 0..kinds.len() {
            let mut fewer = right();
            drop(fewer.remove(place));
            assert_eq!(take(fewer), Err(Errno::EPROTO), "{place} is missing");
            let other = match kinds[place] {
                EnclosedDescriptor::Events => EnclosedDescriptor::Memory,
                EnclosedDescriptor::Memory => EnclosedDescriptor::Events,
            };
            let mut wrong = right();
            wrong[place] = file(other);
            assert_eq!(take(wrong), Err(Errno::EPROTO), "{place} is another kind");
        }
    }

    #[test]
    fn each_message_comes_with_its_own_files_and_no_others() {
        let ready = LinkReady { memory: PLACE, bell_memory: PLACE, ..LinkReady::new_zeroed() };
        check(&ready);
        check(&LinkReady { bell_new: 1, ..ready });
        check(&Granted { memory: PLACE, ..Granted::new_zeroed() });
        check(&Adopt { memory: PLACE, ..Adopt::new_zeroed() });
        check(&Adopt { fresh: 1, memory: PLACE, ..Adopt::new_zeroed() });
        check(&TraceBegin { memory: PLACE });
        check(&Welcome { area: PLACE, ..Welcome::new_zeroed() });
    }

    #[test]
    fn an_answer_has_as_many_files_as_belong_to_it() {
        let done = || Message::from(Done { take_back: 0 });
        assert!(MessageWithFiles::new(done(), Vec::new()).is_ok());
        assert!(MessageWithFiles::new(done(), vec![file(EnclosedDescriptor::Memory)]).is_err());
    }
}
