//! Orders the steps of calls that wait: ask, look, arm, ask once more, sleep.
//!
//! All waiting goes by here: `poll` and `select`, epoll sets, and calls of one light connection.
//! What comes by memory wakes no thread that sleeps in the kernel. So a call *arms* its sources
//! first: what comes from then on wakes it. What came before that is looked for afterwards. No
//! source stays armed when the call is over.

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept<T> {
    /// It has this to tell.
    Found(T),
    /// Something woke it, which may be for another thread: the call goes on.
    Woken,
    /// The call waits no longer, and all that there was by then is told.
    TimeIsOver,
}

/// What a call waits for: the kernel's descriptors, and what moves bytes by memory.
pub trait WaitSources {
    /// What the call tells.
    type Found;
    /// Why it fails.
    type Error;

    /// Takes in what has come by memory. It is worth asking what there is.
    fn is_ready(&mut self) -> bool;

    /// What there is now, as [`Self::is_ready`] has seen it, and by the kernel. `None`: nothing;
    /// another thread may have had it.
    ///
    /// # Errors
    /// The kernel's.
    fn ask(&mut self) -> Result<Option<Self::Found>, Self::Error>;

    /// Polls memory for a moment, if that is worth while. What that has found.
    ///
    /// # Errors
    /// The kernel's.
    fn look(&mut self) -> Result<Option<Self::Found>, Self::Error>;

    /// The call is about to sleep: what comes from now on wakes it.
    fn arm(&mut self);

    /// Sleeps, armed.
    ///
    /// # Errors
    /// The kernel's: a signal, for instance.
    fn sleep(&mut self) -> Result<Slept<Self::Found>, Self::Error>;

    /// It sleeps no more.
    fn disarm(&mut self);

    /// Changes when bytes that were in memory are not there any more.
    fn mark(&mut self) -> u64 {
        0
    }

    /// Bytes that were there when the call began go another way at this moment.
    fn is_passing(&mut self) -> bool {
        false
    }
}

/// How often a call that does not wait asks again for what has gone another way meanwhile.
pub const MOVES: u32 = 8;

