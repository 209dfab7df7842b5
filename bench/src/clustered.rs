//! Measures clustered objects beside other ways to count, and to read and replace objects that
//! other threads may free.
//!
//! Each subject runs in a separate process, and each thread on its own CPU. A lap has a fixed
//! number of operations per thread, and all threads begin a lap together. A subject that loses an
//! operation fails.

mod server;

use crate::Bench;
use crate::apart;
use crate::lap;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_clustered::{Chosen, Clustered, Counter, Cpu, Link, Miss, Root, read_section};
use crossbeam_epoch as epoch;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::hint::black_box;
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence};

pub(crate) const BENCHES: [Bench; 4] = [
    Bench {
        name: "clustered.counter",
        summary: "time that a thread takes to add to a counter: the six cases of Matthews, Coady, Appavoo, 2006, and more",
        peers: &[
            "shared atomic",
            "unpadded array",
            "padded array",
            "virtual call",
            "pthread key",
            "thread-local variable",
            "thread_local",
        ],
        tools: &[],
        cases: apart::thread_cases,
        run: |session| run(session, 0, Work::Counter),
    },
    Bench {
        name: "clustered.guard",
        summary: "time that a thread takes to read an object that may be freed concurrently",
        peers: &["crossbeam-epoch", "seize"],
        tools: &[],
        cases: apart::thread_cases,
        run: |session| run(session, 1, Work::Guard),
    },
    Bench {
        name: "clustered.retire",
        summary: "time that a thread takes to replace an object that other threads replace, and to retire the old one",
        peers: &["crossbeam-epoch", "seize"],
        tools: &[],
        cases: apart::thread_cases,
        run: |session| run(session, 2, Work::Retire),
    },
    Bench {
        name: "clustered.server",
        summary: "time that a thread of a small server takes to count a request and answer it from its cache",
        peers: &["mutex", "rwlock", "dashmap", "papaya"],
        tools: &[],
        cases: apart::thread_cases,
        run: |session| run(session, 3, Work::Server),
    },
];

/// Exceeds the largest number of measured threads.
const THREADS_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Work {
    Counter,
    Guard,
    Retire,
    Server,
}

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "corebeat, borrowed")]
    Borrowed,
    #[value(name = "corebeat, by CPU")]
    PerCpu,
    #[value(name = "corebeat, one for all")]
    OneForAll,
    #[value(name = "shared atomic")]
    SharedAtomic,
    #[value(name = "unpadded array")]
    UnpaddedArray,
    #[value(name = "padded array")]
    PaddedArray,
    #[value(name = "virtual call")]
    VirtualCall,
    #[value(name = "pthread key")]
    PthreadKey,
    #[value(name = "thread-local variable")]
    ThreadLocalVariable,
    #[value(name = "thread_local")]
    ThreadLocal,
    Limit,
    CrossbeamEpoch,
    Seize,
    #[value(name = "corebeat, adaptive")]
    Adaptive,
    Mutex,
    #[value(name = "rwlock")]
    RwLock,
    Dashmap,
    Papaya,
}

impl Subject {
    fn does(self, work: Work) -> bool {
        match self {
            Subject::Corebeat => true,
            Subject::CrossbeamEpoch | Subject::Seize => matches!(work, Work::Guard | Work::Retire),
            Subject::Adaptive
            | Subject::Mutex
            | Subject::RwLock
            | Subject::Dashmap
            | Subject::Papaya => work == Work::Server,
            _ => work == Work::Counter,
        }
    }
}

