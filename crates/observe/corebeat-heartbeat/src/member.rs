//! Those who beat, and those who watch.

use crate::Error;
use crate::goal::Goal;
use crate::group::{Group, GroupId, Role};
use crate::page::Status;
use crate::session::{Seat, Session};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// In which process this thread beats; 0 if it does not. A child of fork has its parent's value.
    static BEATS_IN: Cell<i32> = const { Cell::new(0) };
}

/// A thread that beats for a group, until this is dropped. It stays with its thread:
///
/// ```compile_fail
/// fn needs_send<T: Send>() {}
/// needs_send::<corebeat_heartbeat::Producer>();
/// ```
///
/// ```compile_fail
/// fn needs_sync<T: Sync>() {}
/// needs_sync::<corebeat_heartbeat::Producer>();
/// ```
///
/// In a child of fork it still beats in the memory of its parent, where beats get lost then: drop it there, and attach anew.
#[derive(Debug)]
pub struct Producer {
    /// This thread's counter, which nobody else writes.
    counter: NonNull<AtomicU64>,
    slot: usize,
    seat: Arc<Seat>,
    session: &'static Session,
    _stays: PhantomData<*const ()>,
}

impl Producer {
    pub(crate) fn attach(session: &'static Session, group: &Group) -> Result<Producer, Error> {
        let pid = session.pid().as_raw_nonzero().get();
        if BEATS_IN.get() == pid {
            return Err(Error::AlreadyAttached);
        }
        let (seat, slot) = session.sit(group, Role::Producer)?;
        let region = seat.region().ok_or(Error::MonitorGone)?;
        let counter = NonNull::from(region.counter(slot));
        BEATS_IN.set(pid);
        Ok(Producer { counter, slot, seat, session, _stays: PhantomData })
    }

    /// Emits `n` heartbeats: a load and a store in a cache line of this thread.
    #[inline(always)]
    pub fn beat(&self, n: u64) {
        // SAFETY: mapped as long as the seat is there.
        let counter = unsafe { self.counter.as_ref() };
        // Relaxed: nobody else writes it, and it tells nothing of other memory.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Where this thread counts, for code in other languages: it may be added to by this thread, as long as this lives, with
    /// a relaxed atomic load and store.
    pub fn counter(&self) -> NonNull<AtomicU64> {
        self.counter
    }

    /// Which group it beats for.
    pub fn group(&self) -> GroupId {
        self.seat.group()
    }

    /// What was measured.
    ///
    /// # Errors
    /// [`Error::Unsettled`] and [`Error::BadMemory`] if the monitor went wrong; [`Error::MonitorGone`] if the daemon ended.
    pub fn status(&self) -> Result<Status, Error> {
        self.seat.status()
    }

    /// Beats a second since the group was made.
    ///
    /// # Errors
    /// As [`status`](Producer::status).
    pub fn global_rate(&self) -> Result<f64, Error> {
        self.status().map(|status| status.global_rate)
    }

    /// Beats a second over the window.
    ///
    /// # Errors
    /// As [`status`](Producer::status).
    pub fn window_rate(&self) -> Result<f64, Error> {
        self.status().map(|status| status.window_rate)
    }

    /// The group's goal.
    ///
    /// # Errors
    /// As [`status`](Producer::status).
    pub fn goal(&self) -> Result<Goal, Error> {
        self.status().map(|status| status.goal)
    }

    /// Sets the group's goal.
    ///
    /// # Errors
    /// Those of [`Goal::check`]; those of [`status`](Producer::status); [`Error::Forked`].
    pub fn set_goal(&self, goal: Goal) -> Result<(), Error> {
        self.session.change_goal(&self.seat, |old| *old = goal)
    }

    /// Sets or clears the goal's lower end, in beats a second. The setters for one part each are for groups of one process: of
    /// two processes that change different parts at the same time, one may undo the other's.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_rate_min(&self, rate: impl Into<Option<f64>>) -> Result<(), Error> {
        self.session.change_goal(&self.seat, |goal| goal.rate_min = rate.into())
    }

    /// Sets or clears the goal's upper end, in beats a second.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_rate_max(&self, rate: impl Into<Option<f64>>) -> Result<(), Error> {
        self.session.change_goal(&self.seat, |goal| goal.rate_max = rate.into())
    }

    /// Sets the window, in samples.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_window(&self, samples: u32) -> Result<(), Error> {
        self.session.change_goal(&self.seat, |goal| goal.window = samples)
    }

    /// Sets whether the group is to be kept below its maximum even where nobody else wants the CPUs.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_hold(&self, hold: bool) -> Result<(), Error> {
        self.session.change_goal(&self.seat, |goal| goal.hold = hold)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.session.leave(&self.seat, self.slot);
        if BEATS_IN.get() == self.session.pid().as_raw_nonzero().get() {
            BEATS_IN.set(0);
        }
    }
}

