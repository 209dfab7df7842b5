//! Runs under a seed: one thread runs at a time, and the seed selects the next one.
//!
//! The threads pass a baton at each point at which the runtime acts: when a job is pushed, before
//! its owner takes it back, when it has ended, and where a strand waits. Closures run on several
//! threads, as in a normal run, so that they find the thread-local data of other threads. All else
//! is the code of normal runs.

use crate::context;
use crate::pool::{Pool, THREADS_MAX};
use crate::site;
use corebeat_sync::{Condvar, Mutex, lock};
use fastrand::Rng;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

/// Variable with the seed of a whole program.
const SEED: &str = "COREBEAT_FUTURE_SEED";
/// Most helpers of a run. The seed selects their number.
const HELPERS_MAX: usize = 3;

/// Runs `f` with joins and futures in an order drawn from `seed`: equal seeds lead to equal orders.
/// All sites run in parallel, whatever they cost. Only the calling thread's joins are affected, and
/// those of the closures that they run.
///
/// For tests: a program whose results differ between two seeds has closures that are not
/// independent. The variable `COREBEAT_FUTURE_SEED` has the same effect on the first thread of a
/// program that calls a function of this crate; other threads then use plain calls.
///
/// ```
/// use corebeat_future::{join, schedule};
/// use std::sync::Mutex;
///
/// let order = |seed| {
///     let log = Mutex::new(String::new());
///     schedule(seed, || join(|| log.lock().unwrap().push('a'), || log.lock().unwrap().push('b')));
///     log.into_inner().unwrap()
/// };
/// assert!((0..50).any(|seed| order(seed) == "ab") && (0..50).any(|seed| order(seed) == "ba"));
/// assert_eq!(order(7), order(7));
/// ```
///
/// # Panics
///
/// If `f` panics, with its payload; or if the threads cannot be started.
pub fn schedule<T>(seed: u64, f: impl FnOnce() -> T) -> T {
    let _all = site::AllParallel::begin();
    let (pool, helpers) = pool(seed);
    thread::scope(|scope| {
        let _over = Over(baton(&pool));
        for number in 1..=helpers {
            start(&pool, number, |builder, help| builder.spawn_scoped(scope, help).map(|_| ()))
                .expect("the system starts the threads of a run under a seed");
        }
        let context = context::seeded(&pool, 0);
        let result = f();
        drop(context);
        result
    })
}

/// Returns the pool of a program that runs under a seed, for its first thread; `None` for its other
/// threads. Returns `Err` if the program does not run under a seed.
pub(crate) fn of_program() -> Result<Option<&'static Arc<Pool>>, ()> {
    static POOL: OnceLock<Option<(thread::ThreadId, Arc<Pool>)>> = OnceLock::new();
    let start = || {
        let text = std::env::var_os(SEED)?;
        // A test that requests a seed must not run without one.
        let fail = |why: &dyn std::fmt::Display| -> ! {
            eprintln!("corebeat-future: {SEED}={}: {why}", text.display());
            std::process::exit(2)
        };
        let seed = text.to_str().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| fail(&"not a number from 0 to 18446744073709551615"));
        let (pool, helpers) = pool(seed);
        for number in 1..=helpers {
            // The helpers wait for the baton until the process ends.
            let started = start(&pool, number, |builder, help| builder.spawn(help).map(|_| ()));
            started.unwrap_or_else(|why| fail(&why));
        }
        Some((thread::current().id(), pool))
    };
    let program = POOL.get_or_init(start).as_ref().ok_or(())?;
    Ok((program.0 == thread::current().id()).then_some(&program.1))
}

fn pool(seed: u64) -> (Arc<Pool>, usize) {
    let mut random = Rng::with_seed(seed);
    let helpers = random.usize(1..=HELPERS_MAX);
    let mut threads = [Status::Ended; 1 + HELPERS_MAX];
    threads[0] = Status::Runs;
    let state = State { random, holder: 0, threads, is_over: false };
    let baton = Baton { state: Mutex::new(state), passed: Condvar::new() };
    (Arc::new(Pool::new(THREADS_MAX, Some(baton))), helpers)
}

