// The list changes the first value before `fold` reads it.
fn cost(n: u64) -> u64 {
    let mut x = n;
    for i in 0..n % 20 {
        x = x.rotate_left(3) ^ i;
    }
    x
}

fn next(start: &mut u64) -> u64 {
    *start += 5;
    *start
}

fn main() {
    let mut start = 0u64;
    let n = (0..next(&mut start)).fold(start, |a, i| a ^ cost(i));
    println!("{n}");
    let v = [3u64, 0];
    let m = v
        .chunks({
            start = 9;
            2
        })
        .fold(start, |a, x| a ^ cost(x[0]));
    println!("{m}");
}
