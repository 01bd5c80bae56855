//! Chooses the next sender among many: a tree of limits, in which leaves send.
//!
//! A node with packets to send waits for one of two things. While its own limit is used up it waits
//! for *time*, in the wheel. Then it waits for its *turn*, in a ring at its parent, which itself
//! waits for time or a turn as long as that ring has a member. The root goes down the rings to a
//! leaf. Bytes that the leaf sends are taken from every limit on the way up.
//!
//! * Nothing is taken from a leaf before its time: that is the backpressure.
//! * Siblings get equal numbers of their parent's bytes (deficit round robin), for any size of
//!   their packets. One that asks for turns and sends nothing gets no more of them.
//! * Bytes that a node sends beyond its turn are taken from its next ones: a train at most, and
//!   none if no other waited. So no node waits for a past of silence.
//! * Credit is not lost while a node waits for its turn, nor for a busy processor, up to its burst,
//!   a turn's bytes or a millisecond: so limits are exact although thousands of nodes are in the
//!   way.
//! * A change of a limit moves nothing but times: waiting nodes go on waiting.

use crate::limiter::{self, Limit};
use crate::node_limit::Source;
use crate::node_lists::{NONE, Rings};
use crate::shared_limiter::{Lease, SharedLimiter};
use crate::timing_wheel::{SLOTS, Wheel};

/// Bytes of a turn while others wait for theirs: about a packet.
const TURN: i32 = 4096;
/// Bytes that a node owes its siblings at most: a train, which is what may be sent in one go.
const DEBT_MAX: i32 = 64 << 10;
/// Nodes from the root to a leaf at most: line, tenant, shared policy, vNIC, and some to spare.
const DEPTH: usize = 8;

/// The name of a node. That of a removed one is not the name of any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    index: u32,
    generation: u32,
}

/// Why a tree is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such node, or it has been removed.
    NoNode,
    /// Only groups have children.
    NotGroup,
    /// A group that has children, and the root, stay.
    InUse,
    /// The tree would be deeper than it may.
    TooDeep,
}

/// The event that a node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Timed,
    /// For a turn of its parent.
    Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Free,
    Group,
    Leaf,
}

/// A cache line of its own: thousands of nodes are in no cache but the last.
#[derive(Debug)]
#[repr(align(64))]
struct Node {
    kind: Kind,
    state: State,
    generation: u32,
    parent: u32,
    /// The child that had a turn last.
    latest: u32,
    /// Bytes that are left of its turn.
    left: i32,
    /// The rest of it at the beginning of its last turn.
    left_then: i32,
    limiter: Source,
}

const _: () = assert!(size_of::<Node>() == 64, "a node is a cache line");

/// A tree of limits. Its root is the line.
#[derive(Debug)]
pub struct Pacer {
    nodes: Vec<Node>,
    /// For each node, how many children it has.
    children: Vec<u32>,
    free: Vec<u32>,
    wheel: Wheel,
    /// The slots of the wheel; then for each node its children that wait for a turn. A node waits
    /// for one thing at a time, so it is in one ring at most.
    rings: Rings,
    /// A leaf that waits for time waits so many nanoseconds at least.
    pause: u64,
}

const ROOT: u32 = 0;

/// The ring of those that wait for a turn of a node.
fn turns_of(node: u32) -> u32 {
    SLOTS as u32 + node
}

impl Pacer {
    /// A tree of a root without a limit. A leaf that has used up its limit waits `pause`
    /// nanoseconds at least, so that it may send several packets in one go; the rate stays what it
    /// is. Less than a millisecond.
    #[must_use]
    pub fn new(pause: u64) -> Pacer {
        let mut pacer = Pacer {
            nodes: Vec::new(),
            children: Vec::new(),
            free: Vec::new(),
            wheel: Wheel::new(),
            rings: Rings::default(),
            pause: pause.min(limiter::CATCH_UP),
        };
        pacer.insert(Kind::Group, NONE, Source::Free);
        pacer
    }

    /// The line, which every leaf sends by.
    #[must_use]
    pub fn root(&self) -> NodeId {
        NodeId { index: ROOT, generation: 0 }
    }

    /// A new group of leaves and groups, within another.
    ///
    /// # Errors
    /// The parent is not one, or too deep.
    pub fn add_group(
        &mut self,
        parent: NodeId,
        limit: Option<Limit>,
        now: u64,
    ) -> Result<NodeId, Refused> {
        self.add(Kind::Group, parent, limit, now)
    }

