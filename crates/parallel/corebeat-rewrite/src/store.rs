//! The columns of a graph. All columns are atomic words, so that threads read a graph while other
//! threads rewrite it.
//!
//! ```text
//!   node 7: type, place among the nodes of its type
//!   edge 3: type, source and target, place in the two lists below
//!   outgoing edges of type 0 of node 7: [ length, capacity | edge 3, node 9 | edge 5, node 2 | ..
//!   incoming edges of type 0 of node 9: [ edge 3, node 7 ]
//! ```
//!
//! A list of one edge is one word; a list that has grown has a header, also when it shrinks again.
//! An edge takes 18 bytes for itself, and 8 bytes in each of two lists. The methods that change the
//! columns take a [`Space`]: the numbers and the memory that one thread uses for new elements.

use crate::array::{Array, INDEX_MAX, is_in_one_bucket};
use crate::change::{Changes, Fact};
use crate::error::Error;
use crate::schema::{EdgeType, Key, NodeType, Schema};
use crate::value::{Column, Literals, Scalar, lock};
use corebeat_sync::atomic::AtomicU64 as LockWord;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The two ends of an edges' list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Out = 0,
    In = 1,
}
use Direction::{In, Out};

impl Direction {
    pub(crate) fn reversed(self) -> Direction {
        if self == Out { In } else { Out }
    }
}

/// Ends of an edge that does not exist.
const NO_ENDS: u64 = u64::MAX;
/// Number of size classes of lists.
const CLASSES: usize = 60;
/// Class of a list of one edge, which has no header.
const SINGLE_CLASS: usize = 0;
/// Class of the first list with a header: three edges.
const FIRST_CLASS: usize = 2;
/// Marks the handle of a list of one edge.
const SINGLE: u32 = 1 << 31;
/// How many numbers a thread takes at a time.
const BATCH: u32 = 64;
/// How many words a thread takes at a time.
const WORDS_BATCH: u32 = 4096;
/// Words that must be free before a rule is applied, so that no application runs out of words.
const WORDS_MARGIN: u64 = 1 << 26;

/// Number of words of the lists of a class: 1, 3, 4, 6, 8, 12, ...
fn class_size(class: usize) -> u32 {
    if class == SINGLE_CLASS { 1 } else { (2 + (class as u32 & 1)) << (class / 2) }
}

/// The smallest class that has `words`.
fn class_above(words: u32) -> usize {
    (0..CLASSES).find(|class| class_size(*class) >= words).unwrap_or(CLASSES - 1)
}

/// The nodes of a type. An entry is valid if the node has the type and its place is the entry's
/// index; nodes that were deleted leave invalid entries.
#[derive(Default)]
struct Members {
    list: Array<AtomicU32, true>,
    len: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) schema: Schema,
    pub(crate) literals: Literals,
    /// Type + 1 by node; 0 for a node that does not exist.
    node_types: Array<AtomicU16, true>,
    node_places: Array<AtomicU32, true>,
    members: Vec<Members>,
    edge_types: Array<AtomicU16, true>,
    /// Source and target in the upper and the lower half.
    edge_ends: Array<AtomicU64, true>,
    /// By direction, the index in the list of the source and of the target. Each is protected by
    /// the lock of its node, so the two must not share a word.
    edge_places: [Array<AtomicU32, true>; 2],
    /// By edge type and direction: the list of a node, as its index in `words` + 1, possibly with
    /// [`SINGLE`]; 0 for none.
    lists: Vec<[Array<AtomicU32>; 2]>,
    words: Array<AtomicU64, true>,
    node_columns: Vec<Column>,
    edge_columns: Vec<Column>,
    next_node: AtomicU64,
    next_edge: AtomicU64,
    next_word: AtomicU64,
    spare: Mutex<Spare>,
    /// By node, for parallel runs.
    pub(crate) locks: Array<LockWord>,
    /// How often nodes have moved in the lists of the nodes of their types.
    pub(crate) moves: u64,
}

/// Numbers and words that threads took and did not use.
#[derive(Default)]
struct Spare {
    nodes: Vec<u32>,
    edges: Vec<u32>,
    words: Vec<Range<u32>>,
}

