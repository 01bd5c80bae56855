//! Tells other libraries of this process what the daemon tells, where it is theirs.
//!
//! In: messages from the events socket, as bytes. Out: calls, in the progress thread, in the order
//! of their coming. A subscriber puts away what it is told and returns: peers wait meanwhile, and
//! it is called with this list locked, so that no call comes once its end is said.

use omniverb_sys::lock;
use omniverb_terms::Errno;
use std::sync::Mutex;

/// Called with a message, or with none when the daemon that sent the others is gone.
pub type Listener = Box<dyn Fn(Option<&[u8]>) + Send>;

/// The listeners of other libraries, each with the number by which it is removed.
#[derive(Default)]
pub(crate) struct Subscribers(Mutex<Listeners>);

#[derive(Default)]
struct Listeners {
    /// The latest number given out.
    latest: u64,
    all: Vec<(u64, Listener)>,
}

impl Subscribers {
    /// One more; its number.
    pub(crate) fn add(&self, listener: Listener) -> u64 {
        let mut listeners = lock(&self.0);
        listeners.latest += 1;
        let number = listeners.latest;
        listeners.all.push((number, listener));
        number
    }

    /// It is not called any more.
    ///
    /// # Errors
    /// `ENOENT`: there is none of this number.
    pub(crate) fn remove(&self, number: u64) -> Result<(), Errno> {
        let mut listeners = lock(&self.0);
        let place = listeners.all.iter().position(|(of, _)| *of == number).ok_or(Errno::ENOENT)?;
        drop(listeners.all.swap_remove(place));
        Ok(())
    }

    /// Calls all, in the order in which they came: with a message, or since there is no daemon.
    pub(crate) fn tell(&self, message: Option<&[u8]>) {
        for (_, listener) in &lock(&self.0).all {
            listener(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn every_subscriber_gets_every_message_until_it_ends() {
        let subscribers = Subscribers::default();
        let (first, hears_first) = mpsc::channel();
        let (second, hears_second) = mpsc::channel();
        let listen = |to: mpsc::Sender<Option<Vec<u8>>>| -> Listener {
            Box::new(move |message| _ = to.send(message.map(<[u8]>::to_vec)))
        };
        let number = subscribers.add(listen(first));
        subscribers.add(listen(second));
        subscribers.tell(Some(b"one"));
        assert_eq!(subscribers.remove(number), Ok(()));
        assert_eq!(subscribers.remove(number), Err(Errno::ENOENT));
        subscribers.tell(None);
        let heard = |from: mpsc::Receiver<Option<Vec<u8>>>| from.try_iter().collect::<Vec<_>>();
        assert_eq!(heard(hears_first), [Some(b"one".to_vec())]);
        assert_eq!(heard(hears_second), [Some(b"one".to_vec()), None]);
    }
}
