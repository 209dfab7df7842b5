//! Threads of the standard library with crossbeam's bounded channels: a star has a thread for each
//! stage.

use super::lap::{laps, whole};
use super::load::{COUNTER_BITS, Load, Outcome, Work, counter};
use crate::lpel::load::unordered;
use corebeat_snet::CAPACITY;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::thread::Builder;

/// The stack is small, so that the C library reuses the stacks of one star for the next.
const STACK: usize = 64 << 10;

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    match load.work {
        Work::Replication => laps(load, || whole(|| star(*load))),
        _ => Err("the bench does not measure this work with threads".into()),
    }
}

fn spawn(f: impl FnOnce() + Send + 'static) -> Result<(), String> {
    Builder::new()
        .stack_size(STACK)
        .spawn(f)
        .map(drop)
        .map_err(|e| format!("cannot start a thread: {e}"))
}

fn star(load: Load) -> Result<u64, String> {
    let (to, from) = bounded(CAPACITY);
    let (out, left) = bounded(CAPACITY);
    stage(from, out)?;
    spawn(move || {
        for i in 0..load.count {
            if to.send(load.record(i)).is_err() {
                return;
            }
        }
    })?;
    Ok(left.into_iter().fold(0, |sum, number| unordered(sum, number as u64)))
}

/// Starts a stage, which starts the next stage for its first record.
fn stage(from: Receiver<i32>, out: Sender<i32>) -> Result<(), String> {
    spawn(move || {
        let mut next: Option<Sender<i32>> = None;
        for record in from {
            let sent = match (counter(record), &next) {
                (0, _) => out.send(record >> COUNTER_BITS).is_ok(),
                (_, Some(next)) => next.send(record - 1).is_ok(),
                (_, None) => {
                    let (to, from) = bounded(CAPACITY);
                    // If the start fails, the checksum of the lap is wrong.
                    stage(from, out.clone()).is_ok() && next.insert(to).send(record - 1).is_ok()
                }
            };
            if !sent {
                return;
            }
        }
    })
}