/// Numbers and memory that one thread uses for new elements.
#[derive(Default)]
pub(crate) struct Space {
    nodes: Range<u32>,
    free_nodes: Vec<u32>,
    edges: Range<u32>,
    free_edges: Vec<u32>,
    words: Range<u32>,
    free_lists: Vec<Vec<u32>>,
    /// Nodes with a new type, which `members` lacks.
    pub(crate) unlisted: Vec<u32>,
    pub(crate) changes: Changes,
    /// Changes of the numbers of nodes and edges, by type.
    pub(crate) node_counts: Vec<i64>,
    pub(crate) edge_counts: Vec<i64>,
}

fn add(own: &mut Vec<i64>, other: &[i64]) {
    own.resize(own.len().max(other.len()), 0);
    own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
}

fn count(counts: &mut Vec<i64>, index: u16, change: i64) {
    if counts.len() <= usize::from(index) {
        counts.resize(usize::from(index) + 1, 0);
    }
    counts[usize::from(index)] += change;
}

/// The entries of a list.
#[inline(always)]
fn entries(words: &Array<AtomicU64, true>, handle: u32) -> &[AtomicU64] {
    if handle == 0 {
        return &[];
    }
    if handle & SINGLE != 0 {
        return words.rest((handle ^ SINGLE) - 1).get(..1).unwrap_or(&[]);
    }
    match words.rest(handle - 1) {
        [header, entries @ ..] => {
            entries.get(..header.load(Relaxed) as u32 as usize).unwrap_or(&[])
        }
        [] => &[],
    }
}

impl Space {
    /// An empty space that adds changes to a set.
    pub(crate) fn recording(changes: Changes) -> Space {
        Space { changes, ..Space::default() }
    }

    /// Keeps the words of a list for later lists of this class.
    #[inline]
    fn free_list(&mut self, class: usize, handle: u32) {
        if self.free_lists.len() <= class {
            self.free_lists.resize_with(CLASSES, Vec::new);
        }
        self.free_lists[class].push(handle);
    }
}

/// Takes spare numbers.
fn refill(own: &mut Vec<u32>, spare: &mut Vec<u32>) -> Option<u32> {
    let from = spare.len().saturating_sub(BATCH as usize);
    own.extend(spare.drain(from..));
    own.pop()
}

/// Takes numbers from a counter. The callers of [`Store::require_room`] leave room for them.
fn take(next: &AtomicU64, count: u32) -> Range<u32> {
    let from = next.fetch_add(count.into(), Relaxed);
    assert!(from + u64::from(count) <= INDEX_MAX.into(), "the graph has no room left");
    from as u32..from as u32 + count
}

/// Reads.
impl Store {
    #[inline(always)]
    pub(crate) fn node_type(&self, node: u32) -> Option<NodeType> {
        let number = self.node_types.get(node)?.load(Relaxed);
        number.checked_sub(1).map(NodeType)
    }

    #[inline]
    pub(crate) fn edge_type(&self, edge: u32) -> Option<EdgeType> {
        let number = self.edge_types.get(edge)?.load(Relaxed);
        number.checked_sub(1).map(EdgeType)
    }

    /// Source and target of an edge that exists.
    #[inline]
    pub(crate) fn ends(&self, edge: u32) -> Option<(u32, u32)> {
        self.edge_type(edge)?;
        let ends = self.edge_ends.get(edge)?.load(Relaxed);
        (ends != NO_ENDS).then_some(((ends >> 32) as u32, ends as u32))
    }

    /// The list of edges of a node: the edge in the upper half, the other end in the lower half.
    #[inline(always)]
    pub(crate) fn list(&self, of: EdgeType, direction: Direction, node: u32) -> &[AtomicU64] {
        let lists = self.lists.get(usize::from(of.0)).map(|lists| &lists[direction as usize]);
        let handle = lists.and_then(|lists| lists.get(node)).map_or(0, |list| list.load(Relaxed));
        entries(&self.words, handle)
    }

    /// Exclusive upper bound of the numbers of nodes.
    pub(crate) fn node_limit(&self) -> u32 {
        self.next_node.load(Relaxed) as u32
    }

    /// Exclusive upper bound of the numbers of edges.
    pub(crate) fn edge_limit(&self) -> u32 {
        self.next_edge.load(Relaxed) as u32
    }

    /// Number of entries of [`Store::member`].
    pub(crate) fn member_limit(&self, of: NodeType) -> u32 {
        self.members.get(usize::from(of.0)).map_or(0, |members| members.len)
    }

