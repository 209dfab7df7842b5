//! Thread-per-core: each thread has an interest set of its own, and processes what the set reports.
//! Connections are assigned to the sets in turn.

use super::Division;
use crate::server::{BATCH, Engine, Regime, Scratch};
use std::ffi::CStr;

pub(crate) struct PerCore;

impl Division for PerCore {
    fn sets(&self, threads: usize) -> usize {
        threads
    }

    fn role(&self, _: usize) -> &'static CStr {
        c"reactor core"
    }

    fn run(&self, engine: &Engine, regime: &Regime, thread: usize, scratch: &mut Scratch) {
        let (set, mut events) = (&regime.sets[thread], Vec::new());
        while !regime.is_over() {
            engine.wait(regime, set, &mut events, BATCH, scratch);
            events.drain(..).for_each(|event| engine.handle(set, event, scratch));
        }
    }
}
