//! Synchronisation objects: locks, barriers, conditions, queues, and the waiting points of thread
//! teams.

use crate::code::{Kind, Named, ObjectId};
use crate::event::Event;
use crate::kernel::Kernel;
use crate::thread::{Activity, State};
use std::collections::{BTreeMap, VecDeque};

/// Cost of an operation that does not compute, in nanoseconds.
pub(crate) const OP_NS: u64 = 20;
/// A deadlock report names at most this many objects.
const REPORTED_MAX: usize = 8;

/// An object that threads wait at.
#[derive(Debug)]
pub(crate) struct SyncObject {
    named: Named,
    /// The thread that holds the lock.
    holder: Option<usize>,
    /// The CPU that has the object's cache line.
    line: Option<usize>,
    /// Waiting threads; at a queue, those that pop.
    pub(crate) waiters: VecDeque<usize>,
    /// Threads that wait to push.
    pushing: VecDeque<usize>,
    /// Threads at the barrier, stored signals, or items in the queue.
    count: u64,
    /// Threads that may still push.
    producers: u32,
}

impl SyncObject {
    fn new(named: Named) -> Self {
        let producers = if let Kind::Queue(_, producers) = named.kind { producers } else { 0 };
        SyncObject {
            named,
            holder: None,
            line: None,
            waiters: VecDeque::new(),
            pushing: VecDeque::new(),
            count: 0,
            producers,
        }
    }

    fn line_of_waiters(&mut self, to_push: bool) -> &mut VecDeque<usize> {
        if to_push { &mut self.pushing } else { &mut self.waiters }
    }
}

/// The result of a synchronisation operation for the thread that performs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The operation is complete.
    Done,
    /// The thread spins: it waits on its CPU.
    Spins,
    /// The thread blocks.
    Blocks,
    /// The thread ends: its queue is empty and has no producer any more.
    Ends,
}

/// All synchronisation objects of a scenario.
#[derive(Debug)]
pub(crate) struct SyncObjects {
    objects: Vec<SyncObject>,
    /// Number of cache-line moves from CPU to CPU, by distance.
    line_moves: BTreeMap<u64, u64>,
}

impl SyncObjects {
    pub(crate) fn new(objects: Vec<Named>) -> Self {
        let objects = objects.into_iter().map(SyncObject::new).collect();
        SyncObjects { objects, line_moves: BTreeMap::new() }
    }

    pub(crate) fn get_mut(&mut self, object: ObjectId) -> &mut SyncObject {
        &mut self.objects[object]
    }

    /// Number of cache-line moves from CPU to CPU, by distance.
    pub(crate) fn line_moves(&self) -> &BTreeMap<u64, u64> {
        &self.line_moves
    }

    /// Charges a thread for an access to an object's cache line: by distance from its last user.
    pub(crate) fn access(&mut self, kernel: &mut Kernel, i: usize, object: ObjectId) {
        let c = kernel.threads[i].cpu;
        let from = self.objects[object].line.replace(c);
        let cost = match from {
            Some(from) if from != c => {
                let nodes = (kernel.cpus[from].node, kernel.cpus[c].node);
                let distance = kernel.memory.distance(nodes.0, nodes.1);
                *self.line_moves.entry(distance).or_default() += 1;
                kernel.hardware.line_ns * distance / 10
            }
            _ => 0,
        };
        kernel.threads[i].owe(OP_NS + cost);
    }

    /// Whether spinning is futile: the holder of the lock is not running.
    pub(crate) fn is_futile(&self, kernel: &Kernel, i: usize, object: ObjectId) -> bool {
        let object = &self.objects[object];
        let is_off = |h: usize| kernel.threads[h].state != State::Running;
        object.named.kind != Kind::Ticket
            && kernel.programs[kernel.threads[i].program].spin != u64::MAX
            && object.holder.is_some_and(is_off)
    }

