//! Tokio: a current-thread runtime for one worker, a multi-thread runtime for more, and its bounded channels.

use super::lap::{laps, whole};
use super::load::{COUNTER_BITS, Load, Outcome, Work, counter, paired};
use super::memory;
use crate::lpel::load::unordered;
use corebeat_snet::CAPACITY;
use std::collections::VecDeque;
use std::future::Future;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    let load = *load;
    let runtime = match load.workers {
        1 => Builder::new_current_thread().build(),
        n => Builder::new_multi_thread().worker_threads(n).build(),
    };
    let runtime = runtime.map_err(|e| format!("no runtime: {e}"))?;
    match load.work {
        Work::Replication => laps(&load, || whole(|| done(&runtime, star(load)))),
        Work::Synchronisation => laps(&load, || whole(|| done(&runtime, pairs(load)))),
        Work::Memory => {
            done(&runtime, pairs(Load { count: 10, ..load }))?;
            let (bytes, checksum) = memory::peak(|| done(&runtime, pairs(load)))?;
            Ok(Outcome { seconds: 0.0, bytes, checksum })
        }
        Work::Box => laps(&load, || whole(|| done(&runtime, call(load)))),
        _ => Err("is not measured with it".into()),
    }
}

/// Its task is one of the workers'.
fn done(runtime: &Runtime, work: impl Future<Output = u64> + Send + 'static) -> Result<u64, String> {
    runtime.block_on(runtime.spawn(work)).map_err(|e| e.to_string())
}

async fn star(load: Load) -> u64 {
    let (to, from) = channel(CAPACITY);
    let (out, mut left) = channel(CAPACITY);
    stage(from, out);
    tokio::spawn(async move {
        for i in 0..load.count {
            if to.send(load.record(i)).await.is_err() {
                return;
            }
        }
    });
    let mut sum = 0;
    while let Some(number) = left.recv().await {
        sum = unordered(sum, number as u64);
    }
    sum
}

/// A task that makes the next one when it has something for it. All share the way out, as one would do it with these
/// channels.
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
    let (out, mut paired_up) = channel(CAPACITY);
    tokio::spawn(async move {
        for half in load.halves() {
            if to.send(half).await.is_err() {
                return;
            }
        }
    });
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
    let mut sum = 0;
    while let Some(pair) = paired_up.recv().await {
        sum = paired(sum, pair);
    }
    sum
}

async fn call(load: Load) -> u64 {
    let (to, mut from) = channel(CAPACITY);
    let (out, mut done) = channel(CAPACITY);
    tokio::spawn(async move {
        for i in 0..load.count {
            if to.send(i as i32).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(a) = from.recv().await {
            if out.send(a + 1).await.is_err() {
                return;
            }
        }
    });
    let mut sum = 0;
    while let Some(a) = done.recv().await {
        sum = unordered(sum, a as u64);
    }
    sum
}
