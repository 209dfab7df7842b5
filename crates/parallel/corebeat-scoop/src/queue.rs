//! The queue of a processor: blocks in the order of their reservations, and calls in each block.
//!
//! ```text
//!   blocks   | 7: call call | 8: call  | 9:        |
//!            | client 3     | client 5 | client 3  |
//!            | closed       | open     | open      |
//! ```
//!
//! Block 7 runs first, even if client 3 logs the calls of block 9 before client 5 logs those of
//! block 8. After the call of block 8, the processor waits until the block closes or has another
//! call.
//!
//! This is the queue of queues of West, Nanz, Meyer, *Efficient and reasonable object-oriented
//! concurrency*, 2015: a reservation adds one entry and never waits. A reservation of several
//! processors is one step: it locks all their queues, in the order of their numbers. So any two
//! reservations have the same order everywhere.

use crate::error::Cause;
use crate::region::Here;
use corebeat_lpel::Writer;
use corebeat_sync::{Arc, Mutex, lock};
use std::collections::VecDeque;
use std::ops::Range;

/// The closure of a call.
pub(crate) type Run = Box<dyn FnOnce(&mut Here<'_>) + Send>;

/// A logged call.
pub(crate) struct Call {
    pub(crate) run: Run,
    /// Whether the call may change state for which others wait.
    pub(crate) changes: bool,
    /// Wakes the waiting client when it is dropped: after the processor counts as idle.
    pub(crate) waiter: Option<Writer<()>>,
}

/// All calls of one reservation.
struct Block {
    /// Number of the client or processor that owns the reservation.
    owner: u64,
    calls: VecDeque<Call>,
    /// Whether the reservation has ended.
    closed: bool,
    /// Whether a call of the block may have changed state.
    changed: bool,
}

/// The pending calls of a processor.
#[derive(Default)]
pub(crate) struct Queue {
    blocks: VecDeque<Block>,
    /// Number of the first block.
    first: u64,
    /// Whether the processor has a task, which runs a call or is about to.
    pub(crate) running: bool,
    /// Number of ended blocks that changed state.
    pub(crate) changes: u64,
    watchers: Vec<Arc<Signal>>,
    /// Cause of the failure, after which no call runs.
    pub(crate) failed: Option<Cause>,
}

/// Wakes a client that waits for a change of any of several processors, once.
pub(crate) struct Signal(Mutex<Option<Writer<()>>>);

impl Signal {
    pub(crate) fn new(writer: Writer<()>) -> Self {
        Signal(Mutex::new(Some(writer)))
    }

    /// Takes the writer, which wakes the client when it is dropped.
    fn take(&self) -> Option<Writer<()>> {
        lock(&self.0).take()
    }
}

/// Clients that are woken when this is dropped, after the lock of the queue.
#[derive(Default)]
#[must_use = "drop this value after the lock of the queue"]
pub(crate) struct Woken(Vec<Writer<()>>);

impl Queue {
    /// Appends a block and returns its number.
    pub(crate) fn reserve(&mut self, owner: u64) -> u64 {
        self.blocks.push_back(Block {
            owner,
            calls: VecDeque::new(),
            closed: false,
            changed: false,
        });
        self.first + self.blocks.len() as u64 - 1
    }

    fn block(&mut self, number: u64) -> Option<&mut Block> {
        // A failed processor has no blocks.
        let place = number.checked_sub(self.first)?;
        self.blocks.get_mut(usize::try_from(place).ok()?)
    }

    /// Logs a call; returns it if the processor has failed.
    pub(crate) fn log(&mut self, number: u64, call: Call) -> Result<(), Call> {
        let failed = self.failed.is_some();
        match self.block(number) {
            Some(block) if !block.closed && !failed => {
                block.calls.push_back(call);
                Ok(())
            }
            _ => Err(call),
        }
    }

    /// Ends a block.
    pub(crate) fn close(&mut self, number: u64) {
        if let Some(block) = self.block(number) {
            block.closed = true;
        }
    }

    /// Returns whether the caller must start a task. If so, the processor counts as running.
    pub(crate) fn starts(&mut self) -> (bool, Woken) {
        let mut woken = Woken::default();
        let starts = !self.running && self.settle(&mut woken);
        self.running |= starts;
        (starts, woken)
    }

    /// Returns the next call, or `None`: then the processor does not run any more.
    pub(crate) fn next(&mut self) -> (Option<Call>, Woken) {
        let mut woken = Woken::default();
        self.running = self.settle(&mut woken);
        let call = self.blocks.front_mut().and_then(|block| {
            let call = block.calls.pop_front()?;
            block.changed |= call.changes;
            Some(call)
        });
        (call, woken)
    }

    /// Removes ended blocks. Returns whether there is a call to run.
    fn settle(&mut self, woken: &mut Woken) -> bool {
        while let Some(block) = self.blocks.front() {
            if !block.calls.is_empty() || !block.closed {
                return !block.calls.is_empty();
            }
            if block.changed {
                self.changes += 1;
                woken.0.extend(self.watchers.drain(..).filter_map(|signal| signal.take()));
            }
            self.first += 1;
            self.blocks.pop_front();
        }
        false
    }

    /// Registers `signal` for the next change. Returns `false` if the number of changes is not
    /// `observed`, or if the processor has failed.
    pub(crate) fn watch(&mut self, observed: u64, signal: &Arc<Signal>) -> bool {
        let waits = self.changes == observed && self.failed.is_none();
        if waits {
            self.watchers.push(signal.clone());
        }
        waits
    }

    /// Removes a signal.
    pub(crate) fn unwatch(&mut self, signal: &Arc<Signal>) {
        self.watchers.retain(|other| !Arc::ptr_eq(other, signal));
    }

    /// Marks the processor as failed, and returns all logged calls, to be dropped after the lock.
    pub(crate) fn fail(&mut self, why: Cause) -> (Vec<Call>, Woken) {
        self.failed.get_or_insert(why);
        self.running = false;
        self.first += self.blocks.len() as u64;
        let calls = self.blocks.drain(..).flat_map(|block| block.calls).collect();
        (calls, Woken(self.watchers.drain(..).filter_map(|signal| signal.take()).collect()))
    }

    /// Returns whether the first call of a block must wait: for a call that runs, or for the end of
    /// an open block.
    pub(crate) fn delays(&self, block: u64) -> bool {
        self.running || self.owners(0..block).next().is_some()
    }

    /// Returns the owners of the open blocks with these numbers.
    pub(crate) fn owners(&self, numbers: Range<u64>) -> impl Iterator<Item = u64> {
        let from = numbers.start.max(self.first);
        let skipped = (from - self.first) as usize;
        let blocks =
            self.blocks.iter().skip(skipped).take(numbers.end.saturating_sub(from) as usize);
        blocks.filter(|block| !block.closed).map(|block| block.owner)
    }
}
