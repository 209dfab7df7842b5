// A closure that returns the accumulator early.
fn cost(n: u64) -> u64 {
    let mut x = n;
    for i in 0..n % 20 {
        x = x.rotate_left(3) ^ i;
    }
    x
}

fn main() {
    let v = [3u64, 0];
    let n = v.iter().fold(0u64, |a, x| a ^ if *x == 0 { return 1 } else { cost(*x) });
    println!("{n}");
    let all = v.iter().fold(true, |a, x| a & (cost(*x) > 1 || return false));
    println!("{all}");
}
