// The loop ends before the item with the large number, to which the stage counts, or for which it
// allocates.
fn cost(n: u64) -> u64 {
    let mut sum = 0;
    for i in 0..n {
        sum ^= i * i;
    }
    sum
}

fn counted() {
    for n in [3, u64::MAX] {
        let x = cost(n);
        println!("{x}");
        if n == 3 {
            break;
        }
    }
}

fn folded(sizes: &[u32]) {
    for n in sizes {
        let x = (0..*n).fold(0, |sum, i| sum ^ i);
        println!("{x}");
        if *n == 3 {
            break;
        }
    }
}

// The function that allocates is a value here.
fn reserved(n: usize) -> usize {
    let list: Option<Vec<u8>> = Some(n).map(Vec::with_capacity);
    let mut sum = 0;
    for x in [n, 5] {
        sum ^= x;
    }
    sum + list.map_or(0, |list| list.len())
}

fn handed(sizes: &[usize]) {
    for n in sizes {
        let x = reserved(*n);
        println!("{x}");
        if *n == 3 {
            break;
        }
    }
}

fn main() {
    counted();
    handed(&[3, isize::MAX as usize]);
    folded(&[3, u32::MAX]);
}
