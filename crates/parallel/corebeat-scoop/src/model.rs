//! Models of the protocols: small cases, over every interleaving and every outcome that the memory
//! orderings allow.
//!
//! `cargo xtask ci --only loom` runs them. Planted faults show that the models detect mistakes:
//! each fault that is named here must fail its model.

use crate::activity::Activity;
use crate::error::Name;
use crate::processor::Processor;
use crate::queue::{Call, Queue};
use crate::region::Region;
use crate::turn::Turn;
use crate::wait::Waits;
use corebeat_sync::atomic::{AtomicU32, Ordering};
use corebeat_sync::{Arc, Mutex, fault, lock, thread};
use std::num::NonZeroU32;

fn check(model: impl Fn() + Sync + Send + 'static) {
    fault::model(3).check(model);
}

/// A processor ends its calls while the collector requests work or does it: the work is done once,
/// by one thread at a time.
#[test]
fn loom_requested_work_is_done_once() {
    check(|| {
        let turn = Arc::new(Turn::taken(0));
        let work = Arc::new(AtomicU32::new(0));
        let (own_turn, own_work) = (turn.clone(), work.clone());
        // As the end of `Activation::run`, and `Inner::do_work`.
        let processor = thread::spawn(move || {
            // A call. SAFETY: this thread owns the turn from the beginning.
            unsafe { own_turn.use_value(|done| *done += 2) };
            while !own_turn.release() {
                if own_turn.take_work() {
                    // Relaxed: the work passes with the request.
                    let work = own_work.swap(0, Ordering::Relaxed);
                    // SAFETY: this thread owns the turn.
                    unsafe { own_turn.use_value(|done| *done += work) };
                }
            }
        });
        // As `Task::take` of the collector.
        work.store(1, Ordering::Relaxed);
        if turn.request() && turn.try_take() {
            turn.take_work();
            let work = work.swap(0, Ordering::Relaxed);
            // SAFETY: this thread owns the turn.
            unsafe { turn.use_value(|done| *done += work) };
            assert!(turn.release());
        }
        processor.join().unwrap();
        assert!(turn.try_take());
        // SAFETY: this thread owns the turn.
        assert_eq!(unsafe { turn.use_value(|done| *done) }, 3);
    });
}

/// Two threads try to take the turn. Each one that succeeds is its only owner.
#[test]
fn loom_turn_has_one_owner_at_a_time() {
    check(|| {
        let turn = Arc::new(Turn::taken(0));
        assert!(turn.release());
        let own = turn.clone();
        let add = |turn: &Turn<u32>| {
            let taken = turn.try_take();
            if taken {
                // SAFETY: this thread owns the turn.
                unsafe { turn.use_value(|count| *count += 1) };
                turn.release_with_request();
            }
            taken
        };
        let other = thread::spawn(move || add(&own));
        let count = u32::from(add(&turn)) + u32::from(other.join().unwrap());
        assert!(turn.try_take() && turn.take_work());
        // SAFETY: this thread owns the turn.
        assert_eq!(unsafe { turn.use_value(|value| *value) }, count);
    });
}

/// Two clients reserve two processors in one step: their order is the same at both.
#[test]
fn loom_reservations_have_one_order() {
    check(|| {
        let queues = Arc::new([Mutex::new(Queue::default()), Mutex::new(Queue::default())]);
        let reserve = |queues: &[Mutex<Queue>; 2], owner| {
            let mut held: Vec<_> = queues.iter().map(lock).collect();
            held.iter_mut().map(|queue| queue.reserve(owner)).collect::<Vec<_>>()
        };
        let own = queues.clone();
        let other = thread::spawn(move || reserve(&own, 1));
        let first = reserve(&queues, 2);
        let second = other.join().unwrap();
        assert!(first[0] == first[1] && second[0] == second[1] && first[0] != second[0]);
    });
}

