//! The event queue: simulated time, and the events that are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Initial value and multiplier of the FNV-1a hash, which the fingerprint of all events uses.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// A state change that is due at a certain time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A CPU reconsiders its running thread. Of a CPU's stop events, only the one with the newest
    /// number is valid.
    Stop(usize, u32),
    /// A thread returns from a device, or is woken after a delay.
    Wake(usize),
    /// A program starts.
    Start(usize),
    /// The run queues are balanced.
    Balance,
    /// A program with a CPU quota receives the CPU time of its next period.
    Refill(usize),
    /// The priorities of waiting threads rise (time-sharing schedulers only).
    Tick,
    /// A page migration has finished.
    PagesMoved(usize),
    /// The coscheduler plans again. Only the newest number is valid.
    Plan(u32),
    /// A CPU is notified of a changed plan, or of a thread that waits on another CPU.
    Notify(usize),
    /// A program's deadline to release claimed CPUs has passed.
    ReleaseDeadline(usize),
}

impl Event {
    /// The kind and the subject as numbers, for the fingerprint.
    fn words(self) -> [u64; 2] {
        let (kind, subject) = match self {
            Event::Stop(cpu, _) => (1, cpu),
            Event::Wake(thread) => (2, thread),
            Event::Start(program) => (3, program),
            Event::Balance => (4, 0),
            Event::Refill(program) => (5, program),
            Event::Tick => (6, 0),
            Event::PagesMoved(number) => (7, number),
            Event::Plan(number) => (8, number as usize),
            Event::Notify(cpu) => (9, cpu),
            Event::ReleaseDeadline(program) => (10, program),
        };
        [kind, subject as u64]
    }
}

/// Simulated time and all pending events.
pub(crate) struct EventQueue {
    now: u64,
    pending: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of events posted so far. It orders events of the same time by their posting.
    posted: u64,
    /// Pending wakes and program starts.
    arrivals: usize,
    handled: u64,
    fingerprint: u64,
}

impl EventQueue {
    pub(crate) fn new() -> Self {
        EventQueue {
            now: 0,
            pending: BinaryHeap::new(),
            posted: 0,
            arrivals: 0,
            handled: 0,
            fingerprint: FNV_OFFSET,
        }
    }

    /// Simulated time, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Schedules an event; one in the past becomes due now.
    pub(crate) fn post(&mut self, at: u64, event: Event) {
        self.posted += 1;
        self.arrivals += usize::from(matches!(event, Event::Wake(_) | Event::Start(_)));
        self.pending.push(Reverse((at.max(self.now), self.posted, event)));
    }

    /// Schedules an event after a delay.
    pub(crate) fn post_in(&mut self, delay_ns: u64, event: Event) {
        self.post(self.now + delay_ns, event);
    }

    /// Time of the next event; `u64::MAX` without one.
    pub(crate) fn next_at(&self) -> u64 {
        self.pending.peek().map_or(u64::MAX, |Reverse((time, ..))| *time)
    }

    /// Advances to the next event up to `until`, and returns it; without one, advances to `until`.
    pub(crate) fn pop_until(&mut self, until: u64) -> Option<Event> {
        if self.next_at() > until || self.pending.is_empty() {
            self.now = until;
            return None;
        }
        let Reverse((time, _, event)) = self.pending.pop()?;
        self.now = time;
        Some(event)
    }

    /// Lets time pass without events.
    pub(crate) fn skip_to(&mut self, at: u64) {
        self.now = self.now.max(at);
    }

    /// Counts an event that is about to be handled, and adds it to the fingerprint.
    pub(crate) fn count(&mut self, event: Event) {
        self.handled += 1;
        self.arrivals -= usize::from(matches!(event, Event::Wake(_) | Event::Start(_)));
        let [kind, subject] = event.words();
        for word in [self.now, kind, subject] {
            self.fingerprint = (self.fingerprint ^ word).wrapping_mul(FNV_PRIME);
        }
    }

    /// Whether a thread or program is still to arrive.
    pub(crate) fn has_arrivals(&self) -> bool {
        self.arrivals > 0
    }

    /// Number of handled events.
    pub(crate) fn handled(&self) -> u64 {
        self.handled
    }

    /// Hash of all handled events.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_are_handled_in_posting_order() {
        let mut events = EventQueue::new();
        events.post(20, Event::Balance);
        events.post(10, Event::Wake(2));
        events.post(10, Event::Wake(1));
        assert!(events.has_arrivals());
        assert_eq!(events.pop_until(15), Some(Event::Wake(2)));
        assert_eq!(events.pop_until(15), Some(Event::Wake(1)));
        assert_eq!((events.pop_until(15), events.now()), (None, 15));
        assert_eq!((events.pop_until(30), events.now()), (Some(Event::Balance), 20));
    }
}
