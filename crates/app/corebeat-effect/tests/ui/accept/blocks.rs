// Statements without calls, and calls with effects before statements without effects.
fn loops(v: &[u64], w: &[u64]) -> (u64, u64, u64) {
    let mut low = 0;
    for x in v {
        low ^= x;
    }
    // The second one.
    let mut high = 1;
    let scale = w.len() as u64;
    for y in w {
        high = high * scale % 97 + y % 7;
    }
    high += 1;
    (low, high, scale)
}

fn show(v: &[u64]) -> usize {
    for x in v {
        println!("{x}");
    }
    v.len()
}

fn shown(v: &[u64]) -> u64 {
    let count = show(v);
    let mut product = 1;
    for x in v {
        product = product * x % 1009;
    }
    product + count as u64
}

fn rows(a: &mut [Vec<u64>], b: &mut [Vec<u64>]) {
    for row in a.iter_mut() {
        row.reverse();
    }
    while let Some(last) = b[0].pop() {
        b[1].push(last);
    }
}

fn main() {
    println!("{:?} {}", loops(&[1, 2, 3], &[4, 5]), shown(&[6, 7]));
    let (mut a, mut b) = (vec![vec![1, 2]], vec![vec![3, 4], vec![]]);
    rows(&mut a, &mut b);
    println!("{a:?} {b:?}");
}
