//! The thread that switches sites, and depths of sites, on again. It starts with the first one that
//! is switched off, and waits while there is none. A child of fork has no such thread: its joins
//! are plain.

use crate::control::DEPTHS;
use crate::site::Site;
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

static DUE: Mutex<Due> = Mutex::new(Due { has_thread: false, trials: Vec::new() });
static CHANGED: Condvar = Condvar::new();

struct Due {
    has_thread: bool,
    /// At most one trial for each site and each of its depths.
    trials: Vec<Trial>,
}

struct Trial {
    at: Instant,
    site: &'static Site,
    /// One depth; `None` means the whole site.
    depth: Option<u32>,
}

impl Trial {
    fn begin(&self) {
        match self.depth {
            Some(depth) => self.site.switch_on_depth(depth),
            None => self.site.switch_on(),
        }
    }
}

/// Switches the site, or one of its depths, on after `wait`.
pub(crate) fn schedule(site: &'static Site, depth: Option<u32>, wait: Duration) {
    let depth = depth.map(|depth| depth.min(DEPTHS as u32 - 1));
    let trial = Trial { at: Instant::now() + wait, site, depth };
    let mut due = DUE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_same = |other: &&mut Trial| ptr::eq(other.site, site) && other.depth == depth;
    match due.trials.iter_mut().find(is_same) {
        Some(other) => *other = trial,
        None => due.trials.push(trial),
    }
    if !due.has_thread {
        // Without a thread, sites stay switched off until the next call.
        due.has_thread = corebeat_sync::quiet::spawn("future-retry", run).is_ok();
    }
    CHANGED.notify_one();
}

fn run() {
    let mut due = DUE.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let now = Instant::now();
        let ready = due.trials.extract_if(.., |trial| trial.at <= now);
        ready.for_each(|trial| trial.begin());
        let next = due.trials.iter().map(|trial| trial.at.saturating_duration_since(now)).min();
        due = match next {
            Some(wait) => CHANGED.wait_timeout(due, wait).unwrap_or_else(PoisonError::into_inner).0,
            None => CHANGED.wait(due).unwrap_or_else(PoisonError::into_inner),
        };
    }
}
