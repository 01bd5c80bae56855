//! Sets how many completions a queue has room for, and in whose memory they are.

use super::{CompletionEvents, Cq, CqOptions, Entry};
use crate::cq_entry_fifo::Fifo;
use crate::device_shared::Shared;
use omniverb_ring::{MemoryLender, NoMemory};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Cq {
    /// A queue for `capacity` completions, which are in lent memory if there is a lender.
    ///
    /// # Errors
    /// The lender has none.
    pub fn in_memory(
        shared: &Arc<Shared>,
        capacity: u32,
        events: Option<Arc<dyn CompletionEvents>>,
        options: CqOptions,
        lending: MemoryLender,
    ) -> Result<Arc<Cq>, NoMemory> {
        let queues = queues(capacity, options, &lending)?;
        Ok(Cq::of(shared, capacity, queues, events, options, lending))
    }

    /// Completions it can hold.
    pub fn capacity(&self) -> u32 {
        self.inner.lock().capacity as u32
    }

    /// Changes the capacity. Says whether that was done: not if more completions are waiting.
    ///
    /// # Errors
    /// The lender of its memory has none of the new size.
    pub fn resize(&self, capacity: u32) -> Result<bool, NoMemory> {
        // A lender is the program's code: it is not called under a lock. What was lent goes back
        // as this returns, the new or the old.
        let mut other = match self.lending {
            Some(_) => Some(queues(capacity, self.options, &self.lending)?),
            None => None,
        };
        let mut inner = self.inner.lock();
        if inner.entries.len() > capacity as usize {
            return Ok(false);
        }
        if let Some((entries, times)) = &mut other {
            entries.append(&inner.entries);
            times.append(&inner.times);
            std::mem::swap(entries, &mut inner.entries);
            std::mem::swap(times, &mut inner.times);
        }
        inner.capacity = capacity as usize;
        Ok(true)
    }

    /// The application destroys it: memory that was lent is back when this returns, even if a
    /// thread still looks at this queue, and completions that come all the same are lost.
    pub fn give_up(&self) {
        let mut inner = self.inner.lock();
        (inner.capacity, inner.overflowed) = (0, true);
        let given_up = (std::mem::take(&mut inner.entries), std::mem::take(&mut inner.times));
        self.length.store(0, Ordering::Release);
        drop(inner);
        drop(given_up);
    }
}

/// For the entries of a queue, and for when they came.
fn queues(
    capacity: u32,
    options: CqOptions,
    lending: &MemoryLender,
) -> Result<(Fifo<Entry>, Fifo<u64>), NoMemory> {
    let entries = Fifo::new(capacity as usize, lending)?;
    let times = match options.is_stamped {
        true => Fifo::new(capacity as usize, lending)?,
        false => Fifo::default(),
    };
    Ok((entries, times))
}
