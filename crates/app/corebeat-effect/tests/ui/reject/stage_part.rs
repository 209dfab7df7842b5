// A list that is a part of a value: the other part ends behind the tail of the function, and not
// behind a statement.
struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        println!("drop {}", self.0);
    }
}

struct Both {
    list: Vec<Vec<u64>>,
    _noisy: Noisy,
}

fn make(n: u64) -> Both {
    Both { list: vec![vec![n, 2], vec![3]], _noisy: Noisy(n) }
}

fn cost(list: &[u64]) -> u64 {
    list.iter().fold(0, |sum, n| sum + n)
}

fn field() {
    for list in make(1).list {
        let x = cost(&list);
        println!("{x}");
    }
}

fn matched() {
    for list in match make(2) {
        Both { list, .. } => list,
    } {
        let x = cost(&list);
        println!("{x}");
    }
}

fn main() {
    field();
    matched();
}
