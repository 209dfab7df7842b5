//! The changes of a graph since its live queries were updated.
//!
//! ```text
//!   Store --> Changes of a thread's Space --> Changes of the graph's Space --> LiveQuery
//!             (a change: node 7, its list of outgoing edges of type 0)
//! ```
//!
//! A graph without live queries records nothing: each change costs one branch.

use crate::graph::Graph;
use crate::schema::{EdgeType, Key};
use crate::store::Direction;
use std::sync::{Arc, Weak};

/// Largest number of changes that are recorded. After more changes, an update evaluates its query
/// anew: it would search most of the graph in any case.
pub(crate) const CHANGES_MAX: usize = 1 << 20;

/// A fact of a node that a search reads and that a change changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fact {
    /// Whether the node exists, and its type.
    Type,
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
    /// Whether changes are missing; then the list is empty.
    is_incomplete: bool,
}

impl Changes {
    #[cold]
    pub(crate) fn push(&mut self, node: u32, fact: Fact) {
        if self.list.len() == CHANGES_MAX {
            self.lose();
        }
        if !self.is_incomplete {
            self.list.push((node, fact));
        }
    }

    /// Marks that changes are missing.
    pub(crate) fn lose(&mut self) {
        *self = Changes { list: Vec::new(), is_incomplete: true };
    }

    pub(crate) fn absorb(&mut self, other: Changes) {
        if other.is_incomplete || self.list.len() + other.list.len() > CHANGES_MAX {
            self.lose();
        }
        if !self.is_incomplete {
            self.list.extend(other.list);
        }
    }
}

/// A live query.
pub(crate) struct Reader {
    token: Weak<()>,
    /// How many changes of the list it has read; `None` if it missed changes.
    read: Option<usize>,
}

impl Graph {
    /// Returns the changes since the owner of the token called this method before, and records
    /// changes from now on. `None` if this is the first call, or if changes are missing. The first
    /// call replaces the token: so a query reads the changes of one graph only.
    pub(crate) fn take_changes(&mut self, token: &mut Arc<()>) -> Option<Vec<Change>> {
        self.store.is_recorded = true;
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

    /// Ends the recording if all live queries have been dropped.
    pub(crate) fn end_unused_recording(&mut self) {
        if self.readers.iter().all(|reader| reader.token.strong_count() == 0) {
            self.readers.clear();
            self.store.is_recorded = false;
            self.space.changes = Changes::default();
        }
    }
}
