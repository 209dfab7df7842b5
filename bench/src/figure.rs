//! Draws the figures of the book from stored rows (`bench report`).
//!
//! The figures show the medians. Two figures follow Waller and Hasselbring, 2012:
//! `probe-portions.svg` is their figure 3, from the rows of `probe.call`, and `probe-depth.svg` is
//! their figure 4, from the rows of `probe.depth`. Four figures follow Meyer, Kogtenkov, Akhi,
//! 2012, from the rows of `scoop.collect`: `scoop-trees.svg`, `scoop-ring.svg`, `scoop-links.svg`
//! and `scoop-as-object.svg` are their figures 2 to 5.

use crate::row::Row;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;

const SIZE: (u32, u32) = (720, 420);
/// Columns of figure 3: the place of the writing thread, and the name of the case.
const COLUMNS: [(&str, &str); 3] = [
    ("no other thread", "writing, synchronous"),
    ("one CPU", "writing, one CPU"),
    ("a CPU for the writers", "writing"),
];
const PORTIONS: [&str; 3] = ["I: instrumentation", "C: collecting", "W: writing"];
/// Lower bound of drawn values, because 0 has no logarithm.
const NS_MIN: f64 = 0.1;

/// Medians, by bench, subject and case.
type Rows = BTreeMap<(String, String, String), f64>;

/// The figures that these rows have the data of: file name and content.
pub(crate) fn draw_all<'a>(
    rows: impl Iterator<Item = &'a Row>,
) -> Result<Vec<(&'static str, String)>, String> {
    let key = |row: &Row| (row.bench.clone(), row.subject.clone(), row.case.clone());
    let rows: Rows = rows.map(|row| (key(row), row.median)).collect();
    let drawings: [(&str, Drawing); 6] = [
        ("probe-portions.svg", draw_portions),
        ("probe-depth.svg", draw_depth),
        ("scoop-trees.svg", |rows, text| {
            draw_collections(rows, "trees", "Trees, one a processor", text)
        }),
        ("scoop-ring.svg", |rows, text| {
            draw_collections(rows, "ring", "A ring over random processors", text)
        }),
        ("scoop-links.svg", |rows, text| {
            draw_collections(rows, "ten links", "Ten random links an object", text)
        }),
        ("scoop-as-object.svg", draw_as_object),
    ];
    let mut drawn = Vec::new();
    for (name, draw) in drawings {
        let mut text = String::new();
        if draw(&rows, &mut text).map_err(|e| format!("cannot draw {name}: {e}"))? {
            drawn.push((name, text));
        }
    }
    Ok(drawn)
}

/// Draws a figure. Returns whether the rows contain the data of the figure.
type Drawing = fn(&Rows, &mut String) -> Result<bool, Box<dyn Error>>;

/// A line of a figure: its name and points.
type Line = (String, Vec<(f64, f64)>);

/// Fills a figure and completes it.
fn draw<'a>(
    text: &'a mut String,
    size: (u32, u32),
    fill: impl FnOnce(&DrawingArea<SVGBackend<'a>, Shift>) -> Result<(), Box<dyn Error>>,
) -> Result<bool, Box<dyn Error>> {
    let root = SVGBackend::with_string(text, size).into_drawing_area();
    root.fill(&WHITE)?;
    fill(&root)?;
    root.present()?;
    Ok(true)
}

/// The smallest and the largest of some values, which include `first`.
fn ends(first: f64, values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((first, first), |(low, high), value| (low.min(value), high.max(value)))
}

/// The axes of a line chart. The x axis is logarithmic.
struct Axes<'a, Y> {
    caption: &'a str,
    x_base: f64,
    x_desc: &'a str,
    y_desc: &'a str,
    y: Y,
}

