//! Time shares as one bar of several parts. Each part has its own glyph, so that the bar is
//! readable without colour.

use corebeat_machine::TimeShares;
use ratatui::style::Color;

/// A part of a thread's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) glyph: char,
    pub(crate) color: Color,
    pub(crate) name: &'static str,
    /// Meaning of the part, for the help.
    pub(crate) meaning: &'static str,
}

/// All parts in the order of a bar: time on a CPU first, unknown causes last.
pub(crate) const PARTS: [Part; 9] = [
    part('█', Color::Green, "user", "running in user mode"),
    part('x', Color::Magenta, "spinning", "running, but waiting in a loop"),
    part('▒', Color::Blue, "system", "running in the kernel"),
    part('#', Color::Red, "lock", "asleep until another thread releases a lock"),
    part('~', Color::LightRed, "park", "asleep until another thread wakes it, or gives it work"),
    part('-', Color::Yellow, "wait", "ready, waiting for a CPU"),
    part('·', Color::DarkGray, "sleep", "asleep for another cause: I/O, timers, children"),
    part('=', Color::Cyan, "lock, park or sleep", "asleep; the cause is unknown"),
    part('?', Color::DarkGray, "unknown", "the use of the time is unknown"),
];

/// Number of parts whose cause is known.
pub(crate) const KNOWN: usize = 7;

const fn part(glyph: char, color: Color, name: &'static str, meaning: &'static str) -> Part {
    Part { glyph, color, name, meaning }
}

/// Number of cells of each part, in the order of [`PARTS`]; their sum is `width`. The parts
/// that lose most by rounding down get the remaining cells.
pub(crate) fn cells(shares: &TimeShares, width: usize) -> [usize; 9] {
    let exact = parts(shares).map(|share| share * width as f64);
    let mut cells = exact.map(|e| e as usize);
    let mut by_rest: Vec<usize> = (0..cells.len()).collect();
    by_rest.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let left = width.saturating_sub(cells.iter().sum());
    by_rest.iter().take(left).for_each(|&part| cells[part] += 1);
    cells
}

/// Shares of the parts, in the order of [`PARTS`]; their sum is 1.
fn parts(shares: &TimeShares) -> [f64; 9] {
    let known = |share: Option<f64>| share.filter(|s| s.is_finite()).unwrap_or(0.0).clamp(0.0, 1.0);
    let user = known(shares.user);
    let spin = known(shares.spin).min(user);
    let (system, wait) = (known(shares.system), known(shares.wait));
    let (lock, park, sleep) = (known(shares.lock), known(shares.park), known(shares.sleep));
    let (lock, park, sleep, blocked) = match (shares.lock, shares.park, shares.sleep) {
        (Some(_), Some(_), Some(_)) => (lock, park, sleep, 0.0),
        (.., Some(_)) => (0.0, 0.0, sleep, known(shares.lock_or_park())),
        _ => (0.0, 0.0, 0.0, known(shares.blocked())),
    };
    let mut parts = [user - spin, spin, system, lock, park, wait, sleep, blocked, 0.0];
    let sum: f64 = parts.iter().sum();
    match sum > 1.0 {
        true => parts.iter_mut().for_each(|p| *p /= sum),
        // A rounding error is not unknown time.
        false => parts[8] = if 1.0 - sum > 1e-6 { 1.0 - sum } else { 0.0 },
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(shares: &TimeShares, width: usize) -> String {
        let parts = PARTS.iter().zip(cells(shares, width));
        parts.flat_map(|(part, n)| std::iter::repeat_n(part.glyph, n)).collect()
    }

    #[test]
    fn stack_shows_every_part_by_its_glyph() {
        let all = TimeShares {
            user: Some(0.4),
            system: Some(0.1),
            lock: Some(0.1),
            park: Some(0.1),
            wait: Some(0.1),
            sleep: Some(0.2),
            spin: Some(0.2),
        };
        assert_eq!(text(&all, 10), "██xx▒#~-··");
        let futex = TimeShares { lock: None, park: None, ..all };
        assert_eq!(text(&futex, 10), "██xx▒-··==");
        let asleep = TimeShares { sleep: None, ..futex };
        assert_eq!(text(&asleep, 10), "██xx▒-====");
        assert_eq!(text(&TimeShares { wait: None, ..asleep }, 10), "██xx▒?????");
        assert_eq!(text(&TimeShares::default(), 3), "???");
        assert_eq!(text(&all, 0), "");
    }

    proptest! {
        #[test]
        fn stack_has_the_requested_width(
            shares in proptest::array::uniform7(proptest::option::of(-1.0f64..3.0)),
            width in 0usize..500,
        ) {
            let [user, system, lock, park, wait, sleep, spin] = shares;
            let shares = TimeShares { user, system, lock, park, wait, sleep, spin };
            prop_assert_eq!(cells(&shares, width).iter().sum::<usize>(), width);
        }
    }
}
