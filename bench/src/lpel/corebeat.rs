//! The subjects of Corebeat: tasks with a stack, and async tasks, which have no stack while they
//! wait.

use super::lap::{Laps, Outcome, blocked, crowd};
use super::load::{
    BATCH, BUFFER, CAPACITY, Load, Watched, Work, counter, hold, ordered, unordered,
};
use super::ring::Spin;
use crate::line::cpus;
use corebeat_lpel::monitor::{Dispatch, End, Level, Listener, Monitor, TextLog, Wait, WhenFull};
use corebeat_lpel::{
    Builder, Event, JoinHandle, Reader, Runtime, StreamSet, Task, TryReadError, TryWriteError,
    Writer, spawn, spawn_async, stream as new_stream, yield_now,
};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Neighbours in a pipeline that are placed together. The records of a lap fill the streams of
/// about 100 stages, so larger blocks would keep the workers busy one after the other.
const BLOCK: u64 = 100;

/// Bytes of memory for records that are not written yet.
const LOG_BUFFER: usize = 64 << 20;

/// The kind of tasks, and their placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Stackful,
    /// The stages of a pipeline are placed: each worker gets a block of neighbours.
    Blocks,
    Async,
}

pub(crate) fn run(load: &Load, form: Form) -> Result<Outcome, String> {
    let load = *load;
    let builder = Runtime::builder().workers(load.workers);
    let when_full = match load.watched {
        None => return run_on(builder, load, form),
        Some(Watched::A) => return run_on(builder.monitor(Sum(Level::Marked)), load, form),
        Some(Watched::B) => return run_on(builder.monitor(Sum(Level::MarkedStreams)), load, form),
        Some(Watched::C) => return run_on(builder.monitor(Sum(Level::All)), load, form),
        Some(Watched::D) => return run_on(builder.monitor(Sum(Level::Workers)), load, form),
        Some(Watched::Text) => WhenFull::Lose,
        Some(Watched::WholeText) => WhenFull::Wait,
    };
    let folder =
        tempfile::tempdir().map_err(|e| format!("cannot create a temporary folder: {e}"))?;
    let log = TextLog::with_buffer(&folder, Level::Workers, LOG_BUFFER, when_full)
        .map_err(|e| e.to_string())?;
    let builder = builder.cpus(cpus()).monitor(log.clone());
    let outcome = run_on(builder, load, form)?;
    let written = log.finish().map_err(|e| e.to_string())?;
    match (when_full, written.lost) {
        (WhenFull::Wait, lost) if lost > 0 => Err(format!("the log lost {lost} records")),
        _ => Ok(outcome),
    }
}

fn run_on(builder: Builder, load: Load, form: Form) -> Result<Outcome, String> {
    let runtime = builder.build().map_err(|e| e.to_string())?;
    let join = |task: JoinHandle<u64>| task.join().unwrap_or(0);
    let outcome = match load.work {
        Work::Plain => runtime.run(move || plain(load, form)),
        Work::Leave => runtime.run(move || leave(load, form)),
        Work::Pingpong => runtime.run(move || pingpong(load, form)),
        Work::Stream => runtime.run(move || stream(load, form)),
        Work::Batch => runtime.run(move || batch(load)),
        Work::Ring => runtime.run(move || ring(load)),
        Work::Spawn if form == Form::Async => {
            runtime.run(move || crowd(load, |i| spawn_async(async move { i }), join))
        }
        Work::Spawn => runtime.run(move || crowd(load, |i| spawn(move || i), join)),
        Work::Memory => match runtime.run(move || memory(load, form)) {
            Ok(outcome) => return outcome,
            Err(why) => Err(why),
        },
        Work::Idle => return idle(&runtime, load, form),
        Work::RingBatch => return Err("this subject has no batches that do not wait".into()),
    };
    outcome.map_err(|why| why.to_string())
}

/// A monitor that only adds figures.
struct Sum(Level);

/// The figures of the tasks of one worker.
#[derive(Default)]
struct Added {
    execution_ns: u64,
    items: u64,
    wait_ns: u64,
}

impl Monitor for Sum {
    fn level(&self) -> Level {
        self.0
    }

    fn listener(&self, _: usize) -> Box<dyn Listener> {
        Box::<Added>::default()
    }
}

impl Listener for Added {
    fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
        self.execution_ns += dispatch.execution_ns;
        self.items = dispatch.streams.iter().fold(self.items, |sum, s| sum.wrapping_add(s.items));
    }

    fn waited(&mut self, wait: &Wait) {
        self.wait_ns += wait.wait_ns;
    }

    fn ended(&mut self, _: &End) {
        std::hint::black_box((self.execution_ns, self.items, self.wait_ns));
    }
}

