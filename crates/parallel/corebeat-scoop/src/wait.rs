//! The graph of waiting clients of all systems: a cycle is detected when it closes.
//!
//! A client that waits for the result of a query waits for the processor, if that runs, and for the
//! owners of all open blocks before its own. All of those must make progress first, so a cycle is a
//! deadlock, and a deadlock is a cycle. Two events add edges: a client begins to wait, and searches
//! for a cycle here; and a processor begins to run, which does not wait then. Reservations do not
//! wait, and add no edges from waiting clients.
//!
//! A process has one graph, because a call of one system may query another system. Only one client
//! at a time searches. A client whose processor is idle, with no open block before its own, does
//! not search, and takes no lock that all clients share: it has no edge yet. Only its own call can
//! make the processor run, and the client is recorded before it logs that call. So the last client
//! of a cycle that begins to wait has an edge, and searches. While it searches, no other client
//! with an edge begins to wait. So all edges that it follows exist at the same time.
//!
//! A thread or a task whose query has its only open block is not even recorded (`client`). Another
//! client that waits for it does so at the same processor, behind that block, and therefore waits
//! for all that it waits for. So each cycle has a part without it that is a cycle, too.

use crate::error::{Cycle, Name};
use crate::processor::Processor;
use corebeat_sync::fork::PerProcess;
use corebeat_sync::{CachePadded, Mutex, MutexGuard, lock};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::iter::successors;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a number that no other client, processor or system of this process has.
pub(crate) fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the number must only be unique.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A client that waits, until this is dropped.
pub(crate) struct Waiting(u64);

impl Waiting {
    /// Records that `client` waits, unless that closes a cycle.
    pub(crate) fn begin(
        client: Name,
        processor: &Arc<Processor>,
        block: u64,
    ) -> Result<Waiting, Cycle> {
        waits().begin(client, processor, block).map(|()| Waiting(client.id))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        waits().end(self.0);
    }
}

/// Returns the graph of this process.
fn waits() -> &'static Waits {
    static WAITS: PerProcess<Waits> = PerProcess::unset();
    WAITS.get(|_| Waits::default())
}

/// The processor for which a client waits.
struct Wait {
    processor: Arc<Processor>,
    /// Number of the client's block in the queue.
    block: u64,
    client: Name,
}

/// Number of parts of the graph, so that queries of several threads rarely use one lock.
const PARTS: usize = if cfg!(loom) { 2 } else { 64 };

/// Waiting clients, by number, in a map that frees the memory of removed clients.
type Part = BTreeMap<u64, Wait>;

/// All waiting clients.
pub(crate) struct Waits {
    /// The client with number `n` is in part `n % PARTS`.
    parts: [CachePadded<Mutex<Part>>; PARTS],
    /// Held by the client that begins to wait with an edge. Locked before a part, and a part before
    /// a queue.
    search: Mutex<()>,
}

impl Default for Waits {
    fn default() -> Self {
        Waits { parts: std::array::from_fn(|_| CachePadded::default()), search: Mutex::default() }
    }
}

impl Waits {
    /// Records that `client` waits, unless that closes a cycle.
    pub(crate) fn begin(
        &self,
        client: Name,
        processor: &Arc<Processor>,
        block: u64,
    ) -> Result<(), Cycle> {
        let has_edge = lock(&processor.queue).delays(block);
        let _search = has_edge.then(|| lock(&self.search));
        let wait = Wait { processor: processor.clone(), block, client };
        self.part(client.id).insert(client.id, wait);
        match has_edge.then(|| self.cycle(client.id)).flatten() {
            None => Ok(()),
            Some(cycle) => {
                self.end(client.id);
                Err(cycle)
            }
        }
    }

    /// Records that a client does not wait any more.
    pub(crate) fn end(&self, id: u64) {
        // The caller still refers to the processor, which is not dropped under the lock therefore.
        self.part(id).remove(&id);
    }

    fn part(&self, id: u64) -> MutexGuard<'_, Part> {
        lock(&self.parts[(id % PARTS as u64) as usize])
    }

    /// Returns the path from a client back to itself, if any.
    fn cycle(&self, start: u64) -> Option<Cycle> {
        // Waiting clients, each with the place of its predecessor here.
        let mut visited: Vec<(Name, usize)> = Vec::new();
        // By processor: the block before which all owners are visited. Without it, clients that
        // wait for one processor would visit each other's predecessors.
        let mut visited_to: HashMap<u64, u64> = HashMap::new();
        let mut found = HashSet::from([start]);
        // Found clients that are not visited yet, each with the place of its predecessor.
        let mut open = vec![(start, 0)];
        while let Some((id, predecessor)) = open.pop() {
            let part = self.part(id);
            // A client that does not wait makes progress.
            let Some(wait) = part.get(&id) else { continue };
            let place = visited.len();
            visited.push((wait.client, predecessor));
            let from = visited_to.entry(wait.processor.id).or_default();
            let queue = lock(&wait.processor.queue);
            let runs = queue.running.then_some(wait.processor.id);
            let owners = queue.owners(*from..wait.block);
            *from = wait.block.max(*from);
            for next in owners.chain(runs) {
                if next == start {
                    return Some(path(&visited, place));
                }
                if found.insert(next) {
                    open.push((next, place));
                }
            }
        }
        None
    }
}

/// Returns the clients from the first one to that at `last`, each of which waits for the next one.
fn path(visited: &[(Name, usize)], last: usize) -> Cycle {
    let predecessor = |at: &usize| (*at > 0).then(|| visited[*at].1);
    let mut members: Vec<_> = successors(Some(last), predecessor).map(|at| visited[at].0).collect();
    members.reverse();
    Cycle(members.into())
}
