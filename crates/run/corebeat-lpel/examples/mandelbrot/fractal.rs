//! What the boxes compute: an image of the Mandelbrot set, in steps.

/// Points further away never come back. More than the 2 that would do makes the shades smooth.
const FAR_SQUARED: f64 = 1e4;

/// A part of the complex plane, and how closely to look at it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) iterations_max: u32,
}

/// Some rows of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strip {
    pub(crate) view: View,
    /// Which, from the top.
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

/// Where a strip is in the plane, in steps from the middle of the image.
pub(crate) struct Corner {
    pub(crate) strip: Strip,
    left: f64,
    top: f64,
    step: f64,
}

/// What the image has in its middle.
const MIDDLE: Point = (-0.7, 0.0);

type Point = (f64, f64);

/// A strip's points.
pub(crate) struct Plane {
    iterations_max: u32,
    points: Vec<Point>,
}

/// ... and the values at which they escape; those that do not have none.
pub(crate) struct Escapes {
    plane: Plane,
    values: Vec<Option<f64>>,
}

/// ... and after how many iterations.
pub(crate) struct Times {
    escapes: Escapes,
    times: Vec<u32>,
}

/// A strip's shades of grey.
pub(crate) type Shades = Vec<u8>;

impl View {
    /// All rows, in so many strips of about the same size.
    pub(crate) fn strips(self, strips: usize) -> impl Iterator<Item = Strip> {
        let row = move |strip| strip * self.height / strips;
        (0..strips).map(move |i| Strip { view: self, first_row: row(i), rows: row(i + 1) - row(i) })
    }
}

/// Where a strip begins. In whole and half steps, so that points do not depend on how the image is cut.
pub(crate) fn corner(strip: Strip) -> Corner {
    let (width, height) = (strip.view.width as f64, strip.view.height as f64);
    let step = f64::max(3.2 / width, 2.4 / height);
    Corner { strip, left: -width / 2.0, top: strip.first_row as f64 - height / 2.0, step }
}

/// All points of a strip.
pub(crate) fn plane(corner: &Corner) -> Plane {
    let Corner { strip: Strip { view, rows, .. }, left, top, step } = *corner;
    let point =
        move |row, column| (MIDDLE.0 + (left + column as f64) * step, MIDDLE.1 + (top + row as f64) * step);
    let points = (0..rows).flat_map(|row| (0..view.width).map(move |column| point(row, column)));
    Plane { iterations_max: view.iterations_max, points: points.collect() }
}

/// Follows a point: after how many iterations it is far away, and how far, squared.
fn escape((re, im): Point, iterations_max: u32) -> Option<(u32, f64)> {
    let (mut x, mut y) = (0.0, 0.0);
    for iteration in 0..iterations_max {
        let (x2, y2) = (x * x, y * y);
        if x2 + y2 > FAR_SQUARED {
            return Some((iteration, x2 + y2));
        }
        (x, y) = (x2 - y2 + re, 2.0 * x * y + im);
    }
    None
}

/// The values at which points escape.
pub(crate) fn escapes(plane: Plane) -> Escapes {
    let value = |point: &Point| escape(*point, plane.iterations_max).map(|(_, value)| value);
    Escapes { values: plane.points.iter().map(value).collect(), plane }
}

/// The times at which points escape: a second box of the same weight, as in the study.
pub(crate) fn times(escapes: Escapes) -> Times {
    let Plane { iterations_max, points } = &escapes.plane;
    let time = |point: &Point| escape(*point, *iterations_max).map_or(*iterations_max, |(time, _)| time);
    Times { times: points.iter().map(time).collect(), escapes }
}

/// Normalised iteration counts, as shades: smooth where plain counts make bands.
pub(crate) fn shades(times: &Times) -> Shades {
    let shade = |(time, value): (&u32, &Option<f64>)| match value {
        None => 0,
        Some(value) => {
            let count = f64::from(*time) + 1.0 - (value.ln() / 2.0).log2();
            (255.0 * (1.0 - (-count / 24.0).exp())).clamp(1.0, 255.0) as u8
        }
    };
    times.times.iter().zip(&times.escapes.values).map(shade).collect()
}

/// The image, computed by nobody but the caller.
pub(crate) fn image(view: View) -> Shades {
    view.strips(1).flat_map(|strip| shades(&times(escapes(plane(&corner(strip)))))).collect()
}