fn run(session: &Session, bench: usize, work: Work) -> Result<(), String> {
    let unit = match work {
        Work::Counter => "ns/increment",
        Work::Guard => "ns/read",
        Work::Retire => "ns/replacement",
        Work::Server => "ns/request",
    };
    let operations = match (work, session.quick) {
        (_, true) => 100,
        (Work::Retire | Work::Server, false) => 200_000,
        _ => 10_000_000,
    };
    let does = |subject: Subject| subject.does(work);
    apart::measure_threads(session, BENCHES[bench].name, unit, does, |subject, count| {
        let laps = lap::LapOptions::new(session, count, operations);
        // The subject checks its results itself.
        apart::value(apart::command(session, "clustered", &Options { subject, work, laps })?)
    })
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    work: Work,
    laps: lap::LapOptions,
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    match (options.work, options.subject) {
        (Work::Counter, Subject::Corebeat) => count::<Linked>(options),
        (Work::Counter, Subject::Borrowed) => count::<Counter>(options),
        (Work::Counter, Subject::PerCpu) => count::<Counter<Cpu>>(options),
        (Work::Counter, Subject::OneForAll) => count::<OneForAll>(options),
        (Work::Counter, Subject::SharedAtomic) => count::<AtomicU64>(options),
        (Work::Counter, Subject::UnpaddedArray) => count::<Array<Plain>>(options),
        (Work::Counter, Subject::PaddedArray) => count::<Array<Padded>>(options),
        (Work::Counter, Subject::VirtualCall) => count::<Virtual>(options),
        (Work::Counter, Subject::PthreadKey) => count::<Key>(options),
        (Work::Counter, Subject::ThreadLocalVariable) => count::<Variable>(options),
        (Work::Counter, Subject::ThreadLocal) => count::<Crate>(options),
        (Work::Counter, Subject::Limit) => count::<Limit>(options),
        (Work::Server, _) => server::main(options),
        (_, Subject::Corebeat) => replace::<Link<u64>>(options),
        (_, Subject::CrossbeamEpoch) => replace::<Epoch>(options),
        (_, Subject::Seize) => replace::<Seize>(options),
        _ => Err("this subject does not support this work".into()),
    }
}

