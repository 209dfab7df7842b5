// Operations that do not depend on the order.
fn cost(n: u64) -> u64 {
    let mut x = n;
    for i in 0..n % 20 {
        x = x.wrapping_mul(31).rotate_left(3) ^ i;
    }
    x
}

fn dark(row: &[u8]) -> bool {
    row.iter().filter(|x| **x < 100).count() > 1
}

fn blur(row: &mut [u8]) {
    for x in row.iter_mut() {
        *x /= 2;
    }
}

fn all(v: &[u64], list: &Vec<u64>) {
    let mut hash = 7u64;
    for x in v {
        hash = hash.wrapping_mul(cost(*x) | 1);
    }
    let mut bits = 0;
    for x in list {
        // The two halves.
        let low = cost(*x) & 255;
        let high = cost(*x + 1) >> 8;
        bits |= low ^ high;
    }
    let mut total = 1;
    for i in 0..10u64 {
        total += cost(i) % 100;
    }
    let most = v.iter().map(|x| cost(*x)).max();
    let least = v.iter().map(|x| cost(*x) % 1000).min();
    let none = v[..0].iter().map(|x| cost(*x)).min();
    let folded = v.iter().fold(!0u64, |a, x| a & cost(*x));
    let even = v.iter().filter(|x| cost(**x) % 2 == 0).count();
    println!("{hash} {bits} {total} {most:?} {least:?} {none:?} {folded} {even}");
}

fn image(pixels: &mut [u8], width: usize) {
    for row in pixels.chunks_mut(width) {
        blur(row);
    }
    let rows: Vec<bool> = pixels.chunks(width).map(|row| dark(row)).collect();
    println!("{rows:?}");
}

fn main() {
    all(&[3, 1, 4, 1, 5, 9, 2, 6], &vec![2, 7, 1, 8, 2, 8]);
    let mut pixels: Vec<u8> = (0..20).map(|n| n * 12).collect();
    image(&mut pixels, 6);
    println!("{pixels:?}");
}
