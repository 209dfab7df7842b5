//! What the boxes compute: an image of the Mandelbrot set, in steps.

/// Points further away never come back. More than the 2 that would do makes the shades smooth.
const FAR_SQUARED: f64 = 1e4;

/// What the image has in its middle.
const MIDDLE: (f64, f64) = (-0.7, 0.0);

/// How closely to look at the set.
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

/// The points of a strip.
pub(crate) struct Plane {
    iterations_max: u32,
    points: Vec<(f64, f64)>,
}

impl View {
    /// One of so many strips of about the same size.
    pub(crate) fn strip(self, strip: usize, strips: usize) -> Strip {
        let row = |strip| strip * self.height / strips;
        Strip { view: self, first_row: row(strip), rows: row(strip + 1) - row(strip) }
    }
}

/// All points of a strip. In whole and half steps, so that points do not depend on how the image is cut.
pub(crate) fn plane(strip: &Strip) -> Plane {
    let view = strip.view;
    let (width, height) = (view.width as f64, view.height as f64);
    let step = f64::max(3.2 / width, 2.4 / height);
    let (left, top) = (-width / 2.0, strip.first_row as f64 - height / 2.0);
    let point =
        |row, column| (MIDDLE.0 + (left + column as f64) * step, MIDDLE.1 + (top + row as f64) * step);
    let points = (0..strip.rows).flat_map(|row| (0..view.width).map(move |column| point(row, column)));
    Plane { iterations_max: view.iterations_max, points: points.collect() }
}

/// Follows a point: after how many iterations it is far away, and how far, squared.
fn escape((re, im): (f64, f64), iterations_max: u32) -> Option<(u32, f64)> {
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

/// The times at which points escape.
pub(crate) fn times(plane: &Plane) -> Vec<u32> {
    let max = plane.iterations_max;
    plane.points.iter().map(|point| escape(*point, max).map_or(max, |(time, _)| time)).collect()
}

/// The values at which points escape; those that do not have none.
pub(crate) fn values(plane: &Plane) -> Vec<Option<f64>> {
    plane.points.iter().map(|point| escape(*point, plane.iterations_max).map(|(_, value)| value)).collect()
}

/// Normalised iteration counts, as shades: smooth where plain counts make bands.
pub(crate) fn shades(times: &[u32], values: &[Option<f64>]) -> Vec<u8> {
    let shade = |(time, value): (&u32, &Option<f64>)| match value {
        None => 0,
        Some(value) => {
            let count = f64::from(*time) + 1.0 - (value.ln() / 2.0).log2();
            (255.0 * (1.0 - (-count / 24.0).exp())).clamp(1.0, 255.0) as u8
        }
    };
    times.iter().zip(values).map(shade).collect()
}

/// A strip, computed by the caller.
pub(crate) fn compute(strip: &Strip) -> Vec<u8> {
    let plane = plane(strip);
    shades(&times(&plane), &values(&plane))
}