/// Spawns a task on a worker. If the number is too large, the last worker is used.
fn on<T: Send + 'static>(
    load: Load,
    worker: usize,
    f: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
    Task::new().worker(worker.min(load.workers - 1)).spawn(f).ok()
}

/// Spawns an async task on a worker, in the same way.
fn async_on<T: Send + 'static>(
    load: Load,
    worker: usize,
    future: impl Future<Output = T> + Send + 'static,
) -> Option<JoinHandle<T>> {
    Task::new().worker(worker.min(load.workers - 1)).spawn_async(future).ok()
}

/// A stage of a pipeline, which monitors record. The form determines its worker.
fn stage(load: Load, form: Form, number: u64) -> Task<'static> {
    let task = Task::new().mark();
    match form {
        Form::Blocks => task.worker((number / BLOCK) as usize % load.workers),
        Form::Stackful | Form::Async => task,
    }
}

/// Spawns a stage that reads all records and passes them.
fn spawn_stage(
    task: Task<'_>,
    form: Form,
    mut from: Reader<u64>,
    mut pass: impl FnMut(u64) -> bool + Send + 'static,
) {
    let spawned = match form {
        Form::Stackful | Form::Blocks => {
            task.spawn(move || while from.read().is_some_and(&mut pass) {})
        }
        Form::Async => {
            task.spawn_async(async move { while from.read_async().await.is_some_and(&mut pass) {} })
        }
    };
    // If the spawn fails, the checksum of the lap is wrong.
    drop(spawned);
}

/// Sends the records of a lap on each request.
fn source(load: Load, lap: Reader<()>, mut to: Writer<u64>) {
    for () in lap {
        for i in 0..load.count {
            if to.write(load.record(i)).is_err() {
                return;
            }
        }
    }
}

fn plain(load: Load, form: Form) -> Outcome {
    let (mut go, lap) = new_stream(1);
    let (to, mut from) = new_stream(BUFFER);
    spawn(move || source(load, lap, to));
    for i in 0..load.depth {
        let (mut to, next) = new_stream(BUFFER);
        let before = std::mem::replace(&mut from, next);
        spawn_stage(stage(load, form, i), form, before, move |record| to.write(record + 1).is_ok());
    }
    Laps::run(load, || {
        let _ = go.write(());
        (0..load.count).fold(0, |sum, _| ordered(sum, from.read().unwrap_or(0)))
    })
}

fn leave(load: Load, form: Form) -> Outcome {
    let (mut go, lap) = new_stream(1);
    let (to, mut from) = new_stream(BUFFER);
    let mut left = StreamSet::new();
    spawn(move || source(load, lap, to));
    for i in 0..load.depth {
        let (mut to, next) = new_stream(BUFFER);
        let before = std::mem::replace(&mut from, next);
        let (mut out, way_out) = new_stream(BUFFER);
        left.add(way_out);
        spawn_stage(stage(load, form, i), form, before, move |record| match counter(record) {
            0 => out.write(record + i).is_ok(),
            _ => to.write(record - 1).is_ok(),
        });
    }
    Laps::run(load, || {
        let _ = go.write(());
        let (mut sum, mut missing) = (0, load.count);
        while missing > 0 {
            match left.read() {
                Some((_, Event::Item(record))) => {
                    sum = unordered(sum, record);
                    missing -= 1;
                }
                Some((_, Event::End)) => {}
                None => break,
            }
        }
        sum
    })
}

fn pingpong(load: Load, form: Form) -> Outcome {
    let (mut there, mut arrived) = new_stream(1);
    let (mut back, mut returned) = new_stream(1);
    let asker = match form {
        Form::Stackful | Form::Blocks => {
            on(load, 1, move || {
                while let Some(n) = arrived.read() {
                    let _ = back.write(n + 1);
                }
            });
            on(load, 0, move || {
                Laps::run(load, || {
                    (0..load.count).fold(0, |n, _| {
                        let _ = there.write(n);
                        returned.read().unwrap_or(0)
                    })
                })
            })
        }
        Form::Async => {
            async_on(load, 1, async move {
                while let Some(n) = arrived.read_async().await {
                    let _ = back.write(n + 1);
                }
            });
            async_on(load, 0, async move {
                let mut laps = Laps::new(load);
                while laps.begin() {
                    let mut n = 0;
                    for _ in 0..load.count {
                        let _ = there.write(n);
                        n = returned.read_async().await.unwrap_or(0);
                    }
                    laps.end(n);
                }
                laps.outcome()
            })
        }
    };
    result(asker)
}

/// The result of a task.
fn result(task: Option<JoinHandle<Outcome>>) -> Outcome {
    task.and_then(|task| task.join().ok()).unwrap_or_default()
}

