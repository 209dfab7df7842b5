//! The changes of a graph since its readers, the live queries and the exhaustive run, read them.
//!
//! ```text
//!   Store --> Changes of a thread's Space --> Changes of the graph's Space --> LiveQuery, Agenda
//!             (a change: node 7, its list of outgoing edges of type 0)
//! ```
//!
//! A graph without readers records nothing: each change costs one branch.

use crate::graph::Graph;
use crate::schema::{EdgeType, Key, NodeType};
use crate::store::Direction;
use std::sync::{Arc, Weak};

/// Largest number of changes that are recorded for live queries. After more changes, an update
/// evaluates its query anew: it would search most of the graph in any case.
pub(crate) const CHANGES_MAX: usize = 1 << 20;

/// A fact of a node that a search reads and that a change changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fact {
    /// Whether the node exists and has this type.
    Type(NodeType),
    /// The value of an attribute.
    Value(Key),
    /// The edges in a list, and their attributes.
    List(EdgeType, Direction),
}

/// A node, and the fact that has changed.
pub(crate) type Change = (u32, Fact);

/// A set of changes, in any order.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    list: Vec<Change>,
    /// Largest number of changes that are recorded; 0 if none are.
    limit: usize,
    /// Whether changes are missing; then the list is empty, and no more changes are recorded.
    is_incomplete: bool,
}

impl Changes {
    /// An empty set, for a thread that records changes as the owner of this set does.
    pub(crate) fn part(&self) -> Changes {
        Changes { limit: self.limit, ..Changes::default() }
    }

    #[inline(always)]
    pub(crate) fn is_recording(&self) -> bool {
        self.limit > 0
    }

    #[cold]
    pub(crate) fn push(&mut self, node: u32, fact: Fact) {
        #[cfg(test)]
        if tests::FORGOTTEN.get() == Some(std::mem::discriminant(&fact)) {
            return;
        }
        match self.list.len() < self.limit {
            true => self.list.push((node, fact)),
            false => self.lose(),
        }
    }

    /// Marks that changes are missing.
    pub(crate) fn lose(&mut self) {
        *self = Changes { is_incomplete: true, ..Changes::default() };
    }

    pub(crate) fn absorb(&mut self, other: Changes) {
        match other.is_incomplete || self.list.len() + other.list.len() > self.limit {
            true if self.is_recording() => self.lose(),
            true => {}
            false => self.list.extend(other.list),
        }
    }
}

/// A live query, or an exhaustive run.
pub(crate) struct Reader {
    token: Weak<()>,
    /// How many changes of the list it has read; `None` if it missed changes.
    read: Option<usize>,
}

impl Graph {
    /// Returns the changes since the owner of the token called this method before, and records
    /// changes from now on, at most `limit` of them if there are no other readers. `None` if this
    /// is the first call, or if changes are missing. The first call replaces the token: so a query
    /// reads the changes of one graph only.
    pub(crate) fn take_changes(
        &mut self,
        token: &mut Arc<()>,
        limit: usize,
    ) -> Option<Vec<Change>> {
        self.readers.retain(|reader| reader.token.strong_count() > 0);
        let changes = &mut self.space.changes;
        if std::mem::take(&mut changes.is_incomplete) {
            self.readers.iter_mut().for_each(|reader| reader.read = None);
        }
        let is_own = |reader: &Reader| std::ptr::eq(reader.token.as_ptr(), Arc::as_ptr(token));
        let index = self.readers.iter().position(is_own);
        let index = index.unwrap_or_else(|| {
            *token = Arc::new(());
            self.readers.push(Reader { token: Arc::downgrade(token), read: None });
            self.readers.len() - 1
        });
        changes.limit = if self.readers.len() == 1 { limit } else { CHANGES_MAX };
        let read = self.readers[index].read.replace(changes.list.len());
        let unread = read.map(|read| changes.list[read..].to_vec());
        // No query needs the changes that all queries have read.
        let least = self.readers.iter().filter_map(|reader| reader.read).min().unwrap_or(0);
        changes.list.drain(..least);
        for read in self.readers.iter_mut().filter_map(|reader| reader.read.as_mut()) {
            *read -= least;
        }
        unread
    }

    /// Ends the recording if all readers have been dropped.
    pub(crate) fn end_unused_recording(&mut self) {
        if self.readers.iter().all(|reader| reader.token.strong_count() == 0) {
            self.readers.clear();
            self.space.changes = Changes::default();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Fact;
    use std::cell::Cell;
    use std::mem::Discriminant;

    thread_local! {
        /// A planted fault: changes of this kind are not recorded.
        pub(crate) static FORGOTTEN: Cell<Option<Discriminant<Fact>>> = const { Cell::new(None) };
    }
}
