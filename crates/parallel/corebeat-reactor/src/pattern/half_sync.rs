//! Half-Sync/Half-Async: the first thread detects events and puts them into a queue, from which the
//! others take and process them.

use super::Division;
use crate::notify::Event;
use crate::server::{BATCH, Engine, Scratch};
use corebeat_sync::{Condvar, Mutex, lock};
use std::collections::VecDeque;

/// Number of reports in the queue at which the detection pauses.
const QUEUE_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct HalfSync {
    queue: Mutex<VecDeque<Event>>,
    has_events: Condvar,
    has_room: Condvar,
}

impl HalfSync {
    fn detect(&self, engine: &Engine) {
        let (mut scratch, mut events) = (Scratch::new(), Vec::new());
        while !engine.is_over() {
            engine.wait(0, &mut events, BATCH, &mut scratch);
            let mut queue = lock(&self.queue);
            while queue.len() >= QUEUE_MAX && !engine.is_over() {
                queue = self.has_room.wait(queue).unwrap_or_else(|e| e.into_inner());
            }
            queue.extend(&events);
            drop(queue);
            match events.len() {
                0 => {}
                1 => self.has_events.notify_one(),
                _ => self.has_events.notify_all(),
            }
        }
    }

    /// Takes an event; `None` if the server has ended.
    fn take(&self, engine: &Engine) -> Option<Event> {
        let mut queue = lock(&self.queue);
        loop {
            if engine.is_over() {
                return None;
            }
            if let Some(event) = queue.pop_front() {
                if queue.len() < QUEUE_MAX {
                    self.has_room.notify_one();
                }
                return Some(event);
            }
            queue = self.has_events.wait(queue).unwrap_or_else(|e| e.into_inner());
        }
    }
}

impl Division for HalfSync {
    fn run(&self, engine: &Engine, thread: usize) {
        if thread == 0 {
            return self.detect(engine);
        }
        let mut scratch = Scratch::new();
        while let Some(event) = self.take(engine) {
            scratch.read_clock(engine);
            engine.handle(0, event, &mut scratch);
        }
    }

    fn wake(&self) {
        // A thread that checks whether the server has ended holds the lock until it waits.
        drop(lock(&self.queue));
        self.has_events.notify_all();
        self.has_room.notify_all();
    }
}