    /// A new leaf, within a group.
    ///
    /// # Errors
    /// The parent is not one, or too deep.
    pub fn add_leaf(
        &mut self,
        parent: NodeId,
        limit: Option<Limit>,
        now: u64,
    ) -> Result<NodeId, Refused> {
        self.add(Kind::Leaf, parent, limit, now)
    }

    fn add(
        &mut self,
        kind: Kind,
        parent: NodeId,
        limit: Option<Limit>,
        now: u64,
    ) -> Result<NodeId, Refused> {
        let parent = self.group(parent)?;
        if self.path(parent).count() >= DEPTH {
            return Err(Refused::TooDeep);
        }
        let index = self.insert(kind, parent, Source::new(limit, now));
        self.children[parent as usize] += 1;
        Ok(NodeId { index, generation: self.nodes[index as usize].generation })
    }

    fn insert(&mut self, kind: Kind, parent: u32, limiter: Source) -> u32 {
        let mut node = Node {
            kind,
            state: State::Idle,
            generation: 0,
            parent,
            latest: NONE,
            left: TURN,
            left_then: TURN,
            limiter,
        };
        if let Some(index) = self.free.pop() {
            node.generation = self.nodes[index as usize].generation;
            self.nodes[index as usize] = node;
            return index;
        }
        let index = self.nodes.len();
        self.nodes.push(node);
        self.children.push(0);
        self.rings.grow_members(index + 1);
        self.rings.grow_rings(turns_of(index as u32) as usize + 1);
        index as u32
    }

    /// A node is gone, and what it is owed or owes.
    ///
    /// # Errors
    /// It is a group that has children.
    pub fn remove(&mut self, id: NodeId) -> Result<(), Refused> {
        let index = self.find(id)?;
        if index == ROOT || self.children[index as usize] > 0 {
            return Err(Refused::InUse);
        }
        self.unlink(index);
        let node = &mut self.nodes[index as usize];
        node.kind = Kind::Free;
        node.generation = node.generation.wrapping_add(1);
        let parent = std::mem::replace(&mut node.parent, NONE);
        self.children[parent as usize] -= 1;
        self.free.push(index);
        Ok(())
    }

    /// A node is in another group from now on, with what it is owed and owes.
    ///
    /// # Errors
    /// There is no such group, it is too deep, or it is within the node.
    pub fn move_to(&mut self, id: NodeId, parent: NodeId, now: u64) -> Result<(), Refused> {
        let (index, parent) = (self.find(id)?, self.group(parent)?);
        if index == ROOT || self.path(parent).any(|above| above == index) {
            return Err(Refused::InUse);
        }
        // Below a group there may be as many levels as there are: it moves while it has none.
        if self.children[index as usize] > 0 {
            return Err(Refused::InUse);
        }
        if self.path(parent).count() >= DEPTH {
            return Err(Refused::TooDeep);
        }
        if self.nodes[index as usize].parent == parent {
            return Ok(());
        }
        let waits = self.nodes[index as usize].state != State::Idle;
        self.unlink(index);
        let old = std::mem::replace(&mut self.nodes[index as usize].parent, parent);
        self.children[old as usize] -= 1;
        self.children[parent as usize] += 1;
        if waits {
            self.arm(index, now);
        }
        Ok(())
    }

    /// Another limit for a node from now on, or none.
    ///
    /// # Errors
    /// There is no such node.
    pub fn set_limit(&mut self, id: NodeId, limit: Option<Limit>, now: u64) -> Result<(), Refused> {
        let index = self.find(id)?;
        let node = &mut self.nodes[index as usize];
        match (limit, &mut node.limiter) {
            (Some(limit), Source::Own(limiter)) => limiter.change(limit, now),
            (limit, limiter) => *limiter = Source::new(limit, now),
        }
        self.look_again(index, now);
        Ok(())
    }

    /// A group has a limit from now on that groups of other trees have, too; or that limit has
    /// changed.
    ///
    /// # Errors
    /// There is no such group.
    pub fn set_shared_limit(
        &mut self,
        id: NodeId,
        limiter: SharedLimiter,
        now: u64,
    ) -> Result<(), Refused> {
        let index = self.group(id)?;
        let mut lease = Lease::new(limiter);
        if let Source::Shared(old) = &self.nodes[index as usize].limiter {
            lease.owes_like(old);
        }
        self.nodes[index as usize].limiter = Source::Shared(lease);
        self.look_again(index, now);
        Ok(())
    }

    /// A node's limit has changed: what it waits for may have.
    fn look_again(&mut self, index: u32, now: u64) {
        if self.nodes[index as usize].state == State::Timed {
            self.wheel.remove(&mut self.rings, index);
            self.arm(index, now);
        }
    }

