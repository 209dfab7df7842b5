//! Small cases of everything: small enough for Miri, which takes a thousand times as long.

use corebeat_clustered::*;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;

/// How much of a loop there is.
const ROUNDS: usize = if cfg!(miri) { 16 } else { 20_000 };

/// Counts those of it that there are; it is spoilt when it is dropped.
struct Counted(Arc<AtomicUsize>, u64);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>, value: u64) -> Counted {
        alive.fetch_add(1, Ordering::SeqCst);
        Counted(alive.clone(), value)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1 = u64::MAX;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Until no more are left than so many. Other tests of this process may be looking.
fn reclaim_to(alive: &AtomicUsize, rest: usize) {
    while alive.load(Ordering::SeqCst) > rest {
        reclaim();
        thread::yield_now();
    }
}

#[test]
fn value_found_is_there_until_the_event_ends() {
    let alive = Arc::default();
    let link = Link::new(Counted::new(&alive, 1));
    event(|event| {
        let one = link.get(event).unwrap();
        link.replace(Counted::new(&alive, 2));
        assert_eq!((one.1, link.get(event).unwrap().1), (1, 2));
        for _ in 0..3 {
            thread::scope(|scope| scope.spawn(reclaim).join().unwrap());
            reclaim();
        }
        assert_eq!((one.1, alive.load(Ordering::SeqCst)), (1, 2));
        assert!(link.destroy() && !link.destroy());
        assert_eq!(one.1, 1);
    });
    reclaim_to(&alive, 0);
}

#[test]
fn values_that_nobody_uses_go_one_by_one_as_others_come() {
    let alive = Arc::default();
    let link = Link::new(Counted::new(&alive, 0));
    // More than a thread keeps before it looks, again and again: of each look some may stay, by what other tests do.
    for value in 1..=ROUNDS as u64 {
        link.replace(Counted::new(&alive, value));
        event(|_| link.replace(Counted::new(&alive, value)));
    }
    reclaim_to(&alive, 1);
    link.destroy();
    reclaim_to(&alive, 0);
}

#[test]
fn panic_of_a_destructor_goes_no_further_nor_does_that_of_what_it_panics_with() {
    struct Bad(Arc<AtomicUsize>, u32);
    impl Drop for Bad {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
            if let Some(rest) = self.1.checked_sub(1) {
                std::panic::panic_any(Bad(self.0.clone(), rest));
            }
        }
    }
    // The value, what it panics with, and what that panics with: this one is left, which Miri would call a leak.
    let panics = if cfg!(miri) { 1 } else { 2 };
    let alive = Arc::new(AtomicUsize::new(2));
    Link::new(Bad(alive.clone(), panics)).destroy();
    reclaim_to(&alive, 0);
    reclaim();
}

#[test]
fn value_is_there_after_its_link_and_in_nested_events() {
    let alive = Arc::default();
    event(|outer| {
        let link = Link::new(Counted::new(&alive, 7));
        let seven = event(|inner| {
            assert_eq!(link.get(inner).unwrap().1, 7);
            link.get(outer).unwrap()
        });
        drop(link);
        event(|_| event(|_| reclaim()));
        assert_eq!((seven.1, alive.load(Ordering::SeqCst)), (7, 1));
    });
    reclaim_to(&alive, 0);
}

#[test]
fn event_ends_with_a_panic() {
    let alive = Arc::default();
    let link = Link::new(Counted::new(&alive, 1));
    let failed = catch_unwind(AssertUnwindSafe(|| {
        event(|event| {
            assert_eq!(link.get(event).unwrap().1, 1);
            event_of_another(&link);
            panic!("as planned");
        })
    }));
    assert!(failed.is_err());
    link.destroy();
    reclaim_to(&alive, 0);
}

fn event_of_another(link: &Link<Counted>) {
    event(|event| assert!(link.get(event).is_some()));
}

#[test]
fn replace_if_replaces_what_was_seen_and_nothing_else() {
    let link = Link::new(1);
    event(|event| {
        let one = link.get(event).unwrap();
        assert_eq!(link.replace_if(one, 2), Ok(()));
        assert_eq!(link.replace_if(one, 3), Err(3));
        assert_eq!(link.replace_if(&2, 3), Err(3));
        assert_eq!(link.get(event), Some(&2));
        link.destroy();
        assert_eq!(link.replace_if(one, 3), Err(3));
    });
}