    /// The node of exactly this type at an index, if there is one.
    #[inline(always)]
    pub(crate) fn member(&self, of: NodeType, index: u32) -> Option<u32> {
        let node = self.members[usize::from(of.0)].list.get(index)?.load(Relaxed);
        let is_valid =
            self.node_type(node) == Some(of) && self.node_places.get(node)?.load(Relaxed) == index;
        is_valid.then_some(node)
    }

    #[inline]
    pub(crate) fn node_value(&self, node: u32, key: Key) -> Scalar {
        self.node_columns.get(usize::from(key.0)).map_or(Scalar::Null, |column| column.get(node))
    }

    #[inline]
    pub(crate) fn edge_value(&self, edge: u32, key: Key) -> Scalar {
        self.edge_columns.get(usize::from(key.0)).map_or(Scalar::Null, |column| column.get(edge))
    }
}

/// Changes. The caller owns the graph, or holds the write locks of all nodes whose words or lists
/// change.
impl Store {
    /// Makes room for types and attributes that the schema has gained.
    pub(crate) fn fit_to_schema(&mut self) {
        self.members.resize_with(self.schema.node_types().count(), Members::default);
        self.lists.resize_with(self.schema.edge_types().count(), Default::default);
        self.node_columns.resize_with(self.schema.keys().count(), Column::default);
        self.edge_columns.resize_with(self.schema.keys().count(), Column::default);
    }

    /// Checks that a change that adds so many elements cannot run out of numbers or memory words.
    pub(crate) fn require_room(&self, nodes: usize, edges: usize) -> Result<(), Error> {
        let limit = u64::from(INDEX_MAX);
        // Other threads may take a batch at the same time.
        let threads = 2 * u64::from(BATCH) * corebeat_lpel::WORKERS_MAX as u64;
        for (next, more, of) in [
            (&self.next_node, nodes as u64 + threads, "nodes"),
            (&self.next_edge, edges as u64 + threads, "edges"),
            (&self.next_word, WORDS_MARGIN, "entries in lists of edges"),
        ] {
            if next.load(Relaxed) + more > limit {
                return Err(Error::Full { of, limit });
            }
        }
        Ok(())
    }

    /// Takes over what another thread has counted, and what it did not use.
    pub(crate) fn absorb(&self, own: &mut Space, other: Space) {
        own.unlisted.extend(other.unlisted);
        own.changes.absorb(other.changes);
        own.free_lists.resize_with(CLASSES, Vec::new);
        for (own, other) in own.free_lists.iter_mut().zip(other.free_lists) {
            own.extend(other);
        }
        add(&mut own.node_counts, &other.node_counts);
        add(&mut own.edge_counts, &other.edge_counts);
        let mut spare = lock(&self.spare);
        spare.nodes.extend(other.nodes.chain(other.free_nodes));
        spare.edges.extend(other.edges.chain(other.free_edges));
        spare.words.extend(Some(other.words).filter(|words| !words.is_empty()));
    }

    /// Returns a number for a new node, without creating the node.
    pub(crate) fn take_node(&self, space: &mut Space) -> u32 {
        space.free_nodes.pop().unwrap_or_else(|| {
            if space.nodes.is_empty() {
                if let Some(node) = refill(&mut space.free_nodes, &mut lock(&self.spare).nodes) {
                    return node;
                }
                space.nodes = take(&self.next_node, BATCH);
            }
            space.nodes.start += 1;
            space.nodes.start - 1
        })
    }

    pub(crate) fn create_node(&self, space: &mut Space, node: u32, of: NodeType) {
        self.node_types.make(node).store(of.0 + 1, Relaxed);
        space.unlisted.push(node);
        count(&mut space.node_counts, of.0, 1);
        self.record(space, node, Fact::Type(of));
    }

    pub(crate) fn retype_node(&self, space: &mut Space, node: u32, of: NodeType) {
        if let Some(old) = self.node_type(node).filter(|old| *old != of) {
            count(&mut space.node_counts, old.0, -1);
            self.record(space, node, Fact::Type(old));
            self.create_node(space, node, of);
        }
    }

