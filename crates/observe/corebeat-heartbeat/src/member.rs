//! Members of groups: producers and consumers.

use crate::Error;
use crate::goal::Goal;
use crate::group::{Group, GroupId};
use crate::page::Status;
use crate::session::{Seat, Session};
use corebeat_wire::Deadline;
use corebeat_wire::host::Role;
use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// The place of this thread. A child of fork inherits its parent's.
    static THREAD_PLACE: ThreadPlace = const { ThreadPlace(RefCell::new(None)) };
}

/// A thread's place, which is released at the latest when the thread ends.
struct ThreadPlace(RefCell<Option<Place>>);

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        // The process ends with its first thread. The monitor detects that without a message, and
        // exit must not wait for the daemon.
        if rustix::thread::gettid() == rustix::process::getpid() {
            std::mem::forget(self.0.take());
        }
    }
}

/// A slot of this thread, which is returned on drop.
struct Place {
    session: &'static Session,
    seat: Arc<Seat>,
    slot: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.session.leave(&self.seat, self.slot, Deadline::new());
    }
}

/// An attached member of a group, which can read the measurements.
#[derive(Debug)]
pub struct Member {
    seat: Arc<Seat>,
    session: &'static Session,
}

impl Member {
    /// The group.
    pub fn group(&self) -> GroupId {
        self.seat.group()
    }

    /// The current measurements. If the daemon has ended and another one runs, or a daemon has
    /// started since, the member attaches to that one.
    ///
    /// # Errors
    /// [`Error::Unsettled`] and [`Error::BadMemory`] if the monitor has failed;
    /// [`Error::MonitorGone`] if the daemon has ended and no other one runs.
    pub fn status(&self) -> Result<Status, Error> {
        self.session.status(&self.seat, Deadline::new())
    }

    /// Beats per second since the group was created.
    ///
    /// # Errors
    /// As [`status`](Member::status).
    pub fn global_rate(&self) -> Result<f64, Error> {
        self.status().map(|status| status.global_rate)
    }

    /// Beats per second over the window.
    ///
    /// # Errors
    /// As [`status`](Member::status).
    pub fn window_rate(&self) -> Result<f64, Error> {
        self.status().map(|status| status.window_rate)
    }

    /// The group's goal.
    ///
    /// # Errors
    /// As [`status`](Member::status).
    pub fn goal(&self) -> Result<Goal, Error> {
        self.status().map(|status| status.goal)
    }
}

/// A thread that beats for a group, until the value is dropped or the thread ends. The value cannot
/// leave its thread:
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
/// In a child of fork its beats are not counted: drop it there, and attach again.
#[derive(Debug)]
pub struct Producer {
    /// The counter of this thread, which no other thread writes.
    counter: NonNull<AtomicU64>,
    member: Member,
    _stays: PhantomData<*const ()>,
}

impl Producer {
    pub(crate) fn attach(session: &'static Session, group: &Group) -> Result<Producer, Error> {
        let beats = |own: &ThreadPlace| {
            own.0.borrow().as_ref().is_some_and(|place| !place.session.is_forked())
        };
        let ends =
            |_| Error::system("a thread that ends cannot attach", io::ErrorKind::Unsupported);
        if THREAD_PLACE.try_with(beats).map_err(ends)? {
            return Err(Error::AlreadyAttached);
        }
        let (seat, slot) = session.attach(group, Role::Producer, Deadline::new())?;
        let place = Place { session, seat: seat.clone(), slot };
        let counter = NonNull::from(seat.region().ok_or(Error::MonitorGone)?.counter(slot));
        THREAD_PLACE.try_with(|own| own.0.replace(Some(place))).map_err(ends)?;
        Ok(Producer { counter, member: Member { seat, session }, _stays: PhantomData })
    }

    /// Emits `n` heartbeats: a load and a store in a cache line of this thread. The count
    /// saturates.
    #[inline(always)]
    pub fn beat(&self, n: u64) {
        // SAFETY: mapped while the seat exists.
        let counter = unsafe { self.counter.as_ref() };
        // Relaxed: no other thread writes it, and no other data depends on it. A branch, because
        // the conditional move of `saturating_add` takes a nanosecond.
        match counter.load(Ordering::Relaxed).checked_add(n) {
            Some(beats) => counter.store(beats, Ordering::Relaxed),
            None => saturate(counter),
        }
    }

    /// The counter of this thread, for code in other languages. Only this thread may increment it,
    /// with a relaxed atomic load and store, while the producer exists. The count must not
    /// overflow: a count that decreases is treated as unchanged.
    pub fn counter(&self) -> NonNull<AtomicU64> {
        self.counter
    }