    /// Adds a thread to the waiters of an object. It spins first if its program's threads do.
    pub(crate) fn wait(
        &mut self,
        kernel: &mut Kernel,
        i: usize,
        object: ObjectId,
        to_push: bool,
    ) -> Outcome {
        let spin = match self.objects[object].named.kind {
            Kind::Ticket => u64::MAX,
            _ => kernel.programs[kernel.threads[i].program].spin,
        };
        let spins = spin > 0 && !self.is_futile(kernel, i, object);
        let t = &mut kernel.threads[i];
        let goes_first = std::mem::take(&mut t.retries);
        t.activity = if spins { Activity::Spin(spin) } else { Activity::Fetch };
        let line = self.objects[object].line_of_waiters(to_push);
        match goes_first {
            true => line.push_front(i),
            false => line.push_back(i),
        }
        if spins { Outcome::Spins } else { Outcome::Blocks }
    }

    // Locks.

    /// Acquires a lock, or waits for it.
    pub(crate) fn acquire(&mut self, kernel: &mut Kernel, i: usize, lock: ObjectId) -> Outcome {
        if self.objects[lock].holder.is_some() {
            return self.wait(kernel, i, lock, false);
        }
        self.take(kernel, i, lock);
        Outcome::Done
    }

    /// Lets a spinning thread acquire a lock that became free while the thread had no CPU.
    pub(crate) fn acquire_if_free(
        &mut self,
        kernel: &mut Kernel,
        i: usize,
        lock: ObjectId,
    ) -> bool {
        if self.objects[lock].holder.is_some() {
            return false;
        }
        self.objects[lock].waiters.retain(|&w| w != i);
        self.take(kernel, i, lock);
        kernel.threads[i].complete();
        true
    }

    /// Makes a thread the holder of a free lock.
    fn take(&mut self, kernel: &mut Kernel, i: usize, lock: ObjectId) {
        self.access(kernel, i, lock);
        self.objects[lock].holder = Some(i);
        let t = &mut kernel.threads[i];
        t.held.push(lock);
        t.retries = false;
    }

    /// Releases a lock: the first thread that spins on a CPU acquires the lock. Without one, the
    /// first blocked thread is woken and retries.
    pub(crate) fn release(&mut self, kernel: &mut Kernel, i: usize, lock: ObjectId) {
        self.access(kernel, i, lock);
        let object = &mut self.objects[lock];
        object.holder = None;
        kernel.threads[i].held.retain(|&held| held != lock);
        if object.named.kind == Kind::Ticket {
            if let Some(next) = object.waiters.pop_front() {
                self.hand_over(kernel, next, lock);
            }
            return;
        }
        let spins = |w: &usize| {
            let t = &kernel.threads[*w];
            t.state == State::Running && matches!(t.activity, Activity::Spin(_))
        };
        if let Some(place) = object.waiters.iter().position(spins) {
            if let Some(next) = object.waiters.remove(place) {
                self.hand_over(kernel, next, lock);
            }
            return;
        }
        let is_blocked = |w: &usize| kernel.threads[*w].state == State::Blocked;
        if let Some(place) = object.waiters.iter().position(is_blocked)
            && let Some(next) = object.waiters.remove(place)
        {
            kernel.threads[next].retries = true;
            kernel.threads[i].debt_system += kernel.hardware.wake_ns;
            kernel.wake(next);
        }
    }

    /// Makes a waiting thread the holder of a released lock.
    fn hand_over(&mut self, kernel: &mut Kernel, next: usize, lock: ObjectId) {
        let cpu = kernel.threads[next].cpu;
        let is_running = kernel.threads[next].state == State::Running;
        if is_running {
            kernel.settle(cpu);
        }
        self.take(kernel, next, lock);
        kernel.threads[next].complete();
        if is_running {
            kernel.kick(cpu);
        }
    }