    /// Deletes a node without edges.
    pub(crate) fn delete_node(&self, space: &mut Space, node: u32) {
        let Some(of) = self.node_type(node) else { return };
        self.node_types.make(node).store(0, Relaxed);
        self.node_columns.iter().for_each(|column| column.set(node, Scalar::Null));
        space.free_nodes.push(node);
        count(&mut space.node_counts, of.0, -1);
        self.record(space, node, Fact::Type(of));
    }

    pub(crate) fn create_edge(&self, space: &mut Space, of: EdgeType, from: u32, to: u32) -> u32 {
        let edge = space.free_edges.pop().unwrap_or_else(|| {
            if space.edges.is_empty() {
                if let Some(edge) = refill(&mut space.free_edges, &mut lock(&self.spare).edges) {
                    return edge;
                }
                space.edges = take(&self.next_edge, BATCH);
            }
            space.edges.start += 1;
            space.edges.start - 1
        });
        self.edge_ends.make(edge).store(u64::from(from) << 32 | u64::from(to), Relaxed);
        self.edge_types.make(edge).store(of.0 + 1, Relaxed);
        self.link(space, of, Out, from, edge, to);
        self.link(space, of, In, to, edge, from);
        count(&mut space.edge_counts, of.0, 1);
        self.record_edge(space, of, from, to);
        edge
    }

    pub(crate) fn delete_edge(&self, space: &mut Space, edge: u32) {
        let (Some(of), Some((from, to))) = (self.edge_type(edge), self.ends(edge)) else { return };
        self.unlink(space, of, Out, from, edge);
        self.unlink(space, of, In, to, edge);
        // A thread that holds the locks of the former ends, and that reads the number again, reads
        // either these ends or the ends of a later edge.
        self.edge_ends.make(edge).store(NO_ENDS, Relaxed);
        self.edge_types.make(edge).store(0, Relaxed);
        self.edge_columns.iter().for_each(|column| column.set(edge, Scalar::Null));
        space.free_edges.push(edge);
        count(&mut space.edge_counts, of.0, -1);
        self.record_edge(space, of, from, to);
    }

    pub(crate) fn set_node_value(&self, space: &mut Space, node: u32, key: Key, value: Scalar) {
        self.node_columns[usize::from(key.0)].set(node, value);
        self.record(space, node, Fact::Value(key));
    }

    pub(crate) fn set_edge_value(&self, space: &mut Space, edge: u32, key: Key, value: Scalar) {
        self.edge_columns[usize::from(key.0)].set(edge, value);
        if let (Some(of), Some((from, to))) = (self.edge_type(edge), self.ends(edge)) {
            self.record_edge(space, of, from, to);
        }
    }

    #[inline]
    fn record(&self, space: &mut Space, node: u32, fact: Fact) {
        if space.changes.is_recording() {
            space.changes.push(node, fact);
        }
    }

    /// Records that an edge exists, exists no more, or has another attribute.
    #[inline]
    fn record_edge(&self, space: &mut Space, of: EdgeType, from: u32, to: u32) {
        self.record(space, from, Fact::List(of, Out));
        self.record(space, to, Fact::List(of, In));
    }

    /// Calls `f` with each edge of a node. An edge from the node to itself is passed twice.
    pub(crate) fn each_edge(&self, node: u32, mut f: impl FnMut(Direction, EdgeType, u32, u32)) {
        for of in (0..self.lists.len() as u16).map(EdgeType) {
            for direction in [Out, In] {
                for entry in self.list(of, direction, node) {
                    let entry = entry.load(Relaxed);
                    f(direction, of, (entry >> 32) as u32, entry as u32);
                }
            }
        }
    }

    /// Adds the nodes of new types to the lists of their types.
    pub(crate) fn settle(&mut self, space: &mut Space) {
        for node in space.unlisted.drain(..) {
            let Some(of) = self.node_type(node) else { continue };
            let members = &mut self.members[usize::from(of.0)];
            let live = space.node_counts[usize::from(of.0)].max(0) as u32;
            if members.len > 2 * live + BATCH {
                let valid = (0..members.len).filter_map(|index| {
                    let node = members.list.get(index)?.load(Relaxed);
                    let place = self.node_places.get(node)?;
                    let number = self.node_types.get(node)?.load(Relaxed);
                    (number == of.0 + 1 && place.load(Relaxed) == index).then_some(node)
                });
                let valid: Vec<u32> = valid.collect();
                for (index, node) in (0..).zip(&valid) {
                    members.list.make(index).store(*node, Relaxed);
                    self.node_places.make(*node).store(index, Relaxed);
                }
                members.len = valid.len() as u32;
                self.moves += 1;
            }
            members.list.make(members.len).store(node, Relaxed);
            self.node_places.make(node).store(members.len, Relaxed);
            members.len += 1;
        }
    }

