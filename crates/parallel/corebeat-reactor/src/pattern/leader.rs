//! Leader/Followers: the threads take turns at the detection. The leader takes one report, passes
//! the leadership to a follower, and processes the report itself.

use super::Division;
use crate::notify::Event;
use crate::server::{Engine, Scratch};
use corebeat_sync::{Mutex, lock};

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
    fn run(&self, engine: &Engine, _: usize) {
        let mut scratch = Scratch::new();
        while !engine.is_over() {
            let mut events = lock(&self.leadership);
            engine.wait(0, &mut events, 1, &mut scratch);
            let event = events.pop();
            drop(events);
            if let Some(event) = event {
                engine.handle(0, event, &mut scratch);
            }
        }
    }
}
