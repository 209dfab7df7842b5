//! Those who beat, and those who watch.

use crate::Error;
use crate::goal::Goal;
use crate::group::{Group, GroupId, Role};
use crate::page::Status;
use crate::session::{Seat, Session};
use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Where this thread beats. A child of fork has its parent's.
    static MINE: Mine = const { Mine(RefCell::new(None)) };
}

/// A thread's place, which is left at the latest when the thread ends.
struct Mine(RefCell<Option<Place>>);

impl Drop for Mine {
    fn drop(&mut self) {
        // With the first thread the process ends: that is noticed without it, and no end is to wait for the daemon.
        if rustix::thread::gettid() == rustix::process::getpid() {
            std::mem::forget(self.0.take());
        }
    }
}

/// A slot that this thread has, until this is dropped.
struct Place {
    session: &'static Session,
    seat: Arc<Seat>,
    slot: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.session.leave(&self.seat, self.slot);
    }
}

/// Somebody who is attached to a group, and so sees what is measured of it.
#[derive(Debug)]
pub struct Member {
    seat: Arc<Seat>,
    session: &'static Session,
}

impl Member {
    /// Which group.
    pub fn group(&self) -> GroupId {
        self.seat.group()
    }

    /// What was measured. Where the daemon has ended and there is another one, that one measures from here on.
    ///
    /// # Errors
    /// [`Error::Unsettled`] and [`Error::BadMemory`] if the monitor went wrong; [`Error::MonitorGone`] if the daemon ended and there
    /// is no other one.
    pub fn status(&self) -> Result<Status, Error> {
        self.session.status(&self.seat)
    }

    /// Beats a second since the group was made.
    ///
    /// # Errors
    /// As [`status`](Member::status).
    pub fn global_rate(&self) -> Result<f64, Error> {
        self.status().map(|status| status.global_rate)
    }

    /// Beats a second over the window.
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

/// A thread that beats for a group, until this is dropped or the thread ends. It stays with its thread:
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
/// In a child of fork its beats are counted by nobody: drop it there, and attach anew.
#[derive(Debug)]
pub struct Producer {
    /// This thread's counter, which nobody else writes.
    counter: NonNull<AtomicU64>,
    member: Member,
    _stays: PhantomData<*const ()>,
}

impl Producer {
    pub(crate) fn attach(session: &'static Session, group: &Group) -> Result<Producer, Error> {
        let beats = |mine: &Mine| mine.0.borrow().as_ref().is_some_and(|place| !place.session.is_forked());
        let ends = |_| Error::system("a thread that ends cannot attach", io::ErrorKind::Unsupported);
        if MINE.try_with(beats).map_err(ends)? {
            return Err(Error::AlreadyAttached);
        }
        let (seat, slot) = session.sit(group, Role::Producer)?;
        let place = Place { session, seat: seat.clone(), slot };
        let counter = NonNull::from(seat.region().ok_or(Error::MonitorGone)?.counter(slot));
        MINE.try_with(|mine| mine.0.replace(Some(place))).map_err(ends)?;
        Ok(Producer { counter, member: Member { seat, session }, _stays: PhantomData })
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

    /// Sets the group's goal.
    ///
    /// # Errors
    /// Those of [`Goal::check`]; those of [`status`](Member::status); [`Error::Forked`].
    pub fn set_goal(&self, goal: Goal) -> Result<(), Error> {
        self.change_goal(|old| *old = goal)
    }

    /// Sets or clears the goal's lower end, in beats a second. The setters for one part each are for groups of one process: of
    /// two processes that change different parts at the same time, one may undo the other's.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_rate_min(&self, rate: impl Into<Option<f64>>) -> Result<(), Error> {
        self.change_goal(|goal| goal.rate_min = rate.into())
    }

    /// Sets or clears the goal's upper end, in beats a second.
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

    /// Sets whether the group is to be kept below its maximum even where nobody else wants the CPUs.
    ///
    /// # Errors
    /// As [`set_goal`](Producer::set_goal).
    pub fn set_hold(&self, hold: bool) -> Result<(), Error> {
        self.change_goal(|goal| goal.hold = hold)
    }

    fn change_goal(&self, change: impl FnOnce(&mut Goal)) -> Result<(), Error> {
        self.member.session.change_goal(&self.member.seat, change)
    }
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
        // Where the thread's own data are gone its place has been left. Else it is left here, out of the borrow.
        drop(MINE.try_with(|mine| mine.0.borrow_mut().take_if(is_own)));
    }
}

/// Somebody who sees what is measured of a group, from any thread.
#[derive(Debug)]
pub struct Consumer {
    member: Member,
}

