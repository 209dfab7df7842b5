//! Exact lock times: the time that each thread was blocked in futex calls, in nanoseconds, for
//! locks and for other waits.
//!
//! Two small BPF programs run in the kernel and count for every thread of the host:
//!
//! ```text
//!   sched_switch   a thread sleeps in a futex call    asleep[thread] = now
//!   sched_wakeup   the thread is woken                blocked[tid, kind] += now - asleep[thread]
//! ```
//!
//! The operation and the expected value of the call determine the kind, as for samples.
//!
//! Time in a run queue after the wake-up counts as wait, not as lock time. Threads and processes
//! that start later are included, because nothing is filtered. The programs run on demand only.
//! Measured on two virtual CPUs, Linux 6.18, with two threads on one CPU that wake each other
//! 300,000 times a second: 0.35 µs for each time that a thread blocks, or 0.7% of a CPU at 19,000
//! per second.

#[cfg(target_arch = "x86_64")]
mod bpf;

use crate::Error;
use std::collections::HashMap;

/// Time that a thread was blocked in futex calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FutexTime {
    /// Time in calls that wait for locks.
    pub(crate) lock_ns: u64,
    /// Time in other calls.
    pub(crate) park_ns: u64,
}

/// Exact counts of the time that threads of the whole host are blocked in futex calls.
///
/// Requires `CAP_BPF` and `CAP_PERFMON`, Linux 5.18 with BTF, and an x86-64 processor.
#[derive(Debug)]
pub(crate) struct ExactLocks {
    #[cfg(target_arch = "x86_64")]
    counter: bpf::Counter,
    /// Counts that were returned last, so that no count decreases.
    last_ns: HashMap<i32, FutexTime>,
}

impl ExactLocks {
    /// Starts counting. Counting ends when the value is dropped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if counting is not permitted or not possible.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn attach() -> Result<Self, Error> {
        /// `PROC_PID_INIT_INO` of the kernel: BPF programs use the thread numbers of the host, not
        /// those of a container.
        const HOST_PIDS: &str = "pid:[4026531836]";
        if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() != HOST_PIDS) {
            return Err(Error::Unsupported {
                what: "exact lock time (BPF)".into(),
                how: "run Corebeat outside the container, which has separate process numbers"
                    .into(),
            });
        }
        Ok(ExactLocks { counter: bpf::Counter::attach()?, last_ns: HashMap::new() })
    }

    /// Returns an error: this processor is not supported.
    ///
    /// # Errors
    /// Always [`Error::Unsupported`].
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn attach() -> Result<Self, Error> {
        Err(Error::Unsupported {
            what: "exact lock time".into(),
            how: "only x86-64 is supported; lock time is sampled instead".into(),
        })
    }

    /// Returns the blocked time of each thread since [`ExactLocks::attach`], in nanoseconds, by
    /// thread number, including a wait that has not ended. Threads that never blocked in a futex
    /// call are missing. The count of a reused number continues.
    ///
    /// # Errors
    /// [`Error::Refused`] if the kernel does not return the counts.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn read(&mut self) -> Result<HashMap<i32, FutexTime>, Error> {
        let mut blocked_ns = self.counter.blocked_ns()?;
        // A wait that ends between reading the two tables may be missing from both.
        for (tid, time) in &mut blocked_ns {
            let last = self.last_ns.get(tid).copied().unwrap_or_default();
            time.lock_ns = time.lock_ns.max(last.lock_ns);
            time.park_ns = time.park_ns.max(last.park_ns);
        }
        self.last_ns.clone_from(&blocked_ns);
        Ok(blocked_ns)
    }

    /// Returns no counts: no value of this type exists on this processor.
    ///
    /// # Errors
    /// None.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn read(&mut self) -> Result<HashMap<i32, FutexTime>, Error> {
        Ok(self.last_ns.clone())
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

    /// Waits until a thread of this process sleeps in the kernel.
    fn sleeps(tid: i32) {
        let until = Instant::now() + Duration::from_secs(60);
        while !std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"))
            .unwrap()
            .contains(") S ")
        {
            assert!(Instant::now() < until, "thread {tid} does not fall asleep");
            std::thread::yield_now();
        }
    }

    #[test]
    fn lock_time_lies_between_the_measurements_of_both_sides() {
        const ROUNDS: u32 = 5;
        let Some(mut locks) = attached() else { return };
        let mutex = Mutex::new(());
        let (sender, receiver) = channel();
        let (go, gone) = channel();
        std::thread::scope(|scope| {
            let mutex = &mutex;
            let waiter = scope.spawn(move || {
                sender.send(tid()).unwrap();
                let mut lock_ns =
                    || locks.read().unwrap().get(&tid()).map_or(0, |time| time.lock_ns);
                let before = lock_ns();
                let mut longest = Duration::ZERO;
                for _ in 0..ROUNDS {
                    // Only this lock may block between the two reads, so this loop polls.
                    while gone.try_recv().is_err() {
                        std::thread::yield_now();
                    }
                    let start = Instant::now();
                    drop(mutex.lock().unwrap_or_else(PoisonError::into_inner));
                    longest += start.elapsed();
                }
                (lock_ns() - before, longest)
            });
            let waiter_tid = receiver.recv().unwrap();
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
            assert!(
                shortest <= exact && exact <= longest,
                "{shortest:?} <= {exact:?} <= {longest:?}"
            );
        });
    }

    #[test]
    fn unfinished_wait_is_counted_and_never_decreases() {
        let Some(mut locks) = attached() else { return };
        let mutex = Mutex::new(());
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let held = mutex.lock().unwrap_or_else(PoisonError::into_inner);
            scope.spawn(|| {
                sender.send(tid()).unwrap();
                drop(mutex.lock().unwrap_or_else(PoisonError::into_inner));
            });
            let waiter = receiver.recv().unwrap();
            sleeps(waiter);
            let start = Instant::now();
            let mut last = 0;
            while start.elapsed() < Duration::from_millis(50) {
                let now = locks.read().unwrap()[&waiter].lock_ns;
                assert!(last <= now, "{last} then {now}");
                last = now;
            }
            let elapsed = start.elapsed();
            assert!(Duration::from_nanos(locks.read().unwrap()[&waiter].lock_ns) >= elapsed);
            drop(held);
        });
    }

    #[test]
    fn wait_for_a_condition_is_counted_beside_locks() {
        let Some(mut locks) = attached() else { return };
        let (mutex, condition) = (Mutex::new(0), std::sync::Condvar::new());
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let waits = || {
                sender.send(tid()).unwrap();
                drop(condition.wait_while(mutex.lock().unwrap(), |n| *n < 3));
            };
            scope.spawn(waits);
            let waiter = receiver.recv().unwrap();
            let mut time = || locks.read().unwrap().get(&waiter).copied().unwrap_or_default();
            // The count of the condition is 0, 1, and 2: that of a contended lock.
            for _ in 0..3 {
                let before = time();
                let until = Instant::now() + Duration::from_secs(60);
                while time().park_ns == before.park_ns {
                    assert!(Instant::now() < until, "the wait is not counted");
                }
                *mutex.lock().unwrap() += 1;
                condition.notify_one();
            }
        });
    }

    #[test]
    fn sleep_without_a_lock_is_not_counted() {
        let Some(mut locks) = attached() else { return };
        let slept = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            tid()
        });
        let tid = slept.join().unwrap();
        assert_eq!(locks.read().unwrap().get(&tid), None);
    }
}
