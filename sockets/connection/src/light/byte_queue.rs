//! Queues bytes of a connection in blocks of a pool that all connections share.

use super::budgets::{CHANNELS, SPARE, UNACCEPTED_BLOCKS};

/// Bytes of a block that are bytes of a connection.
pub const PAYLOAD: usize = 4088;

/// A block of a [`BlockPool`].
#[repr(C)]
pub struct Block {
    next: u32,
    owner: u32,
    bytes: [u8; PAYLOAD],
}

impl Block {
    /// One that is not in use.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: 0, owner: 0, bytes: [0; PAYLOAD] }
    }
}

impl Default for Block {
    fn default() -> Self {
        Self::new()
    }
}

/// The account that a block is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockOwner(u32);

impl BlockOwner {
    /// This process: what it has sent and keeps a copy of.
    pub const OWN: BlockOwner = BlockOwner(2 * CHANNELS as u32);

    /// The peer of a channel, for a connection that was accepted.
    #[must_use]
    pub fn accepted(channel: u16) -> Self {
        Self(u32::from(channel) % CHANNELS as u32)
    }

    /// The same for one that was not accepted so far.
    #[must_use]
    pub fn unaccepted(channel: u16) -> Self {
        Self(CHANNELS as u32 + u32::from(channel) % CHANNELS as u32)
    }

    fn is_unaccepted(self) -> bool {
        (CHANNELS as u32..2 * CHANNELS as u32).contains(&self.0)
    }
}

/// Gives the memory of free blocks back to the kernel, which makes them zeros.
pub type Release = fn(&mut [Block]);

/// The blocks of a process, of which 0 stands for none.
///
/// A peer may have as many as are free beside what it has: one alone has half of all, and each of n
/// as much as is left to the next one. So no peer is refused because of what others have.
pub struct BlockPool<'a> {
    blocks: &'a mut [Block],
    /// Free blocks: a stack of `count`, of which the kernel has the lowest `cold` back.
    free: &'a mut [u32],
    count: usize,
    cold: usize,
    release: Release,
    /// Those from here on were never used, so the kernel has given no memory for them.
    end: u32,
    used: usize,
    used_by: [u32; 2 * CHANNELS + 1],
    unaccepted: usize,
}

impl<'a> BlockPool<'a> {
    /// Of memory that is all zeros, with a place for each block's number.
    pub fn new(blocks: &'a mut [Block], free: &'a mut [u32], release: Release) -> Self {
        let (count, cold, end, used, unaccepted) = (0, 0, 1, 0, 0);
        let used_by = [0; 2 * CHANNELS + 1];
        Self { blocks, free, count, cold, release, end, used, used_by, unaccepted }
    }

    /// No more than half of the blocks are in use.
    #[must_use]
    pub fn has_plenty(&self) -> bool {
        self.used < self.blocks.len() / 2
    }

    /// How many blocks the peer of a channel has.
    #[must_use]
    pub fn used_by(&self, channel: u16) -> u32 {
        let of = |owner: BlockOwner| self.used_by[owner.0 as usize];
        of(BlockOwner::accepted(channel)) + of(BlockOwner::unaccepted(channel))
    }

    fn may_take(&self, owner: BlockOwner) -> bool {
        let free = (self.blocks.len() - 1).saturating_sub(self.used);
        let own = self.used_by[owner.0 as usize] as usize;
        match owner {
            BlockOwner::OWN => true,
            _ if owner.is_unaccepted() => {
                own < free.min(UNACCEPTED_BLOCKS.saturating_sub(self.unaccepted))
            }
            _ => own < free,
        }
    }

    fn take(&mut self, owner: BlockOwner) -> Option<u32> {
        if !self.may_take(owner) {
            return None;
        }
        let index = if self.count > 0 {
            self.count -= 1;
            self.cold = self.cold.min(self.count);
            self.free[self.count]
        } else if (self.end as usize) < self.blocks.len() {
            self.end += 1;
            self.end - 1
        } else {
            return None;
        };
        self.blocks[index as usize].next = 0;
        self.used += 1;
        self.charge(index, owner);
        Some(index)
    }