#[test]
fn last_of_a_value_goes_to_who_wants_it() {
    let (link, (send, receive)) = (Link::new(String::from("one")), channel());
    let own = send.clone();
    link.replace_then("two".into(), move |one| own.send(one).unwrap());
    event(|event| {
        let two = link.get(event).unwrap();
        link.replace_then("three".into(), move |two| send.send(two).unwrap());
        reclaim();
        assert_eq!(two, "two");
    });
    let mut got = Vec::new();
    while got.len() < 2 {
        reclaim();
        got.extend(receive.try_iter());
    }
    got.sort();
    assert_eq!(got, ["one", "two"]);
}

#[test]
fn destructor_that_panics_or_retires_leaves_the_others() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            let link = Link::new(5);
            event(|event| assert_eq!(link.get(event), Some(&5)));
            link.replace(6);
            panic!("as planned");
        }
    }
    let alive = Arc::default();
    let (bad, good) = (Link::new(Bad), Link::new(Counted::new(&alive, 1)));
    bad.destroy();
    good.destroy();
    reclaim_to(&alive, 0);
    drop(Link::new(Bad));
    good.replace(Counted::new(&alive, 2));
    drop(good);
    reclaim_to(&alive, 0);
}

/// Writers replace, readers look, and nobody finds what was dropped.
#[test]
fn links_under_load_give_what_is_there_and_leave_nothing() {
    let alive = Arc::default();
    let links: Vec<_> = (0..3).map(|n| Link::new(Counted::new(&alive, n))).collect();
    let (done, barrier) = (AtomicBool::new(false), Barrier::new(4));
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (links, alive, barrier) = (&links, &alive, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for round in 0..ROUNDS {
                        let link = &links[(round * 7 + writer) % links.len()];
                        match round % 5 {
                            0 => drop(link.destroy()),
                            1 => event(|event| {
                                let new = Counted::new(alive, round as u64);
                                match link.get(event) {
                                    Some(seen) => drop(link.replace_if(seen, new)),
                                    None => link.replace(new),
                                }
                            }),
                            2 => link.replace_then(Counted::new(alive, round as u64), |old| {
                                assert_ne!(old.1, u64::MAX);
                            }),
                            _ => link.replace(Counted::new(alive, round as u64)),
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let (links, done, barrier) = (&links, &done, &barrier);
            scope.spawn(move || {
                barrier.wait();
                while !done.load(Ordering::Relaxed) {
                    event(|event| {
                        let found: Vec<_> = links.iter().filter_map(|link| link.get(event)).collect();
                        let again = links.iter().filter_map(|link| link.get(event));
                        found.into_iter().chain(again).for_each(|found| assert_ne!(found.1, u64::MAX));
                    });
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    drop(links);
    reclaim_to(&alive, 0);
}

/// One thread sits in an event for as long as the test runs.
#[test]
fn event_that_stays_holds_what_there_was_and_nothing_newer() {
    let alive = Arc::default();
    let link = Link::new(Counted::new(&alive, 0));
    let (here, go) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let (link, here, go) = (&link, &here, &go);
        scope.spawn(move || {
            event(|event| {
                let first = link.get(event).unwrap();
                here.wait();
                go.wait();
                assert_eq!(first.1, 0);
                // What it looks for now is newer than all that it has told.
                assert_ne!(link.get(event).unwrap().1, u64::MAX);
                here.wait();
                go.wait();
                assert_eq!(first.1, 0);
            });
            // Events of other tests may hold some, but not this one.
            link.destroy();
        });
        here.wait();
        for round in 0..ROUNDS {
            link.replace(Counted::new(&alive, round as u64));
        }
        // The first is held, and so is what there was until it was asked twice; the rest is not.
        reclaim_to(&alive, if cfg!(miri) { 8 } else { 1024 });
        go.wait();
        here.wait();
        for round in 0..ROUNDS {
            link.replace(Counted::new(&alive, round as u64));
        }
        reclaim_to(&alive, if cfg!(miri) { 16 } else { 2048 });
        go.wait();
    });
    reclaim_to(&alive, 0);
}

#[test]
fn value_is_dropped_by_a_reference_that_outlives_its_owner() {
    let alive = Arc::default();
    let owner = Owner::new(Counted::new(&alive, 5));
    let (one, two) = (owner.share(), owner.share());
    drop(owner);
    reclaim();
    let three = two.clone();
    drop((one, two));
    assert_eq!((three.1, alive.load(Ordering::SeqCst)), (5, 1));
    drop(three);
    reclaim_to(&alive, 0);
}

#[test]
fn thread_that_ends_leaves_its_dead_to_others() {
    let alive = Arc::default();
    for n in 0..8 {
        let own = Arc::clone(&alive);
        thread::spawn(move || Link::new(Counted::new(&own, n)).replace(Counted::new(&own, n)))
            .join()
            .unwrap();
    }
    reclaim_to(&alive, 0);
}

/// Uses all there is when the thread's own data is being destroyed.
#[test]
fn thread_at_its_very_end_has_events_and_places_still() {
    struct AtEnd(Arc<Link<Counted>>, Arc<Counter>, Arc<AtomicUsize>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            event(|outer| {
                let found = self.0.get(outer).unwrap();
                event(|inner| assert!(self.0.get(inner).is_some()));
                self.0.replace(Counted::new(&self.2, 2));
                assert_ne!(found.1, u64::MAX);
            });
            event(|event| assert_eq!(self.0.get(event).unwrap().1, 2));
            self.1.add(1);
        }
    }
    thread_local! {
        static EARLY: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
        static LATE: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    }
    let alive = Arc::default();
    let (link, counter) = (Arc::new(Link::new(Counted::new(&alive, 1))), Arc::new(Counter::new()));
    for _ in 0..4 {
        let at_end = || AtEnd(link.clone(), counter.clone(), alive.clone());
        let (early, late) = (at_end(), at_end());
        let counter = counter.clone();
        thread::spawn(move || {
            EARLY.set(Some(early));
            event(|_| counter.add(1));
            LATE.set(Some(late));
        })
        .join()
        .unwrap();
    }
    assert_eq!(counter.value(), 12);
    drop(link);
    reclaim_to(&alive, 0);
}

/// Where a representative is to come from.
#[derive(Clone, Copy)]
enum Which {
    New,
    Existing,
    PerNode,
    ForAll,
}

impl Root for Which {
    type Rep = AtomicUsize;

    fn miss(&self, miss: Miss<'_, AtomicUsize>) -> Chosen<AtomicUsize> {
        let rep = || AtomicUsize::new(0);
        match self {
            Which::New => miss.one_per_place(rep()),
            Which::Existing => miss.existing(|rep| rep.load(Ordering::SeqCst) < 2, rep),
            Which::PerNode => miss.one_per_node(rep),
            Which::ForAll => miss.one_for_all(rep),
        }
    }
}

fn parts<D: Domain>(which: Which, threads: usize) -> Vec<usize> {
    let object: Clustered<Which, D> = Clustered::new(which);
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                object.here().fetch_add(1, Ordering::SeqCst);
                // Nobody gets the place of one that has ended.
                barrier.wait();
            });
        }
    });
    object.fold(Vec::new(), |mut parts, part| {
        parts.push(part.load(Ordering::SeqCst));
        parts
    })
}