    /// Stops the CPUs that spin for the locks of a thread that has lost its CPU, so that they check
    /// whether spinning is futile.
    pub(crate) fn kick_spinners(&self, kernel: &mut Kernel, i: usize) {
        for at in 0..kernel.threads[i].held.len() {
            let lock = kernel.threads[i].held[at];
            for &w in &self.objects[lock].waiters {
                if kernel.threads[w].state == State::Running {
                    let cpu = kernel.threads[w].cpu;
                    kernel.kick(cpu);
                }
            }
        }
    }

    // Barriers, conditions and queues.

    /// Releases the barrier's lock, and waits for the other threads. The last one releases all.
    pub(crate) fn arrive(
        &mut self,
        kernel: &mut Kernel,
        i: usize,
        (barrier, lock): (ObjectId, ObjectId),
    ) -> Outcome {
        self.release(kernel, i, lock);
        let object = &mut self.objects[barrier];
        object.count += 1;
        let Kind::Barrier(parties) = object.named.kind else { return Outcome::Spins };
        if object.count < u64::from(parties) {
            return self.wait(kernel, i, barrier, false);
        }
        object.count = 0;
        self.broadcast(kernel, i, barrier);
        Outcome::Done
    }

    /// Consumes a stored signal, or waits for one.
    pub(crate) fn wait_for_signal(
        &mut self,
        kernel: &mut Kernel,
        i: usize,
        condition: ObjectId,
    ) -> Outcome {
        if self.objects[condition].count == 0 {
            return self.wait(kernel, i, condition, false);
        }
        self.objects[condition].count -= 1;
        self.access(kernel, i, condition);
        Outcome::Done
    }

    /// Ends the wait of one thread, or stores the signal.
    pub(crate) fn signal(&mut self, kernel: &mut Kernel, i: usize, condition: ObjectId) {
        self.access(kernel, i, condition);
        match self.remove_first(kernel, condition, false) {
            Some(waiter) => self.end_wait(kernel, Some(i), waiter, condition),
            None => self.objects[condition].count += 1,
        }
    }

    /// Ends the wait of all threads at a barrier or condition.
    pub(crate) fn broadcast(&mut self, kernel: &mut Kernel, i: usize, object: ObjectId) {
        self.access(kernel, i, object);
        let waiters = std::mem::take(&mut self.objects[object].waiters);
        let delay_ns = self.end_waits(kernel, waiters, None, object);
        kernel.threads[i].debt_system += delay_ns;
    }

    /// Pushes an item, or waits until there is free capacity.
    pub(crate) fn push(&mut self, kernel: &mut Kernel, i: usize, queue: ObjectId) -> Outcome {
        let Kind::Queue(items, _) = self.objects[queue].named.kind else { return Outcome::Spins };
        if self.objects[queue].count >= u64::from(items) {
            return self.wait(kernel, i, queue, true);
        }
        self.access(kernel, i, queue);
        match self.remove_first(kernel, queue, false) {
            Some(waiter) => self.end_wait(kernel, Some(i), waiter, queue),
            None => self.objects[queue].count += 1,
        }
        Outcome::Done
    }

    /// Pops an item, or waits for one.
    pub(crate) fn pop(&mut self, kernel: &mut Kernel, i: usize, queue: ObjectId) -> Outcome {
        if self.objects[queue].count == 0 {
            if self.objects[queue].producers == 0 {
                return Outcome::Ends;
            }
            return self.wait(kernel, i, queue, false);
        }
        self.access(kernel, i, queue);
        match self.remove_first(kernel, queue, true) {
            // The item of the waiting producer takes the place of the popped one.
            Some(waiter) => self.end_wait(kernel, Some(i), waiter, queue),
            None => self.objects[queue].count -= 1,
        }
        Outcome::Done
    }

