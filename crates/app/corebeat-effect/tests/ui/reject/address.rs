// A recursion that bounds its depth by the address of a local variable, in safe code.
fn here() -> usize {
    let x = 0u8;
    std::hint::black_box(&x) as *const u8 as usize
}
fn depth(n: u64, top: usize) -> Result<u64, String> {
    if here().abs_diff(top) > 256 * 1024 {
        return Err("too deep".into());
    }
    if n == 0 { Ok(0) } else { Ok(1 + depth(n - 1, top)?) }
}
fn main() {
    let top = here();
    let a = depth(10, top);
    let b = depth(20, top);
    println!("{a:?} {b:?}");
}
