// Merge sort of random numbers: the first program of table 1 of Molitorisz, Schimmel, Otto,
// "Automatic Parallelization Using AutoFutures", 2012.

const SMALL: usize = 16;

fn sort(numbers: &mut [u64], room: &mut [u64]) {
    if numbers.len() <= SMALL {
        return insert(numbers);
    }
    let half = numbers.len() / 2;
    let (left, right) = numbers.split_at_mut(half);
    let (left_room, right_room) = room.split_at_mut(half);
    sort(left, left_room);
    sort(right, right_room);
    merge(left, right, room);
    numbers.copy_from_slice(room);
}

fn insert(numbers: &mut [u64]) {
    for end in 1..numbers.len() {
        let mut at = end;
        while at > 0 && numbers[at - 1] > numbers[at] {
            numbers.swap(at - 1, at);
            at -= 1;
        }
    }
}

fn merge(left: &[u64], right: &[u64], merged: &mut [u64]) {
    let (mut l, mut r) = (0, 0);
    for place in merged {
        if r == right.len() || l < left.len() && left[l] <= right[r] {
            *place = left[l];
            l += 1;
        } else {
            *place = right[r];
            r += 1;
        }
    }
}

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(8_000_000);
    let mut numbers: Vec<u64> =
        (1..=count).map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)).collect();
    let mut room = numbers.clone();
    sort(&mut numbers, &mut room);
    let check = numbers.iter().fold(0u64, |sum, n| sum.wrapping_mul(31).wrapping_add(*n));
    println!("{} numbers, sorted: {}, {check:016x}", numbers.len(), numbers.is_sorted());
}