    fn charge(&mut self, index: u32, owner: BlockOwner) {
        self.blocks[index as usize].owner = owner.0;
        self.used_by[owner.0 as usize] += 1;
        self.unaccepted += usize::from(owner.is_unaccepted());
    }

    fn discharge(&mut self, index: u32) {
        let owner = BlockOwner(self.blocks[index as usize].owner);
        self.used_by[owner.0 as usize] -= 1;
        self.unaccepted -= usize::from(owner.is_unaccepted());
    }

    fn give(&mut self, index: u32) {
        self.discharge(index);
        self.free[self.count] = index;
        self.count += 1;
        self.used -= 1;
        if self.count - self.cold > SPARE + self.used {
            self.release_some();
        }
    }

    /// The kernel gets the memory of free blocks back, but for some that are soon used again.
    #[cold]
    fn release_some(&mut self) {
        let kept = (SPARE + self.used) / 2;
        let some = self.cold..(self.count - kept).min(self.cold + SPARE);
        self.free[some.clone()].sort_unstable();
        self.cold = some.end;
        let mut next = some.start;
        while next < some.end {
            let first = self.free[next];
            let is_behind = |(at, index): (usize, &u32)| *index == first + at as u32;
            let in_row = self.free[next..some.end].iter().enumerate();
            let in_row = in_row.take_while(|(at, index)| is_behind((*at, *index))).count();
            (self.release)(&mut self.blocks[first as usize..first as usize + in_row]);
            next += in_row;
        }
    }
}

/// What one connection has of them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ByteQueue {
    first: u32,
    last: u32,
    /// Where bytes begin in the first one, and end in the last one.
    begin: u16,
    end: u16,
    bytes: u32,
}

