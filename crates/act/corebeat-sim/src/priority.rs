//! Dynamic priorities: the time-sharing class of Solaris, by its own table (`dispadmin -c TS -g`;
//! ts_dptbl(5)).
//!
//! The priority of a thread that uses up its quantum falls by ten. The priority of a thread that
//! returns from a sleep, or has waited for a second, rises to 50 or more. So a thread that was
//! blocked at a lock preempts a thread that computes, which may hold that lock: "backstabbing" in
//! Pusukuri 2012, section 5.1.

/// Initial priority, and the priority of threads with a fixed one.
pub(crate) const START: u8 = 29;
/// Highest priority.
pub(crate) const MAX: u8 = 59;

/// Quantum of a priority, in nanoseconds.
pub(crate) fn quantum_ns(priority: u8) -> u64 {
    let ms = match priority {
        0..10 => 200,
        10..20 => 160,
        20..30 => 120,
        30..40 => 80,
        40..MAX => 40,
        _ => 20,
    };
    ms * 1_000_000
}

/// Priority after a quantum was used up.
pub(crate) fn expired(priority: u8) -> u8 {
    priority.min(MAX).saturating_sub(10)
}

/// Priority after a sleep.
pub(crate) fn woken(priority: u8) -> u8 {
    match priority {
        0..35 => 50 + priority / 10,
        35..40 => 54,
        40..45 => 55,
        45..48 => priority + 11,
        48..MAX => 58,
        _ => MAX,
    }
}

/// Priority of a thread that a tick of a second found waiting for a CPU.
pub(crate) fn waited(priority: u8) -> u8 {
    match priority {
        0..49 => woken(priority),
        _ => MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_match_the_table_of_solaris() {
        // Quantum, after it, after a sleep, after a second, by priority.
        for (priority, row) in [
            (0, (200, 0, 50, 50)),
            (9, (200, 0, 50, 50)),
            (29, (120, 19, 52, 52)),
            (34, (80, 24, 53, 53)),
            (35, (80, 25, 54, 54)),
            (45, (40, 35, 56, 56)),
            (46, (40, 36, 57, 57)),
            (48, (40, 38, 58, 58)),
            (49, (40, 39, 58, 59)),
            (58, (40, 48, 58, 59)),
            (59, (20, 49, 59, 59)),
        ] {
            let ours = (
                quantum_ns(priority) / 1_000_000,
                expired(priority),
                woken(priority),
                waited(priority),
            );
            assert_eq!(ours, row, "priority {priority}");
        }
    }
}