thread_local! {
    /// The number of the thread in this run.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

fn count<C: Count>(options: &Options) -> Result<(f64, u64), String> {
    let counter = C::default();
    let (laps, time) = options.laps.run(|number, lap| {
        NUMBER.set(number % THREADS_MAX);
        counter.enter();
        while lap.begins() {
            for _ in 0..options.laps.operations {
                counter.add();
            }
            lap.ends();
        }
    });
    let (counted, expected) =
        (counter.sum(), laps * options.laps.operations * options.laps.threads as u64);
    if counted != expected {
        return Err(format!("the subject counted {counted} operations instead of {expected}"));
    }
    Ok((options.laps.ns(laps, time), 1))
}

/// A counter.
trait Count: Default + Sync {
    /// Prepares the counter for the calling thread.
    fn enter(&self) {}
    fn add(&self);
    fn sum(&self) -> u64;
}

/// Adds to a number that only this thread writes.
#[inline(always)]
fn add_alone(number: &AtomicU64) {
    number.store(number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// A read section, a dereference, and an increment: case 6.
struct Linked(Link<Counter>);

impl Default for Linked {
    fn default() -> Self {
        Linked(Link::new(Counter::new()))
    }
}

impl Count for Linked {
    #[inline(always)]
    fn add(&self) {
        read_section(|guard| self.0.get(guard).expect("the link is never removed").add(1));
    }

    fn sum(&self) -> u64 {
        read_section(|guard| self.0.get(guard).expect("the link is never removed").value()) as u64
    }
}

impl<D: corebeat_clustered::Domain> Count for Counter<D> {
    #[inline(always)]
    fn add(&self) {
        Counter::add(self, 1);
    }

    fn sum(&self) -> u64 {
        self.value() as u64
    }
}

/// A dereference of a representative that all threads share: case 5.
struct OneForAll(Link<Clustered<All>>);

struct All;

impl Root for All {
    type Rep = AtomicU64;

    fn miss(&self, miss: Miss<'_, AtomicU64>) -> Chosen<AtomicU64> {
        miss.one_for_all(AtomicU64::default)
    }
}

impl Default for OneForAll {
    fn default() -> Self {
        OneForAll(Link::new(Clustered::new(All)))
    }
}

impl Count for OneForAll {
    #[inline(always)]
    fn add(&self) {
        read_section(|guard| {
            self.0
                .get(guard)
                .expect("the link is never removed")
                .here()
                .fetch_add(1, Ordering::Relaxed)
        });
    }

    fn sum(&self) -> u64 {
        read_section(|guard| {
            self.0.get(guard).expect("the link is never removed").here().load(Ordering::Relaxed)
        })
    }
}

/// Case 1.
impl Count for AtomicU64 {
    #[inline(always)]
    fn add(&self) {
        self.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Plain(AtomicU64);

/// Occupies two lines, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl AsRef<AtomicU64> for Plain {
    fn as_ref(&self) -> &AtomicU64 {
        &self.0
    }
}

impl AsRef<AtomicU64> for Padded {
    fn as_ref(&self) -> &AtomicU64 {
        &self.0
    }
}

/// A number for each thread: cases 2 and 3.
struct Array<N>(Box<[N]>);

impl<N: Default> Default for Array<N> {
    fn default() -> Self {
        Array((0..THREADS_MAX).map(|_| N::default()).collect())
    }
}

impl<N: Default + AsRef<AtomicU64> + Sync> Count for Array<N> {
    #[inline(always)]
    fn add(&self) {
        add_alone(self.0[NUMBER.get()].as_ref());
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|number| number.as_ref().load(Ordering::Relaxed)).sum()
    }
}

/// A virtual call to a representative that all threads share: case 4.
struct Virtual(Box<dyn Rep>);

trait Rep: Sync {
    fn add(&self);
    fn sum(&self) -> u64;
}

impl Rep for AtomicU64 {
    fn add(&self) {
        Count::add(self);
    }

    fn sum(&self) -> u64 {
        Count::sum(self)
    }
}

impl Default for Virtual {
    fn default() -> Self {
        Virtual(black_box(Box::<AtomicU64>::default()))
    }
}

impl Count for Virtual {
    #[inline(always)]
    fn add(&self) {
        self.0.add();
    }

    fn sum(&self) -> u64 {
        self.0.sum()
    }
}

/// The numbers of all threads. A thread reaches its own number in another way.
#[derive(Default)]
struct Numbers(Mutex<Vec<&'static Padded>>);

impl Numbers {
    fn get(&self) -> &'static Padded {
        // The leak is harmless because this process ends soon.
        let number: &Padded = Box::leak(Box::default());
        self.0.lock().expect("no holder of the lock panics").push(number);
        number
    }

    fn sum(&self) -> u64 {
        self.0
            .lock()
            .expect("no holder of the lock panics")
            .iter()
            .map(|number| number.0.load(Ordering::Relaxed))
            .sum()
    }
}

/// `pthread_getspecific`, as in the paper.
struct Key(libc::pthread_key_t, Numbers);

impl Default for Key {
    fn default() -> Self {
        let mut key = 0;
        // SAFETY: the pointer is to a variable of this frame. The key has no destructor.
        let failed = unsafe { libc::pthread_key_create(&raw mut key, None) };
        assert_eq!(failed, 0, "the system has no more keys for thread-specific data");
        Key(key, Numbers::default())
    }
}

impl Count for Key {
    fn enter(&self) {
        // SAFETY: the key was created.
        let failed =
            unsafe { libc::pthread_setspecific(self.0, (&raw const *self.1.get()).cast()) };
        assert_eq!(failed, 0, "the system has no memory for thread-specific data");
    }

    #[inline(always)]
    fn add(&self) {
        // SAFETY: the key was created, and `enter` has stored a number that is never freed.
        let number = unsafe { &*libc::pthread_getspecific(self.0).cast::<Padded>() };
        add_alone(&number.0);
    }

    fn sum(&self) -> u64 {
        self.1.sum()
    }
}

#[derive(Default)]
struct Variable(Numbers);

thread_local! {
    static MINE: Cell<Option<&'static Padded>> = const { Cell::new(None) };
}

impl Count for Variable {
    fn enter(&self) {
        MINE.set(Some(self.0.get()));
    }

    #[inline(always)]
    fn add(&self) {
        add_alone(&MINE.get().expect("each thread calls enter").0);
    }

    fn sum(&self) -> u64 {
        self.0.sum()
    }
}

#[derive(Default)]
struct Crate(thread_local::ThreadLocal<Padded>);

impl Count for Crate {
    #[inline(always)]
    fn add(&self) {
        add_alone(&self.0.get_or_default().0);
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|number| number.0.load(Ordering::Relaxed)).sum()
    }
}

/// The unavoidable part of case 6, without checks: two stores publish a section, which contains a
/// load of the link and an addition at the place that the linked counter names.
struct Limit {
    link: AtomicPtr<usize>,
    numbers: Variable,
}

thread_local! {
    static SECTION: AtomicU64 = const { AtomicU64::new(0) };
}

impl Default for Limit {
    fn default() -> Self {
        // The leak is harmless because this process ends soon.
        Limit { link: AtomicPtr::new(Box::leak(Box::default())), numbers: Variable::default() }
    }
}

impl Count for Limit {
    fn enter(&self) {
        self.numbers.enter();
    }

    #[inline(always)]
    fn add(&self) {
        SECTION.with(|section| {
            section.store(1, Ordering::Relaxed);
            // As the light fence of a section.
            compiler_fence(Ordering::SeqCst);
            // SAFETY: the link is never changed, its place is 0, and `enter` has set `MINE`.
            let number = unsafe {
                let place = *self.link.load(Ordering::Acquire);
                slice::from_ref(&MINE.get().unwrap_unchecked().0).get_unchecked(place)
            };
            add_alone(number);
            section.store(0, Ordering::Release);
        });
    }

    fn sum(&self) -> u64 {
        self.numbers.sum()
    }
}

fn replace<P: Place>(options: &Options) -> Result<(f64, u64), String> {
    let place = P::new(1);
    let wrong = AtomicU64::new(0);
    let (laps, time) = options.laps.run(|_, lap| {
        while lap.begins() {
            for _ in 0..options.laps.operations {
                if options.work == Work::Guard {
                    if black_box(place.read()) != 1 {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                } else {
                    place.replace(1);
                }
            }
            lap.ends();
        }
    });
    match (wrong.into_inner(), place.read()) {
        (0, 1) => Ok((options.laps.ns(laps, time), 1)),
        (wrong, last) => {
            Err(format!("{wrong} reads returned a wrong value, and the last value is {last}"))
        }
    }
}

/// A place for a value that threads read while other threads replace it.
trait Place: Sync {
    fn new(value: u64) -> Self;
    fn read(&self) -> u64;
    fn replace(&self, value: u64);
}

impl Place for Link<u64> {
    fn new(value: u64) -> Self {
        Link::new(value)
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        read_section(|guard| *self.get(guard).expect("the link is never removed"))
    }

    #[inline(always)]
    fn replace(&self, value: u64) {
        Link::replace(self, value);
    }
}

struct Epoch(epoch::Atomic<u64>);

impl Place for Epoch {
    fn new(value: u64) -> Self {
        Epoch(epoch::Atomic::new(value))
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        let guard = epoch::pin();
        // SAFETY: the pointer is never null, and the value is not freed before the guard is
        // dropped.
        unsafe { *self.0.load(Ordering::Acquire, &guard).deref() }
    }

    #[inline(always)]
    fn replace(&self, value: u64) {
        let guard = epoch::pin();
        let old = self.0.swap(epoch::Owned::new(value), Ordering::AcqRel, &guard);
        // SAFETY: the object is no longer reachable.
        unsafe { guard.defer_destroy(old) };
    }
}

struct Seize(seize::Collector, AtomicPtr<u64>);

impl Place for Seize {
    fn new(value: u64) -> Self {
        Seize(seize::Collector::new(), AtomicPtr::new(Box::into_raw(Box::new(value))))
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        use seize::Guard;
        let guard = self.0.enter();
        // SAFETY: the pointer is never null, and the value is not freed before the guard is
        // dropped.
        unsafe { *guard.protect(&self.1, Ordering::Acquire) }
    }

    #[inline(always)]
    fn replace(&self, value: u64) {
        use seize::Guard;
        let guard = self.0.enter();
        let old = guard.swap(&self.1, Box::into_raw(Box::new(value)), Ordering::AcqRel);
        // SAFETY: the object was boxed, and is no longer reachable.
        unsafe { self.0.retire(old, seize::reclaim::boxed) };
    }
}
