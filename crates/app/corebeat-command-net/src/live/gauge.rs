//! Fill levels of the streams of a network, and the busiest entity.
//!
//! The meter counts the items that went into and out of each stream. A dump has the tasks that wait
//! now, and the capacities of their streams.

use crate::flow::Scene;
use crate::meter::{Entity, Meter, NumberHasher, lock};
use corebeat_lpel::monitor::Direction;
use corebeat_lpel::{Dump, Status, StreamDump, WaitsFor};
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Largest number of streams that are tracked.
const STREAMS_MAX: usize = 1 << 20;

/// Largest number of streams that are shown one by one. More streams are grouped by the names of
/// their readers.
const SINGLE_MAX: usize = 100;

/// Name of the task that feeds records to the network.
const INPUT: &str = "<input>";

/// The state of a network at one sample.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) net: String,
    pub(crate) seconds: f64,
    pub(crate) given: u64,
    pub(crate) put: u64,
    pub(crate) given_per_s: f64,
    pub(crate) put_per_s: f64,
    pub(crate) faults: u64,
    /// Numbers of tasks: all, running, ready.
    pub(crate) tasks: u64,
    pub(crate) running: usize,
    pub(crate) ready: usize,
    pub(crate) workers: usize,
    /// The entity that ran longest since the last sample, and its mean number of busy workers.
    pub(crate) busiest: Option<(String, f64)>,
    pub(crate) streams: usize,
    /// Fullest first.
    pub(crate) gauges: Vec<Gauge>,
}

/// A stream, or all streams that tasks of one name read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gauge {
    /// Name of the reading task.
    pub(crate) reader: Arc<str>,
    /// Number of the fullest stream.
    pub(crate) stream: u64,
    pub(crate) streams: usize,
    pub(crate) full: usize,
    /// Items in the fullest stream, and its capacity.
    pub(crate) fill: u64,
    pub(crate) capacity: u64,
    /// Items in all streams of the group.
    pub(crate) items: u64,
}

/// Counts of one stream.
#[derive(Default)]
struct StreamCounts {
    written: Option<u64>,
    read: Option<u64>,
    reader: usize,
    writer_closed: bool,
    reader_closed: bool,
    /// Capacity, if it differs from the common one.
    capacity: Option<u64>,
    /// Which end waits now.
    waits: Option<Direction>,
}

/// Samples a network repeatedly.
pub(crate) struct Gauges {
    meter: Meter,
    scene: Scene,
    begin: Instant,
    last: Instant,
    given: u64,
    put: u64,
    /// Names of entities; streams refer to them by index.
    names: Vec<Arc<str>>,
    /// Shown as the reader of a stream that no task has read yet.
    unstarted: Arc<str>,
    run_ns: Vec<u64>,
    streams: HashMap<u64, StreamCounts, BuildHasherDefault<NumberHasher>>,
}

impl Gauges {
    pub(crate) fn new(meter: Meter, scene: Scene) -> Gauges {
        Gauges {
            meter,
            begin: scene.begin,
            last: scene.begin,
            scene,
            given: 0,
            put: 0,
            names: Vec::new(),
            unstarted: "a task that has not started".into(),
            run_ns: Vec::new(),
            streams: HashMap::default(),
        }
    }

    /// The state over the whole run, for the last line.
    pub(crate) fn whole(&mut self) -> State {
        (self.last, self.given, self.put) = (self.begin, 0, 0);
        self.run_ns.fill(0);
        self.sample()
    }

    /// The current state, and the rates since the last sample.
    pub(crate) fn sample(&mut self) -> State {
        let now = Instant::now();
        let span_s = now.duration_since(std::mem::replace(&mut self.last, now)).as_secs_f64();
        let tally = self.scene.tally.clone();
        let (given, put) = (tally.given.load(Ordering::Relaxed), tally.put.load(Ordering::Relaxed));
        let before =
            (std::mem::replace(&mut self.given, given), std::mem::replace(&mut self.put, put));
        let rate = |n: u64| if span_s > 0.0 { n as f64 / span_s } else { 0.0 };
        let mut state = State {
            net: self.scene.net.clone(),
            seconds: now.duration_since(self.begin).as_secs_f64(),
            given,
            put,
            given_per_s: rate(given.saturating_sub(before.0)),
            put_per_s: rate(put.saturating_sub(before.1)),
            faults: tally.faults.load(Ordering::Relaxed),
            workers: self.scene.workers,
            ..State::default()
        };
        state.busiest = self.collect().map(|(name, ns)| (name, rate(ns) / 1e9));
        match self.scene.runtime.upgrade() {
            Some(runtime) => {
                let dump = runtime.dump();
                state.tasks = dump.tasks.len() as u64 + dump.unstarted;
                let count = |status| dump.tasks.iter().filter(|task| task.status == status).count();
                (state.running, state.ready) = (count(Status::Running), count(Status::Ready));
                self.record_waits(&dump);
            }
            // The network has ended, and its streams with it.
            None => self.streams.clear(),
        }
        (state.streams, state.gauges) = self.gauges();
        state
    }

