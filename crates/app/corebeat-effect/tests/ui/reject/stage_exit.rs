// The rest ends the program before the item for which it would panic.
fn word(list: &[&str], at: usize) -> u64 {
    let mut sum = 0;
    for byte in list.get(at).unwrap().bytes() {
        sum = (sum * 31 + u64::from(byte)) % 1009;
    }
    sum
}

fn main() {
    let list = ["a", "bc", ""];
    for at in 0..100usize {
        let x = word(&list, at);
        println!("{x}");
        if x == 0 {
            std::process::exit(0);
        }
    }
}
