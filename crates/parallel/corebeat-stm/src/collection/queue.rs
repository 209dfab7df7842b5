//! Transactional queues.

use crate::{Abort, TCell, Tx, Value};
use std::fmt;
use std::sync::Arc;

/// An unbounded queue: first in, first out.
///
/// ```
/// use corebeat_stm::{TQueue, atomically};
///
/// let (requests, results) = (TQueue::new(), TQueue::new());
/// atomically(|tx| requests.push(tx, 5));
/// // Moves an item from one queue to the other one in one step.
/// atomically(|tx| {
///     let item = requests.pop(tx)?;
///     results.push(tx, item * 2)
/// });
/// assert_eq!(atomically(|tx| results.pop(tx)), 10);
/// ```
///
/// ```text
///   first ---> [ item | next ] ---> [ item | next ] ---> [ item | none ] <--- last
/// ```
pub struct TQueue<V: Value> {
    first: Link<V>,
    last: Link<V>,
}

type Link<V> = TCell<Option<Arc<Node<V>>>>;

struct Node<V: Value> {
    item: TCell<V>,
    next: Link<V>,
}

impl<V: Value> TQueue<V> {
    /// Creates an empty queue.
    pub fn new() -> TQueue<V> {
        TQueue { first: TCell::new(None), last: TCell::new(None) }
    }

    /// Appends an item.
    ///
    /// # Errors
    ///
    /// The attempt cannot continue: return the error from the closure. This holds for all methods
    /// below.
    pub fn push<'t>(&'t self, tx: &mut Tx<'t, '_>, item: V) -> Result<(), Abort> {
        let node = Arc::new(Node { item: TCell::new(item), next: TCell::new(None) });
        let end = tx.read(&self.last)?.map_or(&self.first, |last| &last.next);
        tx.write(end, Some(node.clone()))?;
        tx.write(&self.last, Some(node))
    }

    /// Removes the first item, or returns `None` if the queue is empty.
    pub fn try_pop<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<Option<V>, Abort> {
        let Some(node) = tx.read(&self.first)? else { return Ok(None) };
        let (item, next) = (tx.share(&node.item)?, tx.share(&node.next)?);
        if next.is_none() {
            tx.write(&self.last, None)?;
        }
        tx.write(&self.first, next)?;
        Ok(Some(item))
    }

    /// Removes the first item. If the queue is empty, the transaction waits for an item, as
    /// [`Tx::retry`].
    ///
    /// # Panics
    ///
    /// If the queue is empty and the transaction is irrevocable.
    pub fn pop<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<V, Abort> {
        match self.try_pop(tx)? {
            Some(item) => Ok(item),
            None => tx.retry(),
        }
    }

    /// Returns whether the queue is empty.
    pub fn is_empty<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<bool, Abort> {
        Ok(tx.read(&self.first)?.is_none())
    }
}

impl<V: Value> Default for TQueue<V> {
    fn default() -> Self {
        TQueue::new()
    }
}

impl<V: Value> fmt::Debug for TQueue<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only transactions may read the items.
        f.debug_struct("TQueue").finish_non_exhaustive()
    }
}
