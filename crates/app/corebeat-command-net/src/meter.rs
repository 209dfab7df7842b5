//! A monitor that adds up the costs of tasks and the use of their streams.
//!
//! Each worker adds to its own figures. Taking the figures delays a worker only while two pointers
//! are exchanged.

use corebeat_lpel::monitor::{Direction, Dispatch, End, Level, Listener, Monitor, StreamUse, Wait};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Largest number of tasks of one worker that are recorded one by one.
const STARTED_MAX: usize = 1 << 20;

/// The monitor. Clones share its figures.
#[derive(Clone)]
pub(crate) struct Meter(Arc<Shared>);

struct Shared {
    subject: Subject,
    /// The figures of each worker, with its number.
    workers: Mutex<Vec<(usize, Arc<Mutex<Figures>>)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Tasks,
    Streams,
}

/// The figures of one worker.
#[derive(Default)]
pub(crate) struct Figures {
    /// Entities in the order of their first dispatch. None is ever removed.
    pub(crate) entities: Vec<Entity>,
    /// Tasks that started on this worker, in order, each with the index of its entity. Recorded by
    /// [`Meter::of_tasks`] only.
    pub(crate) started: Vec<(u64, usize)>,
    /// Streams used since the last call of [`take`](Self::take). Recorded by [`Meter::of_streams`]
    /// only.
    streams: Streams,
    /// Waiting times of the worker, once it has ended.
    pub(crate) end: Option<End>,
    /// Index of the entity that ran last.
    last: usize,
    places: HashMap<Box<str>, usize>,
}

/// Tasks of one name.
#[derive(Clone, Default)]
pub(crate) struct Entity {
    pub(crate) name: Box<str>,
    pub(crate) tasks: u64,
    pub(crate) dispatches: u64,
    pub(crate) run_ns: u64,
}

/// Streams by their numbers.
pub(crate) type Streams = HashMap<u64, Ends, BuildHasherDefault<NumberHasher>>;

/// The ends of a stream that this worker used.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ends {
    pub(crate) writer: Option<Side>,
    pub(crate) reader: Option<Side>,
}

/// One end of a stream.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    /// Items transferred so far.
    pub(crate) items: u64,
    pub(crate) closed: bool,
    /// Index of the entity of this worker that used the end last.
    pub(crate) entity: usize,
}

impl Meter {
    /// A meter of tasks.
    pub(crate) fn of_tasks() -> Meter {
        Meter::new(Subject::Tasks)
    }

    /// A meter of tasks and streams.
    pub(crate) fn of_streams() -> Meter {
        Meter::new(Subject::Streams)
    }

    fn new(subject: Subject) -> Meter {
        Meter(Arc::new(Shared { subject, workers: Mutex::default() }))
    }

    /// The figures of all workers, in the order of their numbers.
    pub(crate) fn workers(&self) -> Vec<(usize, Arc<Mutex<Figures>>)> {
        let mut workers = lock(&self.0.workers).clone();
        workers.sort_by_key(|(worker, _)| *worker);
        workers
    }
}

/// Locks a mutex. A panic of its owner is ignored: the figures are consistent between two locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Figures {
    /// Returns the entities, and the streams used since the last call.
    pub(crate) fn take(&mut self) -> (Vec<Entity>, Streams) {
        (self.entities.clone(), take(&mut self.streams))
    }

    fn entity(&mut self, name: &str) -> usize {
        // Most often the same entity runs again.
        if self.entities.get(self.last).is_none_or(|entity| *entity.name != *name) {
            self.last = match self.places.get(name) {
                Some(place) => *place,
                None => {
                    self.places.insert(name.into(), self.entities.len());
                    self.entities.push(Entity { name: name.into(), ..Entity::default() });
                    self.entities.len() - 1
                }
            };
        }
        self.last
    }

    fn touch(&mut self, touched: &StreamUse, entity: usize) {
        if !(touched.moved || touched.opened || touched.closed) {
            return; // unchanged
        }
        let ends = self.streams.entry(touched.stream).or_default();
        let side = match touched.direction {
            Direction::Read => &mut ends.reader,
            Direction::Write => &mut ends.writer,
        };
        *side = Some(Side { items: touched.items, closed: touched.closed, entity });
    }
}

impl Monitor for Meter {
    fn level(&self) -> Level {
        Level::All
    }

    fn listener(&self, worker: usize) -> Box<dyn Listener> {
        let figures = Arc::<Mutex<Figures>>::default();
        lock(&self.0.workers).push((worker, figures.clone()));
        Box::new(WorkerListener { subject: self.0.subject, figures })
    }
}

/// The listener of one worker.
struct WorkerListener {
    subject: Subject,
    figures: Arc<Mutex<Figures>>,
}

impl Listener for WorkerListener {
    fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
        let figures = &mut *lock(&self.figures);
        let place = figures.entity(dispatch.name.unwrap_or("<unnamed>"));
        let entity = &mut figures.entities[place];
        entity.dispatches += 1;
        entity.run_ns += dispatch.execution_ns;
        if dispatch.number == 1 {
            entity.tasks += 1;
        }
        match self.subject {
            Subject::Tasks if dispatch.number == 1 && figures.started.len() < STARTED_MAX => {
                figures.started.push((dispatch.task, place));
            }
            Subject::Tasks => {}
            Subject::Streams => {
                dispatch.streams.iter().for_each(|touched| figures.touch(touched, place))
            }
        }
    }

    fn waited(&mut self, _: &Wait) {}

    fn ended(&mut self, end: &End) {
        lock(&self.figures).end = Some(*end);
    }
}

/// A hash function for consecutive numbers.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
