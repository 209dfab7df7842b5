//! When a process without a daemon searches for one.

use crate::Connection;
use crate::socket::{self, Place};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time to the next search after a daemon has refused the process, or did not answer.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// The searches of a process that uses no daemon, for a daemon that has started since. Threads
/// share the value: for each due search, one of them searches.
#[derive(Debug)]
pub struct Search {
    /// Read once, because a program may change its environment while another thread searches.
    places: Vec<Place>,
    period: Duration,
    next: Mutex<Instant>,
}

impl Search {
    /// Searches with this time from one to the next; the first is due after that time.
    pub fn new(period: Duration) -> Search {
        Search::at(socket::places(), period)
    }

    fn at(places: Vec<Place>, period: Duration) -> Search {
        Search { places, period, next: Mutex::new(Instant::now() + period) }
    }

    /// Whether a search is due. The caller that gets `true` searches; the next search is then due
    /// after the period.
    pub fn is_due(&self) -> bool {
        let (now, mut next) = (Instant::now(), self.next());
        let is_due = now >= *next;
        if is_due {
            *next = now + self.period;
        }
        is_due
    }

    /// The time until the next search is due; zero if it is due.
    pub fn left(&self) -> Duration {
        self.next().saturating_duration_since(Instant::now())
    }

    /// Whether a daemon accepts connections now; if so, a search is due. For a thread that searches
    /// on behalf of others. Waits for at most 2 s at each of the [`places`](socket::places).
    pub fn detects_daemon(&self) -> bool {
        let accepts = |place: &Place| matches!(Connection::to(&place.path), Ok(Some(_)));
        let is_detected = self.places.iter().any(accepts);
        if is_detected {
            self.make_due();
        }
        is_detected
    }

    /// Makes a search due.
    pub fn make_due(&self) {
        *self.next() = Instant::now();
    }

    /// Delays the next search by a minute: a daemon has refused the process, or did not answer.
    pub fn postpone(&self) {
        *self.next() = Instant::now() + AFTER_FAILURE;
    }

    fn next(&self) -> MutexGuard<'_, Instant> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn search_is_due_once_in_each_period_and_a_minute_after_a_failure() {
        let search = Search::at(vec![], HOUR);
        assert!(!search.is_due() && search.left() > AFTER_FAILURE);
        search.make_due();
        assert!(search.left().is_zero() && search.is_due());
        assert!(!search.is_due() && search.left() > AFTER_FAILURE);
        search.postpone();
        assert!(!search.is_due() && search.left() <= AFTER_FAILURE);
    }

    #[test]
    fn search_is_due_when_a_daemon_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name| Place { path: folder.path().join(name), is_given: false };
        let search = Search::at(vec![place("missing"), place("socket")], HOUR);
        assert!(!search.detects_daemon() && !search.is_due());
        let _daemon = UnixListener::bind(folder.path().join("socket")).unwrap();
        assert!(search.detects_daemon() && search.is_due());
    }
}
