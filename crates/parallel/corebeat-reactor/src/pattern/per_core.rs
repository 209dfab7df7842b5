//! Thread-per-core: each thread has an interest set of its own, and processes what the set reports.
//! Connections are assigned to the sets in turn.

use super::Division;
use crate::server::{BATCH, Engine, Scratch};

pub(crate) struct PerCore;

impl Division for PerCore {
    fn sets(&self, threads: usize) -> usize {
        threads
    }

    fn run(&self, engine: &Engine, thread: usize) {
        let (mut scratch, mut events) = (Scratch::new(), Vec::new());
        while !engine.is_over() {
            engine.wait(thread, &mut events, BATCH, &mut scratch);
            events.drain(..).for_each(|event| engine.handle(thread, event, &mut scratch));
        }
    }
}
