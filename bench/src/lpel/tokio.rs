//! The subject Tokio: a current-thread runtime for one worker, a multi-thread runtime for more, and
//! bounded channels.

use super::lap::{Laps, Outcome};
use super::load::{BATCH, BUFFER, CAPACITY, GROUP, Load, Work, counter, hold, ordered, unordered};
use crate::memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};

pub(crate) fn runtime(workers: usize) -> Result<Runtime, String> {
    let runtime = match workers {
        1 => Builder::new_current_thread().build(),
        n => Builder::new_multi_thread().worker_threads(n).build(),
    };
    runtime.map_err(|e| format!("cannot build a Tokio runtime: {e}"))
}

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    let load = *load;
    runtime(load.workers)?.block_on(async {
        match load.work {
            // These works block the main thread, which therefore must not be a worker.
            Work::Memory | Work::Idle => return blocked(load).await,
            Work::Plain => tokio::spawn(plain(load)),
            Work::Leave => tokio::spawn(leave(load)),
            Work::Pingpong => tokio::spawn(pingpong(load)),
            Work::Stream => tokio::spawn(stream(load)),
            Work::Batch => tokio::spawn(batch(load)),
            Work::Spawn => tokio::spawn(crowd(load)),
            Work::Ring | Work::RingBatch => return Err("Tokio has no bare ring".into()),
        }
        .await
        .map_err(|e| e.to_string())
    })
}

/// The checksum of a lap of items.
async fn read_lap(load: Load, from: &mut Receiver<u64>, add: fn(u64, u64) -> u64) -> u64 {
    let mut sum = 0;
    for _ in 0..load.count {
        sum = add(sum, from.recv().await.unwrap_or(0));
    }
    sum
}

/// Sends the records of a lap on each request.
async fn source(load: Load, mut lap: Receiver<()>, to: Sender<u64>) {
    while lap.recv().await.is_some() {
        for i in 0..load.count {
            if to.send(load.record(i)).await.is_err() {
                return;
            }
        }
    }
}

async fn plain(load: Load) -> Outcome {
    let (go, lap) = channel(1);
    let (to, mut from) = channel(BUFFER);
    tokio::spawn(source(load, lap, to));
    for _ in 0..load.depth {
        let (to, next) = channel(BUFFER);
        let mut before = std::mem::replace(&mut from, next);
        tokio::spawn(async move {
            while let Some(record) = before.recv().await {
                if to.send(record + 1).await.is_err() {
                    return;
                }
            }
        });
    }
    let mut laps = Laps::new(load);
    while laps.begin() {
        let _ = go.send(()).await;
        laps.end(read_lap(load, &mut from, ordered).await);
    }
    laps.outcome()
}

/// All stages share one exit channel, which is the usual design with these channels.
async fn leave(load: Load) -> Outcome {
    let (go, lap) = channel(1);
    let (to, mut from) = channel(BUFFER);
    let (out, mut left) = channel(BUFFER);
    tokio::spawn(source(load, lap, to));
    for stage in 0..load.depth {
        let (to, next) = channel(BUFFER);
        let (mut before, out) = (std::mem::replace(&mut from, next), out.clone());
        tokio::spawn(async move {
            while let Some(record) = before.recv().await {
                let sent = match counter(record) {
                    0 => out.send(record + stage).await,
                    _ => to.send(record - 1).await,
                };
                if sent.is_err() {
                    return;
                }
            }
        });
    }
    let mut laps = Laps::new(load);
    while laps.begin() {
        let _ = go.send(()).await;
        laps.end(read_lap(load, &mut left, unordered).await);
    }
    laps.outcome()
}

async fn pingpong(load: Load) -> Outcome {
    let (there, mut arrived) = channel(1);
    let (back, mut returned) = channel(1);
    tokio::spawn(async move {
        while let Some(n) = arrived.recv().await {
            let _ = back.send(n + 1).await;
        }
    });
    let mut laps = Laps::new(load);
    while laps.begin() {
        let mut n = 0;
        for _ in 0..load.count {
            let _ = there.send(n).await;
            n = returned.recv().await.unwrap_or(0);
        }
        laps.end(n);
    }
    laps.outcome()
}

async fn stream(load: Load) -> Outcome {
    let (to, mut from) = channel(CAPACITY);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    tokio::spawn(async move {
        while !stopped.load(Ordering::SeqCst) {
            for i in 0..load.count {
                let _ = to.send(i).await;
            }
        }
    });
    let mut laps = Laps::new(load);
    while laps.begin() {
        laps.end(read_lap(load, &mut from, ordered).await);
    }
    stop.store(true, Ordering::SeqCst);
    while from.recv().await.is_some() {}
    laps.outcome()
}

async fn batch(load: Load) -> Outcome {
    let (to, mut from) = channel(CAPACITY);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    tokio::spawn(async move {
        while !stopped.load(Ordering::SeqCst) {
            let mut i = 0;
            while i < load.count {
                let n = (load.count - i).min(BATCH as u64);
                let Ok(places) = to.reserve_many(n as usize).await else { return };
                for (place, item) in places.zip(i..) {
                    place.send(item);
                }
                i += n;
            }
        }
    });
    let mut laps = Laps::new(load);
    let mut items = Vec::with_capacity(BATCH);
    while laps.begin() {
        let (mut sum, mut missing) = (0, load.count as usize);
        while missing > 0 {
            missing -= from.recv_many(&mut items, missing.min(BATCH)).await;
            sum = items.drain(..).fold(sum, ordered);
        }
        laps.end(sum);
    }
    stop.store(true, Ordering::SeqCst);
    while from.recv_many(&mut items, BATCH).await > 0 {
        items.clear();
    }
    laps.outcome()
}

async fn crowd(load: Load) -> Outcome {
    let mut laps = Laps::new(load);
    let mut tasks = Vec::with_capacity(GROUP as usize);
    while laps.begin() {
        let mut sum = 0;
        for begin in (0..load.count).step_by(GROUP as usize) {
            let end = load.count.min(begin + GROUP);
            tasks.extend((begin..end).map(|i| tokio::spawn(async move { i })));
            for task in tasks.drain(..) {
                sum += task.await.unwrap_or(0);
            }
        }
        laps.end(sum);
    }
    laps.outcome()
}

async fn blocked(load: Load) -> Result<Outcome, String> {
    let before = memory::resident_bytes()?;
    let started = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::with_capacity(load.count as usize);
    for _ in 0..load.count {
        let (to, mut from) = channel::<u64>(1);
        let started = started.clone();
        let task = tokio::spawn(async move {
            started.fetch_add(1, Ordering::SeqCst);
            from.recv().await.unwrap_or(0)
        });
        tasks.push((to, task));
    }
    while started.load(Ordering::SeqCst) < load.count {
        tokio::task::yield_now().await;
    }
    let after = memory::resident_bytes()?;
    if load.work == Work::Idle {
        hold();
    }
    let mut sum = 0;
    for (i, (to, task)) in (0..).zip(tasks) {
        let _ = to.send(i).await;
        sum += task.await.unwrap_or(0);
    }
    let value = after.saturating_sub(before) as f64 / load.count as f64;
    Ok(Outcome { value, checksum: sum })
}