    /// Moves all lists next to each other, in the order of their nodes and without room for more
    /// edges.
    pub(crate) fn compact(&mut self, space: &mut Space) {
        let old = std::mem::take(&mut self.words);
        self.next_word = AtomicU64::new(0);
        space.words = 0..0;
        space.free_lists.clear();
        lock(&self.spare).words.clear();
        for node in 0..self.node_limit() {
            for lists in self.lists.iter().flatten() {
                let Some(list) = lists.get(node).filter(|list| list.load(Relaxed) != 0) else {
                    continue;
                };
                match entries(&old, list.load(Relaxed)) {
                    [] => list.store(0, Relaxed),
                    [only] => list.store(self.single(space, only.load(Relaxed)), Relaxed),
                    all => {
                        let len = all.len() as u32;
                        let handle = self.new_list(space, len + 1);
                        let new = self.words.rest(handle - 1);
                        new[0].store(u64::from(len) << 32 | u64::from(len), Relaxed);
                        for (new, old) in new[1..].iter().zip(all) {
                            new.store(old.load(Relaxed), Relaxed);
                        }
                        list.store(handle, Relaxed);
                    }
                }
            }
        }
    }

    /// Returns the handle of a new list with one entry.
    #[inline]
    fn single(&self, space: &mut Space, entry: u64) -> u32 {
        let free = space.free_lists.get_mut(SINGLE_CLASS).and_then(Vec::pop);
        let handle = free.unwrap_or_else(|| {
            if space.words.is_empty() {
                space.words = self.more_words();
            }
            space.words.start += 1;
            space.words.start
        });
        self.words.make(handle - 1).store(entry, Relaxed);
        handle | SINGLE
    }

    /// Returns the handle of a list of `size` words, which are not initialised.
    fn new_list(&self, space: &mut Space, size: u32) -> u32 {
        if size > WORDS_BATCH / 4 {
            loop {
                let range = take(&self.next_word, size);
                if is_in_one_bucket(range.start, size) {
                    self.words.make(range.start);
                    return range.start + 1;
                }
            }
        }
        loop {
            let Range { start, end } = space.words;
            if end - start >= size && is_in_one_bucket(start, size) {
                self.words.make(start);
                space.words.start += size;
                return start + 1;
            }
            match end - start > size {
                true => space.words.start += 1,
                false => space.words = self.more_words(),
            }
        }
    }

    #[cold]
    fn more_words(&self) -> Range<u32> {
        let spare = lock(&self.spare).words.pop();
        spare.unwrap_or_else(|| take(&self.next_word, WORDS_BATCH))
    }

    /// Adds an entry to a list.
    #[inline]
    fn link(
        &self,
        space: &mut Space,
        of: EdgeType,
        direction: Direction,
        node: u32,
        edge: u32,
        other: u32,
    ) {
        let list = self.lists[usize::from(of.0)][direction as usize].make(node);
        let entry = u64::from(edge) << 32 | u64::from(other);
        let mut handle = list.load(Relaxed);
        let mut len = 0;
        if handle == 0 {
            handle = self.single(space, entry);
        } else {
            let is_full = handle & SINGLE != 0 || {
                let header = self.words.rest(handle - 1)[0].load(Relaxed);
                header as u32 == (header >> 32) as u32
            };
            if is_full {
                handle = self.grown(space, handle);
            }
            let words = self.words.rest(handle - 1);
            let header = words[0].load(Relaxed);
            len = header as u32;
            words[1 + len as usize].store(entry, Relaxed);
            words[0].store(header + 1, Relaxed);
        }
        self.edge_places[direction as usize].make(edge).store(len, Relaxed);
        list.store(handle, Relaxed);
    }

