//! The Mandelbrot network: computes an image of the set in strips and merges them.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, section 6.2.
//!
//! `cargo run --release -p corebeat-snet --example mandelbrot -- [WIDTH HEIGHT STRIPS WORKERS
//! [IMAGE.pgm]]`

#[path = "../../../corebeat-lpel/examples/mandelbrot/fractal.rs"]
mod fractal;
mod network;

use std::time::Instant;

use corebeat_lpel::Runtime;
use fractal::View;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let usage =
        "usage: mandelbrot [WIDTH HEIGHT STRIPS WORKERS [IMAGE.pgm]], with numbers of at least 1";
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Result<Vec<usize>, _> = args.iter().take(4).map(|a| a.parse()).collect();
    let (width, height, strips, workers) = match *numbers.map_err(|_| usage)? {
        [] => (1500, 1000, 32, 2),
        [width, height, strips, workers] if width.min(height).min(strips).min(workers) > 0 => {
            (width, height, strips, workers)
        }
        _ => return Err(usage.into()),
    };
    let path = args.get(4).map_or("mandelbrot.pgm", String::as_str);
    let runtime = Runtime::builder().workers(workers).build()?;
    let begin = Instant::now();
    let view = View { width, height, iterations_max: 500 };
    let image = network::image(&runtime, view, strips)?;
    let (time, begin) = (begin.elapsed(), Instant::now());
    let same = whole(view) == image;
    println!("{width} x {height} points in {strips} strips, {workers} workers: {time:.1?}");
    println!(
        "a loop without a network: {:.1?}, {} image",
        begin.elapsed(),
        if same { "the same" } else { "A DIFFERENT" }
    );
    std::fs::write(path, [format!("P5 {width} {height} 255\n").as_bytes(), &image].concat())
        .map_err(|why| format!("cannot write {path}: {why}"))?;
    println!("wrote {path}");
    Ok(())
}

/// The image without a network.
fn whole(view: View) -> Vec<u8> {
    view.strips(1).flat_map(fractal::compute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_computes_the_same_image_as_a_loop() {
        let view = View { width: 23, height: 21, iterations_max: 50 };
        let whole = whole(view);
        for (strips, workers) in [(1, 1), (2, 2), (8, 2), (21, 1)] {
            let runtime = Runtime::builder().workers(workers).build().unwrap();
            assert_eq!(network::image(&runtime, view, strips).unwrap(), whole, "{strips} strips");
        }
    }
}