    /// Takes the counts of the meter. Returns the entity that ran longest since the last call.
    fn collect(&mut self) -> Option<(String, u64)> {
        let mut run_ns = vec![0; self.names.len()];
        for (_, figures) in self.meter.workers() {
            let (entities, touched) = lock(&figures).take();
            let places: Vec<usize> = entities.iter().map(|entity| self.place(entity)).collect();
            run_ns.resize(self.names.len(), 0);
            entities
                .iter()
                .zip(&places)
                .for_each(|(entity, place)| run_ns[*place] += entity.run_ns);
            for (number, ends) in touched {
                if !self.streams.contains_key(&number) && self.streams.len() >= STREAMS_MAX {
                    continue;
                }
                let known = self.streams.entry(number).or_default();
                if let Some(writer) = ends.writer {
                    known.written = known.written.max(Some(writer.items));
                    known.writer_closed |= writer.closed;
                }
                if let Some(reader) = ends.reader {
                    known.read = known.read.max(Some(reader.items));
                    known.reader_closed |= reader.closed;
                    known.reader = places[reader.entity];
                }
            }
        }
        self.streams.retain(|_, known| !(known.reader_closed && known.writer_closed));
        self.run_ns.resize(run_ns.len(), 0);
        let since =
            run_ns.iter().zip(&self.run_ns).map(|(now, before)| now.saturating_sub(*before));
        let longest = since.enumerate().max_by_key(|(_, ns)| *ns).filter(|(_, ns)| *ns > 0);
        let longest = longest.map(|(place, ns)| (self.names[place].to_string(), ns));
        self.run_ns = run_ns;
        longest
    }

    fn place(&mut self, entity: &Entity) -> usize {
        // A linear search is enough: a program has few distinct names.
        self.names.iter().position(|name| **name == *entity.name).unwrap_or_else(|| {
            self.names.push((*entity.name).into());
            self.names.len() - 1
        })
    }

    /// Records which end of each stream waits.
    fn record_waits(&mut self, dump: &Dump) {
        self.streams.values_mut().for_each(|known| known.waits = None);
        for task in &dump.tasks {
            let streams: &[StreamDump] = match &task.waits_for {
                Some(WaitsFor::Stream(stream)) => std::slice::from_ref(stream),
                Some(WaitsFor::Any(streams)) => streams,
                _ => &[],
            };
            for stream in streams {
                if let Some(known) = self.streams.get_mut(&stream.id) {
                    known.capacity = Some(stream.capacity as u64);
                    known.waits = Some(stream.direction);
                }
            }
        }
    }

    /// The number of streams, and their fill levels.
    fn gauges(&self) -> (usize, Vec<Gauge>) {
        let mut gauges: Vec<Gauge> = self
            .streams
            .iter()
            .filter(|(_, known)| !known.reader_closed)
            .filter_map(|(number, known)| self.gauge(*number, known))
            .collect();
        let streams = gauges.len();
        if streams > SINGLE_MAX {
            let mut groups: HashMap<Arc<str>, Gauge> = HashMap::new();
            for gauge in gauges {
                match groups.get_mut(&gauge.reader) {
                    Some(group) => group.join(&gauge),
                    None => drop(groups.insert(gauge.reader.clone(), gauge)),
                }
            }
            gauges = groups.into_values().collect();
        }
        gauges.sort_by(|a, b| {
            b.share()
                .total_cmp(&a.share())
                .then_with(|| b.items.cmp(&a.items))
                .then_with(|| a.stream.cmp(&b.stream))
        });
        (streams, gauges)
    }

