// An item in the rest of the body: the stage before it calls this one, and not the other.
fn cost(list: &[u64]) -> u64 {
    list.iter().fold(0, |sum, n| sum + n)
}

fn main() {
    println!("{}", cost(&[5]));
    for list in [[1, 2], [3, 4]] {
        let x = cost(&list);
        println!("{x}");
        fn cost(list: &[u64]) -> u64 {
            list.iter().fold(1, |product, n| product * n)
        }
    }
}