    /// Sets the group's goal.
    ///
    /// # Errors
    /// Those of [`Goal::check`]; those of [`status`](Member::status); [`Error::Forked`].
    pub fn set_goal(&self, goal: Goal) -> Result<(), Error> {
        self.change_goal(|old| *old = goal)
    }

    /// Sets or clears the minimum rate, in beats per second. The setters for single parts are meant
    /// for groups of one process: if two processes change different parts at the same time, one
    /// change may be lost.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_rate_min(&self, rate: impl Into<Option<f64>>) -> Result<(), Error> {
        self.change_goal(|goal| goal.rate_min = rate.into())
    }

    /// Sets or clears the maximum rate, in beats per second.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_rate_max(&self, rate: impl Into<Option<f64>>) -> Result<(), Error> {
        self.change_goal(|goal| goal.rate_max = rate.into())
    }

    /// Sets the window, in samples.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_window(&self, samples: u32) -> Result<(), Error> {
        self.change_goal(|goal| goal.window = samples)
    }

    /// Sets whether the group is kept below its maximum even if no other program needs the CPUs.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_hold(&self, hold: bool) -> Result<(), Error> {
        self.change_goal(|goal| goal.hold = hold)
    }

    fn change_goal(&self, change: impl FnOnce(&mut Goal)) -> Result<(), Error> {
        self.member.session.change_goal(&self.member.seat, change, Deadline::new())
    }
}

#[cold]
#[inline(never)]
fn saturate(counter: &AtomicU64) {
    // Relaxed: as in `beat`.
    counter.store(u64::MAX, Ordering::Relaxed);
}

impl Deref for Producer {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.member
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let is_own = |place: &mut Place| Arc::ptr_eq(&place.seat, &self.member.seat);
        // If the thread-local data has been destroyed, the place has been released. Otherwise it is
        // released here, outside the borrow.
        drop(THREAD_PLACE.try_with(|own| own.0.borrow_mut().take_if(is_own)));
    }
}

/// A member that reads the measurements of a group, on any thread.
#[derive(Debug)]
pub struct Consumer {
    member: Member,
}

impl Consumer {
    pub(crate) fn attach(session: &'static Session, group: &Group) -> Result<Consumer, Error> {
        let (seat, _) = session.attach(group, Role::Consumer, Deadline::new())?;
        Ok(Consumer { member: Member { seat, session } })
    }
}

impl Deref for Consumer {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.member
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.member.session.leave(&self.member.seat, 0, Deadline::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{Finder, Local};
    use crate::{PERIOD_MIN, SLOTS, raw};
    use corebeat_test_group::in_child;
    use rustix::process::Pid;
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    const SECOND_NS: u64 = 1_000_000_000;

    /// A session of a process whose time the test provides; it begins at 0.
    fn session() -> &'static Session {
        Box::leak(Box::new(Session::new(Finder {
            daemon: |_| Ok(None),
            local: |_| Local::new(None),
        })))
    }

    fn produce(session: &'static Session, number: u32) -> Result<Producer, Error> {
        Producer::attach(session, &Group::new(number))
    }

    fn slot(producer: &Producer) -> usize {
        let region = producer.member.seat.region().unwrap();
        (0..SLOTS)
            .find(|slot| std::ptr::eq(region.counter(*slot), producer.counter.as_ptr()))
            .unwrap()
    }

    /// The ID of a thread that has ended.
    fn dead() -> Pid {
        let tid = thread::spawn(rustix::thread::gettid).join().unwrap();
        // The kernel removes the thread a little later.
        while raw::is_alive(tid) {
            thread::yield_now();
        }
        tid
    }

    fn consume(session: &'static Session, number: u32) -> Consumer {
        Consumer::attach(session, &Group::new(number)).unwrap()
    }

