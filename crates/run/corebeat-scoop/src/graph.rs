//! Random graphs of objects over processors: what is collected, and when, by comparison with a search that knows all of it.
//!
//! `COREBEAT_SCOOP_SEED=N cargo test -p corebeat-scoop graph` runs one seed again.

use crate::fault::{Fault, plant};
use crate::*;
use corebeat_lpel::{Failure, Runtime, TryReadError, Writer, spawn, stream, yield_now};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const SEED: &str = "COREBEAT_SCOOP_SEED";
/// Seeds of a test, if none is given.
const SEEDS: u64 = 40;

/// Marsaglia, *Xorshift RNGs*, 2003.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * n as u128) >> 64) as usize
    }

    fn hit(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// What became of each object, by its number.
type Fates = Arc<Vec<AtomicU8>>;
const ALIVE: u8 = 1;
/// Dropped: whoever meets it then has met what was freed.
const POISONED: u8 = 2;

struct Fate(Fates, usize);

impl Drop for Fate {
    fn drop(&mut self) {
        assert_eq!(
            self.0[self.1].swap(POISONED, Ordering::SeqCst),
            ALIVE,
            "object {} is dropped twice",
            self.1
        );
    }
}

#[derive(Trace)]
struct Object {
    number: u64,
    near: Vec<Gc<Object>>,
    far: Vec<Link<Object>>,
    fate: Plain<Fate>,
}

fn object(fates: &Fates, number: usize) -> Object {
    fates[number].store(ALIVE, Ordering::SeqCst);
    Object {
        number: number as u64,
        near: Vec::new(),
        far: Vec::new(),
        fate: Plain(Fate(fates.clone(), number)),
    }
}

/// The graph as it is meant: edges by numbers of objects.
#[derive(Default)]
struct Oracle {
    handler: Vec<usize>,
    edges: Vec<BTreeSet<usize>>,
    /// What processors keep.
    kept: BTreeSet<usize>,
}

impl Oracle {
    /// The least solution of LO = s*(BR u r(LP)), LP = BP u h(LO), by the book: round after round.
    fn live(&self, held: &BTreeSet<usize>) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let (mut objects, mut processors) = (held.clone(), BTreeSet::new());
        loop {
            let mut more = objects.clone();
            more.extend(objects.iter().flat_map(|o| &self.edges[*o]));
            more.extend(self.kept.iter().filter(|o| processors.contains(&self.handler[**o])));
            let handlers: BTreeSet<usize> = more.iter().map(|o| self.handler[*o]).collect();
            if more == objects && handlers == processors {
                return (objects, processors);
            }
            (objects, processors) = (more, handlers);
        }
    }
}

/// One client that builds a graph, changes it, lets go of it, and collects.
struct Player {
    system: System,
    client: Client,
    random: Random,
    oracle: Oracle,
    fates: Fates,
    held: BTreeMap<usize, Separate<Object>>,
    /// It lets go of objects only when their calls are over.
    waits: bool,
}

const OBJECTS_MAX: usize = 200;

impl Player {
    fn new(system: System, seed: u64) -> Player {
        let client = system.client();
        let fates = Arc::new((0..OBJECTS_MAX).map(|_| AtomicU8::new(0)).collect());
        let (oracle, held) = Default::default();
        Player { system, client, random: Random::new(seed), oracle, fates, held, waits: false }
    }

    fn any_held(&mut self) -> Option<usize> {
        let count = self.held.len();
        if count == 0 {
            return None;
        }
        let place = self.random.below(count);
        self.held.keys().nth(place).copied()
    }

    fn add(&mut self, handler: usize) -> usize {
        self.oracle.handler.push(handler);
        self.oracle.edges.push(BTreeSet::new());
        self.oracle.edges.len() - 1
    }

