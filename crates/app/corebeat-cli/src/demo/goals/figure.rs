//! Figures 3 and 4 of the paper.

use super::{HALF_BAND, Middles, Run};
use corebeat_command::{Failure, Output};
use plotters::prelude::*;
use std::path::PathBuf;

/// Largest drawn normalised rate.
const SHOWN_MAX: f64 = 2.5;

/// Folder of the figures.
pub(super) struct Figures {
    folder: PathBuf,
}

impl Figures {
    pub(super) fn new(folder: PathBuf) -> Result<Figures, Failure> {
        std::fs::create_dir_all(&folder).map_err(|e| {
            Failure::usage(format!(
                "cannot create the folder {}: {e}; name another folder",
                folder.display()
            ))
        })?;
        Ok(Figures { folder })
    }

    /// Rates over time relative to the middles of their goals: without steering on the left, with
    /// steering on the right (figure 4).
    pub(super) fn rates(
        &self,
        number: usize,
        programs: [&str; 2],
        runs: [&Run; 2],
        middles: Middles,
    ) -> Result<(), Failure> {
        let mut text = String::new();
        rates(&mut text, number, programs, runs, middles).map_err(failed)?;
        self.write(&format!("goals-mix-{number}.svg"), &text)
    }

    /// Errors relative to those without steering (figure 3).
    pub(super) fn errors(&self, ratios: &[(usize, [&str; 2], [f64; 2])]) -> Result<(), Failure> {
        let mut text = String::new();
        errors(&mut text, ratios).map_err(failed)?;
        self.write("goals-errors.svg", &text)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        Output::create(&self.folder.join(name))?.write(text)
    }
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn failed(e: Box<dyn std::error::Error>) -> Failure {
    Failure::internal(format!("cannot draw the figure: {e}"))
}

fn rates(
    text: &mut String,
    number: usize,
    programs: [&str; 2],
    runs: [&Run; 2],
    middles: Middles,
) -> Drawn {
    let root = SVGBackend::with_string(text, (960, 380)).into_drawing_area();
    root.fill(&WHITE)?;
    let last_s =
        runs.iter().flat_map(|run| run.iter()).map(|track| track.finished_s).fold(1.0, f64::max);
    for ((area, run), title) in
        root.split_evenly((1, 2)).iter().zip(runs).zip(["unsteered", "steered"])
    {
        let mut chart = ChartBuilder::on(area)
            .caption(format!("mix {number}, {title}"), ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..last_s, 0.0..SHOWN_MAX)?;
        chart.configure_mesh().x_desc("seconds").y_desc("rate relative to its goal").draw()?;
        let band = Rectangle::new(
            [(0.0, 1.0 - HALF_BAND), (last_s, 1.0 + HALF_BAND)],
            BLACK.mix(0.15).filled(),
        );
        chart.draw_series([band])?;
        for (i, name) in programs.iter().enumerate() {
            let style = Palette99::pick(i).stroke_width(2);
            let points =
                run[i].rates.iter().map(|&(at_s, rate)| (at_s, (rate / middles[i]).min(SHOWN_MAX)));
            chart
                .draw_series(LineSeries::new(points, style))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }
    root.present()?;
    Ok(())
}

fn errors(text: &mut String, ratios: &[(usize, [&str; 2], [f64; 2])]) -> Drawn {
    let root = SVGBackend::with_string(text, (720, 380)).into_drawing_area();
    root.fill(&WHITE)?;
    let bars: Vec<(String, f64, usize)> = ratios
        .iter()
        .flat_map(|(number, programs, ratios)| {
            (0..2).map(move |i| (format!("{number}: {}", programs[i]), ratios[i], i))
        })
        .collect();
    let count = bars.len().max(1);
    let mut chart = ChartBuilder::on(&root)
        .caption("error of the rates, relative to that without steering", ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..count as f64, 0.0..1.2)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * count)
        .x_label_formatter(&|x| {
            // Labels are in the middle of their bars.
            let is_middle = (x.fract() - 0.5).abs() < 1e-6;
            bars.get(*x as usize).filter(|_| is_middle).map_or(String::new(), |bar| bar.0.clone())
        })
        .draw()?;
    chart.draw_series(bars.iter().enumerate().map(|(at, (_, ratio, i))| {
        let at = at as f64;
        let height = if ratio.is_finite() { ratio.min(1.2) } else { 0.0 };
        Rectangle::new([(at + 0.2, 0.0), (at + 0.8, height)], Palette99::pick(*i).filled())
    }))?;
    root.present()?;
    drop(chart);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Track;
    use super::*;

    #[test]
    fn figures_with_infinite_and_missing_values_are_drawn() {
        let rates_with_gaps = vec![(0.1, 5.0), (0.2, f64::INFINITY), (0.3, f64::NAN)];
        let track = Track { rates: rates_with_gaps, cpu_s: None, finished_s: 0.4 };
        let run = [track, Track::default()];
        let mut text = String::new();
        rates(&mut text, 1, ["a", "b"], [&run, &run], [4.0, 1.0]).unwrap();
        assert!(text.contains("</svg>"));
        for ratios in [vec![], vec![(1, ["a", "b"], [0.1, f64::NAN])]] {
            let mut text = String::new();
            errors(&mut text, &ratios).unwrap();
            assert!(text.contains("</svg>"));
        }
    }
}
