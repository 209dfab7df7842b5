//! The thread that switches sites on again, seldom. It starts with the first site that is switched
//! off, and waits while there is none. A child of fork has no such thread: its joins are plain.

use crate::site::Site;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

static DUE: Mutex<Due> = Mutex::new(Due { has_thread: false, sites: Vec::new() });
static CHANGED: Condvar = Condvar::new();

struct Due {
    has_thread: bool,
    sites: Vec<(Instant, &'static Site)>,
}

/// Switches the site on after `wait`.
pub(crate) fn schedule(site: &'static Site, wait: Duration) {
    let mut due = DUE.lock().unwrap_or_else(PoisonError::into_inner);
    due.sites.push((Instant::now() + wait, site));
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
        let ready = due.sites.extract_if(.., |(at, _)| *at <= now);
        ready.for_each(|(_, site)| site.switch_on());
        let next = due.sites.iter().map(|(at, _)| at.saturating_duration_since(now)).min();
        due = match next {
            Some(wait) => CHANGED.wait_timeout(due, wait).unwrap_or_else(PoisonError::into_inner).0,
            None => CHANGED.wait(due).unwrap_or_else(PoisonError::into_inner),
        };
    }
}
