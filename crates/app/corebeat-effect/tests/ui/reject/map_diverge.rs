fn steps(n: u64) -> u64 {
    if n == 0 {
        println_free_panic()
    }
    let (mut x, mut k) = (n, 0);
    while x != 1 {
        x = x / 2 * if x % 2 == 0 { 1 } else { 0 } + if x % 2 == 0 { 0 } else { x };
        k += 1;
        if k == u64::MAX {
            break;
        }
    }
    k
}
fn println_free_panic() -> ! {
    panic!("zero")
}
fn main() {
    let v: Vec<u64> = vec![1, 0, 3];
    let r: Vec<u64> = v.iter().map(|n| steps(*n)).collect();
    println!("{r:?}");
}
