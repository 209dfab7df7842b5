//! What tasks cost, and what is in their streams: a monitor that adds up.
//!
//! Each worker adds to figures of its own. Who wants to know takes what is there, and holds a worker up no longer than it
//! takes to exchange two pointers.

use corebeat_lpel::monitor::{Direction, Dispatch, End, Level, Listener, Monitor, Touched, Wait};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tasks of one worker that are remembered one by one.
const STARTED_MAX: usize = 1 << 20;

/// A monitor; all copies are one.
#[derive(Clone)]
pub(crate) struct Meter(Arc<Shared>);

struct Shared {
    wanted: What,
    /// By the workers' numbers.
    workers: Mutex<Vec<(usize, Arc<Mutex<Figures>>)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Tasks,
    Streams,
}

/// What one worker did.
#[derive(Default)]
pub(crate) struct Figures {
    /// By name, in the order of their first dispatch; never taken away.
    pub(crate) entities: Vec<Entity>,
    /// The tasks that began here, in the order of their begin, and of which entity each is. With [`Meter::of_tasks`] only.
    pub(crate) started: Vec<(u64, usize)>,
    /// The streams used since they were taken last. With [`Meter::of_streams`] only.
    streams: Streams,
    /// When the worker has ended: how it slept.
    pub(crate) end: Option<End>,
    /// The last one that ran.
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

/// What is known of a stream's ends, where they were used.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ends {
    pub(crate) writer: Option<Side>,
    pub(crate) reader: Option<Side>,
}

/// One end.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    /// Items that went through so far.
    pub(crate) items: u64,
    pub(crate) closed: bool,
    /// Who used it last: a place in this worker's entities.
    pub(crate) entity: usize,
}

impl Meter {
    /// One that wants to know of tasks.
    pub(crate) fn of_tasks() -> Meter {
        Meter::new(What::Tasks)
    }

    /// One that wants to know of tasks and streams.
    pub(crate) fn of_streams() -> Meter {
        Meter::new(What::Streams)
    }

    fn new(wanted: What) -> Meter {
        Meter(Arc::new(Shared { wanted, workers: Mutex::default() }))
    }

    /// The workers' figures, in the order of their numbers.
    pub(crate) fn workers(&self) -> Vec<(usize, Arc<Mutex<Figures>>)> {
        let mut workers = lock(&self.0.workers).clone();
        workers.sort_by_key(|(worker, _)| *worker);
        workers
    }
}

/// Figures are whole whenever they are not locked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Figures {
    /// The entities, and the streams that were used since this was asked last.
    pub(crate) fn take(&mut self) -> (Vec<Entity>, Streams) {
        (self.entities.clone(), take(&mut self.streams))
    }

    fn entity(&mut self, name: &str) -> usize {
        // Mostly the same one runs again.
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

    fn touch(&mut self, touched: &Touched, entity: usize) {
        if !(touched.moved || touched.opened || touched.closed) {
            return; // as it was
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
        Box::new(Ear { wanted: self.0.wanted, figures })
    }
}

/// A worker's.
struct Ear {
    wanted: What,
    figures: Arc<Mutex<Figures>>,
}

impl Listener for Ear {
    fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
        let figures = &mut *lock(&self.figures);
        let place = figures.entity(dispatch.name.unwrap_or("<unnamed>"));
        let entity = &mut figures.entities[place];
        entity.dispatches += 1;
        entity.run_ns += dispatch.execution_ns;
        if dispatch.number == 1 {
            entity.tasks += 1;
        }
        match self.wanted {
            What::Tasks if dispatch.number == 1 && figures.started.len() < STARTED_MAX => {
                figures.started.push((dispatch.task, place));
            }
            What::Tasks => {}
            What::Streams => dispatch.streams.iter().for_each(|touched| figures.touch(touched, place)),
        }
    }

    fn waited(&mut self, _: &Wait) {}

    fn ended(&mut self, end: &End) {
        lock(&self.figures).end = Some(*end);
    }
}

/// Spreads numbers that were given out one after the other.
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
