// Image filter: a Gaussian blur of each channel in both directions, and then the edges of the
// result.

const REACH: usize = 12;

type Plane = Vec<Vec<f32>>;

fn weights() -> Vec<f32> {
    let weight = |d: f32| (-d * d / 50.0).exp();
    (0..=2 * REACH).map(|n| weight(n as f32 - REACH as f32)).collect()
}

fn blurred_row(row: &[f32], weights: &[f32]) -> Vec<f32> {
    let mut result = Vec::with_capacity(row.len());
    for x in 0..row.len() {
        let (mut sum, mut total) = (0.0, 0.0);
        for (n, weight) in weights.iter().enumerate() {
            let at = x + n;
            if at >= REACH && at - REACH < row.len() {
                sum += weight * row[at - REACH];
                total += weight;
            }
        }
        result.push(sum / total);
    }
    result
}

fn transposed(plane: &Plane) -> Plane {
    (0..plane[0].len()).map(|x| plane.iter().map(|row| row[x]).collect()).collect()
}

fn blur(plane: &Plane, weights: &[f32]) -> Plane {
    plane.iter().map(|row| blurred_row(row, weights)).collect()
}

fn edges_of_row(plane: &Plane, y: usize) -> Vec<f32> {
    let (above, below) = (&plane[y.saturating_sub(1)], &plane[(y + 1).min(plane.len() - 1)]);
    let row = &plane[y];
    let mut result = Vec::with_capacity(row.len());
    for x in 0..row.len() {
        let (left, right) = (x.saturating_sub(1), (x + 1).min(row.len() - 1));
        let dx = row[right] - row[left];
        let dy = below[x] - above[x];
        result.push((dx * dx + dy * dy).sqrt());
    }
    result
}

fn edges(plane: &Plane) -> Plane {
    (0..plane.len()).map(|y| edges_of_row(plane, y)).collect()
}

fn filter(plane: &Plane, weights: &[f32]) -> Plane {
    let across = transposed(&blur(plane, weights));
    let both = transposed(&blur(&across, weights));
    edges(&both)
}

fn main() {
    let size = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1500);
    let pixel = |x: usize, y: usize, c: usize| ((x * x + y * (c + 7)) % 256) as f32;
    let weights = weights();
    let mut check = 0u64;
    for channel in 0..3 {
        let row = |y| (0..size).map(|x| pixel(x, y, channel)).collect();
        let plane: Plane = (0..size).map(row).collect();
        for row in filter(&plane, &weights) {
            for value in row {
                check = check.wrapping_mul(31).wrapping_add(u64::from(value.to_bits()));
            }
        }
    }
    println!("{size}x{size} pixels, {check:016x}");
}
