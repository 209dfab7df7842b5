//! Threads of the standard library with crossbeam's bounded channels: what one has without a layer like this.

use super::lap::{Laps, Outcome};
use super::load::{BUFFER, CAPACITY, CROWD, Load, Work, counter, ordered, unordered};
use super::memory;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Small, so that the C library keeps the stacks of a crowd for the next one.
const STACK: usize = 64 << 10;

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    match load.work {
        Work::Plain => plain(*load),
        Work::Leave => leave(*load),
        Work::Pingpong => pingpong(*load),
        Work::Stream => stream(*load),
        Work::Spawn => crowd(*load),
        Work::Memory => blocked(*load),
        _ => Err("is not measured with threads".into()),
    }
}

fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>, String> {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(f);
    thread.map_err(|e| format!("no thread: {e}"))
}

/// Sends the records of a lap each time it is told to.
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
    let mut laps = Laps::new(load);
    while laps.begin() {
        let _ = go.send(());
        laps.end(from.iter().take(load.count as usize).fold(0, ordered));
    }
    Ok(laps.outcome())
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
    let mut laps = Laps::new(load);
    while laps.begin() {
        let _ = go.send(());
        laps.end(left.iter().take(load.count as usize).fold(0, unordered));
    }
    Ok(laps.outcome())
}

fn pingpong(load: Load) -> Result<Outcome, String> {
    let (there, arrived) = bounded(1);
    let (back, returned) = bounded(1);
    spawn(move || {
        for n in arrived {
            let _ = back.send(n + 1);
        }
    })?;
    let mut laps = Laps::new(load);
    while laps.begin() {
        let mut n = 0;
        for _ in 0..load.count {
            let _ = there.send(n);
            n = returned.recv().unwrap_or(0);
        }
        laps.end(n);
    }
    Ok(laps.outcome())
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
    let mut laps = Laps::new(load);
    while laps.begin() {
        laps.end(from.iter().take(load.count as usize).fold(0, ordered));
    }
    stop.store(true, Ordering::SeqCst);
    from.iter().for_each(drop);
    Ok(laps.outcome())
}

fn crowd(load: Load) -> Result<Outcome, String> {
    let mut laps = Laps::new(load);
    let mut threads = Vec::with_capacity(CROWD as usize);
    while laps.begin() {
        let mut sum = 0;
        for begin in (0..load.count).step_by(CROWD as usize) {
            for i in begin..load.count.min(begin + CROWD) {
                threads.push(spawn(move || i)?);
            }
            sum += threads.drain(..).map(|thread| thread.join().unwrap_or(0)).sum::<u64>();
        }
        laps.end(sum);
    }
    Ok(laps.outcome())
}

fn blocked(load: Load) -> Result<Outcome, String> {
    let before = memory::held();
    let started = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::with_capacity(load.count as usize);
    for _ in 0..load.count {
        let (to, from) = bounded::<u64>(1);
        let started = started.clone();
        let thread = spawn(move || {
            started.fetch_add(1, Ordering::SeqCst);
            from.recv().unwrap_or(0)
        });
        threads.push((to, thread?));
    }
    while started.load(Ordering::SeqCst) < load.count {
        std::thread::yield_now();
    }
    let after = memory::held();
    let mut sum = 0;
    for (i, (to, thread)) in (0..).zip(threads) {
        let _ = to.send(i);
        sum += thread.join().unwrap_or(0);
    }
    Ok(memory::outcome(&load, before, after, sum))
}
