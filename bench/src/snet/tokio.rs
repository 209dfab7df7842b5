//! The subject Tokio: a current-thread runtime for one worker, a multi-thread runtime for more, and
//! bounded channels.

use super::lap::{laps, whole};
use super::load::{COUNTER_BITS, Load, Outcome, Work, counter, paired};
use crate::lpel::load::unordered;
use crate::lpel::tokio::runtime;
use crate::memory;
use corebeat_snet::CAPACITY;
use std::collections::VecDeque;
use std::future::Future;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, Sender, channel};

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    let load = *load;
    let runtime = runtime(load.workers)?;
    match load.work {
        Work::Replication => laps(&load, || whole(|| done(&runtime, star(load)))),
        Work::Synchronisation => laps(&load, || whole(|| done(&runtime, pairs(load)))),
        Work::Memory => {
            done(&runtime, pairs(Load { count: 10, ..load }))?;
            let (bytes, checksum) = memory::peak(|| done(&runtime, pairs(load)))?;
            Ok(Outcome { seconds: 0.0, bytes, checksum })
        }
        Work::Box => laps(&load, || whole(|| done(&runtime, call(load)))),
        _ => Err("the bench does not measure this work with Tokio".into()),
    }
}

/// Runs the work as a task of a worker.
fn done(
    runtime: &Runtime,
    work: impl Future<Output = u64> + Send + 'static,
) -> Result<u64, String> {
    runtime.block_on(runtime.spawn(work)).map_err(|e| e.to_string())
}

/// Sends all items from a separate task, as long as the receiver exists.
fn send<T: Send + 'static>(to: Sender<T>, items: impl Iterator<Item = T> + Send + 'static) {
    tokio::spawn(async move {
        for item in items {
            if to.send(item).await.is_err() {
                return;
            }
        }
    });
}

/// Adds all items.
async fn fold<T>(mut from: Receiver<T>, add: impl Fn(u64, T) -> u64) -> u64 {
    let mut sum = 0;
    while let Some(item) = from.recv().await {
        sum = add(sum, item);
    }
    sum
}

async fn star(load: Load) -> u64 {
    let (to, from) = channel(CAPACITY);
    let (out, left) = channel(CAPACITY);
    stage(from, out);
    send(to, (0..load.count).map(move |i| load.record(i)));
    fold(left, |sum, number| unordered(sum, number as u64)).await
}

/// Spawns a stage, which spawns the next stage for its first record. All stages share one exit
/// channel, which is the usual design with these channels.
fn stage(mut from: Receiver<i32>, out: Sender<i32>) {
    tokio::spawn(async move {
        let mut next: Option<Sender<i32>> = None;
        while let Some(record) = from.recv().await {
            let sent = match counter(record) {
                0 => out.send(record >> COUNTER_BITS).await,
                _ => {
                    let next = next.get_or_insert_with(|| {
                        let (to, from) = channel(CAPACITY);
                        stage(from, out.clone());
                        to
                    });
                    next.send(record - 1).await
                }
            };
            if sent.is_err() {
                return;
            }
        }
    });
}

async fn pairs(load: Load) -> u64 {
    let (to, mut from) = channel(CAPACITY);
    let (out, paired_up) = channel(CAPACITY);
    send(to, load.halves());
    tokio::spawn(async move {
        let mut waiting: [VecDeque<i32>; 2] = Default::default();
        while let Some((is_b, number)) = from.recv().await {
            let Some(partner) = waiting[usize::from(!is_b)].pop_front() else {
                waiting[usize::from(is_b)].push_back(number);
                continue;
            };
            let pair = if is_b { (partner, number) } else { (number, partner) };
            if out.send(pair).await.is_err() {
                return;
            }
        }
    });
    fold(paired_up, paired).await
}

async fn call(load: Load) -> u64 {
    let (to, mut from) = channel(CAPACITY);
    let (out, done) = channel(CAPACITY);
    send(to, (0..load.count).map(|i| i as i32));
    tokio::spawn(async move {
        while let Some(a) = from.recv().await {
            if out.send(a + 1).await.is_err() {
                return;
            }
        }
    });
    fold(done, |sum, a: i32| unordered(sum, a as u64)).await
}