    /// The limit of a node.
    #[must_use]
    pub fn limit(&self, id: NodeId) -> Option<Limit> {
        self.nodes[self.find(id).ok()? as usize].limiter.limit()
    }

    /// A leaf has something to send: [`Pacer::next`] says when it may. Once is enough.
    pub fn want(&mut self, leaf: NodeId, now: u64) {
        let Ok(index) = self.leaf(leaf) else { return };
        let node = &mut self.nodes[index as usize];
        if node.state != State::Idle {
            return;
        }
        node.limiter.prepare(Some(self.pause), now);
        self.arm(index, now);
    }

    /// A leaf has nothing to send any more.
    pub fn cancel(&mut self, leaf: NodeId) {
        if let Ok(index) = self.leaf(leaf) {
            self.unlink(index);
        }
    }

    /// Whether a leaf that does not wait may send at once: every limit above it allows that, and no
    /// node waits for a turn there.
    pub fn may_begin(&mut self, leaf: NodeId, now: u64) -> bool {
        let Ok(index) = self.leaf(leaf) else { return true };
        if self.nodes[index as usize].state != State::Idle {
            return false;
        }
        self.nodes[index as usize].limiter.prepare(Some(self.pause), now);
        let (mut above, mut owes) = (index, false);
        while above != NONE {
            let node = &mut self.nodes[above as usize];
            owes |= node.left <= 0;
            if above != index {
                node.limiter.prepare(None, now);
            }
            if !node.limiter.is_ready(now)
                || above != index && self.rings.front(turns_of(above)) != NONE
            {
                return false;
            }
            above = node.parent;
        }
        if owes {
            self.forgive(index);
        }
        true
    }

    /// No node waits for a turn beside a leaf, nor beside any node above it: bytes that these sent
    /// before are not owed.
    fn forgive(&mut self, mut index: u32) {
        while let Some(node) = self.nodes.get_mut(index as usize) {
            if node.left <= 0 {
                (node.left, node.left_then) = (TURN, TURN);
            }
            index = node.parent;
        }
    }

    /// Whether a leaf may send one more packet in its turn: every limit above it allows that, and
    /// its turn is not over, or no node waits for the next.
    #[must_use]
    pub fn may_go_on(&self, leaf: NodeId, now: u64) -> bool {
        let Ok(index) = self.leaf(leaf) else { return true };
        self.path(index).all(|above| {
            let node = &self.nodes[above as usize];
            node.limiter.is_ready(now) && (node.left > 0 || self.is_alone(above, node.parent))
        })
    }

    /// Whether no other child of its parent waits for a turn.
    fn is_alone(&self, index: u32, parent: u32) -> bool {
        if parent == NONE {
            return true;
        }
        let first = self.rings.front(turns_of(parent));
        first == NONE || first == index && self.rings.has_one(turns_of(parent))
    }

    /// When the limits above a leaf will allow it to send, as far as they tell: others may be
    /// before it.
    #[must_use]
    pub fn ready_at(&self, leaf: NodeId, now: u64) -> u64 {
        let Ok(index) = self.leaf(leaf) else { return now };
        let times = self.path(index).map(|above| self.nodes[above as usize].limiter.ready_at());
        times.max().unwrap_or(now).max(now)
    }

    /// A leaf has sent so many bytes: with a turn, or on account.
    pub fn sent(&mut self, leaf: NodeId, bytes: u64, now: u64) {
        let Ok(mut index) = self.leaf(leaf) else { return };
        while let Some(node) = self.nodes.get_mut(index as usize) {
            node.limiter.take(bytes, now);
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            node.left = node.left.saturating_sub_unsigned(bytes).max(-DEBT_MAX);
            index = node.parent;
        }
    }

    /// The leaf whose turn it is. It does not wait any more: it sends, and says how much before
    /// this is asked again, and whether it wants more.
    pub fn next(&mut self, now: u64) -> Option<NodeId> {
        while let Some(index) = self.wheel.pop(&mut self.rings, now) {
            // Beyond the horizon it comes out early.
            self.arm(index, now);
        }
        loop {
            if self.nodes[ROOT as usize].state != State::Turn {
                return None;
            }
            if !self.is_ready(ROOT, now) {
                self.arm(ROOT, now);
                continue;
            }
            if let Some(leaf) = self.descend(now) {
                let generation = self.nodes[leaf as usize].generation;
                return Some(NodeId { index: leaf, generation });
            }
        }
    }