    fn gauge(&self, stream: u64, known: &StreamCounts) -> Option<Gauge> {
        let capacity = known.capacity.unwrap_or(self.scene.capacity as u64).max(1);
        let mut reader = match known.read {
            Some(_) => self.names[known.reader].clone(),
            None => self.unstarted.clone(),
        };
        let fill = match (known.written, known.read) {
            (Some(written), Some(read)) => written.saturating_sub(read),
            // A stream without a writing task is the input of the network.
            (None, Some(read)) if *reader == *INPUT && read > 0 => {
                reader = "the network's input".into();
                self.given.saturating_sub(read)
            }
            // A stream without a reading task, through which more items went than fit, is the
            // output of the network.
            (Some(written), None) if written > capacity => {
                reader = "the network's output".into();
                written.saturating_sub(self.put)
            }
            // This stream may be the output as well.
            (Some(written), None) if written > self.put => written,
            _ => return None,
        };
        let fill = match known.waits {
            Some(Direction::Write) => capacity,
            Some(Direction::Read) => 0,
            None => fill.min(capacity),
        };
        Some(Gauge {
            reader,
            stream,
            streams: 1,
            full: usize::from(fill == capacity),
            fill,
            capacity,
            items: fill,
        })
    }
}

impl Gauge {
    /// Fill level of the fullest stream, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.fill as f64 / self.capacity.max(1) as f64
    }

    fn join(&mut self, other: &Gauge) {
        if other.share() > self.share() {
            (self.stream, self.fill, self.capacity) = (other.stream, other.fill, other.capacity);
        }
        self.streams += other.streams;
        self.full += other.full;
        self.items += other.items;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;

    fn gauges(known: Vec<(u64, StreamCounts)>) -> Gauges {
        let scene = Scene {
            net: "main".into(),
            boxes: vec![],
            capacity: 64,
            workers: 2,
            tally: Default::default(),
            begin: Instant::now(),
            runtime: Weak::new(),
        };
        let names = vec!["foo".into(), INPUT.into()];
        let (run_ns, streams) = (vec![0; 2], known.into_iter().collect());
        Gauges {
            names,
            run_ns,
            streams,
            given: 90,
            put: 70,
            ..Gauges::new(Meter::of_streams(), scene)
        }
    }

    fn known(written: Option<u64>, read: Option<u64>) -> StreamCounts {
        StreamCounts { written, read, ..StreamCounts::default() }
    }

    #[test]
    fn fill_is_what_went_in_and_not_out() {
        let full = StreamCounts {
            waits: Some(Direction::Write),
            capacity: Some(8),
            ..known(Some(9), Some(4))
        };
        let empty = StreamCounts { waits: Some(Direction::Read), ..known(Some(9), Some(4)) };
        let closed = StreamCounts { reader_closed: true, ..known(Some(9), Some(4)) };
        let input = StreamCounts { reader: 1, ..known(None, Some(80)) };
        let (streams, gauges) = gauges(vec![
            (1, known(Some(9), Some(4))),
            (2, full),
            (3, empty),
            (4, closed),
            (5, input),
            (6, known(Some(100), None)),
            (7, known(Some(3), None)),
            (8, known(Some(4), Some(5))),
        ])
        .gauges();
        let shown: Vec<_> =
            gauges.iter().map(|g| (g.stream, g.fill, g.capacity, &*g.reader)).collect();
        assert_eq!(
            shown,
            [
                (2, 8, 8, "foo"),
                (6, 30, 64, "the network's output"),
                (5, 10, 64, "the network's input"),
                (1, 5, 64, "foo"),
                (3, 0, 64, "foo"),
                (8, 0, 64, "foo"),
            ]
        );
        assert_eq!(streams, 6);
    }

    #[test]
    fn many_streams_are_grouped_by_their_readers() {
        let many = (0..1000).map(|n| (n, known(Some(n % 65), Some(0)))).collect();
        let (streams, gauges) = gauges(many).gauges();
        assert_eq!((streams, gauges.len()), (1000, 1));
        let Gauge { streams, full, fill, capacity, .. } = gauges[0];
        assert_eq!((streams, full, fill, capacity), (1000, 15, 64, 64));
    }
}
