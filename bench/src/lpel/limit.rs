//! The subject limit: only the unavoidable parts of a work.
//!
//! A task has a stack, to which the loop switches by the routine that Corebeat uses, and items pass
//! through memory by plain loads and stores. The order of all switches is fixed. So nothing is
//! scheduled, and no end of a stream moves, closes, wakes or counts.

use super::lap::{Laps, Outcome, crowd};
use super::load::{BUFFER, Load, Work, counter, ordered, unordered};
use super::ring::{Spin, race};
use corosensei::Coroutine;
use corosensei::stack::{Stack, StackPointer};
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a stack.
const STACK: usize = 16 << 10;
/// Neighbouring stacks begin in different cache lines of their pages, as those of Corebeat.
const COLOUR: usize = 128;
const COLOURS: usize = 8;

/// A stack in a memory area for all of them, without a guard. It is not freed before the process
/// ends.
struct Part {
    base: StackPointer,
    limit: StackPointer,
}

// SAFETY: the addresses are aligned, and belong to this stack only. The trait also demands a guard
// page, against functions that need more than the stack. There is none: only the short functions
// below run on these stacks, do not recurse, and need less than these bytes.
unsafe impl Stack for Part {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

/// Returns stacks for this number of tasks.
fn stacks(tasks: usize) -> impl Iterator<Item = Part> {
    const PAGE: usize = 4096;
    // Zeroed memory of this size is mapped when it is touched.
    let memory = vec![0u8; tasks * STACK + PAGE].leak();
    let start = memory.as_ptr().expose_provenance().next_multiple_of(PAGE);
    let pointer = |address| StackPointer::new(address).expect("memory is not at address 0");
    (0..tasks).map(move |at| Part {
        base: pointer(start + (at + 1) * STACK - at % COLOURS * COLOUR),
        limit: pointer(start + at * STACK),
    })
}

/// A task that receives `I` at each switch to it and returns `O` at each switch back. It never
/// ends.
type Task<I, O> = &'static mut Coroutine<I, O, (), Part>;

/// Continues a task until it switches back.
#[inline(always)]
fn resume<I, O: Default>(task: &mut Coroutine<I, O, (), Part>, input: I) -> O {
    task.resume(input).as_yield().unwrap_or_default()
}

/// The buffer of a stream. Each side checks the state of its slot.
type Slots = [Cell<Option<u64>>; BUFFER];

/// One end of a stream.
struct End {
    slots: &'static Slots,
    at: usize,
}

/// Returns both ends of a stream.
fn ends() -> (End, End) {
    let slots: &'static Slots = Box::leak(Box::default());
    (End { slots, at: 0 }, End { slots, at: 0 })
}

impl End {
    #[inline(always)]
    fn advance(&mut self) {
        self.at = if self.at + 1 == BUFFER { 0 } else { self.at + 1 };
    }

    /// Returns whether there was room.
    #[inline(always)]
    fn write(&mut self, item: u64) -> bool {
        let has_room = self.slots[self.at].get().is_none();
        if has_room {
            self.slots[self.at].set(Some(item));
            self.advance();
        }
        has_room
    }