#[test]
fn miss_handler_chooses_the_representative() {
    assert_eq!(parts::<Thread>(Which::New, 5), [1; 5]);
    assert_eq!(parts::<Thread>(Which::ForAll, 5), [5]);
    let shared = parts::<Thread>(Which::Existing, 5);
    assert!(shared.len() < 6 && shared.iter().sum::<usize>() == 5, "{shared:?}");
    assert_eq!(parts::<Node>(Which::PerNode, 3).iter().sum::<usize>(), 3);
    assert_eq!(parts::<Cpu>(Which::New, 3).iter().sum::<usize>(), 3);
    let nodes = parts::<Thread>(Which::PerNode, 3);
    assert!(nodes.len() <= 3 && nodes.iter().sum::<usize>() == 3, "{nodes:?}");
}

#[test]
fn miss_handler_that_panics_is_asked_again() {
    struct Shy(AtomicBool);
    impl Root for Shy {
        type Rep = AtomicUsize;
        fn miss(&self, miss: Miss<'_, AtomicUsize>) -> Chosen<AtomicUsize> {
            assert!(self.0.swap(true, Ordering::SeqCst), "as planned");
            miss.one_per_place(AtomicUsize::new(3))
        }
    }
    let object: Clustered<Shy> = Clustered::new(Shy(AtomicBool::new(false)));
    assert!(catch_unwind(AssertUnwindSafe(|| object.here())).is_err());
    assert_eq!(object.here().load(Ordering::SeqCst), 3);
    assert!(object.root().0.load(Ordering::SeqCst));
}

