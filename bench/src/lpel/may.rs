//! The subject may: stackful coroutines that move between workers, with unbounded channels.
//!
//! For the bound, a semaphore beside each channel counts the free places.

use super::lap::{Laps, Outcome, blocked, crowd};
use super::load::{BUFFER, CAPACITY, Load, Work, counter, ordered, unordered};
use may::go;
use may::sync::{Semphore, mpsc, spsc};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether streams are bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    ByHand,
    None,
}

pub(crate) fn run(load: &Load, bound: Bound) -> Result<Outcome, String> {
    let load = *load;
    may::config().set_workers(load.workers);
    let main = match load.work {
        // These works block the main thread, which therefore must not be a worker.
        Work::Memory | Work::Idle => return memory(load),
        Work::Plain => go!(move || plain(load, bound)),
        Work::Leave => go!(move || leave(load, bound)),
        Work::Pingpong => go!(move || pingpong(load)),
        Work::Stream => go!(move || stream(load, bound)),
        Work::Spawn => {
            let spawn = |i| go!(move || i);
            go!(move || crowd(load, spawn, |task| task.join().unwrap_or(0)))
        }
        _ => return Err("may has no batches and no bare ring".into()),
    };
    main.join().map_err(|_| "panicked".into())
}

/// The free places of a channel. `None` has no bound.
#[derive(Clone)]
struct Places(Option<Arc<Semphore>>);

impl Places {
    fn take(&self) {
        if let Some(free) = &self.0 {
            free.wait();
        }
    }

    fn give(&self) {
        if let Some(free) = &self.0 {
            free.post();
        }
    }
}

impl Bound {
    fn places(self, capacity: usize) -> Places {
        Places((self == Bound::ByHand).then(|| Arc::new(Semphore::new(capacity))))
    }

    fn stream(self, capacity: usize) -> (Writer, Reader) {
        let (to, from) = spsc::channel();
        let places = self.places(capacity);
        (Writer { to, places: places.clone() }, Reader { from, places })
    }
}

struct Writer {
    to: spsc::Sender<u64>,
    places: Places,
}

impl Writer {
    fn write(&self, item: u64) -> bool {
        self.places.take();
        self.to.send(item).is_ok()
    }
}

struct Reader {
    from: spsc::Receiver<u64>,
    places: Places,
}

impl Reader {
    fn read(&self) -> Option<u64> {
        let item = self.from.recv().ok()?;
        self.places.give();
        Some(item)
    }

    /// The checksum of a lap of items.
    fn read_lap(&self, load: Load) -> u64 {
        (0..load.count).fold(0, |sum, _| ordered(sum, self.read().unwrap_or(0)))
    }
}

/// Sends the records of a lap on each request.
fn source(load: Load, lap: &spsc::Receiver<()>, to: &Writer) {
    while lap.recv().is_ok() {
        for i in 0..load.count {
            if !to.write(load.record(i)) {
                return;
            }
        }
    }
}

fn plain(load: Load, bound: Bound) -> Outcome {
    let (go, lap) = spsc::channel();
    let (to, mut from) = bound.stream(BUFFER);
    go!(move || source(load, &lap, &to));
    for _ in 0..load.depth {
        let (to, next) = bound.stream(BUFFER);
        let before = std::mem::replace(&mut from, next);
        go!(move || while let Some(record) = before.read() {
            if !to.write(record + 1) {
                return;
            }
        });
    }
    Laps::run(load, || {
        let _ = go.send(());
        from.read_lap(load)
    })
}

/// All stages share one exit channel, which is the usual design with these channels.
fn leave(load: Load, bound: Bound) -> Outcome {
    let (go, lap) = spsc::channel();
    let (to, mut from) = bound.stream(BUFFER);
    let (out, left) = mpsc::channel();
    let out_places = bound.places(BUFFER);
    go!(move || source(load, &lap, &to));
    for stage in 0..load.depth {
        let (to, next) = bound.stream(BUFFER);
        let before = std::mem::replace(&mut from, next);
        let (out, out_places) = (out.clone(), out_places.clone());
        go!(move || while let Some(record) = before.read() {
            let sent = match counter(record) {
                0 => {
                    out_places.take();
                    out.send(record + stage).is_ok()
                }
                _ => to.write(record - 1),
            };
            if !sent {
                return;
            }
        });
    }
    Laps::run(load, || {
        let _ = go.send(());
        (0..load.count).fold(0, |sum, _| {
            let item = left.recv().unwrap_or(0);
            out_places.give();
            unordered(sum, item)
        })
    })
}

/// The channel holds only one number, so no bound is needed.
fn pingpong(load: Load) -> Outcome {
    let (there, arrived) = spsc::channel();
    let (back, returned) = spsc::channel();
    go!(move || while let Ok(n) = arrived.recv() {
        let _ = back.send(n + 1);
    });
    Laps::run(load, || {
        (0..load.count).fold(0, |n, _| {
            let _ = there.send(n);
            returned.recv().unwrap_or(0)
        })
    })
}

fn stream(load: Load, bound: Bound) -> Outcome {
    let (to, from) = bound.stream(CAPACITY);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    go!(move || while !stopped.load(Ordering::SeqCst) {
        for i in 0..load.count {
            to.write(i);
        }
        // A writer to an unbounded stream never waits. Without this, a reader that became ready on
        // the same worker would not run.
        may::coroutine::yield_now();
    });
    let outcome = Laps::run(load, || from.read_lap(load));
    stop.store(true, Ordering::SeqCst);
    while from.read().is_some() {}
    outcome
}

fn memory(load: Load) -> Result<Outcome, String> {
    let spawn = |started: Arc<AtomicU64>| {
        let (to, from) = spsc::channel::<u64>();
        let task = go!(move || {
            started.fetch_add(1, Ordering::SeqCst);
            from.recv().unwrap_or(0)
        });
        (to, task)
    };
    blocked(load, spawn, std::thread::yield_now, |(i, (to, task))| {
        let _ = to.send(i);
        task.join().unwrap_or(0)
    })
}