/// A client logs a call while the task of the processor runs out of calls: one of them runs the
/// call.
#[test]
fn loom_logged_call_runs() {
    check(|| {
        let queue = Arc::new(Mutex::new(Queue::default()));
        let ran = Arc::new(AtomicU32::new(0));
        // As `Activation::run`.
        fn run(queue: &Mutex<Queue>, ran: &AtomicU32) {
            while let (Some(_), _) = { lock(queue).next() } {
                ran.fetch_add(1, Ordering::Relaxed);
            }
        }
        // As `Block::log`.
        fn log(queue: &Mutex<Queue>, block: u64) -> bool {
            let mut queue = lock(queue);
            let call = Call { run: Box::new(|_| ()), changes: true, waiter: None };
            assert!(queue.log(block, call).is_ok());
            queue.starts().0
        }
        let block = lock(&queue).reserve(1);
        assert!(log(&queue, block));
        let (own, own_ran) = (queue.clone(), ran.clone());
        let processor = thread::spawn(move || run(&own, &own_ran));
        let starts = log(&queue, block);
        processor.join().unwrap();
        if starts {
            run(&queue, &ran);
        }
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    });
}

/// A processor without objects that does not run.
fn idle_processor(id: u64) -> std::sync::Arc<Processor> {
    let region = Region::new::<u32>(NonZeroU32::MIN);
    std::sync::Arc::new(Processor::new(id, "test", 0, region))
}

/// Two clients query an idle processor each, and each processor's first call queries the other
/// processor: exactly one query closes a cycle and fails.
#[test]
fn loom_one_client_of_a_cycle_detects_it() {
    type Shared = std::sync::Arc<Processor>;
    /// As `Reservation::query`, and the task of the processor if it starts here. Returns whether a
    /// query fails.
    fn query(waits: &Waits, id: u64, to: &Shared, other: &Shared) -> bool {
        let block = lock(&to.queue).reserve(id);
        if waits.begin(Name { id, of: None }, to, block).is_err() {
            return true;
        }
        let mut queue = lock(&to.queue);
        let call = Call { run: Box::new(|_| ()), changes: true, waiter: None };
        assert!(queue.log(block, call).is_ok());
        let (starts, _) = queue.starts();
        drop(queue);
        starts && query(waits, to.id, other, to)
    }
    check(|| {
        let waits = Arc::new(Waits::default());
        let (p, q) = (idle_processor(1), idle_processor(2));
        let (own, own_p, own_q) = (waits.clone(), p.clone(), q.clone());
        let other = thread::spawn(move || query(&own, 3, &own_p, &own_q));
        let fails = query(&waits, 4, &q, &p);
        assert!(fails != other.join().unwrap());
    });
}

/// Wakes a thread, as the writer of a stream does.
struct Waiter(Arc<AtomicU32>, thread::Thread);

impl Drop for Waiter {
    fn drop(&mut self) {
        // Release: pairs with the acquire in the model.
        self.0.store(1, Ordering::Release);
        self.1.unpark();
    }
}

/// A client waits while the tasks end and another one begins: the client is woken, and observes the
/// effects of the tasks that it waited for.
#[test]
fn loom_wait_ends_after_the_tasks() {
    check(|| {
        let activity = std::sync::Arc::new(Activity::new());
        let effect = Arc::new(AtomicU32::new(0));
        let running = activity.begin();
        let (own, own_effect) = (activity.clone(), effect.clone());
        let task = thread::spawn(move || {
            // Relaxed: the end of the task releases the effect.
            own_effect.store(1, Ordering::Relaxed);
            drop(running);
            drop(own.begin());
        });
        let is_woken = Arc::new(AtomicU32::new(0));
        if activity.watch(Waiter(is_woken.clone(), thread::current())) {
            // Acquire: pairs with the release in `Waiter::drop`.
            while is_woken.load(Ordering::Acquire) == 0 {
                thread::park();
            }
        }
        assert_eq!(effect.load(Ordering::Relaxed), 1);
        task.join().unwrap();
        assert!(!activity.watch(Waiter(is_woken, thread::current())));
    });
}

#[test]
fn loom_planted_faults_are_detected() {
    fault::assert_noticed(&[
        ("loom_turn_has_one_owner_at_a_time", "acquire turn.rs"),
        ("loom_turn_has_one_owner_at_a_time", "release turn.rs"),
        ("loom_wait_ends_after_the_tasks", "acquire activity.rs"),
        ("loom_wait_ends_after_the_tasks", "release activity.rs"),
        ("loom_requested_work_is_done_once", "acquire turn.rs"),
        ("loom_requested_work_is_done_once", "release turn.rs"),
    ]);
}
