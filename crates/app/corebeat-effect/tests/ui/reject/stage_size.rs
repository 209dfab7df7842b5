// The rest ends the program before the item for which the stage needs too much memory.
fn filled(n: usize) -> Vec<u8> {
    let mut list = vec![1; n];
    for x in &mut list {
        *x ^= 5;
    }
    list
}

fn main() {
    for n in [3, isize::MAX as usize] {
        let list = filled(n);
        println!("{}", list[0]);
        if n == 3 {
            std::process::exit(0);
        }
    }
}
