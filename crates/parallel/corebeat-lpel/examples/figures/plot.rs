//! A figure: lines over one parameter, as SVG.

use plotters::prelude::*;
use std::path::Path;

/// A line: a name, and the time in seconds for each size.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(usize, f64)>,
}

/// Draws `series` to a file.
pub(crate) fn draw(
    path: &Path,
    title: &str,
    size: &str,
    series: &[Series],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || series.iter().flat_map(|s| &s.points);
    let size_max = points().map(|p| p.0).max().unwrap_or(1);
    let time_max_s = points().map(|p| p.1).fold(1e-6, f64::max);
    let root = SVGBackend::new(path, (720, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(0..size_max, 0.0..time_max_s * 1.05)?;
    chart.configure_mesh().x_desc(size).y_desc("execution time, s").draw()?;
    for (i, s) in series.iter().enumerate() {
        let style = Palette99::pick(i).stroke_width(2);
        chart
            .draw_series(LineSeries::new(s.points.iter().copied(), style).point_size(3))?
            .label(&s.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}