impl<Y: AsRangedCoord<Value = f64>> Axes<'_, Y>
where
    Y::CoordDescType: ValueFormatter<f64>,
{
    /// Draws named lines with points, sorted by x.
    fn draw(
        self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        lines: impl IntoIterator<Item = Line>,
    ) -> Result<(), Box<dyn Error>> {
        let lines: Vec<Line> = lines.into_iter().collect();
        let (x_min, x_max) = ends(f64::NAN, lines.iter().flat_map(|line| &line.1).map(|p| p.0));
        let mut chart = ChartBuilder::on(area);
        chart.margin(12).x_label_area_size(36).y_label_area_size(64);
        if !self.caption.is_empty() {
            chart.caption(self.caption, ("sans-serif", 18));
        }
        let x = (x_min..x_max * 1.2).log_scale().base(self.x_base);
        let mut chart = chart.build_cartesian_2d(x, self.y)?;
        let mut mesh = chart.configure_mesh();
        mesh.max_light_lines(if self.x_base == 2.0 { 10 } else { 0 });
        mesh.x_desc(self.x_desc).y_desc(self.y_desc).x_label_formatter(&|x| format!("{x:.0}"));
        mesh.draw()?;
        for (i, (name, mut line)) in lines.into_iter().enumerate() {
            line.sort_by(|a, b| a.0.total_cmp(&b.0));
            let style = Palette99::pick(i).stroke_width(2);
            chart
                .draw_series(LineSeries::new(line, style).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        draw_names(&mut chart, SeriesLabelPosition::UpperLeft)
    }
}

/// Draws the names of the series of a chart.
fn draw_names<'a, Backend, Coordinates>(
    chart: &mut ChartContext<'a, Backend, Coordinates>,
    position: SeriesLabelPosition,
) -> Result<(), Box<dyn Error>>
where
    Backend: DrawingBackend + 'a,
    Backend::ErrorType: 'static,
    Coordinates: CoordTranslate,
{
    let mut labels = chart.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.8)).border_style(BLACK);
    Ok(labels.draw()?)
}

/// Draws stacked bars with the cost of each portion.
fn draw_portions(rows: &Rows, text: &mut String) -> Result<bool, Box<dyn Error>> {
    let median =
        |case: &str| rows.get(&("probe.call".into(), "corebeat".into(), case.into())).copied();
    let (Some(off), Some(collecting)) = (median("off"), median("collecting")) else {
        return Ok(false);
    };
    let bars: Vec<_> = COLUMNS
        .iter()
        .filter_map(|(name, case)| Some((*name, [off, collecting, median(case)?])))
        .collect();
    if bars.is_empty() {
        return Ok(false);
    }
    let most = bars.iter().flat_map(|bar| bar.1).fold(1.0, f64::max);
    draw(text, SIZE, |root| {
        let mut chart = ChartBuilder::on(root)
            .caption("Cost of a probe for a call", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..bars.len() as f64, 0.0..most * 1.6)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc("ns of the calling thread")
            .draw()?;
        for (portion, name) in PORTIONS.iter().enumerate() {
            let style = Palette99::pick(portion).filled();
            let boxes = bars.iter().enumerate().map(|(column, (_, upto))| {
                let from = if portion == 0 { 0.0 } else { upto[portion - 1] };
                let left = column as f64;
                // A portion with a negative cost is within the error of measurement and has no
                // height.
                Rectangle::new([(left + 0.25, from), (left + 0.75, upto[portion].max(from))], style)
            });
            chart
                .draw_series(boxes)?
                .label(*name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], style));
        }
        for (column, (name, upto)) in bars.iter().enumerate() {
            let label = |text: String, y: f64| {
                Text::new(text, (column as f64 + 0.25, y), ("sans-serif", 13))
            };
            chart.draw_series([
                label(
                    // A negative number that rounds to 0 would otherwise keep its sign.
                    format!(
                        "{:.1} + {:.1} + {:.1} ns",
                        upto[0],
                        upto[1] - upto[0],
                        upto[2] - upto[1]
                    )
                    .replace("-0.0", "0.0"),
                    most * 1.16,
                ),
                label((*name).to_owned(), most * 1.1),
            ])?;
        }
        draw_names(&mut chart, SeriesLabelPosition::UpperRight)
    })
}

