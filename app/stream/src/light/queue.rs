//! Bytes of a connection that somebody is to have yet: blocks, in a list.

/// Bytes of a block that are bytes of a connection.
pub const PAYLOAD: usize = 4088;

/// A block of a [`Pool`].
#[repr(C)]
pub struct Block {
    next: u32,
    spare: u32,
    bytes: [u8; PAYLOAD],
}

impl Block {
    /// One that is not in use.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0, spare: 0, bytes: [0; PAYLOAD] }
    }
}

impl Default for Block {
    fn default() -> Self {
        Self::new()
    }
}

/// Blocks of a process, of which 0 stands for none.
pub struct Pool<'a> {
    blocks: &'a mut [Block],
    free: u32,
    /// Those from here on were never used, so the kernel has given no memory for them.
    end: u32,
    used: usize,
}

impl<'a> Pool<'a> {
    /// Of memory that is all zeros.
    pub fn new(blocks: &'a mut [Block]) -> Self {
        Self { blocks, free: 0, end: 1, used: 0 }
    }

    /// No more than half of the blocks are in use.
    #[must_use]
    pub fn has_plenty(&self) -> bool {
        self.used < self.blocks.len() / 2
    }

    fn take(&mut self) -> Option<u32> {
        let index = match self.free {
            0 if (self.end as usize) < self.blocks.len() => {
                self.end += 1;
                self.end - 1
            }
            0 => return None,
            index => {
                self.free = self.blocks[index as usize].next;
                index
            }
        };
        self.blocks[index as usize].next = 0;
        self.used += 1;
        Some(index)
    }

    fn give(&mut self, index: u32) {
        self.blocks[index as usize].next = self.free;
        self.free = index;
        self.used -= 1;
    }
}

/// What one connection has of them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Queue {
    first: u32,
    last: u32,
    /// Where bytes begin in the first one, and end in the last one.
    begin: u16,
    end: u16,
    bytes: u32,
}

impl Queue {
    /// Bytes in it.
    #[must_use]
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    /// There are none.
    #[must_use]
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Puts so many behind the others: `fill` is called with each place for them, and how many
    /// were before it. `false` if there is no memory: then some of them may be there, which the
    /// connection does not outlive.
    pub fn push(
        &mut self,
        pool: &mut Pool<'_>,
        length: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> bool {
        let mut done = 0;
        while done < length {
            if self.last == 0 || usize::from(self.end) == PAYLOAD {
                let Some(block) = pool.take() else { return false };
                match self.last {
                    0 => (self.first, self.begin) = (block, 0),
                    last => pool.blocks[last as usize].next = block,
                }
                (self.last, self.end) = (block, 0);
            }
            let at = usize::from(self.end);
            let bytes = (PAYLOAD - at).min(length - done);
            fill(done, &mut pool.blocks[self.last as usize].bytes[at..at + bytes]);
            done += bytes;
            self.end += bytes as u16;
            self.bytes += bytes as u32;
        }
        true
    }

    /// Calls with up to `most` bytes from the beginning, and how many were before them, and leaves
    /// them there.
    pub fn look(&self, pool: &Pool<'_>, most: usize, with: impl FnMut(usize, &[u8])) -> usize {
        self.look_from(pool, 0, most, with)
    }

    /// The same, but for the first `skip` bytes.
    pub fn look_from(
        &self,
        pool: &Pool<'_>,
        skip: usize,
        most: usize,
        mut with: impl FnMut(usize, &[u8]),
    ) -> usize {
        let (mut block, mut at, mut done) = (self.first, usize::from(self.begin), 0);
        let most = most.min(self.len().saturating_sub(skip));
        let mut left = skip.min(self.len());
        while left >= PAYLOAD - at && most > 0 {
            left -= PAYLOAD - at;
            (block, at) = (pool.blocks[block as usize].next, 0);
        }
        at += left;
        while done < most {
            let bytes = (PAYLOAD - at).min(most - done);
            with(done, &pool.blocks[block as usize].bytes[at..at + bytes]);
            done += bytes;
            (block, at) = (pool.blocks[block as usize].next, 0);
        }
        done
    }

    /// So many are no more there.
    pub fn drop(&mut self, pool: &mut Pool<'_>, count: usize) {
        let mut left = count.min(self.len());
        self.bytes -= left as u32;
        while left > 0 {
            let bytes = (PAYLOAD - usize::from(self.begin)).min(left);
            left -= bytes;
            self.begin += bytes as u16;
            if usize::from(self.begin) == PAYLOAD && (self.bytes > 0 || left > 0) {
                let next = pool.blocks[self.first as usize].next;
                pool.give(self.first);
                (self.first, self.begin) = (next, 0);
            }
        }
        if self.bytes == 0 {
            self.clear(pool);
        }
    }

    /// All bytes are forgotten, and their blocks are free.
    pub fn clear(&mut self, pool: &mut Pool<'_>) {
        while self.first != 0 {
            let next = pool.blocks[self.first as usize].next;
            pool.give(self.first);
            self.first = next;
        }
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn blocks(count: usize) -> Vec<Block> {
        (0..count).map(|_| Block::new()).collect()
    }

    proptest::proptest! {
        #[test]
        fn a_queue_is_a_queue(steps in proptest::collection::vec((0..3, 1..9000usize), 1..60)) {
            let mut memory = blocks(64);
            let mut pool = Pool::new(&mut memory);
            let (mut queue, mut model) = (Queue::default(), VecDeque::new());
            let mut next = 0_u8;
            for (what, count) in steps {
                if what == 0 {
                    let room = 63 - model.len().div_ceil(PAYLOAD) - 1;
                    let count = count.min(room * PAYLOAD);
                    let was = next;
                    assert!(queue.push(&mut pool, count, |done, bytes| {
                        for (at, byte) in bytes.iter_mut().enumerate() {
                            *byte = was.wrapping_add((done + at) as u8);
                        }
                    }));
                    (0..count).for_each(|at| model.push_back(was.wrapping_add(at as u8)));
                    next = next.wrapping_add(count as u8);
                } else {
                    let mut seen = Vec::new();
                    let found = queue.look(&pool, count, |done, bytes| {
                        assert_eq!(done, seen.len());
                        seen.extend_from_slice(bytes);
                    });
                    assert_eq!(found, count.min(model.len()));
                    assert!(seen.iter().eq(model.iter().take(found)));
                    let skip = count / 2;
                    let mut rest = Vec::new();
                    queue.look_from(&pool, skip, count, |_, bytes| rest.extend_from_slice(bytes));
                    assert!(rest.iter().eq(model.iter().skip(skip).take(count)));
                    if what == 1 {
                        queue.drop(&mut pool, found);
                        model.drain(..found);
                    }
                }
                assert_eq!(queue.len(), model.len());
            }
            queue.clear(&mut pool);
            // All of them are free again.
            assert_eq!((0..).map_while(|_| pool.take()).count(), 63);
        }
    }

    #[test]
    fn without_memory_nothing_is_put() {
        let mut memory = blocks(2);
        let mut pool = Pool::new(&mut memory);
        let mut queue = Queue::default();
        assert!(!queue.push(&mut pool, PAYLOAD + 1, |_, _| {}));
        queue.clear(&mut pool);
        assert!(queue.push(&mut pool, PAYLOAD, |_, _| {}));
    }
}