    /// When [`Pacer::next`] may have something.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        match self.nodes[ROOT as usize].state {
            State::Turn => Some(0),
            _ => self.wheel.first(),
        }
    }

    /// Goes down from the root to a leaf whose turn it is. `None`: a node on the way has to wait
    /// for time, and does so now.
    fn descend(&mut self, now: u64) -> Option<u32> {
        let mut at = ROOT;
        loop {
            let child = self.rings.front(turns_of(at));
            if child == NONE {
                // Cannot be: a node with a turn has a child to give it to.
                self.unlink(at);
                return None;
            }
            if !self.is_ready(child, now) {
                self.unlink(child);
                self.arm(child, now);
                return None;
            }
            let is_alone = self.rings.has_one(turns_of(at));
            let node = &mut self.nodes[child as usize];
            if node.left <= 0 {
                if is_alone {
                    node.left = TURN;
                } else {
                    node.left = (node.left + TURN).min(TURN);
                    self.rings.remove(child);
                    self.rings.push_back(turns_of(at), child);
                    continue;
                }
            }
            let kind = node.kind;
            node.left_then = node.left;
            self.nodes[at as usize].latest = child;
            if kind == Kind::Leaf {
                self.unlink(child);
                return Some(child);
            }
            at = child;
        }
    }

    /// Has a node that waits for nothing, or did for time, wait for what it has to: time, or a
    /// turn.
    fn arm(&mut self, index: u32, now: u64) {
        let node = &mut self.nodes[index as usize];
        node.limiter.prepare(None, now);
        if node.limiter.is_ready(now) {
            return self.take_turn(index, now);
        }
        let at = node.limiter.ready_at();
        node.state = State::Timed;
        let pause = if node.kind == Kind::Leaf { self.pause } else { 0 };
        self.wheel.insert(&mut self.rings, index, at.max(now + pause), now);
    }

    /// Has a node wait for a turn of its parent.
    fn take_turn(&mut self, index: u32, now: u64) {
        let node = &mut self.nodes[index as usize];
        node.state = State::Turn;
        let (parent, left, unused) = (node.parent, node.left, node.left_then == node.left);
        if index == ROOT {
            return;
        }
        // A node that left in the middle of its turn goes on with it, if it used it and no other
        // had one meanwhile.
        if left > 0 && !unused && self.nodes[parent as usize].latest == index {
            self.rings.push_front(turns_of(parent), index);
        } else {
            self.nodes[index as usize].left = (left + TURN).min(TURN);
            self.rings.push_back(turns_of(parent), index);
        }
        let above = &mut self.nodes[parent as usize];
        if above.state == State::Idle {
            self.arm(parent, now);
        }
    }

    /// Has a node wait for nothing any more, nor any above it that waited on its account only.
    fn unlink(&mut self, mut index: u32) {
        loop {
            let node = &mut self.nodes[index as usize];
            let (state, parent) = (std::mem::replace(&mut node.state, State::Idle), node.parent);
            match state {
                State::Idle => return,
                State::Timed => {
                    self.wheel.remove(&mut self.rings, index);
                    return;
                }
                State::Turn if index == ROOT => return,
                State::Turn => {
                    self.rings.remove(index);
                }
            }
            if self.rings.front(turns_of(parent)) != NONE {
                return;
            }
            index = parent;
        }
    }

    fn is_ready(&self, index: u32, now: u64) -> bool {
        self.nodes[index as usize].limiter.is_ready(now)
    }

    /// A node and all above it.
    fn path(&self, from: u32) -> impl Iterator<Item = u32> {
        let above = |index: &u32| Some(self.nodes[*index as usize].parent);
        std::iter::successors(Some(from), move |index| above(index).filter(|it| *it != NONE))
    }

    fn find(&self, id: NodeId) -> Result<u32, Refused> {
        let node = self.nodes.get(id.index as usize).ok_or(Refused::NoNode)?;
        let there = node.kind != Kind::Free && node.generation == id.generation;
        if there { Ok(id.index) } else { Err(Refused::NoNode) }
    }

    fn group(&self, id: NodeId) -> Result<u32, Refused> {
        let index = self.find(id)?;
        match self.nodes[index as usize].kind {
            Kind::Group => Ok(index),
            _ => Err(Refused::NotGroup),
        }
    }

    fn leaf(&self, id: NodeId) -> Result<u32, Refused> {
        let index = self.find(id)?;
        match self.nodes[index as usize].kind {
            Kind::Leaf => Ok(index),
            _ => Err(Refused::NoNode),
        }
    }
}

#[cfg(test)]
#[path = "pacer_tests.rs"]
mod tests;
