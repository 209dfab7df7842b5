//! The subject rtrb: a ring between two spinning threads, without tasks and without sleep.

use super::lap::{Laps, Outcome};
use super::load::{BATCH, CAPACITY, Load, Work, ordered};
use crate::line::{cpus, pin};
use std::sync::atomic::{AtomicBool, Ordering};

/// Failed attempts before a thread yields.
const SPINS_MAX: u32 = 1000;

/// Waits for the other thread, which may need this CPU.
#[derive(Default)]
pub(crate) struct Spin(u32);

impl Spin {
    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(SPINS_MAX) {
            std::thread::yield_now()
        } else {
            std::hint::spin_loop()
        }
    }
}

/// Runs a writer and a reader, each on its own CPU if the machine has two. The writer repeats laps
/// until the request to stop, and the reader times the laps.
pub(crate) fn race(
    load: Load,
    write_lap: impl FnMut() -> Result<(), String> + Send,
    mut read_lap: impl FnMut() -> u64 + Send,
) -> Result<Outcome, String> {
    let cpus = cpus();
    let on = |i: usize| cpus.get(i % cpus.len().max(1)).map(|&cpu| pin(cpu));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut write_lap = write_lap;
        let (on, stop) = (&on, &stop);
        scope.spawn(move || {
            on(1);
            while !stop.load(Ordering::SeqCst) && write_lap().is_ok() {}
        });
        let reader = scope.spawn(move || {
            on(0);
            let outcome = Laps::run(load, &mut read_lap);
            stop.store(true, Ordering::SeqCst);
            // Dropping the receiving end ends the writer.
            drop(read_lap);
            outcome
        });
        reader.join().map_err(|_| "the reader panicked".into())
    })
}

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    let (mut to, mut from) = rtrb::RingBuffer::<u64>::new(CAPACITY);
    let load = *load;
    let gone = || "the reader has ended".to_owned();
    match load.work {
        Work::Ring => race(
            load,
            move || {
                for i in 0..load.count {
                    let mut spin = Spin::default();
                    while to.push(i).is_err() {
                        if to.is_abandoned() {
                            return Err(gone());
                        }
                        spin.wait();
                    }
                }
                Ok(())
            },
            move || {
                let mut sum = 0;
                for _ in 0..load.count {
                    let mut spin = Spin::default();
                    sum = loop {
                        match from.pop() {
                            Ok(item) => break ordered(sum, item),
                            Err(_) => spin.wait(),
                        }
                    };
                }
                sum
            },
        ),
        Work::RingBatch => race(
            load,
            move || {
                let mut items = [0; BATCH];
                let mut next = 0;
                while next < load.count {
                    let n = (load.count - next).min(BATCH as u64);
                    items.iter_mut().zip(next..).for_each(|(place, item)| *place = item);
                    let mut left = &items[..n as usize];
                    let mut spin = Spin::default();
                    while !left.is_empty() {
                        left = to.push_partial_slice(left).1;
                        if to.is_abandoned() {
                            return Err(gone());
                        }
                        if !left.is_empty() {
                            spin.wait();
                        }
                    }
                    next += n;
                }
                Ok(())
            },
            move || {
                let (mut sum, mut missing) = (0, load.count as usize);
                let mut items = [0; BATCH];
                let mut spin = Spin::default();
                while missing > 0 {
                    let got = from.pop_partial_slice(&mut items[..missing.min(BATCH)]).0;
                    sum = got.iter().copied().fold(sum, ordered);
                    missing -= got.len();
                    if got.is_empty() {
                        spin.wait();
                    }
                }
                sum
            },
        ),
        _ => Err("rtrb supports only the works with a bare ring".into()),
    }
}