/// Asks, for a call that does not wait. What was there when it began is told, even if it goes
/// another way at this moment.
///
/// # Errors
/// As of [`WaitSources::ask`].
#[inline]
pub fn ask_once<S: WaitSources>(sources: &mut S) -> Result<Option<S::Found>, S::Error> {
    for _ in 0..MOVES {
        let before = sources.mark();
        sources.is_ready();
        let found = sources.ask()?;
        if found.is_some() || !sources.is_passing() && sources.mark() == before {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Waits until there is something to tell. `None`: the time is over.
///
/// # Errors
/// As of the steps.
#[inline]
pub fn wait<S: WaitSources>(sources: &mut S) -> Result<Option<S::Found>, S::Error> {
    loop {
        if let Some(found) = ask_if_ready(sources)? {
            return Ok(Some(found));
        }
        if let Some(found) = sources.look()? {
            return Ok(Some(found));
        }
        sources.arm();
        let slept = match ask_if_ready(sources) {
            Ok(Some(found)) => Ok(Slept::Found(found)),
            Ok(None) => sources.sleep(),
            Err(error) => Err(error),
        };
        sources.disarm();
        match slept? {
            Slept::Found(found) => return Ok(Some(found)),
            Slept::TimeIsOver => return Ok(None),
            Slept::Woken => {}
        }
    }
}

#[inline]
fn ask_if_ready<S: WaitSources>(sources: &mut S) -> Result<Option<S::Found>, S::Error> {
    if sources.is_ready() { sources.ask() } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What happens to a call, by the number of the step before which it does.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// Bytes come: by memory, which wakes no thread, unless the call is armed.
        Bytes,
        /// A doorbell that is for another thread.
        Doorbell,
        /// Another thread takes what there is.
        Taken,
        Signal,
    }

    /// A call of a process whose peers do something at given steps. Each step takes a while.
    #[derive(Default)]
    struct Call {
        events: Vec<(u64, Event)>,
        now: u64,
        deadline: u64,
        by_memory: u32,
        by_kernel: u32,
        has_rung: bool,
        is_interrupted: bool,
        is_armed: bool,
        looks: bool,
        /// It slept although there was something that did not wake it.
        has_overslept: bool,
    }

    impl Call {
        fn passes(&mut self) {
            self.now += 1;
            while let Some((_, event)) = self.events.first().filter(|(at, _)| *at <= self.now) {
                match event {
                    Event::Bytes if self.is_armed => self.by_kernel += 1,
                    Event::Bytes => self.by_memory += 1,
                    Event::Doorbell => self.has_rung = true,
                    Event::Taken => (self.by_memory, self.by_kernel) = (0, 0),
                    Event::Signal => self.is_interrupted = true,
                }
                self.events.remove(0);
            }
        }

        fn there(&self) -> Option<u32> {
            Some(self.by_memory + self.by_kernel).filter(|count| *count > 0)
        }
    }

    impl WaitSources for Call {
        type Found = u32;
        type Error = &'static str;

        fn is_ready(&mut self) -> bool {
            self.passes();
            self.by_memory > 0
        }

        fn ask(&mut self) -> Result<Option<u32>, &'static str> {
            self.passes();
            Ok(self.there())
        }

        fn look(&mut self) -> Result<Option<u32>, &'static str> {
            for _ in 0..3 {
                self.passes();
                if self.looks && self.there().is_some() {
                    return Ok(self.there());
                }
            }
            Ok(None)
        }

        fn arm(&mut self) {
            self.passes();
            assert!(!self.is_armed, "armed twice");
            self.is_armed = true;
        }

        fn sleep(&mut self) -> Result<Slept<u32>, &'static str> {
            assert!(self.is_armed, "nothing would wake it");
            loop {
                // Bytes in memory, and nothing by the kernel: nothing wakes it.
                self.has_overslept |= self.by_memory > 0;
                if self.by_kernel > 0 {
                    return Ok(Slept::Found(self.by_memory + self.by_kernel));
                }
                if core::mem::take(&mut self.is_interrupted) {
                    return Err("a signal");
                }
                if self.now >= self.deadline {
                    return Ok(Slept::TimeIsOver);
                }
                if core::mem::take(&mut self.has_rung) {
                    return Ok(Slept::Woken);
                }
                self.passes();
            }
        }

        fn disarm(&mut self) {
            assert!(self.is_armed, "disarmed twice");
            self.is_armed = false;
            self.passes();
        }
    }

    fn call(events: &[(u64, Event)], deadline: u64) -> Call {
        Call { events: events.to_vec(), deadline, ..Call::default() }
    }

    #[test]
    fn what_is_there_is_told_before_anything_is_armed() {
        let mut call = call(&[(1, Event::Bytes)], 100);
        assert_eq!((wait(&mut call), call.now), (Ok(Some(1)), 2));
    }

    #[test]
    fn bytes_that_come_before_it_is_armed_are_found_after_that() {
        // Behind the first question, for a call that does not look.
        for at in 2..6 {
            let mut call = call(&[(at, Event::Bytes)], 100);
            assert_eq!(wait(&mut call), Ok(Some(1)));
            assert!(!call.has_overslept && call.now < 10, "{at}");
        }
    }

    #[test]
    fn a_doorbell_for_another_thread_ends_no_wait() {
        let mut call = call(&[(10, Event::Doorbell), (40, Event::Bytes)], 100);
        assert_eq!(wait(&mut call), Ok(Some(1)));
        assert!(call.now >= 40);
    }

    #[test]
    fn a_signal_ends_a_sleep_and_nothing_stays_armed() {
        let mut call = call(&[(10, Event::Signal)], 100);
        assert_eq!(wait(&mut call), Err("a signal"));
        assert!(!call.is_armed);
    }

    #[test]
    fn a_call_ends_when_its_time_is_over() {
        let mut call = call(&[(20, Event::Doorbell), (500, Event::Bytes)], 100);
        assert_eq!(wait(&mut call), Ok(None));
        assert!((100..110).contains(&call.now));
    }

    /// Bytes on their way from memory to the kernel, for so many questions.
    struct Passing {
        questions: u32,
        on_the_way: u32,
        moves: u64,
    }

    impl WaitSources for Passing {
        type Found = ();
        type Error = ();

        fn is_ready(&mut self) -> bool {
            false
        }

        fn ask(&mut self) -> Result<Option<()>, ()> {
            self.questions += 1;
            Ok((self.on_the_way > 0 && self.questions > self.on_the_way).then_some(()))
        }

        fn look(&mut self) -> Result<Option<()>, ()> {
            unreachable!("it does not wait")
        }

        fn arm(&mut self) {
            unreachable!("it does not wait")
        }

        fn sleep(&mut self) -> Result<Slept<()>, ()> {
            unreachable!("it does not wait")
        }

        fn disarm(&mut self) {
            unreachable!("it does not wait")
        }

        fn mark(&mut self) -> u64 {
            self.moves += u64::from(self.questions < self.on_the_way);
            self.moves
        }

        fn is_passing(&mut self) -> bool {
            self.questions == self.on_the_way
        }
    }

    #[test]
    fn a_call_that_does_not_wait_finds_what_is_on_its_way() {
        let passing = |on_the_way| Passing { questions: 0, on_the_way, moves: 0 };
        for on_the_way in 1..MOVES {
            assert_eq!(ask_once(&mut passing(on_the_way)), Ok(Some(())), "{on_the_way}");
        }
        let mut none = passing(0);
        assert_eq!((ask_once(&mut none), none.questions), (Ok(None), 1));
        // A peer that moves bytes for ever holds up no call.
        let mut ever = passing(u32::MAX);
        assert_eq!((ask_once(&mut ever), ever.questions), (Ok(None), MOVES));
    }

    fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
        let event = prop_oneof![
            3 => Just(Event::Bytes),
            3 => Just(Event::Doorbell),
            1 => Just(Event::Taken),
        ];
        prop::collection::vec((0..60_u64, event), 0..12).prop_map(|mut all| {
            all.sort_by_key(|(at, _)| *at);
            all
        })
    }

    proptest! {
        /// Whenever bytes come, no call sleeps on while they are there.
        #[test]
        fn no_wakeup_is_lost(events in events(), looks: bool) {
            let mut call = Call { looks, ..call(&events, 100) };
            let found = wait(&mut call).unwrap();
            prop_assert!(!call.is_armed && !call.has_overslept);
            match found {
                Some(_) => prop_assert!(call.now < 100),
                // All that came was taken by other threads.
                None => prop_assert!(call.there().is_none() && call.now >= 100),
            }
        }

        /// Bytes that no other thread takes are told of soon.
        #[test]
        fn bytes_are_told_of_within_a_round(at in 0..90_u64, rung in 0..90_u64, looks: bool) {
            let mut events = vec![(at, Event::Bytes), (rung, Event::Doorbell)];
            events.sort_by_key(|(at, _)| *at);
            let mut call = Call { looks, ..call(&events, 100) };
            prop_assert_eq!(wait(&mut call), Ok(Some(1)));
            prop_assert!(call.now <= at.max(1) + 8, "{} {}", call.now, at);
        }
    }
}
