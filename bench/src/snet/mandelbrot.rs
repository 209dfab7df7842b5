//! The Mandelbrot network of the examples, and loops that compute the same strips.

use super::load::{Load, Outcome};
use super::subject::Subject;
use crate::lpel::load::ordered;
use corebeat_lpel::Runtime;
use fractal::View;
pub(crate) use fractal::compute;
use rayon::prelude::*;
use std::time::Instant;

#[path = "../../../crates/parallel/corebeat-lpel/examples/mandelbrot/fractal.rs"]
mod fractal;
#[path = "../../../crates/parallel/corebeat-snet/examples/mandelbrot/network.rs"]
mod network;

const ITERATIONS_MAX: u32 = 500;
/// Points of a side of the image for the warm-up. A whole image would take as long as the
/// measurement.
const WARM_UP: usize = 256;

/// A square image.
pub(crate) fn view(side: usize) -> View {
    View { width: side, height: side, iterations_max: ITERATIONS_MAX }
}

pub(crate) fn run(load: &Load, subject: Subject) -> Result<Outcome, String> {
    let (side, strips) = (load.count as usize, load.depth as usize);
    let draw: Box<dyn Fn(View) -> Result<Vec<u8>, String>> = match subject {
        Subject::Corebeat => {
            let runtime =
                Runtime::builder().workers(load.workers).build().map_err(|e| e.to_string())?;
            Box::new(move |view| network::image(&runtime, view, strips).map_err(|e| e.to_string()))
        }
        Subject::Rayon => {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(load.workers).build();
            let pool = pool.map_err(|e| e.to_string())?;
            Box::new(move |view| Ok(pool.install(|| parallel(view, strips))))
        }
        _ => Box::new(move |view| Ok(serial(view, strips))),
    };
    // An image is divided into whole rows.
    if !side.is_multiple_of(strips) {
        return Err(format!("{side} rows cannot be divided into {strips} equal strips"));
    }
    draw(view(side.min(WARM_UP)))?;
    let begin = Instant::now();
    let image = draw(view(side))?;
    let seconds = begin.elapsed().as_secs_f64();
    let checksum = image.iter().fold(image.len() as u64, |sum, &shade| ordered(sum, shade.into()));
    Ok(Outcome { seconds, checksum, bytes: 0 })
}

fn serial(view: View, strips: usize) -> Vec<u8> {
    view.strips(strips).flat_map(compute).collect()
}

/// Each strip is a separate piece of work, as in the network.
fn parallel(view: View, strips: usize) -> Vec<u8> {
    let mut image = vec![0; view.width * view.height];
    let pieces =
        image.par_chunks_mut(view.width * view.height / strips).enumerate().with_max_len(1);
    let strips: Vec<_> = view.strips(strips).collect();
    pieces.for_each(|(i, piece)| piece.copy_from_slice(&compute(strips[i])));
    image
}
