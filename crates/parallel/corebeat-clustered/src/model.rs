//! Models of the protocols: small cases, over every interleaving and every outcome that the memory
//! orderings allow.
//!
//! `cargo xtask ci --only loom` runs them. Planted faults show that the models detect mistakes:
//! each fault that is named here must fail its model.

mod ready;

use crate::local::leave;
use crate::{Chosen, Clustered, Counter, Link, Miss, Root, read_section, retired};
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::fault::{self, Watched};
use corebeat_sync::thread::JoinHandle;
use std::sync::Arc;

/// Checks a model with at most this number of `preemptions`.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    fault::check(preemptions, leave, model);
}

fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    fault::spawn(leave, f)
}

/// One thread loads the link, the other one destroys the value and reclaims.
#[test]
fn loom_value_exists_while_a_section_uses_it() {
    check(3, || {
        let link = Arc::new(Link::new(Watched::new()));
        let own = link.clone();
        let reader =
            spawn(move || read_section(|guard| own.get(guard).map(Watched::check)).is_some());
        link.destroy();
        retired::reclaim();
        reader.join().unwrap();
        retired::reclaim();
    });
}

/// One thread loads the link repeatedly, the other one replaces the value and reclaims, until the
/// value is newer than the request to the section.
#[test]
fn loom_reach_of_a_section_grows_with_what_it_finds() {
    check(3, || {
        let link = Arc::new(Link::new(Watched::new()));
        let own = link.clone();
        let reader = spawn(move || {
            read_section(|guard| {
                let first = own.get(guard).unwrap();
                let second = own.get(guard).unwrap();
                first.check();
                second.check();
            });
        });
        for _ in 0..2 {
            link.replace(Watched::new());
            retired::reclaim();
        }
        link.replace(Watched::new());
        retired::reclaim();
        reader.join().unwrap();
    });
}

/// A second section of the same thread: a request to the first one does not permit freeing values
/// that the second one uses.
#[test]
fn loom_consecutive_sections_are_distinguished() {
    check(3, || {
        let link = Arc::new(Link::new(Watched::new()));
        let own = link.clone();
        let reader = spawn(move || {
            for _ in 0..2 {
                read_section(|guard| own.get(guard).unwrap().check());
            }
        });
        for _ in 0..2 {
            link.replace(Watched::new());
            retired::reclaim();
        }
        reader.join().unwrap();
    });
}

/// Two threads reclaim their own values and each other's orphans.
#[test]
fn loom_values_of_two_writers_are_dropped_once() {
    check(3, || {
        let link = Arc::new(Link::new(Watched::new()));
        let own = link.clone();
        let other = spawn(move || {
            own.replace(Watched::new());
            read_section(|guard| own.get(guard).unwrap().check());
        });
        link.replace(Watched::new());
        read_section(|guard| link.get(guard).unwrap().check());
        retired::reclaim();
        other.join().unwrap();
        retired::reclaim();
    });
}

/// Two threads miss at the same time, in one place or in two.
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

/// The second thread may get the place of the first one, and then continues with its part.
#[test]
fn loom_part_of_a_counter_stays_with_its_place() {
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
fn loom_planted_faults_are_detected() {
    let exists = "loom_value_exists_while_a_section_uses_it";
    let consecutive = "loom_consecutive_sections_are_distinguished";
    let grows = "loom_reach_of_a_section_grows_with_what_it_finds";
    fault::assert_noticed(&[
        (exists, "light presence.rs"),
        (exists, "heavy registry.rs"),
        (exists, "release presence.rs"),
        (exists, "acquire presence.rs"),
        (grows, "acquire link.rs"),
        (grows, "release link.rs"),
        (grows, "acquire registry.rs"),
        (grows, "light local.rs"),
        (consecutive, "release presence.rs"),
        (consecutive, "acquire presence.rs"),
    ]);
}
