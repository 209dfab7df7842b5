// Product of two square matrices: the second program of table 1 of Molitorisz, Schimmel, Otto,
// "Automatic Parallelization Using AutoFutures", 2012.

type Matrix = Vec<Vec<f64>>;

fn element(row: usize, column: usize) -> f64 {
    ((row * 31 + column * 17) % 101) as f64 / 101.0
}

fn product_row(row: &[f64], other: &Matrix) -> Vec<f64> {
    let mut sums = vec![0.0; row.len()];
    for (factor, line) in row.iter().zip(other) {
        for (sum, value) in sums.iter_mut().zip(line) {
            *sum += factor * value;
        }
    }
    sums
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    a.iter().map(|row| product_row(row, b)).collect()
}

fn main() {
    let size = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1200);
    let a: Matrix = (0..size).map(|r| (0..size).map(|c| element(r, c)).collect()).collect();
    let b: Matrix = (0..size).map(|r| (0..size).map(|c| element(c, r)).collect()).collect();
    let c = product(&a, &b);
    let trace: f64 = (0..size).map(|n| c[n][n]).sum();
    println!("{size} rows, trace {trace}, corner {}", c[size - 1][0]);
}
