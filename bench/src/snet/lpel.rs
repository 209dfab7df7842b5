//! The same work by hand, with tasks and streams of LPEL: without records, labels and decisions at
//! run time.

use super::lap::{laps, whole};
use super::load::{COUNTER_BITS, Load, Outcome, Work, counter, paired};
use crate::lpel::load::unordered;
use crate::memory;
use corebeat_lpel::{Event, Reader, Runtime, StreamSet, Task, Writer, spawn, stream};
use corebeat_snet::CAPACITY;
use std::collections::VecDeque;

/// Neighbours in a star that are placed together. With two workers, this is faster than placement
/// by the runtime.
const BLOCK: usize = 100;

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    let load = *load;
    let runtime = Runtime::builder().workers(load.workers).build().map_err(|e| e.to_string())?;
    let done = |task: fn(Load) -> u64, load: Load| {
        runtime.run(move || task(load)).map_err(|e| e.to_string())
    };
    match load.work {
        Work::Replication => laps(&load, || whole(|| done(star, load))),
        Work::Synchronisation => laps(&load, || whole(|| done(pairs, load))),
        Work::Memory => {
            done(pairs, Load { count: 10, ..load })?;
            let (bytes, checksum) = memory::peak(|| done(pairs, load))?;
            Ok(Outcome { seconds: 0.0, bytes, checksum })
        }
        Work::Box => laps(&load, || whole(|| done(call, load))),
        _ => Err("the bench does not measure this work by hand".into()),
    }
}

/// A message from a stage of a star to the collector.
enum Exit {
    Record(i32),
    /// A further stage exists.
    Stage(Reader<Exit>),
}

fn star(load: Load) -> u64 {
    let (mut to, from) = stream(CAPACITY);
    let (exit, collected) = stream(CAPACITY);
    stage(load, 0, from, exit);
    spawn(move || (0..load.count).try_for_each(|i| to.write(load.record(i))).is_ok());
    let (mut left, mut sum) = (StreamSet::new(), 0);
    left.add(collected);
    while let Some((_, event)) = left.read() {
        match event {
            Event::Item(Exit::Record(number)) => sum = unordered(sum, number as u64),
            Event::Item(Exit::Stage(stage)) => {
                left.add(stage);
            }
            Event::End => {}
        }
    }
    sum
}

/// Spawns a stage, which spawns the next stage for its first record.
fn stage(load: Load, number: usize, mut from: Reader<i32>, mut out: Writer<Exit>) {
    let task = Task::new().worker(number / BLOCK % load.workers).spawn(move || {
        let mut next: Option<Writer<i32>> = None;
        while let Some(record) = from.read() {
            let sent = match (counter(record), &mut next) {
                (0, _) => out.write(Exit::Record(record >> COUNTER_BITS)).is_ok(),
                (_, Some(next)) => next.write(record - 1).is_ok(),
                (_, None) => {
                    let (to, from) = stream(CAPACITY);
                    let (exit, collected) = stream(CAPACITY);
                    stage(load, number + 1, from, exit);
                    let announced = out.write(Exit::Stage(collected)).is_ok();
                    announced && next.insert(to).write(record - 1).is_ok()
                }
            };
            if !sent {
                return;
            }
        }
    });
    // If the spawn fails, the checksum of the lap is wrong.
    drop(task);
}

fn pairs(load: Load) -> u64 {
    let (mut to, from) = stream(CAPACITY);
    let (mut out, paired_up) = stream(CAPACITY);
    spawn(move || load.halves().try_for_each(|half| to.write(half)).is_ok());
    spawn(move || {
        let mut waiting: [VecDeque<i32>; 2] = Default::default();
        for (is_b, number) in from {
            let Some(partner) = waiting[usize::from(!is_b)].pop_front() else {
                waiting[usize::from(is_b)].push_back(number);
                continue;
            };
            let pair = if is_b { (partner, number) } else { (number, partner) };
            if out.write(pair).is_err() {
                return;
            }
        }
    });
    paired_up.fold(0, paired)
}

fn call(load: Load) -> u64 {
    let (mut to, from) = stream(CAPACITY);
    let (mut out, done) = stream(CAPACITY);
    spawn(move || (0..load.count).try_for_each(|i| to.write(i as i32)).is_ok());
    spawn(move || from.map(|a| a + 1).try_for_each(|a| out.write(a)).is_ok());
    done.fold(0, |sum, a| unordered(sum, a as u64))
}
