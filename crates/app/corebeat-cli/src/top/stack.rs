//! Time shares as one bar of several parts: a glyph for each part, so that it reads without colour as well.

use corebeat_machine::TimeShares;
use ratatui::style::Color;

/// Where time went, or how far it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    User,
    Spin,
    System,
    Lock,
    Latency,
    Sleep,
    /// Lock or sleep: which is not known.
    Blocked,
    Unknown,
}

impl Part {
    /// In the order of a bar: what needs a CPU first.
    pub(crate) const ALL: [Part; 8] = [
        Part::User,
        Part::Spin,
        Part::System,
        Part::Lock,
        Part::Latency,
        Part::Sleep,
        Part::Blocked,
        Part::Unknown,
    ];

    pub(crate) fn glyph(self) -> char {
        match self {
            Part::User => '█',
            Part::Spin => 'x',
            Part::System => '▒',
            Part::Lock => '#',
            Part::Latency => '-',
            Part::Sleep => '·',
            Part::Blocked => '=',
            Part::Unknown => '?',
        }
    }

    pub(crate) fn color(self) -> Color {
        match self {
            Part::User => Color::Green,
            Part::Spin => Color::Magenta,
            Part::System => Color::Blue,
            Part::Lock => Color::Red,
            Part::Latency => Color::Yellow,
            Part::Sleep | Part::Unknown => Color::DarkGray,
            Part::Blocked => Color::Cyan,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::User => "user",
            Part::Spin => "spinning",
            Part::System => "system",
            Part::Lock => "lock",
            Part::Latency => "latency",
            Part::Sleep => "sleep",
            Part::Blocked => "lock or sleep",
            Part::Unknown => "unknown",
        }
    }

    /// What it means, in a few words.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Part::User => "running in user mode",
            Part::Spin => "running, but only waiting in a loop",
            Part::System => "running in the kernel",
            Part::Lock => "asleep until a lock or condition is free",
            Part::Latency => "ready, waiting for a CPU",
            Part::Sleep => "asleep for anything else: I/O, timers, children",
            Part::Blocked => "asleep; the kernel does not say for what",
            Part::Unknown => "the kernel does not say",
        }
    }
}

/// How many of `width` cells each part gets, in the order of [`Part::ALL`]. The cells are all given out; a part that
/// comes off worst by rounding gets the next.
pub(crate) fn cells(shares: &TimeShares, width: usize) -> [usize; 8] {
    let exact = parts(shares).map(|share| share * width as f64);
    let mut cells = exact.map(|e| e as usize);
    let mut by_rest: Vec<usize> = (0..cells.len()).collect();
    by_rest.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let left = width.saturating_sub(cells.iter().sum());
    by_rest.iter().take(left).for_each(|&part| cells[part] += 1);
    cells
}

/// The parts' shares, in the order of [`Part::ALL`]; they add up to 1.
fn parts(shares: &TimeShares) -> [f64; 8] {
    let known = |share: Option<f64>| share.filter(|s| s.is_finite()).unwrap_or(0.0).clamp(0.0, 1.0);
    let user = known(shares.user);
    let spin = known(shares.spin).min(user);
    let (lock, sleep, blocked) = match (shares.lock, shares.sleep) {
        (Some(lock), Some(sleep)) => (known(Some(lock)), known(Some(sleep)), 0.0),
        _ => (0.0, 0.0, known(shares.blocked())),
    };
    let mut parts =
        [user - spin, spin, known(shares.system), lock, known(shares.latency), sleep, blocked, 0.0];
    let sum: f64 = parts.iter().sum();
    match sum > 1.0 {
        true => parts.iter_mut().for_each(|p| *p /= sum),
        // Rounding is no news.
        false => parts[7] = if 1.0 - sum > 1e-6 { 1.0 - sum } else { 0.0 },
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(shares: &TimeShares, width: usize) -> String {
        let parts = Part::ALL.iter().zip(cells(shares, width));
        parts.flat_map(|(part, n)| std::iter::repeat_n(part.glyph(), n)).collect()
    }

    #[test]
    fn stack_shows_every_part_by_its_glyph() {
        let all = TimeShares {
            user: Some(0.4),
            system: Some(0.1),
            lock: Some(0.2),
            latency: Some(0.1),
            sleep: Some(0.2),
            spin: Some(0.2),
        };
        assert_eq!(text(&all, 10), "██xx▒##-··");
        assert_eq!(text(&TimeShares { lock: None, sleep: None, ..all }, 10), "██xx▒-====");
        assert_eq!(text(&TimeShares { latency: None, lock: None, sleep: None, ..all }, 10), "██xx▒?????");
        assert_eq!(text(&TimeShares::default(), 3), "???");
        assert_eq!(text(&all, 0), "");
    }

    proptest! {
        #[test]
        fn stack_is_as_wide_as_asked(
            shares in proptest::array::uniform6(proptest::option::of(-1.0f64..3.0)),
            width in 0usize..500,
        ) {
            let [user, system, lock, latency, sleep, spin] = shares;
            let shares = TimeShares { user, system, lock, latency, sleep, spin };
            prop_assert_eq!(cells(&shares, width).iter().sum::<usize>(), width);
        }
    }
}
