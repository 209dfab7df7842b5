//! Leader/Followers: the threads take turns at the detection. The leader takes one report, passes
//! the leadership to a follower, and processes the report itself.

use super::Division;
use crate::notify::Event;
use crate::server::{Engine, Regime, Scratch};
use crate::system::{Mutex, lock};
use std::ffi::CStr;

pub(crate) struct LeaderFollowers {
    /// Held by the leader: the serial section. Contains memory for its reports.
    leadership: Mutex<Vec<Event>>,
}

impl LeaderFollowers {
    pub(crate) fn new() -> LeaderFollowers {
        LeaderFollowers { leadership: Mutex::new(Vec::new()) }
    }
}

impl Division for LeaderFollowers {
    fn role(&self, _: usize) -> &'static CStr {
        c"reactor pool"
    }

    fn run(&self, engine: &Engine, regime: &Regime, _: usize, scratch: &mut Scratch) {
        let set = &regime.sets[0];
        while !regime.is_over() {
            let mut events = lock(&self.leadership);
            engine.wait(regime, set, &mut events, 1, scratch);
            let event = events.pop();
            drop(events);
            if let Some(event) = event {
                engine.handle(set, event, scratch);
            }
        }
    }
}