/// Writes laps of numbers until the request to stop.
fn writer(load: Load, stop: Arc<AtomicBool>, mut to: Writer<u64>) {
    while !stop.load(Ordering::SeqCst) {
        for i in 0..load.count {
            let _ = to.write(i);
        }
    }
}

fn stream(load: Load, form: Form) -> Outcome {
    let (to, mut from) = new_stream(CAPACITY);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    on(load, 1, move || writer(load, stopped, to));
    let reader = match form {
        Form::Stackful | Form::Blocks => on(load, 0, move || {
            let outcome = Laps::run(load, || {
                (0..load.count).fold(0, |sum, _| ordered(sum, from.read().unwrap_or(0)))
            });
            stop.store(true, Ordering::SeqCst);
            while from.read().is_some() {}
            outcome
        }),
        Form::Async => async_on(load, 0, async move {
            let mut laps = Laps::new(load);
            while laps.begin() {
                let mut sum = 0;
                for _ in 0..load.count {
                    sum = ordered(sum, from.read_async().await.unwrap_or(0));
                }
                laps.end(sum);
            }
            stop.store(true, Ordering::SeqCst);
            while from.read_async().await.is_some() {}
            laps.outcome()
        }),
    };
    result(reader)
}

fn batch(load: Load) -> Outcome {
    let (mut to, mut from) = new_stream(CAPACITY);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    on(load, 1, move || {
        let mut items = Vec::with_capacity(BATCH);
        while !stopped.load(Ordering::SeqCst) {
            for begin in (0..load.count).step_by(BATCH) {
                items.extend(begin..load.count.min(begin + BATCH as u64));
                let _ = to.write_batch(&mut items);
            }
        }
    });
    let reader = on(load, 0, move || {
        let mut items = Vec::with_capacity(BATCH);
        let outcome = Laps::run(load, || {
            let (mut sum, mut missing) = (0, load.count as usize);
            while missing > 0 {
                missing -= from.read_batch(&mut items, missing.min(BATCH));
                sum = items.drain(..).fold(sum, ordered);
            }
            sum
        });
        stop.store(true, Ordering::SeqCst);
        while from.read_batch(&mut items, BATCH) > 0 {
            items.clear();
        }
        outcome
    });
    result(reader)
}

/// Two tasks that never wait, but retry.
fn ring(load: Load) -> Outcome {
    let (mut to, mut from) = new_stream(CAPACITY);
    on(load, 1, move || {
        loop {
            for mut item in 0..load.count {
                let mut spin = Spin::default();
                while let Err(refused) = to.try_write(item) {
                    let TryWriteError::Full(again) = refused else { return };
                    item = again;
                    spin.wait();
                }
            }
        }
    });
    let reader = on(load, 0, move || {
        Laps::run(load, || {
            (0..load.count).fold(0, |sum, _| {
                let mut spin = Spin::default();
                loop {
                    match from.try_read() {
                        Ok(item) => break ordered(sum, item),
                        Err(TryReadError::Empty) => spin.wait(),
                        Err(TryReadError::Closed) => break sum,
                    }
                }
            })
        })
    });
    result(reader)
}

fn memory(load: Load, form: Form) -> Result<Outcome, String> {
    let spawn = |started: Arc<AtomicU64>| {
        let (to, mut from) = new_stream::<u64>(1);
        let task = match form {
            Form::Stackful | Form::Blocks => spawn(move || {
                started.fetch_add(1, Ordering::SeqCst);
                from.read().unwrap_or(0)
            }),
            Form::Async => spawn_async(async move {
                started.fetch_add(1, Ordering::SeqCst);
                from.read_async().await.unwrap_or(0)
            }),
        };
        (to, task)
    };
    blocked(load, spawn, yield_now, release)
}

/// Sends a number to a task, and returns the result of the task.
fn release((i, (mut to, task)): (u64, (Writer<u64>, JoinHandle<u64>))) -> u64 {
    let _ = to.write(i);
    task.join().unwrap_or(0)
}

/// The calling thread is not a task. It holds the other ends of the streams.
fn idle(runtime: &Runtime, load: Load, form: Form) -> Result<Outcome, String> {
    let tasks: Vec<_> = (0..load.count)
        .map(|_| {
            let (to, mut from) = new_stream::<u64>(1);
            let task = match form {
                Form::Stackful | Form::Blocks => runtime.spawn(move || from.read().unwrap_or(0)),
                Form::Async => {
                    runtime.spawn_async(async move { from.read_async().await.unwrap_or(0) })
                }
            };
            (to, task)
        })
        .collect();
    hold();
    Ok(Outcome { value: 0.0, checksum: (0..).zip(tasks).map(release).sum() })
}