    /// One random change.
    fn change(&mut self) {
        let number = self.oracle.edges.len();
        let fates = self.fates.clone();
        match (self.random.below(13), self.any_held()) {
            (0, _) | (_, None) if number < OBJECTS_MAX => {
                let new = self.add(number);
                self.held.insert(new, self.client.create(move |_| object(&fates, new)));
            }
            (1..=4, Some(at)) if number < OBJECTS_MAX => {
                let new = self.add(self.oracle.handler[at]);
                self.oracle.edges[at].insert(new);
                let keep = self.random.hit(6);
                if keep {
                    self.oracle.kept.insert(new);
                }
                let made = self.held[&at].query(&self.client, move |here, at| {
                    let made = here.make(object(&fates, new));
                    here[at].near.push(made);
                    if keep {
                        here.keep(made);
                    }
                    here.separate(made)
                });
                let made = made.unwrap();
                if self.random.hit(2) {
                    self.held.insert(new, made);
                }
            }
            (5..=7, Some(from)) => {
                let to = self.any_held().unwrap();
                self.oracle.edges[from].insert(to);
                let target = self.held[&to].clone();
                let pauses = self.random.below(4);
                self.held[&from].command(&self.client, move |here, from| {
                    let link = here.link(&target);
                    drop(target);
                    (0..pauses).for_each(|_| yield_now());
                    match here.own(link) {
                        Some(gc) => here[from].near.push(gc),
                        None => here[from].far.push(link),
                    }
                });
            }
            (8, Some(from)) => {
                self.oracle.edges[from].clear();
                let pauses = self.random.below(4);
                self.held[&from].command(&self.client, move |here, from| {
                    (0..pauses).for_each(|_| yield_now());
                    here[from].near.clear();
                    here[from].far.clear();
                });
            }
            // Goes along a link, and holds what is there.
            (9..=10, Some(from)) => {
                let (pick, moves) = (self.random.below(4), self.random.hit(2));
                let next = self.held[&from].query(&self.client, move |here, from| {
                    let far = here[from].far.get(pick).map(|link| here.hold(*link));
                    let next = far.or_else(|| here[from].near.get(pick).map(|gc| here.separate(*gc)))?;
                    if moves {
                        let link = here.link(&next);
                        here[from].far.retain(|other| *other != link);
                        here[from].near.retain(|other| Link::from(*other) != link);
                    }
                    Some(next)
                });
                if let Some(next) = next.unwrap() {
                    let number = next.query(&self.client, |here, it| here[it].number).unwrap() as usize;
                    assert!(self.oracle.edges[from].contains(&number));
                    if moves {
                        self.oracle.edges[from].remove(&number);
                    }
                    self.held.insert(number, next);
                }
            }
            (_, Some(at)) => {
                let held = self.held.remove(&at).unwrap();
                if self.waits {
                    held.query(&self.client, |_, _| ()).unwrap();
                }
            }
            _ => {}
        }
    }

    /// All calls are over.
    fn settle(&self) {
        for held in self.held.values() {
            held.query(&self.client, |_, _| ()).unwrap();
        }
    }

    /// Who lives is there, wherever one goes.
    fn check_live(&self) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let live = self.oracle.live(&self.held.keys().copied().collect());
        for number in &live.0 {
            let fate = self.fates[*number].load(Ordering::SeqCst);
            // It may not have been made yet.
            assert_ne!(fate, POISONED, "object {number} lives, and was freed");
        }
        live
    }

    /// Who is dead is gone.
    fn check_all(&self) {
        let (objects, processors) = self.check_live();
        let found = self.system.collect();
        self.check_live();
        for (number, fate) in self.fates.iter().enumerate().take(self.oracle.edges.len()) {
            let expected = if objects.contains(&number) { ALIVE } else { POISONED };
            assert_eq!(fate.load(Ordering::SeqCst), expected, "object {number}");
        }
        assert_eq!((found.processors, found.objects), (processors.len() as u64, objects.len() as u64));
    }
}

fn seeds() -> Vec<u64> {
    match env::var(SEED) {
        Ok(seed) => vec![seed.parse().expect("a seed is a number")],
        Err(_) => (1..=SEEDS).collect(),
    }
}

/// Tells the seed if `test` panics with it.
fn for_seeds(test: impl Fn(u64)) {
    struct Tell(u64);
    impl Drop for Tell {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("again: {SEED}={} cargo test -p corebeat-scoop graph", self.0);
            }
        }
    }
    for seed in seeds() {
        let _tell = Tell(seed);
        test(seed);
    }
}

#[test]
fn collection_finds_what_the_oracle_finds() {
    for_seeds(|seed| {
        let system = System::new(Runtime::builder().workers(2).build().unwrap());
        let mut player = Player::new(system, seed);
        player.waits = true;
        for _ in 0..4 {
            (0..150).for_each(|_| player.change());
            player.settle();
            player.check_all();
        }
        player.held.clear();
        player.check_all();
        assert_eq!(player.system.processors(), 0);
    });
}

/// Has it collect all the time, as a task of the runtime that this runs on, until what it gives is dropped.
fn keep_collecting(system: &System) -> Writer<()> {
    let (end, mut ends) = stream(1);
    let system = system.clone();
    spawn(move || {
        while ends.try_read() == Err(TryReadError::Empty) {
            system.collect();
        }
    });
    end
}

/// The whole of it on one thread, in an order drawn from the seed, and collections all the time.
fn play(seed: u64) -> Result<(), Failure> {
    let runtime = Arc::new(Runtime::builder().deterministic(seed).build().unwrap());
    let system = System::new(runtime.clone());
    runtime.run(move || {
        let end = keep_collecting(&system);
        let mut player = Player::new(system, seed);
        for n in 0..200 {
            player.change();
            if n % 4 == 0 {
                player.check_live();
            }
            if player.random.hit(3) {
                yield_now();
            }
        }
        player.settle();
        drop(end);
        // Enough for all that was logged, as each call is short.
        (0..1_000).for_each(|_| yield_now());
        player.check_all();
    })
}

