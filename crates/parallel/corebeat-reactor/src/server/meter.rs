//! Numbers of one thread of a server, which the thread writes and other threads read.

use corebeat_machine::server::ThreadLoad;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// A number that one thread increases.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        // Relaxed: a statistic. One thread writes the number, so a load and a store suffice.
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        // Relaxed: as above.
        self.0.load(Ordering::Relaxed)
    }
}

/// Numbers of a thread since its start. A cache line of its own keeps other threads away.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    /// Number of the thread in the system; 0 until it runs.
    tid: AtomicI32,
    pub(crate) waits: Count,
    pub(crate) events: Count,
    pub(crate) serial_ns: Count,
    pub(crate) queued: Count,
    pub(crate) requests: Count,
}

impl Meter {
    /// Notes that the calling thread is the one that this meter belongs to.
    pub(crate) fn begin(&self) {
        // Relaxed: a reader that misses the number reports an unknown time.
        self.tid.store(rustix::thread::gettid().as_raw_pid(), Ordering::Relaxed);
    }

    /// Returns the number of the thread in the system, if the thread runs.
    pub(super) fn tid(&self) -> Option<i32> {
        // Relaxed: as in `begin`.
        Some(self.tid.load(Ordering::Relaxed)).filter(|tid| *tid != 0)
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Returns the numbers since the start of the thread.
    pub(super) fn read(&self) -> ThreadLoad {
        let (ran_ns, waited_ns) = self.tid().and_then(times).unzip();
        ThreadLoad {
            waits: self.waits.get(),
            events: self.events.get(),
            serial_ns: self.serial_ns.get(),
            queued: self.queued.get(),
            requests: self.requests.get(),
            ran_ns,
            waited_ns,
        }
    }
}

/// Returns the time on a CPU and the run-queue wait of a thread of this process, in nanoseconds;
/// `None` if the kernel was built without these statistics.
fn times(tid: i32) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next())
}

/// Returns the increase from `old` to `new`.
pub(super) fn since(new: &ThreadLoad, old: &ThreadLoad) -> ThreadLoad {
    // A thread never decreases a number.
    let time = |new: Option<u64>, old: Option<u64>| Some(new?.saturating_sub(old.unwrap_or(0)));
    ThreadLoad {
        waits: new.waits - old.waits,
        events: new.events - old.events,
        serial_ns: new.serial_ns - old.serial_ns,
        queued: new.queued - old.queued,
        requests: new.requests - old.requests,
        ran_ns: time(new.ran_ns, old.ran_ns),
        waited_ns: time(new.waited_ns, old.waited_ns),
    }
}