/// Draws lines over the number of calls in 500 µs. Both axes are logarithmic.
fn draw_depth(rows: &Rows, text: &mut String) -> Result<bool, Box<dyn Error>> {
    let mut lines = BTreeMap::<String, Vec<(f64, f64)>>::new();
    for ((bench, subject, case), median) in rows {
        let Some((stage, depth)) = case.split_once(", depth ").filter(|_| bench == "probe.depth")
        else {
            continue;
        };
        // Of peers, only the stage with all portions is drawn.
        if subject == "corebeat" || stage == "writing" {
            let depth: u32 = depth.parse()?;
            let line = lines.entry(format!("{subject}, {stage}")).or_default();
            line.push((depth.into(), median.max(NS_MIN)));
        }
    }
    if lines.is_empty() {
        return Ok(false);
    }
    let (_, ns_max) = ends(1.0, lines.values().flatten().map(|point| point.1));
    let axes = Axes {
        caption: "Cost of probes over the number of calls in 500 µs",
        x_base: 2.0,
        x_desc: "calls in 500 µs",
        y_desc: "ns of the calling thread",
        y: (NS_MIN..ns_max * 2.0).log_scale(),
    };
    draw(text, SIZE, |root| axes.draw(root, lines))
}

/// The collections of one kind: subject, objects, processors, ms.
fn collections<'a>(
    rows: &'a Rows,
    kind: &'a str,
) -> impl Iterator<Item = (&'a str, u32, u32, f64)> {
    rows.iter().filter(|((bench, ..), _)| bench == "scoop.collect").filter_map(
        move |((_, subject, case), median)| {
            let numbers = case.strip_prefix(kind)?.strip_prefix(", ")?;
            let (objects, processors) = numbers.split_once(" objects, ")?;
            let processors = processors.split_once(' ')?.0;
            Some((subject.as_str(), objects.parse().ok()?, processors.parse().ok()?, *median))
        },
    )
}

/// Draws lines over the number of processors (left), and over the number of objects with the
/// largest number of processors (right).
fn draw_collections(
    rows: &Rows,
    kind: &str,
    title: &str,
    text: &mut String,
) -> Result<bool, Box<dyn Error>> {
    const SUBJECTS: [(&str, &str); 2] = [("corebeat", "joint"), ("objects only", "objects only")];
    let all: Vec<_> = collections(rows, kind)
        .filter_map(|(subject, objects, processors, ms)| {
            Some((SUBJECTS.iter().find(|known| known.0 == subject)?.1, objects, processors, ms))
        })
        .collect();
    let mut by_processors = BTreeMap::<(u32, &str), Vec<(f64, f64)>>::new();
    let mut by_objects = BTreeMap::<&str, Vec<(f64, f64)>>::new();
    let most = all.iter().map(|row| row.2).max();
    for &(subject, objects, processors, ms) in &all {
        by_processors.entry((objects, subject)).or_default().push((processors.into(), ms));
        if Some(processors) == most {
            by_objects.entry(subject).or_default().push((f64::from(objects) / 1e3, ms));
        }
    }
    // A single point is not a line.
    by_processors.retain(|_, line| line.len() > 1);
    by_objects.retain(|_, line| line.len() > 1);
    if by_processors.is_empty() || by_objects.is_empty() {
        return Ok(false);
    }
    let left: Vec<Line> = by_processors
        .into_iter()
        .map(|((objects, subject), line)| {
            (format!("{subject}, {} thousand objects", objects / 1000), line)
        })
        .collect();
    let right: Vec<Line> = by_objects
        .into_iter()
        .map(|(subject, line)| {
            (format!("{subject}, {} processors", most.unwrap_or_default()), line)
        })
        .collect();
    draw(text, (2 * SIZE.0 / 3 * 2, SIZE.1), |root| {
        let halves = root.titled(title, ("sans-serif", 18))?.split_evenly((1, 2));
        for (half, (lines, x_desc)) in
            halves.iter().zip([(left, "processors"), (right, "thousand objects")])
        {
            let (y_min, y_max) = ends(f64::NAN, lines.iter().flat_map(|line| &line.1).map(|p| p.1));
            // The factor leaves room for the names.
            let y = (y_min / 2.0..y_max * 8.0).log_scale();
            let y_desc = "ms of a full collection";
            Axes { caption: "", x_base: 10.0, x_desc, y_desc, y }.draw(half, lines)?;
        }
        Ok(())
    })
}

