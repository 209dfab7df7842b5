//! `corebeat beat watch`: rates and goals, continuously.

use super::{band, connect, groups, number};
use corebeat_command::{Done, Failure, print};
use corebeat_wire::host;
use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

/// Width of a bar in characters.
const BAR: usize = 40;
/// Permitted periods, in milliseconds.
const PERIOD_MS: std::ops::RangeInclusive<u64> = 50..=60_000;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Show only this group
    group: Option<u32>,
    /// Refresh every MS milliseconds
    #[arg(
        long, value_name = "MS", default_value_t = 500,
        value_parser = clap::value_parser!(u64).range(PERIOD_MS)
    )]
    period: u64,
}

/// Runs until a signal ends the process.
pub(crate) fn main(options: Options) -> Done {
    let mut connection = connect()?;
    let terminal = std::io::stdout().is_terminal();
    let mut lines = 0;
    loop {
        let mut seen = groups(&mut connection)?;
        seen.retain(|group| options.group.is_none_or(|number| group.group == number));
        if let (true, Some(number)) = (seen.is_empty() && lines == 0, options.group) {
            return Err(Failure::internal(format!(
                "there is no group {number}; see 'corebeat beat list'"
            )));
        }
        if terminal && lines > 0 {
            // Replaces the previous lines.
            print(format_args!("\x1b[{lines}A\x1b[J"))?;
        }
        let rows: Vec<String> = seen.iter().map(row).collect();
        lines = rows.len().max(1);
        print(if rows.is_empty() { "no groups\n".into() } else { rows.concat() })?;
        thread::sleep(Duration::from_millis(options.period));
    }
}

fn row(g: &host::Group) -> String {
    format!(
        "{:>6}/{:<5} {} {:>9}/s, goal {}\n",
        g.owner,
        g.group,
        bar(g.window_rate, g.goal.rate_min, g.goal.rate_max),
        number(g.window_rate),
        band(&g.goal)
    )
}

/// A rate as a mark, and the goal as a band: `----[==o==]----`. The upper end of the band is in the
/// middle of the bar.
fn bar(rate: f64, min: Option<f64>, max: Option<f64>) -> String {
    let full = 2.0 * max.or(min).unwrap_or(rate).max(f64::MIN_POSITIVE);
    let at = |rate: f64| ((rate / full).clamp(0.0, 1.0) * (BAR - 1) as f64).round() as usize;
    let (low, high) = (min.map(at), max.map(at));
    let within = |i: usize| low.is_none_or(|low| i >= low) && high.is_none_or(|high| i <= high);
    let goal = min.or(max).is_some();
    let column = |i: usize| match i {
        _ if i == at(rate) => 'o',
        _ if Some(i) == low => '[',
        _ if Some(i) == high => ']',
        _ if goal && within(i) => '=',
        _ => '-',
    };
    (0..BAR).map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_the_rate_and_the_band() {
        let (min, max) = (Some(20.0), Some(30.0));
        assert_eq!(bar(25.0, min, max), "-------------[==o===]-------------------");
        assert_eq!(bar(0.0, min, max), "o------------[======]-------------------");
        assert_eq!(bar(1e9, min, max), "-------------[======]------------------o");
        assert_eq!(bar(5.0, None, Some(30.0)), "===o================]-------------------");
        assert_eq!(bar(30.0, Some(20.0), None), "--------------------[========o==========");
    }

    #[test]
    fn bar_of_anything_has_its_length() {
        for rate in [0.0, f64::MAX, f64::INFINITY, f64::NAN, 1e-300] {
            for bound in [None, Some(0.0), Some(f64::MAX), Some(1e-300), Some(f64::NAN)] {
                assert_eq!(bar(rate, bound, bound).len(), BAR);
                assert_eq!(bar(rate, None, bound).len(), BAR);
            }
        }
    }
}
