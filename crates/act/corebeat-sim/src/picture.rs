//! Drawing of a timeline: CPUs over time, with a colour for each thread.

use crate::{Span, Timeline};
use std::fmt::Write;

/// Size of the drawing and of its margins, in pixels.
const WIDTH: usize = 1_200;
const LEFT: usize = 60;
const TOP: usize = 20;
/// Number of marks on the time axis.
const MARKS: usize = 8;
/// Maximum number of programs in the legend, and of characters of a name.
const LEGEND_MAX: usize = 12;
const NAME_MAX: usize = 16;

impl Timeline {
    /// Returns the drawing as SVG. Of several threads within a pixel, the drawing shows the one
    /// that ran longest.
    pub fn svg(&self) -> String {
        let high = (640 / self.cpus.len().max(1)).clamp(3, 16);
        let (rows, end_ns) = (self.cpus.len() * high, self.end_ns.max(1));
        let height = TOP + rows + 60;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{height}\" \
             viewBox=\"0 0 {w} {height}\" font-family=\"sans-serif\" font-size=\"11\" \
             shape-rendering=\"crispEdges\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{rows}\" fill=\"#eee\"/>\n",
            w = LEFT + WIDTH + 20,
        );
        let gap = usize::from(high > 5);
        for (c, spans) in self.cpus.iter().enumerate() {
            let y = TOP + c * high;
            if c.is_multiple_of(self.cpus.len().div_ceil(16)) {
                let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">CPU {c}</text>", y + high.max(9));
            }
            let columns = columns(spans, end_ns);
            let mut x = 0;
            while x < WIDTH {
                let same = columns[x..].iter().take_while(|t| **t == columns[x]).count();
                if let Some(thread) = columns[x] {
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{}\" y=\"{y}\" width=\"{same}\" height=\"{}\" fill=\"{}\"/>",
                        LEFT + x,
                        high - gap,
                        self.colour(thread),
                    );
                }
                x += same;
            }
        }
        let at = |ns: u64| LEFT as f64 + ns as f64 / end_ns as f64 * WIDTH as f64;
        for (ns, program, phase) in &self.phases {
            let (x, y) = (at(*ns), TOP + rows);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {TOP}V{y}\" stroke=\"black\" stroke-dasharray=\"3 3\"/>\
                 <text x=\"{x:.1}\" y=\"14\">{}: {}</text>",
                short(&self.programs[*program]),
                short(phase),
            );
        }
        for mark in 0..=MARKS {
            let ns = end_ns / MARKS as u64 * mark as u64;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{} ms</text>",
                at(ns),
                TOP + rows + 16,
                (ns as f64 / 1e4).round() / 100.0,
            );
        }
        for (p, name) in self.programs.iter().enumerate().take(LEGEND_MAX) {
            let (x, y) = (LEFT + p * 130, TOP + rows + 30);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                hue(p, 50),
                x + 16,
                y + 10,
                short(name),
            );
        }
        svg + "</svg>\n"
    }

    /// Returns a thread's colour: the hue of its program, with a lightness of its own.
    fn colour(&self, thread: usize) -> String {
        let (program, _) = self.threads[thread];
        hue(program, 32 + (thread * 13) % 44)
    }
}

fn hue(program: usize, light: usize) -> String {
    // The golden angle: consecutive programs have distant hues.
    format!("hsl({:.0},65%,{light}%)", (program as f64 * 137.5 + 210.0) % 360.0)
}

/// Returns the thread that ran longest in each pixel, if the CPU was busy for a third of it.
fn columns(spans: &[Span], end_ns: u64) -> Vec<Option<usize>> {
    let edge = |x: usize| (u128::from(end_ns) * x as u128 / WIDTH as u128) as u64;
    let mut first = 0;
    let column = |x: usize| {
        let (from, to) = (edge(x), edge(x + 1));
        while spans.get(first).is_some_and(|s| s.to_ns <= from) {
            first += 1;
        }
        let within = spans[first..].iter().take_while(|s| s.from_ns < to);
        let mut ran: Vec<(usize, u64)> = Vec::new();
        for span in within {
            let ns = span.to_ns.min(to) - span.from_ns.max(from);
            match ran.iter_mut().find(|r| r.0 == span.thread) {
                Some(known) => known.1 += ns,
                None => ran.push((span.thread, ns)),
            }
        }
        let busy: u64 = ran.iter().map(|r| r.1).sum();
        let longest =
            ran.into_iter().max_by_key(|&(thread, ns)| (ns, std::cmp::Reverse(thread)))?;
        (busy * 3 >= to - from).then_some(longest.0)
    };
    (0..WIDTH).map(column).collect()
}

/// Returns a shortened name as XML text.
fn short(name: &str) -> String {
    let cut: String = name.chars().take(NAME_MAX).collect();
    quick_xml::escape::escape(cut).into_owned()
}

#[cfg(test)]
mod tests {
    use crate::timeline::sample::timeline;

    #[test]
    fn picture_shows_which_thread_ran_where() {
        let svg = timeline().svg();
        assert!(svg.ends_with("</svg>\n") && svg.contains("a&lt;b") && svg.contains("c: solve"));
        // The first thread: six tenths of the first CPU, the last two of the second.
        let first = timeline().colour(0);
        for (x, width) in [(60, 720), (1020, 240)] {
            let found = svg.lines().any(|l| {
                l.contains(&format!("x=\"{x}\""))
                    && l.contains(&format!("width=\"{width}\""))
                    && l.contains(&first)
            });
            assert!(found, "{x} {width} {first}");
        }
    }
}
