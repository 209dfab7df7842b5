//! The processor's cycle counter, and where it stands in time.

use rustix::time::{ClockId, clock_gettime};

/// Readings of which the shortest is kept.
const TRIES: u32 = 3;

/// Looks at the counter of the core that this runs on, as events do. Its unit is unknown, and another core may count otherwise.
#[inline(always)]
pub fn now() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: every x86-64 processor has it, and Linux lets programs use it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let counter: u64;
        // SAFETY: reads a register that Linux lets programs read.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) counter, options(nomem, nostack)) };
        counter
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        monotonic_ns()
    }
}

/// What [`now`] reads.
pub(crate) const NAME: &str = if cfg!(miri) {
    "clock"
} else if cfg!(target_arch = "x86_64") {
    "tsc"
} else if cfg!(target_arch = "aarch64") {
    "cntvct"
} else {
    "clock"
};

/// A point where both are known: the counter, and the time.
///
/// The time was read while the counter went from `counter - window / 2` to `counter + window / 2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fix {
    pub(crate) counter: u64,
    /// `CLOCK_MONOTONIC`.
    pub(crate) monotonic_ns: u64,
    /// In ticks of the counter; [`NO_WINDOW`]: nothing is known.
    pub(crate) window: u32,
    /// Whose counter it was.
    pub(crate) cpu: u32,
}

/// The window of a fix that says no more than that all behind it was later.
pub(crate) const NO_WINDOW: u32 = u32::MAX;

impl Fix {
    /// The same, for events of which no more is known than that they were later.
    pub(crate) fn at_or_after(self) -> Fix {
        Fix { window: NO_WINDOW, ..self }
    }

    /// Where this thread is now.
    pub(crate) fn take() -> Fix {
        let once = || {
            let (before, monotonic_ns, after) = (now(), monotonic_ns(), now());
            // Where the thread has moved to a core that is behind, there is no window.
            let window = after.checked_sub(before).and_then(|w| u32::try_from(w).ok()).unwrap_or(NO_WINDOW);
            let half = if window == NO_WINDOW { 0 } else { u64::from(window) / 2 };
            Fix { counter: before.wrapping_add(half), monotonic_ns, window, cpu: cpu() }
        };
        let mut best = once();
        for _ in 1..TRIES {
            let next = once();
            if next.window <= best.window {
                best = next;
            }
        }
        best
    }
}

/// What is to be added to `CLOCK_MONOTONIC` to have `CLOCK_REALTIME`.
pub(crate) fn real_offset_ns() -> i64 {
    (ns(ClockId::Realtime) as i64).wrapping_sub(ns(ClockId::Monotonic) as i64)
}

fn monotonic_ns() -> u64 {
    ns(ClockId::Monotonic)
}

fn ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

fn cpu() -> u32 {
    if cfg!(miri) {
        return 0;
    }
    // SAFETY: it has no preconditions.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixes_of_a_thread_are_in_order() {
        let fixes: Vec<_> = (0..100).map(|_| Fix::take()).collect();
        assert!(fixes.is_sorted_by_key(|f| f.monotonic_ns));
    }
}
