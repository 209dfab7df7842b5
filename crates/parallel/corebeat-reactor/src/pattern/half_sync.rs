//! Half-Sync/Half-Async: the first thread detects events and puts them into a queue, from which the
//! others take and process them.

use super::Division;
use crate::notify::Event;
use crate::server::{BATCH, Engine, Regime, Scratch};
use crate::system::{Condvar, Mutex, lock};
use corebeat_probe::{Handover, Probe, block, probes};
use std::collections::VecDeque;
use std::ffi::CStr;

/// Number of reports in the queue at which the detection pauses.
const QUEUE_MAX: usize = 4096;

pub(crate) struct HalfSync {
    probe: Option<&'static Probe>,
    /// Each report with the call that put it here, whose callee is its processing in a trace. While
    /// the probe of this step is off, there is no call.
    queue: Mutex<VecDeque<(Event, Option<Handover>)>>,
    has_events: Condvar,
    has_room: Condvar,
}

impl HalfSync {
    pub(crate) fn new() -> HalfSync {
        let name = concat!(module_path!(), "::queue");
        HalfSync {
            probe: probes().find(|probe| probe.name() == name),
            queue: Mutex::default(),
            has_events: Condvar::new(),
            has_room: Condvar::new(),
        }
    }

    fn detect(&self, engine: &Engine, regime: &Regime, scratch: &mut Scratch) {
        let mut events = Vec::new();
        while !regime.is_over() {
            engine.wait(regime, &regime.sets[0], &mut events, BATCH, scratch);
            if events.is_empty() {
                continue;
            }
            block!("queue", { self.put(regime, &events, scratch) });
        }
    }

    fn put(&self, regime: &Regime, events: &[Event], scratch: &Scratch) {
        let mut queue = lock(&self.queue);
        while queue.len() >= QUEUE_MAX && !regime.is_over() {
            queue = self.has_room.wait(queue).unwrap_or_else(|e| e.into_inner());
        }
        scratch.meter.queued.add(queue.len() as u64);
        let is_on = self.probe.is_some_and(Probe::is_on);
        queue.extend(events.iter().map(|event| (*event, is_on.then(Handover::new))));
        drop(queue);
        match events.len() {
            1 => self.has_events.notify_one(),
            _ => self.has_events.notify_all(),
        }
    }

    /// Takes an event; `None` if the regime is over.
    fn take(&self, regime: &Regime) -> Option<(Event, Option<Handover>)> {
        let mut queue = lock(&self.queue);
        loop {
            if regime.is_over() {
                return None;
            }
            if let Some(taken) = queue.pop_front() {
                if queue.len() < QUEUE_MAX {
                    self.has_room.notify_one();
                }
                return Some(taken);
            }
            queue = self.has_events.wait(queue).unwrap_or_else(|e| e.into_inner());
        }
    }
}

impl Division for HalfSync {
    fn role(&self, thread: usize) -> &'static CStr {
        if thread == 0 { c"reactor detect" } else { c"reactor process" }
    }

    fn run(&self, engine: &Engine, regime: &Regime, thread: usize, scratch: &mut Scratch) {
        if thread == 0 {
            return self.detect(engine, regime, scratch);
        }
        while let Some((event, handover)) = self.take(regime) {
            let _caller = handover.map(Handover::accept);
            scratch.read_clock(engine);
            engine.handle(&regime.sets[0], event, scratch);
        }
    }

    fn wake(&self) {
        // A thread that checks whether the regime is over holds the lock until it waits.
        drop(lock(&self.queue));
        self.has_events.notify_all();
        self.has_room.notify_all();
    }
}
