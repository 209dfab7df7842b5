//! The subject of threads: the standard library with crossbeam's bounded channels, without a task
//! layer.

use super::lap::{Laps, Outcome, blocked, crowd};
use super::load::{BUFFER, CAPACITY, Load, Work, counter, ordered, unordered};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The stack is small, so that the C library reuses the stacks of one group for the next.
const STACK: usize = 64 << 10;

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    match load.work {
        Work::Plain => plain(*load),
        Work::Leave => leave(*load),
        Work::Pingpong => pingpong(*load),
        Work::Stream => stream(*load),
        Work::Spawn => Ok(crowd(
            *load,
            |i| spawn(move || i).expect("the system can start more threads"),
            |thread| thread.join().unwrap_or(0),
        )),
        Work::Memory => memory(*load),
        _ => Err("the bench does not measure this work with threads".into()),
    }
}

fn spawn<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, String> {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(f);
    thread.map_err(|e| format!("cannot start a thread: {e}"))
}

/// Sends the records of a lap on each request.
fn source(load: Load, lap: &Receiver<()>, to: &Sender<u64>) {
    for () in lap {
        for i in 0..load.count {
            if to.send(load.record(i)).is_err() {
                return;
            }
        }
    }
}

fn plain(load: Load) -> Result<Outcome, String> {
    let (go, lap) = bounded(1);
    let (to, mut from) = bounded(BUFFER);
    spawn(move || source(load, &lap, &to))?;
    for _ in 0..load.depth {
        let (to, next) = bounded(BUFFER);
        let before = std::mem::replace(&mut from, next);
        spawn(move || {
            for record in before {
                if to.send(record + 1).is_err() {
                    return;
                }
            }
        })?;
    }
    Ok(Laps::run(load, || {
        let _ = go.send(());
        from.iter().take(load.count as usize).fold(0, ordered)
    }))
}

fn leave(load: Load) -> Result<Outcome, String> {
    let (go, lap) = bounded(1);
    let (to, mut from) = bounded(BUFFER);
    let (out, left) = bounded(BUFFER);
    spawn(move || source(load, &lap, &to))?;
    for stage in 0..load.depth {
        let (to, next) = bounded(BUFFER);
        let (before, out) = (std::mem::replace(&mut from, next), out.clone());
        spawn(move || {
            for record in before {
                let sent = match counter(record) {
                    0 => out.send(record + stage),
                    _ => to.send(record - 1),
                };
                if sent.is_err() {
                    return;
                }
            }
        })?;
    }
    Ok(Laps::run(load, || {
        let _ = go.send(());
        left.iter().take(load.count as usize).fold(0, unordered)
    }))
}

fn pingpong(load: Load) -> Result<Outcome, String> {
    let (there, arrived) = bounded(1);
    let (back, returned) = bounded(1);
    spawn(move || {
        for n in arrived {
            let _ = back.send(n + 1);
        }
    })?;
    Ok(Laps::run(load, || {
        (0..load.count).fold(0, |n, _| {
            let _ = there.send(n);
            returned.recv().unwrap_or(0)
        })
    }))
}

fn stream(load: Load) -> Result<Outcome, String> {
    let (to, from) = bounded(CAPACITY);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            for i in 0..load.count {
                let _ = to.send(i);
            }
        }
    })?;
    let outcome = Laps::run(load, || from.iter().take(load.count as usize).fold(0, ordered));
    stop.store(true, Ordering::SeqCst);
    from.iter().for_each(drop);
    Ok(outcome)
}

fn memory(load: Load) -> Result<Outcome, String> {
    let spawn = |started: Arc<AtomicU64>| {
        let (to, from) = bounded::<u64>(1);
        let thread = spawn(move || {
            started.fetch_add(1, Ordering::SeqCst);
            from.recv().unwrap_or(0)
        });
        (to, thread.expect("the system can start more threads"))
    };
    blocked(load, spawn, std::thread::yield_now, |(i, (to, thread))| {
        let _ = to.send(i);
        thread.join().unwrap_or(0)
    })
}
