//! Functions of the boxes: an image of the Mandelbrot set in several steps. The examples of LPEL
//! and S-Net and their benchmark share this file.

/// Squared distance from the origin beyond which a point has escaped. The distance is larger than
/// the necessary 2, which makes the shades smooth.
const FAR_SQUARED: f64 = 1e4;

/// Centre of the image.
const MIDDLE: Point = (-0.7, 0.0);

type Point = (f64, f64);

/// Size and precision of an image.
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
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

/// Position of a strip in the complex plane, in steps from the centre of the image.
pub(crate) struct Corner {
    pub(crate) strip: Strip,
    left: f64,
    top: f64,
    step: f64,
}

/// Points of a strip.
pub(crate) struct Plane {
    iterations_max: u32,
    points: Vec<Point>,
}

/// Shades of grey of a strip.
pub(crate) type Shades = Vec<u8>;

impl View {
    /// Divides all rows into strips of about the same size.
    pub(crate) fn strips(self, strips: usize) -> impl Iterator<Item = Strip> {
        let row = move |strip| strip * self.height / strips;
        (0..strips).map(move |i| Strip { view: self, first_row: row(i), rows: row(i + 1) - row(i) })
    }
}

/// Returns the position of a strip. Steps are whole or half, so that points do not depend on the
/// division into strips.
pub(crate) fn corner(strip: Strip) -> Corner {
    let (width, height) = (strip.view.width as f64, strip.view.height as f64);
    let step = f64::max(3.2 / width, 2.4 / height);
    Corner { strip, left: -width / 2.0, top: strip.first_row as f64 - height / 2.0, step }
}

/// Returns all points of a strip.
pub(crate) fn plane(corner: &Corner) -> Plane {
    let Corner { strip: Strip { view, rows, .. }, left, top, step } = *corner;
    let point = move |row, column| {
        (MIDDLE.0 + (left + column as f64) * step, MIDDLE.1 + (top + row as f64) * step)
    };
    let points = (0..rows).flat_map(|row| (0..view.width).map(move |column| point(row, column)));
    Plane { iterations_max: view.iterations_max, points: points.collect() }
}

/// Iterates a point until it escapes. Returns the number of iterations and the squared distance.
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

/// Returns the escape times of the points.
pub(crate) fn times(plane: &Plane) -> Vec<u32> {
    let max = plane.iterations_max;
    plane.points.iter().map(|point| escape(*point, max).map_or(max, |(time, _)| time)).collect()
}

/// Returns the squared distances at which the points escape. A point that does not escape has none.
pub(crate) fn values(plane: &Plane) -> Vec<Option<f64>> {
    let value = |point: &Point| escape(*point, plane.iterations_max).map(|(_, value)| value);
    plane.points.iter().map(value).collect()
}

/// Returns normalised iteration counts as shades, which are smooth where plain counts form bands.
pub(crate) fn shades(times: &[u32], values: &[Option<f64>]) -> Shades {
    let shade = |(time, value): (&u32, &Option<f64>)| match value {
        None => 0,
        Some(value) => {
            let count = f64::from(*time) + 1.0 - (value.ln() / 2.0).log2();
            (255.0 * (1.0 - (-count / 24.0).exp())).clamp(1.0, 255.0) as u8
        }
    };
    times.iter().zip(values).map(shade).collect()
}

/// Computes a strip without a network.
pub(crate) fn compute(strip: Strip) -> Shades {
    let plane = plane(&corner(strip));
    shades(&times(&plane), &values(&plane))
}