    /// Copies a full list into a larger one. Returns its handle.
    #[cold]
    fn grown(&self, space: &mut Space, old: u32) -> u32 {
        let all = entries(&self.words, old);
        let len = all.len() as u32;
        // Half as much again, and at least one entry more.
        let class = class_above(len + 1 + len / 2 + 1).max(FIRST_CLASS);
        let free = space.free_lists.get_mut(class).and_then(Vec::pop);
        let new = free.unwrap_or_else(|| self.new_list(space, class_size(class)));
        let words = self.words.rest(new - 1);
        for (new, old) in words[1..].iter().zip(all) {
            new.store(old.load(Relaxed), Relaxed);
        }
        words[0].store(u64::from(class_size(class) - 1) << 32 | u64::from(len), Relaxed);
        match old & SINGLE {
            0 => space.free_list((class_above(len + 2) - 1).min(CLASSES - 1), old),
            _ => space.free_list(SINGLE_CLASS, old ^ SINGLE),
        }
        new
    }

    /// Removes an entry: the last entry of the list takes its place.
    #[inline]
    fn unlink(&self, space: &mut Space, of: EdgeType, direction: Direction, node: u32, edge: u32) {
        let list = self.lists[usize::from(of.0)][direction as usize].make(node);
        let handle = list.load(Relaxed);
        if handle & SINGLE != 0 {
            list.store(0, Relaxed);
            return space.free_list(SINGLE_CLASS, handle ^ SINGLE);
        }
        let words = self.words.rest(handle - 1);
        let header = words[0].load(Relaxed);
        let last = header as u32 - 1;
        let places = &self.edge_places[direction as usize];
        let place = places.make(edge).load(Relaxed);
        debug_assert_eq!((words[1 + place as usize].load(Relaxed) >> 32) as u32, edge);
        let moved = words[1 + last as usize].load(Relaxed);
        words[1 + place as usize].store(moved, Relaxed);
        places.make((moved >> 32) as u32).store(place, Relaxed);
        words[0].store(header - 1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parallel run has passes without end, and each has tasks with spaces of their own.
    #[test]
    fn what_a_thread_does_not_use_is_used_by_later_threads() {
        let mut store = Store::default();
        let node_type = store.schema.node_type("N", &[]).unwrap();
        let edge_type = store.schema.edge_type("E", &[]).unwrap();
        store.fit_to_schema();
        let mut own = Space::default();
        for _ in 0..BATCH {
            let mut space = Space::default();
            let node = store.take_node(&mut space);
            store.create_node(&mut space, node, node_type);
            store.create_edge(&mut space, edge_type, node, node);
            store.absorb(&mut own, space);
        }
        store.settle(&mut own);
        assert_eq!((own.node_counts[0], own.edge_counts[0]), (BATCH.into(), BATCH.into()));
        assert_eq!((store.node_limit(), store.edge_limit()), (BATCH, BATCH));
        assert_eq!(store.next_word.load(Relaxed), u64::from(WORDS_BATCH));
    }
    /// A list without a header grows into one with a header, and its word is used again.
    #[test]
    fn lists_of_one_edge_take_one_word() {
        let mut store = Store::default();
        let of = store.schema.edge_type("E", &[]).unwrap();
        store.fit_to_schema();
        let space = &mut Space::default();
        let lists = |store: &Store| {
            [(Out, 0), (In, 1)].map(|(direction, node)| {
                let list = store.list(of, direction, node).iter();
                list.map(|entry| entry.load(Relaxed) >> 32).collect::<Vec<_>>()
            })
        };
        store.take_node(space);
        let words = |space: &Space| WORDS_BATCH - space.words.len() as u32;
        for _ in 0..3 {
            let edge = store.create_edge(space, of, 0, 1);
            assert_eq!((edge, lists(&store), words(space)), (0, [vec![0], vec![0]], 2));
            store.delete_edge(space, edge);
            assert!(lists(&store).iter().all(Vec::is_empty));
        }
        let edges = [(); 3].map(|()| store.create_edge(space, of, 0, 1));
        assert_eq!(edges, [0, 1, 2]);
        assert_eq!((lists(&store), words(space)), ([vec![0, 1, 2], vec![0, 1, 2]], 2 + 2 * 4));
        store.delete_edge(space, 0);
        assert_eq!(lists(&store), [vec![2, 1], vec![2, 1]]);
        store.create_edge(space, of, 2, 3);
        assert_eq!(words(space), 2 + 2 * 4);
        store.delete_edge(space, 2);
        store.compact(space);
        assert_eq!((lists(&store), words(space)), ([vec![1], vec![1]], 4));
    }
}