#[test]
fn nothing_live_is_freed_while_collections_go_on_in_any_order() {
    for_seeds(|seed| play(seed).unwrap());
}

/// An object with another one behind it that has one link, which goes from processor to processor while collections go on; and what is behind
/// it goes to and fro in its own region.
fn pass_on(seed: u64) -> Result<(), Failure> {
    const HOLDERS: usize = 8;
    let runtime = Arc::new(Runtime::builder().deterministic(seed).build().unwrap());
    let system = System::new(runtime.clone());
    runtime.run(move || {
        let _end = keep_collecting(&system);
        let mut random = Random::new(seed);
        let client = system.client();
        let fates: Fates = Arc::new((0..HOLDERS + 3).map(|_| AtomicU8::new(0)).collect());
        let new = |number| {
            let fates = fates.clone();
            client.create(move |_| object(&fates, number))
        };
        let (passed, behind, root) = (HOLDERS, HOLDERS + 1, HOLDERS + 2);
        let own = fates.clone();
        let ball = client.create(move |here| {
            let gone = here.make(object(&own, behind));
            let kept = here.make(object(&own, root));
            here.keep(kept);
            Object { near: vec![gone, kept], ..object(&own, passed) }
        });
        // The first of all processors: the collector looks at it early. Those that hold the ball come later.
        let kept = ball.query(&client, |here, ball| here.separate(here[ball].near[1])).unwrap();
        let _kept = random.hit(2).then_some(kept);
        let holders: Vec<_> = (0..HOLDERS).map(new).collect();
        let put = |holder: usize, ball: Separate<Object>| {
            holders[holder].command(&client, move |here, holder| {
                let link = here.link(&ball);
                here[holder].far.push(link);
            });
        };
        let mut at = HOLDERS - 1;
        put(at, ball);
        for _ in 0..60 {
            let pauses = random.below(20);
            let taken = holders[at].query(&client, move |here, holder| {
                // The others are scanned meanwhile.
                (0..pauses).for_each(|_| yield_now());
                here[holder].far.pop().map(|link| here.hold(link))
            });
            let ball = taken.unwrap().unwrap();
            let fate =
                |number: usize| assert_eq!(fates[number].load(Ordering::SeqCst), ALIVE, "object {number}");
            (passed..=root).for_each(fate);
            if random.hit(3) {
                (0..random.below(60)).for_each(|_| yield_now());
                (passed..=root).for_each(fate);
            }
            if random.hit(2) {
                let pauses = random.below(20);
                // What is behind it goes to the root, and comes back later.
                ball.command(&client, move |here, ball| {
                    let kept = here[ball].near[here[ball].near.len() - 1];
                    match here[kept].near.pop() {
                        Some(behind) => here[ball].near.insert(0, behind),
                        None => {
                            let behind = here[ball].near.remove(0);
                            here[kept].near.push(behind);
                        }
                    }
                    (0..pauses).for_each(|_| yield_now());
                });
            }
            at = random.below(HOLDERS);
            put(at, ball);
            (0..random.below(9)).for_each(|_| yield_now());
        }
    })
}

#[test]
fn what_is_passed_on_is_never_freed() {
    for_seeds(|seed| pass_on(seed).unwrap());
}

#[test]
fn graph_check_notices_planted_faults() {
    /// Each is met in less.
    const SEEDS_MAX: u64 = 200;
    use Fault::*;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let faults = [Export, Link, Target, Make, Roots, Rest, Inbox];
    let noticed = faults.map(|fault| {
        plant(Some(fault));
        let seed = (1..=SEEDS_MAX).find(|seed| pass_on(*seed).is_err() || play(*seed).is_err());
        plant(None);
        (fault, seed)
    });
    std::panic::set_hook(hook);
    println!("noticed by seed: {noticed:?}");
    assert!(noticed.iter().all(|(_, seed)| seed.is_some()), "{noticed:?}");
}

#[test]
fn nothing_live_is_freed_while_threads_collect() {
    for_seeds(|seed| {
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let system = System::builder().processors_between(1).bytes_between(100).build(runtime);
        let players = (0..2).map(|n| {
            let system = system.clone();
            std::thread::spawn(move || {
                let mut player = Player::new(system, 2 * seed + n);
                for n in 0..400 {
                    player.change();
                    if n % 4 == 0 {
                        player.check_live();
                    }
                }
                player.held.clear();
                player.fates.clone()
            })
        });
        let fates: Vec<Fates> = players.collect::<Vec<_>>().into_iter().map(|p| p.join().unwrap()).collect();
        // Calls that were logged last have run when nobody is left.
        while system.collect().processors > 0 {}
        assert!(fates.iter().flat_map(|f| f.iter()).all(|fate| fate.load(Ordering::SeqCst) != ALIVE));
    });
}