    #[test]
    fn beats_determine_rates() {
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
    fn beats_saturate() {
        let session = session();
        let producer = produce(session, 7).unwrap();
        producer.beat(u64::MAX);
        producer.beat(5);
        session.sample(SECOND_NS);
        assert_eq!(producer.status().unwrap().beats, u64::MAX);
        drop(producer);
        // A new region, because all members have left.
        let producer = produce(session, 7).unwrap();
        producer.beat(3);
        session.sample(2 * SECOND_NS);
        assert_eq!(producer.status().unwrap().beats, 3);
    }

    #[test]
    fn second_group_of_a_thread_is_refused_until_it_leaves_the_first() {
        let session = session();
        let first = produce(session, 1).unwrap();
        for number in [1, 2] {
            assert!(matches!(produce(session, number), Err(Error::AlreadyAttached)));
        }
        drop(first);
        drop(produce(session, 2).unwrap());
        assert!(session.is_idle());
    }

    #[test]
    fn goal_is_set_in_parts_and_visible_to_all_members() {
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
    fn starting_and_ending_threads_lose_no_beat() {
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
        assert_eq!((status.members, slot(&keeper)), (1, 0));
        // If all threads had left at some moment, the region was released, but its beats count.
        assert_eq!(status.beats, (THREADS * 307) as u64);
    }

    #[test]
    fn ended_thread_is_not_a_member() {
        let session = session();
        let consumer = consume(session, 7);
        let forgets = move || {
            let producer = produce(session, 7).unwrap();
            producer.beat(3);
            std::mem::forget(producer);
        };
        let keeper = produce(session, 7).unwrap();
        thread::spawn(forgets).join().unwrap();
        session.sample(SECOND_NS);
        let status = consumer.status().unwrap();
        assert_eq!((status.beats, status.members), (3, 1));
        drop(keeper);
        // The same for the last thread of the process.
        thread::spawn(forgets).join().unwrap();
        session.sample(2 * SECOND_NS);
        let status = consumer.status().unwrap();
        assert_eq!((status.beats, status.members), (6, 0));
        drop(consumer);
        assert!(session.is_idle());
    }

    #[test]
    fn producer_may_outlive_the_data_of_its_thread() {
        thread_local!(static LATE: RefCell<Option<Producer>> = const { RefCell::new(None) });
        let session = session();
        let keeper = produce(session, 7).unwrap();
        let late = move || {
            // Data that was used first is destroyed last.
            LATE.with(|late| drop(late.borrow()));
            let producer = produce(session, 7).unwrap();
            LATE.with(|late| late.replace(Some(producer)));
        };
        thread::spawn(late).join().unwrap();
        session.sample(SECOND_NS);
        assert_eq!(keeper.status().unwrap().members, 1);
    }

    #[test]
    fn slot_of_an_ended_thread_is_reclaimed() {
        let session = session();
        let consumer = consume(session, 7);
        let producer = produce(session, 7).unwrap();
        // As if the thread had ended without running destructors.
        let seat = producer.member.seat.clone();
        seat.region().unwrap().give_to(slot(&producer), dead());
        let next = thread::spawn(move || produce(session, 7).map(|next| slot(&next)).unwrap());
        assert_eq!(next.join().unwrap(), 0);
        // Ended threads do not keep the sampler running.
        seat.region().unwrap().give_to(1, dead());
        drop(producer);
        drop(consumer);
        assert!(session.is_idle());
    }

    #[test]
    fn threads_beyond_the_slots_are_refused() {
        let session = session();
        let producer = produce(session, 7).unwrap();
        let region = producer.member.seat.region().unwrap();
        // As if a running thread had all slots.
        let tid = rustix::thread::gettid();
        (0..SLOTS).for_each(|slot| region.give_to(slot, tid));
        let more = thread::spawn(move || produce(session, 7).map(|producer| slot(&producer)));
        assert!(matches!(more.join().unwrap(), Err(Error::TooMany { limit: SLOTS, .. })));
    }

    #[test]
    fn sampling_thread_runs_while_a_member_is_attached() {
        let session: &'static Session =
            Box::leak(Box::new(Session::new(Finder { daemon: |_| Ok(None), ..Finder::HOST })));
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
            assert!(session.is_idle());
        }
        for period in [Duration::ZERO, Duration::MAX] {
            let refused = Producer::attach(session, &group.period(period));
            assert!(matches!(refused, Err(Error::BadPeriod(_))));
        }
    }

    #[test]
    fn child_of_fork_beats_for_no_group_until_it_attaches() {
        let session = session();
        let producer = produce(session, 7).unwrap();
        producer.beat(1);
        let mut own = Some(producer);
        assert!(in_child(|| {
            let producer = own.take().unwrap();
            producer.beat(1000);
            let forked = matches!(producer.set_goal(Goal::default()), Err(Error::Forked))
                && matches!(producer.status(), Err(Error::Forked));
            let own = Group::new(7).produce();
            let is_own = own.as_ref().is_ok_and(|own| own.counter() != producer.counter());
            drop(producer);
            let again = matches!(Group::new(7).produce(), Err(Error::AlreadyAttached));
            forked && is_own && again
        }));
        let producer = own.take().unwrap();
        session.sample(SECOND_NS);
        let status = producer.status().unwrap();
        assert_eq!(
            (status.beats, status.members),
            (1, 1),
            "the end of the child must not release slots of the parent"
        );
    }
}
