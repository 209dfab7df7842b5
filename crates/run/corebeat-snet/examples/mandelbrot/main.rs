//! The Mandelbrot network: a picture of the set, computed in strips and put together again.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, section 6.2.
//!
//! `cargo run --release -p corebeat-snet --example mandelbrot -- [WIDTH HEIGHT STRIPS WORKERS [IMAGE.pgm]]`

mod fractal;
mod network;

use std::time::Instant;

use corebeat_lpel::Runtime;
use fractal::View;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let usage = "usage: mandelbrot [WIDTH HEIGHT STRIPS WORKERS [IMAGE.pgm]], all numbers from 1";
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
    let same = fractal::compute(&view.strip(0, 1)) == image;
    println!("{width} x {height} points in {strips} strips, {workers} workers: {time:.1?}");
    println!(
        "a loop without a network: {:.1?}, {} image",
        begin.elapsed(),
        if same { "the same" } else { "ANOTHER" }
    );
    std::fs::write(path, [format!("P5 {width} {height} 255\n").as_bytes(), &image].concat())
        .map_err(|why| format!("{path}: {why}"))?;
    println!("the picture is in {path}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_makes_the_image_that_a_loop_makes() {
        let view = View { width: 23, height: 21, iterations_max: 50 };
        let whole = fractal::compute(&view.strip(0, 1));
        for (strips, workers) in [(1, 1), (2, 2), (8, 2), (21, 1)] {
            let runtime = Runtime::builder().workers(workers).build().unwrap();
            assert_eq!(network::image(&runtime, view, strips).unwrap(), whole, "{strips} strips");
        }
    }
}