impl Consumer {
    pub(crate) fn attach(session: &'static Session, group: &Group) -> Result<Consumer, Error> {
        let (seat, _) = session.sit(group, Role::Consumer)?;
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
        self.member.session.leave(&self.member.seat, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{Finder, Local};
    use crate::{PERIOD_MIN, SLOTS, raw};
    use rustix::process::Pid;
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    const SECOND_NS: u64 = 1_000_000_000;

    /// A process's session in which the test says what time it is; it begins at 0.
    fn session() -> &'static Session {
        Box::leak(Box::new(Session::new(Finder { daemon: || Ok(None), local: |_| Local::new(None) })))
    }

    fn produce(session: &'static Session, number: u32) -> Result<Producer, Error> {
        Producer::attach(session, &Group::new(number))
    }

    fn slot(producer: &Producer) -> usize {
        let region = producer.member.seat.region().unwrap();
        (0..SLOTS).find(|slot| std::ptr::eq(region.counter(*slot), producer.counter.as_ptr())).unwrap()
    }

    /// The number of a thread that is no more.
    fn dead() -> Pid {
        let tid = thread::spawn(rustix::thread::gettid).join().unwrap();
        // The system forgets it a little later.
        while raw::is_alive(tid) {
            thread::yield_now();
        }
        tid
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
        assert_eq!((status.members, slot(&keeper)), (1, 0));
        // Where the last left for a moment, the region went, and its beats stayed.
        assert_eq!(status.beats, (THREADS * 307) as u64);
    }

    #[test]
    fn thread_that_ends_without_detaching_is_no_member() {
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
        // As the last one of its process.
        thread::spawn(forgets).join().unwrap();
        session.sample(2 * SECOND_NS);
        let status = consumer.status().unwrap();
        assert_eq!((status.beats, status.members), (6, 0));
        drop(consumer);
        assert!(session.is_at_rest());
    }

    #[test]
    fn producer_that_outlives_its_threads_data_is_dropped_without_harm() {
        thread_local!(static LATE: RefCell<Option<Producer>> = const { RefCell::new(None) });
        let session = session();
        let keeper = produce(session, 7).unwrap();
        let late = move || {
            // Data that were used first go last.
            LATE.with(|late| drop(late.borrow()));
            let producer = produce(session, 7).unwrap();
            LATE.with(|late| late.replace(Some(producer)));
        };
        thread::spawn(late).join().unwrap();
        session.sample(SECOND_NS);
        assert_eq!(keeper.status().unwrap().members, 1);
    }

    #[test]
    fn slot_of_a_thread_that_died_is_taken_back() {
        let session = session();
        let consumer = consume(session, 7);
        let producer = produce(session, 7).unwrap();
        // As if it had ended without anything that a thread does at its end.
        let seat = producer.member.seat.clone();
        seat.region().unwrap().give_to(slot(&producer), dead());
        let next = thread::spawn(move || produce(session, 7).map(|next| slot(&next)).unwrap());
        assert_eq!(next.join().unwrap(), 0);
        // The dead keep nothing running either.
        seat.region().unwrap().give_to(1, dead());
        drop(producer);
        drop(consumer);
        assert!(session.is_at_rest());
    }

    #[test]
    fn threads_beyond_the_slots_are_refused() {
        let session = session();
        let producer = produce(session, 7).unwrap();
        let region = producer.member.seat.region().unwrap();
        // As if a thread that lives had them all.
        let tid = rustix::thread::gettid();
        (0..SLOTS).for_each(|slot| region.give_to(slot, tid));
        let more = thread::spawn(move || produce(session, 7).map(|producer| slot(&producer)));
        assert!(matches!(more.join().unwrap(), Err(Error::TooMany { limit: SLOTS, .. })));
    }

    #[test]
    fn sampling_thread_measures_while_somebody_is_attached() {
        let session: &'static Session =
            Box::leak(Box::new(Session::new(Finder { daemon: || Ok(None), ..Finder::HOST })));
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
    fn child_of_fork_beats_for_nobody_until_it_attaches_anew() {
        let session = session();
        let producer = produce(session, 7).unwrap();
        producer.beat(1);
        // SAFETY: the child does what a child may with glibc, whose allocator is whole after fork, and ends itself.
        let child = unsafe { libc::fork() };
        if child == 0 {
            producer.beat(1000);
            let forked = matches!(producer.set_goal(Goal::default()), Err(Error::Forked))
                && matches!(producer.status(), Err(Error::Forked));
            let own = Group::new(7).produce();
            let is_own = own.as_ref().is_ok_and(|own| own.counter() != producer.counter());
            drop(producer);
            let again = matches!(Group::new(7).produce(), Err(Error::AlreadyAttached));
            // SAFETY: without what the parent wants done at its end.
            unsafe { libc::_exit(i32::from(!(forked && is_own && again))) };
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
