// Comments at places that the rewritten text does not have.
fn cost(n: u64) -> u64 {
    let mut s = 0;
    for i in 0..n % 20 {
        s += i;
    }
    s
}
fn change(x: &mut u64) {
    let mut s = 0;
    for i in 0..*x {
        s ^= i;
    }
    *x = s;
}
fn main() {
    let mut v: Vec<u64> = (0..6).collect();
    let c: Vec<u64> = v
        .iter()
        // COMMENT-CHAIN: why this is right
        .map(|x| cost(*x))
        // COMMENT-COLLECT
        .collect();
    for x in v.iter_mut()
    /* COMMENT-FOR */
    {
        change(x);
    }
    println!("{c:?} {v:?}");
    let a: u64 = /* COMMENT-LET */ cost(3);
    let b = cost(4);
    println!("{a} {b}");
}
