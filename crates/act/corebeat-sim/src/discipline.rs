//! The scheduling discipline: run-queue order, slices, and preemption of running threads.

use crate::thread::Thread;
use crate::time::ns;
use crate::{Hardware, Scheduler, priority};
use corebeat_machine::Class;

/// A woken thread preempts a running thread whose lead exceeds this, in virtual nanoseconds of
/// nice 0.
const WAKE_LEAD_NS: i64 = 1_000_000;
/// On `Solaris`, a thread that ran within this time returns to its CPU: three ticks of the clock.
const WARM_NS: u64 = 30_000_000;

/// How threads of one CPU share it.
#[derive(Debug)]
pub(crate) struct Discipline {
    scheduler: Scheduler,
    /// Default slice of the fair scheduler.
    slice: u64,
    /// Slices end at multiples of this period.
    tick: u64,
    /// A thread that ran within this time returns to its CPU.
    warm: u64,
}

impl Discipline {
    pub(crate) fn new(hardware: &Hardware) -> Self {
        Discipline {
            scheduler: hardware.scheduler,
            slice: ns(hardware.slice_us, 1e3),
            tick: ns(hardware.tick_us, 1e3).max(1),
            warm: if hardware.scheduler == Scheduler::Solaris { WARM_NS } else { 0 },
        }
    }

    pub(crate) fn is_time_share(&self) -> bool {
        self.scheduler.is_time_share()
    }

    /// Whether ready threads prefer the CPU where they ran last, and idle CPUs steal them later.
    pub(crate) fn prefers_warm_cpus(&self) -> bool {
        self.warm > 0
    }

    /// Whether a thread returns to its CPU after it has waited for so long.
    pub(crate) fn is_warm(&self, waited: u64) -> bool {
        waited < self.warm
    }

    /// Whether the priority of a thread changes with its behaviour.
    pub(crate) fn ages(&self, t: &Thread) -> bool {
        self.is_time_share() && t.class == Class::Normal
    }

    /// The slice of a thread that is dispatched, in nanoseconds.
    pub(crate) fn slice(&self, t: &Thread) -> u64 {
        match (t.slice, self.scheduler) {
            (Some(slice), _) => slice,
            (None, Scheduler::Fair) => self.slice,
            (None, Scheduler::TimeShare | Scheduler::Solaris) => priority::quantum_ns(t.priority),
        }
    }

    /// When the slice of a running thread ends.
    pub(crate) fn slice_end(&self, t: &Thread, now: u64) -> u64 {
        (now + t.left.max(1)).next_multiple_of(self.tick)
    }

    /// Whether the slice of a running thread has ended.
    pub(crate) fn is_expired(&self, t: &Thread, now: u64) -> bool {
        t.left == 0 && now.is_multiple_of(self.tick)
    }

    /// Starts the next slice of a thread that has used up its slice.
    pub(crate) fn expire(&self, t: &mut Thread) {
        if self.ages(t) {
            (t.priority, t.is_due) = (priority::expired(t.priority), false);
        }
        t.left = self.slice(t);
    }

    /// Starts the slice of a thread that is dispatched.
    pub(crate) fn dispatch(&self, t: &mut Thread) {
        // The rest of a time-sharing quantum stays with its thread.
        if !self.ages(t) || t.left == 0 {
            t.left = self.slice(t);
        }
    }

    /// Raises the priority of a thread that returns from a sleep.
    pub(crate) fn wake(&self, t: &mut Thread) {
        let is_due = std::mem::take(&mut t.is_due) || self.scheduler == Scheduler::TimeShare;
        if self.ages(t) && is_due {
            t.priority = priority::woken(t.priority);
            t.left = 0;
        }
    }

    /// Raises the priority of a thread that a tick found waiting for a CPU.
    pub(crate) fn tick(&self, t: &mut Thread) {
        t.priority = priority::waited(t.priority);
        if self.scheduler == Scheduler::Solaris {
            t.left = 0;
        }
    }

    /// The virtual time of a woken thread relative to its CPU's clock. A sleep earns at most one
    /// slice of credit.
    pub(crate) fn sleep_credit(&self, virtual_ns: i64) -> i64 {
        virtual_ns.max(-(self.slice as i64))
    }

    /// Rank and key of a thread in a CPU's run queue.
    pub(crate) fn key(&self, t: &Thread) -> (u8, i64) {
        match (t.class, self.scheduler) {
            (Class::Idle, _) => (2, t.virtual_ns),
            (_, Scheduler::TimeShare | Scheduler::Solaris) => {
                (1, i64::from(priority::MAX - t.priority))
            }
            (_, Scheduler::Fair) => (1, t.virtual_ns),
        }
    }

    /// Whether a thread that has become ready preempts the running one. `weight` is the effective
    /// weight of the new thread.
    pub(crate) fn preempts(&self, new: &Thread, weight: u64, running: &Thread) -> bool {
        match (new.class, running.class) {
            (Class::Idle, _) => false,
            (_, Class::Idle) => true,
            _ if self.is_time_share() => new.priority > running.priority,
            (Class::Batch, _) => false,
            _ => {
                let lead = WAKE_LEAD_NS * 1024 / weight as i64;
                new.virtual_ns + lead < running.virtual_ns
            }
        }
    }
}
