//! The two networks that the thesis measures (6.1.1 and 6.1.2): both grow while records come.

use corebeat_lpel::{Event, Reader, StreamSet, Task, Writer, stream};

/// Records between two tasks, as in all of the thesis' experiments.
const BUFFER: usize = 10;

/// How tasks are spawned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Each has a thread of its own.
    pub(crate) threads: bool,
    pub(crate) workers: usize,
    /// So many stages in a row go to one worker before the next has its turn.
    pub(crate) block: usize,
}

impl Style {
    /// Spawns the task of a stage.
    fn stage(self, stage: usize, body: impl FnOnce() + Send + 'static) {
        let task = Task::new().name("box").mark();
        let task = if self.threads { task.wrapper() } else { task.worker(stage / self.block % self.workers) };
        task.spawn(body).expect("there is room for one more task");
    }
}

/// What the collector reads: records that leave, and the ways out of stages that were made on demand.
enum Leaving<T: Send + 'static> {
    Record(T),
    Way(Reader<Leaving<T>>),
}

/// Reads whatever leaves by any way, until all ways are closed.
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

/// A new way out, which is told on an old one.
fn branch<T: Send>(way: &mut Writer<Leaving<T>>) -> Writer<Leaving<T>> {
    let (new, out) = stream(BUFFER);
    let _ = way.write(Leaving::Way(out));
    new
}

/// The deep replication pipeline: each stage takes one from a record's counter and passes the record on, to a stage that
/// it makes if there is none; a record whose counter is 0 leaves. Returns how many left, and how many stages there were.
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

/// What synchrocells read.
enum Half {
    A,
    B,
    /// The cell before is gone: what it would have read is here.
    From(Reader<Half>),
}

/// The synchronisation pipeline: rounds of five records A and five records B, and synchrocells that each join one of both
/// and are gone. Returns how many pairs left.
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

/// A synchrocell: keeps its first record, joins it with the first of the other kind, and passes on what comes between.
fn cell(style: Style, number: usize, mut from: Reader<Half>, mut way: Writer<Leaving<()>>) {
    let mut kept = None;
    let mut next: Option<Writer<Half>> = None;
    while let Some(half) = from.read() {
        match (half, &kept) {
            (Half::From(reader), _) => from = reader,
            (half, None) => kept = Some(half),
            (Half::A, Some(Half::B)) | (Half::B, Some(Half::A)) => {
                let _ = way.write(Leaving::Record(()));
                // It is gone, and its input is the next one's.
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
