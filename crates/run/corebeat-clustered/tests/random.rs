//! Random steps of threads, one at a time, in an order that is drawn: what links and counters say is what a sequential account says,
//! nothing found in an event is dropped before its end, and in the end nothing is left.

use corebeat_clustered::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

const THREADS: usize = 3;
const LINKS: usize = 2;
/// Events within events, at most.
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
    /// Another thread has its place.
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

/// It knows when it is dropped.
struct Counted(Arc<AtomicUsize>, u64, u64);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>, value: u64) -> Counted {
        alive.fetch_add(1, Ordering::SeqCst);
        Counted(alive.clone(), value, !value)
    }

    fn value(&self) -> u64 {
        assert_eq!(self.1, !self.2, "it was dropped");
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
        World { links, counter: Counter::new(), adaptive: AdaptiveCounter::default(), alive: Arc::default() }
    }

    /// What a look finds.
    fn take(&self, step: Step) -> Option<u64> {
        let new = |value| Counted::new(&self.alive, value);
        match step {
            Step::Look(link) => return event(|event| self.links[link].get(event).map(Counted::value)),
            Step::Replace(link, value) => self.links[link].replace(new(value)),
            Step::ReplaceThen(link, value) => {
                self.links[link].replace_then(new(value), |old| _ = old.value())
            }
            Step::ReplaceIf(link, value) => event(|event| {
                let Some(seen) = self.links[link].get(event) else { return };
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

/// What a thread does within an event, or outside of all. Each step is answered, but the end of the thread. Whether that has come.
fn serve(
    world: &World,
    (within, depth): (Option<&Event<'_>>, usize),
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
                if event(|event| serve(world, (Some(event), depth + 1), steps, done)) {
                    return true;
                }
                // What is answered below is its end.
            }
            _ => result = world.take(step),
        }
        if let (Step::Look(link), Some(event)) = (step, within) {
            found.extend(world.links[link].get(event).map(|value| (value, value.value())));
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
            let result = receive.recv().expect("the thread has failed");
            match step {
                Step::Look(link) => assert_eq!(result, links[link]),
                Step::Replace(link, value) | Step::ReplaceThen(link, value) => links[link] = Some(value),
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
            // A scope does not wait for what threads do at their very end.
            thread.join().unwrap();
        }
    });
    for link in &world.links {
        link.destroy();
    }
    // All threads have ended: nothing is held.
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