impl ByteQueue {
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
        (pool, owner): (&mut BlockPool<'_>, BlockOwner),
        length: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> bool {
        let mut done = 0;
        while done < length {
            if self.last == 0 || usize::from(self.end) == PAYLOAD {
                let Some(block) = pool.take(owner) else { return false };
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
    pub fn look(&self, pool: &BlockPool<'_>, most: usize, with: impl FnMut(usize, &[u8])) -> usize {
        self.look_from(pool, 0, most, with)
    }

    /// The same, but for the first `skip` bytes.
    pub fn look_from(
        &self,
        pool: &BlockPool<'_>,
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
    pub fn drop(&mut self, pool: &mut BlockPool<'_>, count: usize) {
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

    /// Its blocks are on another one's account from now on.
    pub fn charge(&self, pool: &mut BlockPool<'_>, owner: BlockOwner) {
        let mut block = self.first;
        while block != 0 {
            pool.discharge(block);
            pool.charge(block, owner);
            block = pool.blocks[block as usize].next;
        }
    }

    /// All bytes are forgotten, and their blocks are free.
    pub fn clear(&mut self, pool: &mut BlockPool<'_>) {
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
            let (mut memory, mut free) = (blocks(64), [0; 64]);
            let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
            let (mut queue, mut model) = (ByteQueue::default(), VecDeque::new());
            let mut next = 0_u8;
            for (what, count) in steps {
                if what == 0 {
                    let room = 63 - model.len().div_ceil(PAYLOAD) - 1;
                    let count = count.min(room * PAYLOAD);
                    let was = next;
                    assert!(queue.push((&mut pool, BlockOwner::OWN), count, |done, bytes| {
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
            assert_eq!((0..).map_while(|_| pool.take(BlockOwner::OWN)).count(), 63);
        }
    }

    #[test]
    fn without_memory_nothing_is_put() {
        let (mut memory, mut free) = (blocks(2), [0; 2]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let mut queue = ByteQueue::default();
        assert!(!queue.push((&mut pool, BlockOwner::OWN), PAYLOAD + 1, |_, _| {}));
        queue.clear(&mut pool);
        assert!(queue.push((&mut pool, BlockOwner::OWN), PAYLOAD, |_, _| {}));
    }

    fn take_all(pool: &mut BlockPool<'_>, owner: BlockOwner) -> Vec<u32> {
        core::iter::from_fn(|| pool.take(owner)).collect()
    }

    #[test]
    fn a_peer_leaves_as_much_as_it_has() {
        let (mut memory, mut free) = (blocks(1025), [0; 1025]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let greedy = [0, 1, 2].map(|channel| take_all(&mut pool, BlockOwner::accepted(channel)));
        assert_eq!(greedy.each_ref().map(Vec::len), [512, 256, 128]);
        // Those that were there before have had their share, and another one has some, too.
        assert_eq!(pool.take(BlockOwner::accepted(0)), None);
        assert_eq!(take_all(&mut pool, BlockOwner::unaccepted(7)).len(), 64);
        greedy[0].iter().for_each(|index| pool.give(*index));
        assert_eq!((pool.used_by(0), pool.used_by(1), pool.used_by(7)), (0, 256, 64));
        assert!(pool.take(BlockOwner::accepted(1)).is_some());
    }

    #[test]
    fn those_that_wait_have_little() {
        let many = 8 * UNACCEPTED_BLOCKS;
        let (mut memory, mut free) = (blocks(many), vec![0; many]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let waiting = take_all(&mut pool, BlockOwner::unaccepted(3)).len();
        assert_eq!(waiting, UNACCEPTED_BLOCKS / 2);
        let all: usize =
            (4..64).map(|of| take_all(&mut pool, BlockOwner::unaccepted(of)).len()).sum();
        assert!(all > 0 && waiting + all <= UNACCEPTED_BLOCKS);
        assert!(pool.take(BlockOwner::accepted(3)).is_some());
    }

    #[test]
    fn what_was_accepted_is_on_another_account() {
        let (mut memory, mut free) = (blocks(9), [0; 9]);
        let mut pool = BlockPool::new(&mut memory, &mut free, |_| {});
        let mut queue = ByteQueue::default();
        assert!(queue.push((&mut pool, BlockOwner::unaccepted(5)), PAYLOAD + 1, |_, _| {}));
        assert_eq!((pool.unaccepted, pool.used_by(5)), (2, 2));
        queue.charge(&mut pool, BlockOwner::accepted(5));
        assert_eq!((pool.unaccepted, pool.used_by(5)), (0, 2));
        queue.clear(&mut pool);
        assert_eq!((pool.used_by(5), pool.used), (0, 0));
    }

    #[test]
    fn memory_goes_back() {
        const MANY: usize = 4 * SPARE;
        let (mut memory, mut free) = (blocks(MANY + 1), vec![0; MANY + 1]);
        // What goes back is marked, and is zeros.
        let release: Release = |blocks| {
            for block in blocks {
                assert_ne!(block.bytes[0], 9, "given back twice");
                (block.bytes[0], block.next) = (9, 0);
            }
        };
        let mut pool = BlockPool::new(&mut memory, &mut free, release);
        for _ in 0..3 {
            let taken = take_all(&mut pool, BlockOwner::OWN);
            assert_eq!(taken.len(), MANY);
            taken.iter().for_each(|index| pool.blocks[*index as usize].bytes[0] = 1);
            // In any order.
            let (even, odd): (Vec<_>, Vec<_>) = taken.iter().partition(|index| *index % 2 == 0);
            even.iter().chain(odd.iter().rev()).for_each(|index| pool.give(*index));
            let left = pool.blocks[1..].iter().filter(|block| block.bytes[0] == 1).count();
            assert!(left <= SPARE, "{left} blocks are kept");
            assert_eq!((pool.used, pool.count), (0, MANY));
        }
    }
}
