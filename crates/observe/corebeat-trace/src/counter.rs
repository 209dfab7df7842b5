//! The processor's cycle counter, and its relation to the clock.

use rustix::time::{ClockId, clock_gettime};

/// Number of readings of which the one with the smallest window is used.
const TRIES: u32 = 3;

/// Reads the counter of the current core, as events do. Its unit is unspecified, and the counters
/// of cores may differ.
#[inline(always)]
pub fn now() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: every x86-64 processor has the instruction, and Linux permits its use.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let counter: u64;
        // SAFETY: only reads a register, which Linux permits.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) counter, options(nomem, nostack)) };
        counter
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        monotonic_ns()
    }
}

/// Name of the source of [`now`].
pub(crate) const NAME: &str = if cfg!(miri) {
    "clock"
} else if cfg!(target_arch = "x86_64") {
    "tsc"
} else if cfg!(target_arch = "aarch64") {
    "cntvct"
} else {
    "clock"
};

/// A simultaneous reading of counter and time.
///
/// The clock was read while the counter advanced from `counter - window / 2` to
/// `counter + window / 2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fix {
    pub(crate) counter: u64,
    /// `CLOCK_MONOTONIC`.
    pub(crate) monotonic_ns: u64,
    /// Ticks of the counter, or [`NO_WINDOW`] if unknown.
    pub(crate) window: u32,
    /// The CPU whose counter was read.
    pub(crate) cpu: u32,
}

/// The window of a fix that is only a lower bound for the time of later events.
pub(crate) const NO_WINDOW: u32 = u32::MAX;

impl Fix {
    /// The same fix as a lower bound only.
    pub(crate) fn at_or_after(self) -> Fix {
        Fix { window: NO_WINDOW, ..self }
    }

    /// Reads counter and clock on the current CPU.
    pub(crate) fn take() -> Fix {
        let once = || {
            let (before, monotonic_ns, after) = (now(), monotonic_ns(), now());
            // If the thread moved to a core whose counter is behind, the window is unknown.
            let window =
                after.checked_sub(before).and_then(|w| u32::try_from(w).ok()).unwrap_or(NO_WINDOW);
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

/// The difference of `CLOCK_REALTIME` and `CLOCK_MONOTONIC`.
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
    if cfg!(miri) { 0 } else { rustix::thread::sched_getcpu() as u32 }
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