/// Starts a helper by `spawn`, and lets it take part if that succeeds.
fn start(
    pool: &Arc<Pool>,
    number: usize,
    spawn: impl FnOnce(thread::Builder, Box<dyn FnOnce() + Send>) -> io::Result<()>,
) -> io::Result<()> {
    let own = pool.clone();
    let builder = thread::Builder::new().name(format!("future-{number}"));
    spawn(builder, Box::new(move || help(&own, number)))?;
    lock(&baton(pool).state).threads[number] = Status::Waits;
    Ok(())
}

fn baton(pool: &Pool) -> &Baton {
    pool.baton.as_ref().expect("the pool of a run under a seed has a baton")
}

/// Runs jobs until the run is over.
fn help(pool: &Arc<Pool>, number: usize) {
    let baton = baton(pool);
    baton.begin(number);
    let context = context::seeded(pool, number).expect("a new thread has its local data");
    while !baton.is_over() {
        let start = baton.draw();
        if !context.run_one(start) {
            baton.wait(number, || baton.is_over());
        }
    }
    drop(context);
    baton.end(number);
}

/// The order of the threads.
pub(crate) struct Baton {
    state: Mutex<State>,
    passed: Condvar,
}

struct State {
    random: Rng,
    /// The thread that runs.
    holder: usize,
    threads: [Status; 1 + HELPERS_MAX],
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    /// Runs, or waits for the baton.
    Runs,
    /// Waits for an announcement.
    Waits,
    Ended,
}

impl State {
    /// Passes the baton to a random thread.
    fn pass(&mut self) {
        let can_run = |thread: &usize| self.threads[*thread] == Status::Runs;
        let ready: Vec<usize> = (0..self.threads.len()).filter(can_run).collect();
        // None is ready after the last thread has ended.
        if !ready.is_empty() {
            self.holder = ready[self.random.usize(..ready.len())];
        }
    }
}

impl Baton {
    /// Waits for the first turn of a thread.
    fn begin(&self, number: usize) {
        let state = lock(&self.state);
        self.wait_for_turn(state, number);
    }

    fn wait_for_turn(&self, mut state: corebeat_sync::MutexGuard<'_, State>, number: usize) {
        while state.holder != number {
            state = self.passed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Passes the baton, perhaps to the caller itself.
    pub(crate) fn switch(&self, number: usize) {
        let mut state = lock(&self.state);
        // A future that outlives the run: the other threads do not wait for this one.
        if state.threads[number] == Status::Ended {
            return;
        }
        state.pass();
        self.passed.notify_all();
        self.wait_for_turn(state, number);
    }

    /// Passes the baton and waits until after an announcement, unless `is_over`.
    ///
    /// # Panics
    ///
    /// If all threads wait.
    pub(crate) fn wait(&self, number: usize, is_over: impl Fn() -> bool) {
        if is_over() {
            return;
        }
        let mut state = lock(&self.state);
        state.threads[number] = Status::Waits;
        assert!(state.threads.contains(&Status::Runs), "all threads wait for each other");
        state.pass();
        self.passed.notify_all();
        self.wait_for_turn(state, number);
    }

    /// Lets all waiting threads check again, in their turns.
    pub(crate) fn announce(&self) {
        let mut state = lock(&self.state);
        let waiting = state.threads.iter_mut().filter(|status| **status == Status::Waits);
        waiting.for_each(|status| *status = Status::Runs);
    }

    pub(crate) fn draw(&self) -> usize {
        lock(&self.state).random.usize(..)
    }

    fn is_over(&self) -> bool {
        lock(&self.state).is_over
    }

    fn end(&self, number: usize) {
        let mut state = lock(&self.state);
        state.threads[number] = Status::Ended;
        state.pass();
        self.passed.notify_all();
    }
}

/// Ends the run when it is dropped, also by a panic.
struct Over<'a>(&'a Baton);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).is_over = true;
        self.0.announce();
        self.0.end(0);
    }
}
