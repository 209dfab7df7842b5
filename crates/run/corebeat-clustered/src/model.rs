//! Models of the protocols: small cases, over every interleaving and every outcome that the memory orderings allow.
//!
//! `cargo xtask ci --only loom` runs them. That a model would notice a mistake is shown by planted ones: for each fault that
//! is named here, the model beside it must fail.

mod ready;

use crate::local::leave;
use crate::{Chosen, Clustered, Counter, Link, Miss, Root, event, limbo};
use corebeat_sync::asymmetric::heavy;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::fault;
use corebeat_sync::thread::{self, JoinHandle};
use std::sync::Arc;

/// Runs a model. Beside the switches where a thread cannot go on, each execution has at most so many.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = fault::model(preemptions);
    builder.max_branches = 10_000;
    let model = Arc::new(model);
    let check = || {
        builder.check(move || {
            heavy();
            let model = model.clone();
            // What is the first thread's own is dropped too late, after what is static.
            spawn(move || model()).join().expect("a panic would have ended it");
        });
    };
    fault::run(check);
}

fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    thread::spawn(move || {
        let result = f();
        leave();
        result
    })
}

/// A value whose end loom sees: looked at when it is used, written when it is dropped.
struct Watched(UnsafeCell<u32>);

// SAFETY: loom looks whether it is used as it must be.
unsafe impl Sync for Watched {}

impl Watched {
    fn new() -> Watched {
        Watched(UnsafeCell::new(7))
    }

    fn look(&self) {
        // SAFETY: whether nobody writes is what the model is about.
        assert_eq!(self.0.with(|value| unsafe { *value }), 7, "it was dropped");
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: as above. What is freed is still read by a model that fails, so it is not left as it was.
        self.0.with_mut(|value| unsafe { *value = 0 });
    }
}

/// One looks, the other destroys and sweeps.
#[test]
fn loom_value_is_there_while_an_event_uses_it() {
    check(3, || {
        let link = Arc::new(Link::new(Watched::new()));
        let own = link.clone();
        let reader = spawn(move || event(|event| own.get(event).map(Watched::look)).is_some());
        link.destroy();
        limbo::sweep();
        reader.join().unwrap();
        limbo::sweep();
    });
}

/// One looks again and again, the other replaces and sweeps, until what is there is newer than what the event was asked for.
#[test]
fn loom_reach_of_an_event_grows_with_what_it_finds() {
    check(3, || {
        let link = Arc::new(Link::new(Watched::new()));
        let own = link.clone();
        let reader = spawn(move || {
            event(|event| {
                let first = own.get(event).unwrap();
                let second = own.get(event).unwrap();
                first.look();
                second.look();
            });
        });
        for _ in 0..2 {
            link.replace(Watched::new());
            limbo::sweep();
        }
        link.replace(Watched::new());
        limbo::sweep();
        reader.join().unwrap();
    });
}

/// A second event of the same thread: a request for the first is no leave to free what the second uses.
#[test]
fn loom_event_after_another_is_seen_by_itself() {
    check(3, || {
        let link = Arc::new(Link::new(Watched::new()));
        let own = link.clone();
        let reader = spawn(move || {
            for _ in 0..2 {
                event(|event| own.get(event).unwrap().look());
            }
        });
        for _ in 0..2 {
            link.replace(Watched::new());
            limbo::sweep();
        }
        reader.join().unwrap();
    });
}

/// Both sweep, and each other's dead as well.
#[test]
fn loom_values_of_two_who_replace_are_dropped_once() {
    check(3, || {
        let link = Arc::new(Link::new(Watched::new()));
        let own = link.clone();
        let other = spawn(move || {
            own.replace(Watched::new());
            event(|event| own.get(event).unwrap().look());
        });
        link.replace(Watched::new());
        event(|event| link.get(event).unwrap().look());
        limbo::sweep();
        other.join().unwrap();
        limbo::sweep();
    });
}

/// Two threads in one place miss at the same time.
#[test]
fn loom_place_gets_one_representative() {
    struct All;
    impl Root for All {
        type Rep = AtomicUsize;
        fn miss(&self, miss: Miss<'_, AtomicUsize>) -> Chosen<AtomicUsize> {
            miss.one_for_all(|| AtomicUsize::new(0))
        }
    }
    check(3, || {
        let object: Arc<Clustered<All>> = Arc::new(Clustered::new(All));
        let own = object.clone();
        let other = spawn(move || own.here().fetch_add(1, Ordering::Relaxed));
        object.here().fetch_add(1, Ordering::Relaxed);
        other.join().unwrap();
        assert_eq!(object.fold(0, |sum, rep| sum * 10 + rep.load(Ordering::Relaxed)), 2);
    });
}

/// The second thread may get the place of the first, and adds to what that has left.
#[test]
fn loom_part_of_a_counter_goes_on_with_its_place() {
    check(3, || {
        let counter: Arc<Counter> = Arc::new(Counter::new());
        let others: Vec<_> = (0..2)
            .map(|_| {
                let counter = counter.clone();
                spawn(move || counter.add(1))
            })
            .collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(counter.value(), 2);
    });
}

#[test]
fn loom_planted_faults_are_noticed() {
    let there = "loom_value_is_there_while_an_event_uses_it";
    let again = "loom_event_after_another_is_seen_by_itself";
    let grows = "loom_reach_of_an_event_grows_with_what_it_finds";
    for (model, fault) in [
        (there, "light local.rs"),
        (there, "heavy registry.rs"),
        (there, "release local.rs"),
        (there, "acquire registry.rs"),
        (grows, "acquire link.rs"),
        (grows, "release link.rs"),
        (grows, "acquire registry.rs"),
        (grows, "light local.rs"),
        (again, "release local.rs"),
        (again, "acquire registry.rs"),
    ] {
        assert!(fault::is_noticed(model, fault), "{model} with {fault}");
    }
}