    #[inline(always)]
    fn read(&mut self) -> Option<u64> {
        let item = self.slots[self.at].take()?;
        self.advance();
        Some(item)
    }
}

pub(crate) fn run(load: &Load) -> Result<Outcome, String> {
    match load.work {
        Work::Plain | Work::Leave if load.workers == 1 => Ok(pipeline(*load)),
        Work::Pingpong if load.workers == 1 => Ok(pingpong(*load)),
        Work::Pingpong if load.workers == 2 => apart(*load),
        Work::Spawn if load.workers == 1 => Ok(spawn(*load)),
        _ => Err("the bench does not measure the limit of this work".into()),
    }
}

/// The stages of a pipeline, and the streams at its ends.
struct Pipeline {
    first: End,
    /// Each returns the number of records that it has passed to the next one.
    stages: Vec<Task<(), u64>>,
    last: End,
    /// The ways from the stages to the collector.
    out: Vec<End>,
    /// Numbers of the stages from which a record has left.
    left: &'static RefCell<Vec<usize>>,
}

impl Pipeline {
    fn new(load: Load) -> Pipeline {
        let (first, mut from) = ends();
        let left: &RefCell<Vec<usize>> = Box::leak(Box::default());
        let (mut stages, mut out): (Vec<Task<(), u64>>, Vec<End>) = (Vec::new(), Vec::new());
        for (number, stack) in stacks(load.depth as usize).enumerate() {
            let (mut to, next) = ends();
            let mut before = std::mem::replace(&mut from, next);
            let (mut aside, way_out) = ends();
            out.push(way_out);
            let stage = Coroutine::with_stack(stack, move |own, ()| {
                loop {
                    let mut passed = 0;
                    while let Some(record) = before.read() {
                        if load.work == Work::Plain {
                            passed += u64::from(to.write(record + 1));
                        } else if counter(record) > 0 {
                            passed += u64::from(to.write(record - 1));
                        } else {
                            aside.write(record + number as u64);
                            left.borrow_mut().push(number);
                        }
                    }
                    own.suspend(passed);
                }
            });
            stages.push(Box::leak(Box::new(stage)));
        }
        Pipeline { first, stages, last: from, out, left }
    }
}

/// The use of one end of a stream in a dispatch.
#[derive(Default, Clone, Copy)]
struct Use {
    stream: u64,
    items: u64,
    flags: u8,
}

/// The record of a dispatch.
#[derive(Default)]
struct Record {
    end: u64,
    execution: u64,
    task: u64,
    number: u64,
    status: u8,
    streams: [Use; 2],
}

/// A monitor at its highest level: it reads the clock once for each dispatch, stores a record of
/// the task and its two streams, and adds up the figures.
#[derive(Default)]
struct Recorder {
    record: Record,
    /// The numbers of dispatches and items of each stage.
    counts: Vec<(u64, u64)>,
    execution: u64,
    items: u64,
}

impl Recorder {
    fn dispatched(&mut self, task: usize, items: u64) {
        let end = ticks();
        let count = &mut self.counts[task];
        *count = (count.0 + 1, count.1 + items);
        let stream = |direction: u8| Use {
            stream: task as u64 + u64::from(direction),
            items: count.1,
            flags: direction,
        };
        self.record = Record {
            end,
            execution: end.saturating_sub(self.record.end),
            task: task as u64,
            number: count.0,
            status: 0,
            streams: [stream(0), stream(1)],
        };
        let record = black_box(&self.record);
        self.execution += record.execution;
        self.items = record.streams.iter().fold(self.items, |sum, s| sum.wrapping_add(s.items));
        black_box((record.end, record.task, record.number, record.status));
        black_box(record.streams.map(|s| (s.stream, s.flags)));
    }
}

/// Reads the clock of monitors: the cycle counter of the processor.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Reads the clock of monitors.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

/// Records pass the pipeline in batches that fill a stream. In each step, every batch advances by
/// one stage, the oldest one first: as in a run of tasks, all active stages are neighbours.
fn pipeline(load: Load) -> Outcome {
    let mut pipeline = Pipeline::new(load);
    let (depth, batch_max) = (load.depth as usize, BUFFER as u64);
    let batches = load.count.div_ceil(batch_max) as usize;
    let mut recorder =
        load.watched.map(|_| Recorder { counts: vec![(0, 0); depth], ..Recorder::default() });
    Laps::run(load, || {
        let mut sum = 0;
        let mut records = vec![0; batches];
        for step in 0..depth + batches {
            let active = records.iter_mut().enumerate().take(step + 1);
            for (batch, records) in active.skip(step.saturating_sub(depth)) {
                let at = step - batch;
                if at == 0 {
                    let start = batch as u64 * batch_max;
                    for number in start..load.count.min(start + batch_max) {
                        *records += u64::from(pipeline.first.write(load.record(number)));
                    }
                }
                if *records == 0 {
                    continue;
                }
                if at < depth {
                    *records = resume(pipeline.stages[at], ());
                    if let Some(recorder) = &mut recorder {
                        recorder.dispatched(at, *records);
                    }
                    continue;
                }
                while let Some(record) = pipeline.last.read() {
                    sum = ordered(sum, record);
                }
            }
            for number in pipeline.left.borrow_mut().drain(..) {
                sum = unordered(sum, pipeline.out[number].read().unwrap_or(0));
            }
        }
        sum
    })
}

/// Two tasks pass a number back and forth: two switches to tasks, and two back.
fn pingpong(load: Load) -> Outcome {
    type Slot = Cell<Option<u64>>;
    let there: &Slot = Box::leak(Box::default());
    let back: &Slot = Box::leak(Box::new(Cell::new(Some(0))));
    let mut stacks = stacks(2);
    let mut task = |from: &'static Slot, to: &'static Slot, add: u64| -> Task<(), ()> {
        let stack = stacks.next().expect("there are two stacks");
        Box::leak(Box::new(Coroutine::with_stack(stack, move |own, ()| {
            loop {
                to.set(from.take().map(|n| n + add));
                own.suspend(());
            }
        })))
    };
    let (asker, answerer) = (task(back, there, 0), task(there, back, 1));
    Laps::run(load, || {
        let before = back.get().unwrap_or(0);
        for _ in 0..load.count {
            resume(asker, ());
            resume(answerer, ());
        }
        back.get().unwrap_or(0) - before
    })
}

/// Two threads on two CPUs pass a number back and forth: two cache lines move.
fn apart(load: Load) -> Result<Outcome, String> {
    #[repr(align(128))]
    #[derive(Default)]
    struct Line(AtomicU64);

    let lines: &[Line; 2] = Box::leak(Box::default());
    let [there, back] = lines;
    /// Ends the other thread.
    const END: u64 = u64::MAX;

    struct Ends(&'static Line);

    impl Drop for Ends {
        fn drop(&mut self) {
            self.0.0.store(END, Ordering::Release);
        }
    }

    let ends = Ends(there);
    let (mut sent, mut answered) = (0, 0);
    race(
        load,
        move || {
            let mut spin = Spin::default();
            let mut number = there.0.load(Ordering::Acquire);
            while number == answered {
                spin.wait();
                number = there.0.load(Ordering::Acquire);
            }
            answered = number;
            back.0.store(number, Ordering::Release);
            if number == END { Err("the other thread has ended".into()) } else { Ok(()) }
        },
        move || {
            let ends = &ends;
            for _ in 0..load.count {
                sent += 1;
                ends.0.0.store(sent, Ordering::Release);
                let mut spin = Spin::default();
                while back.0.load(Ordering::Acquire) != sent {
                    spin.wait();
                }
            }
            load.count
        },
    )
}

/// The memory of a task: the number that its body returns, and the result.
#[derive(Default)]
struct Block {
    body: Cell<u64>,
    result: Cell<u64>,
}

/// The state of a worker: tasks that have not run, and free memory and stacks.
struct Worker {
    ready: Vec<&'static Block>,
    blocks: Vec<&'static Block>,
    carriers: Vec<Task<&'static Block, ()>>,
}

impl Worker {
    fn spawn(&mut self, number: u64) -> &'static Block {
        let block = self.blocks.pop().unwrap_or_else(|| Box::leak(Box::default()));
        block.body.set(number);
        self.ready.push(block);
        block
    }

    /// Runs all tasks, each on a free stack.
    fn run(&mut self) {
        for block in self.ready.drain(..) {
            if let Some(carrier) = self.carriers.pop() {
                resume(carrier, block);
                self.carriers.push(carrier);
            }
        }
    }

    fn join(&mut self, block: &'static Block) -> u64 {
        if !self.ready.is_empty() {
            self.run();
        }
        self.blocks.push(block);
        block.result.get()
    }
}

/// A task takes memory and a stack from lists of free ones, runs on the stack, and returns both.
fn spawn(load: Load) -> Outcome {
    let carrier = |stack| -> Task<&'static Block, ()> {
        Box::leak(Box::new(Coroutine::with_stack(stack, |own, mut block: &'static Block| {
            loop {
                block.result.set(black_box(block.body.get()));
                block = own.suspend(());
            }
        })))
    };
    let carriers = stacks(1).map(carrier).collect();
    let worker = RefCell::new(Worker { ready: Vec::new(), blocks: Vec::new(), carriers });
    crowd(load, |i| worker.borrow_mut().spawn(i), |task| worker.borrow_mut().join(task))
}
