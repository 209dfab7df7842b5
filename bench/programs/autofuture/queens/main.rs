// Counts the ways to place queens on a board so that none attacks another one.

fn count(size: u32, row: u32, columns: u32, falling: u32, rising: u32) -> u64 {
    if row == size {
        return 1;
    }
    let mut free = !(columns | falling | rising) & ((1 << size) - 1);
    let mut sum = 0;
    while free != 0 {
        let queen = free & free.wrapping_neg();
        free &= free - 1;
        let (falling, rising) = ((falling | queen) << 1, (rising | queen) >> 1);
        sum += count(size, row + 1, columns | queen, falling, rising);
    }
    sum
}

fn from_corner(size: u32, column: u32) -> u64 {
    let queen = 1 << column;
    count(size, 1, queen, queen << 1, queen >> 1)
}

fn main() {
    let size = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(14);
    let ways: u64 = (0..size).map(|column| from_corner(size, column)).sum();
    println!("{size} queens: {ways} ways");
}
