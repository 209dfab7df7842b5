//! Random steps of threads, one at a time, in a random order: links and counters agree with a
//! sequential model, no value that was found in a section is dropped before its end, and finally no
//! value is left.

use corebeat_clustered::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

const THREADS: usize = 3;
const LINKS: usize = 2;
/// Maximum nesting of sections.
const DEPTH_MAX: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Step {
    Begin,
    End,
    Look(usize),
    Replace(usize, u64),
    ReplaceIf(usize, u64),
    ReplaceThen(usize, u64),
    Destroy(usize),
    Add(i64),
    AddAdaptive(i64),
    Spread,
    Gather,
    Reclaim,
    /// The thread ends, and another one gets its place.
    EndThread,
}

fn step() -> impl Strategy<Value = Step> {
    let link = 0..LINKS;
    prop_oneof![
        3 => Just(Step::Begin),
        2 => Just(Step::End),
        3 => link.clone().prop_map(Step::Look),
        3 => (link.clone(), any::<u64>()).prop_map(|(link, value)| Step::Replace(link, value)),
        2 => (link.clone(), any::<u64>()).prop_map(|(link, value)| Step::ReplaceIf(link, value)),
        1 => (link.clone(), any::<u64>()).prop_map(|(link, value)| Step::ReplaceThen(link, value)),
        1 => link.prop_map(Step::Destroy),
        3 => any::<i64>().prop_map(Step::Add),
        3 => any::<i64>().prop_map(Step::AddAdaptive),
        1 => Just(Step::Spread),
        1 => Just(Step::Gather),
        2 => Just(Step::Reclaim),
        1 => Just(Step::EndThread),
    ]
}

/// Its destructor invalidates the value.
struct Counted(Arc<AtomicUsize>, u64, u64);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>, value: u64) -> Counted {
        alive.fetch_add(1, Ordering::SeqCst);
        Counted(alive.clone(), value, !value)
    }

    fn value(&self) -> u64 {
        assert_eq!(self.1, !self.2, "the value was dropped");
        self.1
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.2 = self.1;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct World {
    links: [Link<Counted>; LINKS],
    counter: Counter,
    adaptive: AdaptiveCounter,
    alive: Arc<AtomicUsize>,
}

impl World {
    fn new() -> World {
        let links = [(); LINKS].map(|()| Link::empty());
        World {
            links,
            counter: Counter::new(),
            adaptive: AdaptiveCounter::default(),
            alive: Arc::default(),
        }
    }

    /// The current value of the link.
    fn take(&self, step: Step) -> Option<u64> {
        let new = |value| Counted::new(&self.alive, value);
        match step {
            Step::Look(link) => {
                return read_section(|guard| self.links[link].get(guard).map(Counted::value));
            }
            Step::Replace(link, value) => self.links[link].replace(new(value)),
            Step::ReplaceThen(link, value) => {
                self.links[link].replace_then(new(value), |old| _ = old.value())
            }
            Step::ReplaceIf(link, value) => read_section(|guard| {
                let Some(seen) = self.links[link].get(guard) else { return };
                assert!(self.links[link].replace_if(seen, new(value)).is_ok());
                assert!(self.links[link].replace_if(seen, new(value)).is_err());
            }),
            Step::Destroy(link) => drop(self.links[link].destroy()),
            Step::Add(n) => self.counter.add(n),
            Step::AddAdaptive(n) => self.adaptive.add(n),
            Step::Spread => drop(self.adaptive.spread()),
            Step::Gather => drop(self.adaptive.gather()),
            Step::Reclaim => _ = reclaim(),
            Step::Begin | Step::End | Step::EndThread => {}
        }
        None
    }
}

/// Runs the steps of a thread in a section, or outside of sections, and replies to each step except
/// the end of the thread. Returns whether the thread ends.
fn serve(
    world: &World,
    (within, depth): (Option<&Guard<'_>>, usize),
    steps: &Receiver<Step>,
    done: &Sender<Option<u64>>,
) -> bool {
    let mut found: Vec<(&Counted, u64)> = Vec::new();
    while let Ok(step) = steps.recv() {
        let mut result = None;
        match step {
            Step::EndThread => return true,
            Step::End if depth > 0 => return false,
            Step::Begin if depth < DEPTH_MAX => {
                done.send(None).unwrap();
                if read_section(|guard| serve(world, (Some(guard), depth + 1), steps, done)) {
                    return true;
                }
                // The reply below is for the end of the section.
            }
            _ => result = world.take(step),
        }
        if let (Step::Look(link), Some(guard)) = (step, within) {
            found.extend(world.links[link].get(guard).map(|value| (value, value.value())));
        }
        found.iter().for_each(|(value, was)| assert_eq!(value.value(), *was));
        done.send(result).unwrap();
    }
    true
}

fn run(schedule: &[(usize, Step)]) {
    let world = &World::new();
    let (mut links, mut sum, mut adaptive) = ([None; LINKS], 0i64, 0i64);
    thread::scope(|scope| {
        let start = || {
            let (send, steps) = channel();
            let (done, receive) = channel();
            let thread = scope.spawn(move || serve(world, (None, 0), &steps, &done));
            (send, receive, thread)
        };
        let mut threads: Vec<_> = (0..THREADS).map(|_| start()).collect();
        for &(number, step) in schedule {
            let (send, receive, _) = &threads[number];
            send.send(step).unwrap();
            if let Step::EndThread = step {
                assert!(threads.remove(number).2.join().unwrap());
                threads.insert(number, start());
                continue;
            }
            let result = receive.recv().expect("the thread did not panic");
            match step {
                Step::Look(link) => assert_eq!(result, links[link]),
                Step::Replace(link, value) | Step::ReplaceThen(link, value) => {
                    links[link] = Some(value)
                }
                Step::ReplaceIf(link, value) => links[link] = links[link].map(|_| value),
                Step::Destroy(link) => links[link] = None,
                Step::Add(n) => sum = sum.wrapping_add(n),
                Step::AddAdaptive(n) => adaptive = adaptive.wrapping_add(n),
                _ => {}
            }
            assert_eq!((world.counter.value(), world.adaptive.value()), (sum, adaptive));
        }
        for (send, _, thread) in threads {
            drop(send);
            // A scope does not wait for destructors of thread-local data.
            thread.join().unwrap();
        }
    });
    for link in &world.links {
        link.destroy();
    }
    // All threads have ended: no value is kept.
    reclaim();
    assert_eq!(world.alive.load(Ordering::SeqCst), 0);
}

proptest! {
    #[test]
    fn steps_in_a_drawn_order_do_what_the_account_says(
        schedule in prop::collection::vec((0..THREADS, step()), 0..80),
    ) {
        run(&schedule);
    }
}
