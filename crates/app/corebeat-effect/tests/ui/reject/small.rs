// Recursions whose calls take a few instructions each: a join would cost more.
struct Tree {
    value: u64,
    both: Option<(Box<Tree>, Box<Tree>)>,
}

fn fib(n: u32) -> u64 {
    if n < 2 { u64::from(n) } else { fib(n - 1) + fib(n - 2) }
}

fn sum(tree: &Tree) -> u64 {
    match &tree.both {
        None => tree.value,
        Some((left, right)) => {
            let a = sum(left);
            let b = other(right);
            a.wrapping_add(b)
        }
    }
}

fn other(tree: &Tree) -> u64 {
    match &tree.both {
        None => tree.value.rotate_left(3),
        Some((left, right)) => sum(left).wrapping_mul(other(right)),
    }
}

fn build(depth: u64) -> Tree {
    let leaf = |value| Tree { value, both: None };
    let grow = |tree, n| Tree { value: n, both: Some((Box::new(tree), Box::new(leaf(n)))) };
    (0..depth).fold(leaf(7), grow)
}

fn main() {
    println!("{} {}", fib(10), sum(&build(3)));
}
