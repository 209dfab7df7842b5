//! What was logged at a processor: blocks, in the order of their reservations, and calls in each.
//!
//! ```text
//!   blocks   | 7: call call | 8: call  | 9:        |       7 runs first; also if 9 logs its calls before 8 does
//!            | client 3     | client 5 | client 3  |
//!            | closed       | open     | open      |       after 8's call nothing runs until 8 closes or logs more
//! ```
//!
//! This is the queue of queues of West, Nanz, Meyer, *Efficient and reasonable object-oriented concurrency*, 2015: a
//! reservation is one entry, made at once, and never waits. Several processors are reserved in one step, with all their queues locked in the order of
//! their numbers; so any two reservations have the same order everywhere.

use crate::region::Here;
use corebeat_lpel::Writer;
use corebeat_sync::{Arc, Mutex, MutexGuard};
use std::collections::VecDeque;

/// A call, as its processor runs it.
pub(crate) type Run = Box<dyn FnOnce(&mut Here<'_>) + Send>;

/// A call that was logged.
pub(crate) struct Call {
    pub(crate) run: Run,
    /// It may change what others wait for.
    pub(crate) changes: bool,
    /// Who waits for it, and is woken when this is dropped: after the processor counts as having nothing to do.
    pub(crate) waiter: Option<Writer<()>>,
}

/// All calls of one reservation.
struct Block {
    /// Who has it: a number of a processor or client.
    owner: u64,
    calls: VecDeque<Call>,
    /// There will be no more.
    closed: bool,
    /// Some call may have changed something.
    changed: bool,
}

/// What a processor is to do.
#[derive(Default)]
pub(crate) struct Queue {
    blocks: VecDeque<Block>,
    /// The number of the first one.
    first: u64,
    /// It has a task, which runs a call or is about to.
    pub(crate) running: bool,
    /// How many blocks have changed something, and are over.
    pub(crate) changes: u64,
    watchers: Vec<Arc<Signal>>,
    /// Why it has failed, and runs nothing any more.
    pub(crate) failed: Option<std::sync::Arc<str>>,
}

/// Wakes one who waits for any of several processors to change, once.
pub(crate) struct Signal(Mutex<Option<Writer<()>>>);

impl Signal {
    pub(crate) fn new(writer: Writer<()>) -> Self {
        Signal(Mutex::new(Some(writer)))
    }

    /// What wakes, when it is dropped.
    fn take(&self) -> Option<Writer<()>> {
        lock(&self.0).take()
    }
}

/// Those who are woken when this is dropped; after the queue's lock.
#[derive(Default)]
#[must_use = "drop it after the queue's lock"]
pub(crate) struct Woken(Vec<Writer<()>>);

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind our locks is whole between any two statements.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Queue {
    /// A new last block: its number.
    pub(crate) fn reserve(&mut self, owner: u64) -> u64 {
        self.blocks.push_back(Block { owner, calls: VecDeque::new(), closed: false, changed: false });
        self.first + self.blocks.len() as u64 - 1
    }

    fn block(&mut self, number: u64) -> Option<&mut Block> {
        // Those of one that has failed are gone.
        let place = number.checked_sub(self.first)?;
        self.blocks.get_mut(usize::try_from(place).ok()?)
    }

    /// Logs a call; gives it back if the processor has failed.
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

    /// No more calls in this block.
    pub(crate) fn close(&mut self, number: u64) {
        if let Some(block) = self.block(number) {
            block.closed = true;
        }
    }

    /// Whether a task is to be started for what is there now. From then on it counts as running.
    pub(crate) fn starts(&mut self) -> (bool, Woken) {
        let mut woken = Woken::default();
        let starts = !self.running && self.settle(&mut woken);
        self.running |= starts;
        (starts, woken)
    }

    /// The next call, or `None`: then it does not run any more.
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

    /// Takes out blocks that are over. Whether there is a call to run.
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

    /// Wakes `signal` when something has changed. False if something has since there were `seen` changes, or if it has failed.
    pub(crate) fn watch(&mut self, seen: u64, signal: &Arc<Signal>) -> bool {
        let waits = self.changes == seen && self.failed.is_none();
        if waits {
            self.watchers.push(signal.clone());
        }
        waits
    }

    /// It is not to be woken any more.
    pub(crate) fn unwatch(&mut self, signal: &Arc<Signal>) {
        self.watchers.retain(|other| !Arc::ptr_eq(other, signal));
    }

    /// Nothing runs any more: gives all that was logged, to be dropped after the lock.
    pub(crate) fn fail(&mut self, why: std::sync::Arc<str>) -> (Vec<Call>, Woken) {
        self.failed.get_or_insert(why);
        self.running = false;
        self.first += self.blocks.len() as u64;
        let calls = self.blocks.drain(..).flat_map(|block| block.calls).collect();
        (calls, Woken(self.watchers.drain(..).filter_map(|signal| signal.take()).collect()))
    }

    /// Who has blocks before this one that may grow.
    pub(crate) fn owners_before(&self, number: u64) -> impl Iterator<Item = u64> {
        let before = number.saturating_sub(self.first) as usize;
        self.blocks.iter().take(before).filter(|block| !block.closed).map(|block| block.owner)
    }
}
