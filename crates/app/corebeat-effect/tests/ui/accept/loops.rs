// Loops with independent iterations.
fn cost(n: u64) -> u64 {
    let mut sum = 0;
    for i in 0..n % 20 {
        sum += i * i;
    }
    sum
}

fn blur(row: &mut Vec<u64>, by: u64) {
    for x in row.iter_mut() {
        *x = (*x + by) / 2;
    }
}

fn scale(rows: &mut [Vec<u64>], by: u64) {
    for row in rows.iter_mut() {
        blur(row, by);
    }
}

fn main() {
    let values: Vec<u64> = (0..30).collect();
    let costs: Vec<u64> = values.iter().map(|x| cost(*x)).collect();
    let more: Vec<u64> = (0..5).map(|x| cost(x)).collect();
    let sum: u64 = values.iter().map(|x| cost(*x)).sum();
    let mut rows = vec![costs.clone(), more.clone()];
    scale(&mut rows, 3);
    for row in &mut rows {
        blur(row, 1);
    }
    println!("{costs:?} {more:?} {sum} {rows:?}");
}
