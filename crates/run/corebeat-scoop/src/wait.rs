//! Who waits for whom: a circle is found when it closes.
//!
//! A client that waits for the answer of a query waits for the processor, if that runs; and for the owners of all open blocks before its own.
//! All of those must go on before it does, so a circle is a deadlock, and a deadlock is a circle. Two things make a new edge: a client
//! that begins to wait, and it looks for a circle here; and a processor that begins to run, which waits for nobody then.
//! Reservations do not wait, and make edges from nobody who waits already.

use crate::error::{Cycle, Name};
use crate::processor::Processor;
use crate::queue::lock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Whom a client waits for.
struct Wait {
    processor: Arc<Processor>,
    /// The client's block there.
    block: u64,
    who: Name,
}

/// All who wait, by their numbers.
#[derive(Default)]
pub(crate) struct Waits(HashMap<u64, Wait>);

impl Waits {
    /// Client `who` waits from now on, unless that closes a circle.
    pub(crate) fn begin(&mut self, who: Name, processor: &Arc<Processor>, block: u64) -> Result<(), Cycle> {
        let id = who.id;
        self.0.insert(id, Wait { processor: processor.clone(), block, who });
        match self.circle(id) {
            None => Ok(()),
            Some(members) => {
                let names = members.iter().filter_map(|id| Some(self.0.get(id)?.who)).collect();
                self.0.remove(&id);
                Err(Cycle(names))
            }
        }
    }

    /// It does not wait any more.
    pub(crate) fn end(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// The way from a client back to itself.
    fn circle(&self, start: u64) -> Option<Vec<u64>> {
        // Each who was met, with who led there.
        let mut met: HashMap<u64, u64> = HashMap::new();
        let mut open = vec![start];
        while let Some(id) = open.pop() {
            // Who does not wait goes on by itself.
            let Some(wait) = self.0.get(&id) else { continue };
            let queue = lock(&wait.processor.queue);
            let runs = queue.running.then_some(wait.processor.id);
            for next in queue.owners_before(wait.block).chain(runs) {
                if next == start {
                    let mut way = vec![id];
                    let mut at = id;
                    while at != start {
                        at = met[&at];
                        way.push(at);
                    }
                    way.reverse();
                    return Some(way);
                }
                if let Entry::Vacant(place) = met.entry(next) {
                    place.insert(id);
                    open.push(next);
                }
            }
        }
        None
    }
}
