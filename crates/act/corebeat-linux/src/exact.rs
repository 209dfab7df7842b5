//! Exact lock times: how long each thread was blocked in a futex call, to the nanosecond.
//!
//! Two small programs run in the kernel (BPF), and count for every thread of the host:
//!
//! ```text
//!   sched_switch   a thread goes to sleep, and is in a futex call    asleep[thread] = now
//!   sched_wakeup   somebody wakes it                                 blocked[tid] += now - asleep[thread]
//! ```
//!
//! Waiting for a CPU after the wake-up is not counted: that is latency. Threads and processes that start later are seen as
//! well, because nothing is filtered. It runs on demand only. Measured on two virtual CPUs, Linux 6.18, with two threads on
//! one CPU that wake each other 300,000 times a second: 0.35 µs for each time that a thread blocks, so 0.7% of a CPU at
//! 19,000 a second.

#[cfg(target_arch = "x86_64")]
mod bpf;

use crate::Error;
use std::collections::HashMap;

/// Counts the time that threads are blocked in futex calls, exactly, for the whole host.
///
/// Needs `CAP_BPF` and `CAP_PERFMON`, Linux 5.18 with BTF, and an x86-64 processor.
#[derive(Debug)]
pub(crate) struct ExactLocks {
    #[cfg(target_arch = "x86_64")]
    counter: bpf::Counter,
    /// What was handed out last, so that no time ever goes back.
    told_ns: HashMap<i32, u64>,
}

impl ExactLocks {
    /// Starts counting. Counting ends when the value is dropped.
    ///
    /// # Errors
    /// [`Error::Missing`] where this is not permitted or not possible.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn attach() -> Result<Self, Error> {
        /// The kernel's `PROC_PID_INIT_INO`: programs in it know threads by the host's numbers, not by a container's.
        const HOST_PIDS: &str = "pid:[4026531836]";
        if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() != HOST_PIDS) {
            return Err(Error::Missing {
                what: "exact lock time (BPF)".into(),
                how: "run Corebeat outside the container, which has process numbers of its own".into(),
            });
        }
        Ok(ExactLocks { counter: bpf::Counter::attach()?, told_ns: HashMap::new() })
    }

    /// Not possible on this processor.
    ///
    /// # Errors
    /// [`Error::Missing`], always.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn attach() -> Result<Self, Error> {
        Err(Error::Missing {
            what: "exact lock time".into(),
            how: "it is there for x86-64 only; without it, lock time is sampled".into(),
        })
    }

    /// The nanoseconds that each thread has been blocked since [`ExactLocks::attach`], a wait that goes on included, by
    /// thread number. Threads that never blocked in a futex call are not there; a number that was given to a second
    /// thread goes on where the first one ended.
    ///
    /// # Errors
    /// [`Error::Refused`] if the kernel will not give the counts out.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn read(&mut self) -> Result<HashMap<i32, u64>, Error> {
        let mut blocked_ns = self.counter.blocked_ns()?;
        // A wait may end between the looks at the two tables, and be missing from both.
        for (tid, ns) in &mut blocked_ns {
            *ns = (*ns).max(self.told_ns.get(tid).copied().unwrap_or(0));
        }
        self.told_ns.clone_from(&blocked_ns);
        Ok(blocked_ns)
    }

    /// Not possible on this processor.
    ///
    /// # Errors
    /// None; there is no value to call this on.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn read(&mut self) -> Result<HashMap<i32, u64>, Error> {
        Ok(self.told_ns.clone())
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    fn attached() -> Option<ExactLocks> {
        ExactLocks::attach().inspect_err(|e| println!("skipped: {e}")).ok()
    }

    fn tid() -> i32 {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    /// Waits until a thread of ours sleeps in the kernel.
    fn sleeps(tid: i32) {
        let until = Instant::now() + Duration::from_secs(60);
        while !std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap().contains(") S ") {
            assert!(Instant::now() < until, "thread {tid} does not fall asleep");
            std::thread::yield_now();
        }
    }

    #[test]
    fn lock_time_lies_between_what_both_sides_measure() {
        const ROUNDS: u32 = 5;
        let Some(mut locks) = attached() else { return };
        let mutex = Mutex::new(());
        let (tell, told) = channel();
        let (go, gone) = channel();
        std::thread::scope(|scope| {
            let mutex = &mutex;
            let waiter = scope.spawn(move || {
                tell.send(tid()).unwrap();
                let before = locks.read().unwrap().get(&tid()).copied().unwrap_or(0);
                let mut longest = Duration::ZERO;
                for _ in 0..ROUNDS {
                    // Nothing but this lock may block between the two reads: so the holder is waited for without.
                    while gone.try_recv().is_err() {
                        std::thread::yield_now();
                    }
                    let start = Instant::now();
                    drop(mutex.lock().unwrap_or_else(PoisonError::into_inner));
                    longest += start.elapsed();
                }
                let after = locks.read().unwrap().get(&tid()).copied().unwrap_or(0);
                (after - before, longest)
            });
            let waiter_tid = told.recv().unwrap();
            let mut shortest = Duration::ZERO;
            for _ in 0..ROUNDS {
                let held = mutex.lock().unwrap_or_else(PoisonError::into_inner);
                go.send(()).unwrap();
                sleeps(waiter_tid);
                let start = Instant::now();
                std::thread::sleep(Duration::from_millis(20));
                shortest += start.elapsed();
                drop(held);
            }
            let (exact_ns, longest) = waiter.join().unwrap();
            let exact = Duration::from_nanos(exact_ns);
            assert!(shortest <= exact && exact <= longest, "{shortest:?} <= {exact:?} <= {longest:?}");
        });
    }

    #[test]
    fn wait_that_goes_on_is_counted_and_never_goes_back() {
        let Some(mut locks) = attached() else { return };
        let mutex = Mutex::new(());
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let held = mutex.lock().unwrap_or_else(PoisonError::into_inner);
            scope.spawn(|| {
                tell.send(tid()).unwrap();
                drop(mutex.lock().unwrap_or_else(PoisonError::into_inner));
            });
            let waiter = told.recv().unwrap();
            sleeps(waiter);
            let start = Instant::now();
            let mut last = 0;
            while start.elapsed() < Duration::from_millis(50) {
                let now = locks.read().unwrap()[&waiter];
                assert!(last <= now, "{last} then {now}");
                last = now;
            }
            let elapsed = start.elapsed();
            assert!(Duration::from_nanos(locks.read().unwrap()[&waiter]) >= elapsed);
            drop(held);
        });
    }

    #[test]
    fn sleep_that_is_no_lock_is_not_counted() {
        let Some(mut locks) = attached() else { return };
        let slept = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            tid()
        });
        let tid = slept.join().unwrap();
        assert_eq!(locks.read().unwrap().get(&tid), None);
    }
}