/// Somebody who sees what is measured of a group, from any thread.
#[derive(Debug)]
pub struct Consumer {
    seat: Arc<Seat>,
    session: &'static Session,
}

impl Consumer {
    pub(crate) fn attach(session: &'static Session, group: &Group) -> Result<Consumer, Error> {
        let (seat, _) = session.sit(group, Role::Consumer)?;
        Ok(Consumer { seat, session })
    }

    /// Which group it watches.
    pub fn group(&self) -> GroupId {
        self.seat.group()
    }

    /// What was measured.
    ///
    /// # Errors
    /// [`Error::Unsettled`] and [`Error::BadMemory`] if the monitor went wrong; [`Error::MonitorGone`] if the daemon ended.
    pub fn status(&self) -> Result<Status, Error> {
        self.seat.status()
    }

    /// Beats a second since the group was made.
    ///
    /// # Errors
    /// As [`status`](Consumer::status).
    pub fn global_rate(&self) -> Result<f64, Error> {
        self.status().map(|status| status.global_rate)
    }

    /// Beats a second over the window.
    ///
    /// # Errors
    /// As [`status`](Consumer::status).
    pub fn window_rate(&self) -> Result<f64, Error> {
        self.status().map(|status| status.window_rate)
    }

    /// The group's goal.
    ///
    /// # Errors
    /// As [`status`](Consumer::status).
    pub fn goal(&self) -> Result<Goal, Error> {
        self.status().map(|status| status.goal)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.session.leave(&self.seat, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{Local, Monitor};
    use crate::{PERIOD_MIN, SLOTS, raw, session};
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    const SECOND_NS: u64 = 1_000_000_000;

    /// A process's session in which the test says what time it is; it begins at 0.
    fn session() -> &'static Session {
        Box::leak(Box::new(Session::new(|_| Local::new(None).map(Monitor::Local))))
    }

    fn produce(session: &'static Session, number: u32) -> Result<Producer, Error> {
        Producer::attach(session, &Group::new(number))
    }

    fn consume(session: &'static Session, number: u32) -> Consumer {
        Consumer::attach(session, &Group::new(number)).unwrap()
    }

    #[test]
    fn beats_become_rates() {
        let session = session();
        let producer = produce(session, 7).unwrap();
        let consumer = consume(session, 7);
        (0..30).for_each(|_| producer.beat(1));
        producer.beat(20);
        session.sample(10 * SECOND_NS);
        let status = consumer.status().unwrap();
        assert_eq!((status.beats, status.members, status.samples), (50, 1, 1));
        assert_eq!((consumer.global_rate().unwrap(), consumer.window_rate().unwrap()), (5.0, 5.0));
        assert_eq!((producer.global_rate().unwrap(), producer.window_rate().unwrap()), (5.0, 5.0));
        assert_eq!((producer.group(), consumer.group().number), (consumer.group(), 7));
    }

    #[test]
    fn thread_in_a_second_group_is_refused_until_it_leaves_the_first() {
        let session = session();
        let first = produce(session, 1).unwrap();
        for number in [1, 2] {
            assert!(matches!(produce(session, number), Err(Error::AlreadyAttached)));
        }
        drop(first);
        drop(produce(session, 2).unwrap());
        assert!(session.is_at_rest());
    }

    #[test]
    fn goal_is_set_in_parts_and_seen_by_all() {
        let session = session();
        let (producer, consumer) = (produce(session, 7).unwrap(), consume(session, 7));
        assert_eq!(consumer.goal().unwrap(), Goal::default());
        producer.set_rate_max(30.0).unwrap();
        producer.set_rate_min(20.0).unwrap();
        producer.set_window(4).unwrap();
        producer.set_hold(true).unwrap();
        let goal = Goal { rate_min: Some(20.0), rate_max: Some(30.0), window: 4, hold: true };
        assert_eq!((consumer.goal().unwrap(), producer.goal().unwrap()), (goal, goal));
        assert!(matches!(producer.set_rate_min(31.0), Err(Error::EmptyGoal { .. })));
        assert!(matches!(producer.set_rate_max(None), Err(Error::HoldWithoutMax)));
        assert_eq!(consumer.goal().unwrap(), goal);
        producer.set_goal(Goal::default()).unwrap();
        assert_eq!(consumer.goal().unwrap(), Goal::default());
    }

    #[test]
    fn threads_that_come_and_go_lose_no_beat() {
        const THREADS: usize = 8;
        let session = session();
        let consumer = consume(session, 7);
        let all_in = Barrier::new(THREADS + 1);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..3 {
                        let producer = produce(session, 7).unwrap();
                        (0..100).for_each(|_| producer.beat(1));
                    }
                    let producer = produce(session, 7).unwrap();
                    producer.beat(7);
                    all_in.wait();
                    all_in.wait();
                });
            }
            all_in.wait();
            session.sample(SECOND_NS);
            assert_eq!(consumer.status().unwrap().members, THREADS as u32);
            all_in.wait();
        });
        let keeper = produce(session, 7).unwrap();
        session.sample(2 * SECOND_NS);
        let status = consumer.status().unwrap();
        assert_eq!((status.members, keeper.slot), (1, 0));
        // Where the last left for a moment, the region went, and its beats stayed.
        assert_eq!(status.beats, (THREADS * 307) as u64);
    }

    #[test]
    fn slot_of_a_thread_that_died_is_taken_back() {
        let session = session();
        let consumer = consume(session, 7);
        let die = || {
            let dead = thread::spawn(move || {
                let producer = produce(session, 7).unwrap();
                producer.beat(3);
                std::mem::forget(producer);
                rustix::thread::gettid()
            });
            let tid = dead.join().unwrap();
            // The system forgets it a little later.
            while raw::is_alive(tid) {
                thread::yield_now();
            }
        };
        die();
        session.sample(SECOND_NS);
        assert_eq!(consumer.status().unwrap().beats, 3);
        let producer = produce(session, 7).unwrap();
        assert_eq!(producer.slot, 0);
        producer.beat(1);
        session.sample(2 * SECOND_NS);
        let status = consumer.status().unwrap();
        assert_eq!((status.beats, status.members), (4, 1));
        // The dead keep nothing running either.
        die();
        drop(producer);
        drop(consumer);
        assert!(session.is_at_rest());
    }

    #[test]
    fn threads_beyond_the_slots_are_refused() {
        let session = session();
        let producer = produce(session, 7).unwrap();
        let region = producer.seat.region().unwrap();
        // As if a thread that lives had them all.
        let tid = rustix::thread::gettid();
        (0..SLOTS).for_each(|slot| region.give_to(slot, tid));
        let more = thread::spawn(move || produce(session, 7).map(|producer| producer.slot));
        assert!(matches!(more.join().unwrap(), Err(Error::TooMany { limit: SLOTS, .. })));
    }

    #[test]
    fn sampling_thread_measures_while_somebody_is_attached() {
        let session: &'static Session =
            Box::leak(Box::new(Session::new(|period| Local::new(Some(period)).map(Monitor::Local))));
        let group = Group::new(7).period(PERIOD_MIN);
        for _ in 0..2 {
            let producer = Producer::attach(session, &group).unwrap();
            producer.beat(5);
            let samples = producer.status().unwrap().samples;
            while producer.status().unwrap().samples < samples + 2 {
                thread::yield_now();
            }
            let status = producer.status().unwrap();
            assert_eq!(status.beats, 5);
            assert!(status.global_rate > 0.0);
            drop(producer);
            assert!(session.is_at_rest());
        }
        for period in [Duration::ZERO, Duration::MAX] {
            let refused = Producer::attach(session, &group.period(period));
            assert!(matches!(refused, Err(Error::BadPeriod(_))));
        }
    }

    #[test]
    fn child_of_fork_attaches_anew() {
        let session = session();
        let producer = produce(session, 7).unwrap();
        producer.beat(1);
        // SAFETY: the child does what a child may with glibc, whose allocator is whole after fork, and ends itself.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = matches!(producer.set_goal(Goal::default()), Err(Error::Forked));
            let own = Group::new(7).produce();
            let is_own = own.as_ref().is_ok_and(|own| own.counter() != producer.counter());
            drop(producer);
            let again = matches!(Group::new(7).produce(), Err(Error::AlreadyAttached));
            let is_there = session::current().pid() != session.pid();
            // SAFETY: without what the parent wants done at its end.
            unsafe { libc::_exit(i32::from(!(forked && is_own && again && is_there))) };
        }
        let mut status = -1;
        // SAFETY: it writes the status, and waits for our child alone.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        session.sample(SECOND_NS);
        let status = producer.status().unwrap();
        assert_eq!((status.beats, status.members), (1, 1), "the child's end gave nothing of ours back");
    }
}