fn count<D: Domain>() {
    let counter: Counter<D> = Counter::new();
    thread::scope(|scope| {
        for thread in 0..4 {
            let counter = &counter;
            scope.spawn(move || (0..ROUNDS).for_each(|_| counter.add(thread - 1)));
        }
    });
    assert_eq!(counter.value(), 2 * ROUNDS as i64);
    // Places are used again, with what is in them.
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| counter.add(i64::MAX)))));
    assert_eq!(counter.value(), 2 * ROUNDS as i64 - 4);
}

#[test]
fn counter_loses_nothing_in_any_domain() {
    count::<Thread>();
    count::<Cpu>();
    count::<Node>();
}

/// More counters than have slots; and slots that had other counters before.
#[test]
fn counters_beyond_the_slots_and_after_others_count_as_well() {
    let many = if cfg!(miri) { 20 } else { 600 };
    for _ in 0..2 {
        let counters: Vec<Counter> = (0..many).map(|_| Counter::new()).collect();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| counters.iter().zip(0..).for_each(|(counter, n)| counter.add(n)));
            }
        });
        assert!(counters.iter().zip(0..).all(|(counter, n)| counter.value() == 2 * n));
    }
    assert_eq!(<Counter>::new().value(), 0);
}

#[test]
fn adaptive_counter_that_is_handed_around_spreads_and_gathers_again() {
    let counter = AdaptiveCounter::default();
    (0..ROUNDS).for_each(|_| counter.add(1));
    assert!(!counter.is_spread());
    let mut added = ROUNDS as i64;
    while !counter.is_spread() {
        // Each goes to another thread than the one before, or to a place that is the same by chance.
        thread::scope(|scope| drop(scope.spawn(|| counter.add(1))));
        counter.add(1);
        added += 2;
    }
    assert_eq!(counter.value(), added);
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| (0..ROUNDS).for_each(|_| counter.add(1)))))
    });
    added += 4 * ROUNDS as i64;
    assert_eq!(counter.value(), added);
    while counter.is_spread() {
        counter.add(1);
        added += 1;
        assert_eq!(counter.value(), added);
    }
    counter.add(-added);
    assert_eq!(counter.value(), 0);
}

#[test]
fn adaptive_counter_swapped_under_load_loses_nothing() {
    let counter = AdaptiveCounter::default();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let adders: Vec<_> =
            (0..3).map(|_| scope.spawn(|| (0..ROUNDS).for_each(|_| counter.add(1)))).collect();
        scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                counter.spread();
                let value = counter.value();
                assert!(value >= last, "{value} after {last}");
                last = value;
                counter.gather();
            }
        });
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(counter.value(), 3 * ROUNDS as i64);
    // An event in which the form was found keeps the next swap waiting, and nobody else.
    event(|_| counter.add(1));
    assert_eq!(counter.value(), 3 * ROUNDS as i64 + 1);
}

#[test]
fn values_that_hold_values_are_freed_without_a_deep_stack() {
    struct Node {
        _alive: Counted,
        next: Option<Link<Node>>,
    }
    impl Drop for Node {
        fn drop(&mut self) {
            if let Some(next) = &self.next {
                next.destroy();
            }
        }
    }
    // More than a thread keeps before it looks; long enough for a stack of calls within calls to overflow.
    let (chains, length) = if cfg!(miri) { (4, 8) } else { (600, 1_000) };
    let alive = Arc::default();
    let node = |next| Link::new(Node { _alive: Counted::new(&alive, 0), next });
    let heads: Vec<_> =
        (0..chains).map(|_| (1..length).fold(node(None), |next, _| node(Some(next)))).collect();
    heads.iter().for_each(|head| assert!(head.destroy()));
    reclaim_to(&alive, 0);
}
