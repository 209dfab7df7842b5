//! The plot of a search over the thread counts, for a terminal and as SVG.

use corebeat_command::{Failure, Output};
use corebeat_host::bar;
use plotters::prelude::*;
use std::fmt::Write as _;

/// One line of a plot: a name, and a value from 0 to 1 for each thread count.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(u32, f64)>,
}

/// Draws bars, one block for each series.
pub(crate) fn terminal(series: &[Series]) -> String {
    let mut text = String::new();
    for s in series.iter().filter(|s| !s.points.is_empty()) {
        let _ = writeln!(text, "  {}", s.name);
        for (threads, value) in &s.points {
            let _ = writeln!(text, "  {threads:>5} {:>6.1}% {}", value * 100.0, bar(*value, 40));
        }
    }
    text
}

/// Draws lines over the thread count as SVG.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn svg(file: Output, title: &str, series: &[Series]) -> Result<(), Failure> {
    let mut text = String::new();
    draw(&mut text, title, series)
        .map_err(|e| Failure::internal(format!("cannot draw the plot: {e}")))?;
    file.write(&text)
}

fn draw(
    text: &mut String,
    title: &str,
    series: &[Series],
) -> Result<(), Box<dyn std::error::Error>> {
    let counts = || series.iter().flat_map(|s| &s.points).map(|p| p.0);
    let (min, max) = (counts().min().unwrap_or(1), counts().max().unwrap_or(1));
    let root = SVGBackend::with_string(text, (720, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(min..max.max(min + 1), 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc("threads")
        .x_labels((max - min + 1).min(16) as usize)
        .y_label_formatter(&|y| format!("{:.0}%", y * 100.0))
        .draw()?;
    for (i, s) in series.iter().enumerate() {
        let style = Palette99::pick(i).stroke_width(2);
        let points = s.points.iter().map(|&(x, y)| (x, y.clamp(0.0, 1.0)));
        chart
            .draw_series(LineSeries::new(points, style).point_size(3))?
            .label(s.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    root.present()?;
    drop(chart);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_of_nothing_and_of_one_point_are_drawn() {
        let one = [Series { name: "CPU utilisation", points: vec![(1, 0.5)] }];
        for series in [&one[..], &[]] {
            let mut text = String::new();
            draw(&mut text, "title", series).unwrap();
            assert!(text.contains("</svg>"));
        }
        assert!(terminal(&one).contains("50.0%"));
    }
}