    /// Removes an ended thread from the producers of a queue. Without producers, the threads that
    /// wait to pop check the queue again.
    pub(crate) fn remove_producer(&mut self, kernel: &mut Kernel, queue: ObjectId) {
        let object = &mut self.objects[queue];
        object.producers -= 1;
        if object.producers > 0 {
            return;
        }
        for waiter in std::mem::take(&mut object.waiters) {
            let cpu = kernel.threads[waiter].cpu;
            match kernel.threads[waiter].state {
                State::Parked => kernel.wake(waiter),
                State::Running => {
                    kernel.settle(cpu);
                    kernel.threads[waiter].activity = Activity::Fetch;
                    kernel.kick(cpu);
                }
                _ => kernel.threads[waiter].activity = Activity::Fetch,
            }
        }
    }

    // Ends of waits.

    /// Removes the thread whose wait ends first: one that spins on a CPU, then one that is blocked,
    /// then one that lost its CPU while it spun.
    fn remove_first(&mut self, kernel: &Kernel, object: ObjectId, to_push: bool) -> Option<usize> {
        let line = self.objects[object].line_of_waiters(to_push);
        let rank = |w: usize| match kernel.threads[w].state {
            State::Running => 0,
            State::Blocked | State::Parked => 1,
            _ => 2,
        };
        let (_, first) = line.iter().enumerate().map(|(at, &w)| (rank(w), at)).min()?;
        line.remove(first)
    }

    /// Ends the wait of a thread: its operation is complete. `by` pays for waking it.
    fn end_wait(&mut self, kernel: &mut Kernel, by: Option<usize>, i: usize, object: ObjectId) {
        let cpu = kernel.threads[i].cpu;
        match kernel.threads[i].state {
            State::Running => {
                kernel.settle(cpu);
                self.access(kernel, i, object);
                kernel.threads[i].complete();
                kernel.kick(cpu);
            }
            State::Blocked | State::Parked => {
                if let Some(by) = by {
                    kernel.threads[by].debt_system += kernel.hardware.wake_ns;
                }
                kernel.threads[i].complete();
                kernel.wake(i);
            }
            _ => kernel.threads[i].complete(),
        }
    }

    /// Ends the wait of several threads, which continue after the operation at `pc` (default: their
    /// own). Blocked threads are woken one after the other. Returns how long that takes.
    pub(crate) fn end_waits(
        &mut self,
        kernel: &mut Kernel,
        waiters: impl IntoIterator<Item = usize>,
        pc: Option<usize>,
        object: ObjectId,
    ) -> u64 {
        let mut delay_ns = 0;
        for waiter in waiters {
            let t = &mut kernel.threads[waiter];
            t.pc = pc.unwrap_or(t.pc);
            if t.state == State::Parked {
                delay_ns += kernel.hardware.wake_ns;
                t.complete();
                kernel.events.post_in(delay_ns, Event::Wake(waiter));
            } else {
                self.end_wait(kernel, None, waiter, object);
            }
        }
        delay_ns
    }

    /// Describes which threads wait for what: the first thread of each object.
    pub(crate) fn describe_waits(&self, kernel: &Kernel) -> String {
        let name = |i: usize| kernel.threads[i].name();
        let describe = |object: &SyncObject| {
            let first = *object.waiters.front().or(object.pushing.front())?;
            let others = match object.waiters.len() + object.pushing.len() {
                1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            let holder =
                object.holder.map_or(String::new(), |h| format!(", which {} holds", name(h)));
            Some(format!("{}{others} waits for {}{holder}", name(first), object.named.name))
        };
        let objects = self.objects.iter().filter(|o| o.named.kind != Kind::TeamStart);
        let mut lines: Vec<String> = objects.filter_map(describe).collect();
        let more = lines.len().saturating_sub(REPORTED_MAX);
        lines.truncate(REPORTED_MAX);
        if more > 0 {
            lines.push(format!("threads wait at {more} more objects"));
        }
        if lines.is_empty() { "all threads wait".into() } else { lines.join("; ") }
    }
}
