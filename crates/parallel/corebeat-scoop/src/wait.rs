//! The graph of waiting clients: a cycle is detected when it closes.
//!
//! A client that waits for the result of a query waits for the processor, if that runs, and for the
//! owners of all open blocks before its own. All of those must make progress first, so a cycle is a
//! deadlock, and a deadlock is a cycle. Two events add edges: a client begins to wait, and searches
//! for a cycle here; and a processor begins to run, which does not wait then. Reservations do not
//! wait, and add no edges from waiting clients.

use crate::error::{Cycle, Name};
use crate::processor::Processor;
use corebeat_sync::lock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The processor for which a client waits.
struct Wait {
    processor: Arc<Processor>,
    /// Number of the client's block in the queue.
    block: u64,
    client: Name,
}

/// All waiting clients, by number.
#[derive(Default)]
pub(crate) struct Waits(HashMap<u64, Wait>);

impl Waits {
    /// Records that `client` waits, unless that closes a cycle.
    pub(crate) fn begin(
        &mut self,
        client: Name,
        processor: &Arc<Processor>,
        block: u64,
    ) -> Result<(), Cycle> {
        let id = client.id;
        self.0.insert(id, Wait { processor: processor.clone(), block, client });
        match self.cycle(id) {
            None => Ok(()),
            Some(members) => {
                let names = members.iter().filter_map(|id| Some(self.0.get(id)?.client)).collect();
                self.0.remove(&id);
                Err(Cycle(names))
            }
        }
    }

    /// Records that a client does not wait any more.
    pub(crate) fn end(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Returns the path from a client back to itself, if any.
    fn cycle(&self, start: u64) -> Option<Vec<u64>> {
        // Visited clients, each with its predecessor.
        let mut visited: HashMap<u64, u64> = HashMap::new();
        // By processor: the block before which all owners are visited. Without it, clients that
        // wait for one processor would visit each other's predecessors.
        let mut visited_to: HashMap<u64, u64> = HashMap::new();
        let mut open = vec![start];
        while let Some(id) = open.pop() {
            // A client that does not wait makes progress.
            let Some(wait) = self.0.get(&id) else { continue };
            let from = visited_to.entry(wait.processor.id).or_default();
            let queue = lock(&wait.processor.queue);
            let runs = queue.running.then_some(wait.processor.id);
            let owners = queue.owners(*from..wait.block);
            *from = wait.block.max(*from);
            for next in owners.chain(runs) {
                if next == start {
                    let mut path = vec![id];
                    let mut at = id;
                    while at != start {
                        at = visited[&at];
                        path.push(at);
                    }
                    path.reverse();
                    return Some(path);
                }
                if let Entry::Vacant(place) = visited.entry(next) {
                    place.insert(id);
                    open.push(next);
                }
            }
        }
        None
    }
}