/// Draws the cost of a reference from each object to its processor, over the number of objects.
fn draw_as_object(rows: &Rows, text: &mut String) -> Result<bool, Box<dyn Error>> {
    const KINDS: [&str; 3] = ["trees", "ring", "ten links"];
    let mut lines = Vec::new();
    for kind in KINDS {
        let most = collections(rows, kind).map(|row| row.2).max();
        let of = |subject: &str| -> BTreeMap<u32, f64> {
            let rows = collections(rows, kind);
            rows.filter(|row| row.0 == subject && Some(row.2) == most)
                .map(|row| (row.1, row.3))
                .collect()
        };
        let (joint, as_object) = (of("corebeat"), of("processor as object"));
        let more = |(objects, ms): (&u32, &f64)| {
            Some((f64::from(*objects) / 1e3, (as_object.get(objects)? / ms - 1.0) * 100.0))
        };
        let line: Vec<_> = joint.iter().filter_map(more).collect();
        if line.len() > 1 {
            lines.push((format!("{kind}, {} processors", most.unwrap_or_default()), line));
        }
    }
    if lines.is_empty() {
        return Ok(false);
    }
    let (low, high) = ends(0.0, lines.iter().flat_map(|line| &line.1).map(|point| point.1));
    let axes = Axes {
        caption: "Cost of references from objects to their processor",
        x_base: 10.0,
        x_desc: "thousand objects",
        y_desc: "% more than the joint collection",
        y: low - 5.0..high * 1.4 + 5.0,
    };
    draw(text, SIZE, |root| axes.draw(root, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(rows: &mut Rows, bench: &str, subject: &str, case: &str, median: f64) {
        rows.insert((bench.into(), subject.into(), case.into()), median);
    }

    #[test]
    fn figures_are_drawn_from_rows() {
        let mut rows = Rows::new();
        let cases =
            [("off", 0.2), ("collecting", 25.0), ("writing", 26.0), ("writing, synchronous", 40.0)];
        cases
            .iter()
            .for_each(|(case, median)| add(&mut rows, "probe.call", "corebeat", case, *median));
        for subject in ["corebeat", "tracing"] {
            add(&mut rows, "probe.depth", subject, "writing, depth 2", 60.0);
            add(&mut rows, "probe.depth", subject, "writing, depth 64", 2000.0);
        }
        let (mut portions, mut depth) = (String::new(), String::new());
        assert!(
            draw_portions(&rows, &mut portions).unwrap() && draw_depth(&rows, &mut depth).unwrap()
        );
        assert!(
            portions.contains("0.2 + 24.8 + 1.0 ns") && portions.contains("</svg>"),
            "{portions}"
        );
        assert!(depth.contains("tracing, writing") && depth.contains("</svg>"), "{depth}");
    }

    #[test]
    fn collections_are_drawn_over_processors_and_objects() {
        let mut rows = Rows::new();
        for (size, ms) in [
            ("100000 objects, 1 processor", 1.0),
            ("100000 objects, 100 processors", 1.5),
            ("1000000 objects, 100 processors", 12.0),
        ] {
            for (subject, factor) in [
                ("corebeat", 1.0),
                ("objects only", 1.01),
                ("processor as object", 1.1),
                ("go", 2.0),
            ] {
                add(&mut rows, "scoop.collect", subject, &format!("trees, {size}"), ms * factor);
            }
        }
        let (mut trees, mut as_object, mut ring) = (String::new(), String::new(), String::new());
        assert!(draw_collections(&rows, "trees", "Trees", &mut trees).unwrap());
        assert!(draw_as_object(&rows, &mut as_object).unwrap());
        assert!(
            trees.contains("objects only, 100 thousand objects")
                && trees.contains("joint, 100 processors"),
            "{trees}"
        );
        assert!(
            as_object.contains("trees, 100 processors") && !trees.contains("1000 thousand"),
            "{as_object}"
        );
        // Trees with mostly dead objects are another kind.
        assert!(!draw_collections(&rows, "ring", "Ring", &mut ring).unwrap());
    }

    #[test]
    fn other_rows_draw_no_figure() {
        let row = Row {
            bench: "stm.bank".into(),
            case: "off".into(),
            subject: "corebeat".into(),
            unit: "ns".into(),
            better: crate::row::Better::Lower,
            median: 1.0,
            min: 1.0,
            max: 1.0,
            runs: 5,
            cut_runs: 0,
            line_ns: None,
        };
        assert!(draw_all(std::iter::once(&row)).unwrap().is_empty());
    }
}
