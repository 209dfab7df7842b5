//! The two networks of the experiments in the thesis (6.1.1 and 6.1.2). Both grow while records
//! arrive.

use corebeat_lpel::{Event, Reader, StreamSet, Task, Writer, stream};

/// Capacity of each stream, as in all experiments of the thesis.
const BUFFER: usize = 10;

/// Way of spawning tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Each task has a thread of its own.
    pub(crate) threads: bool,
    pub(crate) workers: usize,
    /// Number of consecutive stages on one worker, before the next worker gets its block.
    pub(crate) block: usize,
}

impl Style {
    /// Spawns the task of a stage.
    fn stage(self, stage: usize, body: impl FnOnce() + Send + 'static) {
        let task = Task::new().name("box").mark();
        let task = if self.threads {
            task.blocking()
        } else {
            task.worker(stage / self.block % self.workers)
        };
        task.spawn(body).expect("a task can be spawned");
    }
}

/// Input of the collector: records that leave, and the outputs of stages that were created on
/// demand.
enum Leaving<T: Send + 'static> {
    Record(T),
    Way(Reader<Leaving<T>>),
}

/// Reads all records from all outputs, until all outputs are closed.
fn collect<T: Send>(way: Reader<Leaving<T>>, mut record: impl FnMut(T)) {
    let mut ways = StreamSet::new();
    ways.add(way);
    while let Some((_, event)) = ways.read() {
        match event {
            Event::Item(Leaving::Record(item)) => record(item),
            Event::Item(Leaving::Way(way)) => drop(ways.add(way)),
            Event::End => {}
        }
    }
}

/// Creates a new output, which is announced on an existing one.
fn branch<T: Send>(way: &mut Writer<Leaving<T>>) -> Writer<Leaving<T>> {
    let (new, out) = stream(BUFFER);
    let _ = way.write(Leaving::Way(out));
    new
}

/// The deep replication pipeline: each stage decrements the counter of a record and passes the
/// record on, to a stage that it creates if there is none. A record whose counter is 0 leaves.
/// Returns the number of records that left, and the number of stages.
pub(crate) fn deep(style: Style, counters: Vec<u32>) -> (usize, usize) {
    let (mut to, from) = stream(BUFFER);
    let (way, out) = stream(BUFFER);
    style.stage(0, move || stage(style, 0, from, way));
    style.stage(0, move || {
        let _ = counters.into_iter().try_for_each(|counter| to.write(counter));
    });
    let (mut records, mut last) = (0, 0);
    collect(out, |stage| {
        records += 1;
        last = last.max(stage);
    });
    (records, last + 1)
}

fn stage(style: Style, number: usize, from: Reader<u32>, mut way: Writer<Leaving<usize>>) {
    let mut next: Option<Writer<u32>> = None;
    for counter in from {
        let Some(counter) = counter.checked_sub(1) else {
            let _ = way.write(Leaving::Record(number));
            continue;
        };
        let to = next.get_or_insert_with(|| {
            let (to, from) = stream(BUFFER);
            let way = branch(&mut way);
            style.stage(number + 1, move || self::stage(style, number + 1, from, way));
            to
        });
        let _ = to.write(counter);
    }
}

/// Input of synchrocells.
enum Half {
    A,
    B,
    /// The cell before has ended. Contains its input.
    From(Reader<Half>),
}

/// The synchronisation pipeline: rounds of five records A and five records B, and synchrocells that
/// join one of each and end. Returns the number of pairs that left.
pub(crate) fn synchronisation(style: Style, rounds: usize) -> usize {
    const DISTANCE: usize = 5;
    let (mut to, from) = stream(BUFFER);
    let (way, out) = stream(BUFFER);
    style.stage(0, move || cell(style, 0, from, way));
    style.stage(0, move || {
        for _ in 0..rounds {
            let halves = (0..2 * DISTANCE).map(|i| if i < DISTANCE { Half::A } else { Half::B });
            let _ = halves.into_iter().try_for_each(|half| to.write(half));
        }
    });
    let mut pairs = 0;
    collect(out, |()| pairs += 1);
    pairs
}

/// A synchrocell: keeps its first record, joins it with the first record of the other kind, and
/// passes all records in between on.
fn cell(style: Style, number: usize, mut from: Reader<Half>, mut way: Writer<Leaving<()>>) {
    let mut kept = None;
    let mut next: Option<Writer<Half>> = None;
    while let Some(half) = from.read() {
        match (half, &kept) {
            (Half::From(reader), _) => from = reader,
            (half, None) => kept = Some(half),
            (Half::A, Some(Half::B)) | (Half::B, Some(Half::A)) => {
                let _ = way.write(Leaving::Record(()));
                // The cell before has ended, and this cell takes over its input.
                match next {
                    Some(mut to) => drop(to.write(Half::From(from))),
                    None => style.stage(number + 1, move || cell(style, number + 1, from, way)),
                }
                return;
            }
            (half, Some(_)) => {
                let to = next.get_or_insert_with(|| {
                    let (to, from) = stream(BUFFER);
                    let way = branch(&mut way);
                    style.stage(number + 1, move || cell(style, number + 1, from, way));
                    to
                });
                let _ = to.write(half);
            }
        }
    }
}
