//@ options=small-calls
// The operands of one expression, at three kinds of places.
fn fib(n: u32) -> u64 {
    if n < 2 { u64::from(n) } else { fib(n - 1) + fib(n - 2) }
}

enum Tree {
    Leaf(u64),
    Node { left: Box<Tree>, right: Box<Tree> },
}

fn build(from: u64, to: u64) -> Box<Tree> {
    if to - from < 2 {
        return Box::new(Tree::Leaf(from));
    }
    let middle = (from + to) / 2;
    Box::new(Tree::Node { left: build(from, middle), right: build(middle, to) })
}

fn sum(tree: &Tree) -> u64 {
    match tree {
        Tree::Leaf(value) => *value,
        Tree::Node { left, right } => {
            let both = sum(left).wrapping_add(1) | 0;
            both + total(sum(left), sum(right))
        }
    }
}

fn total(a: u64, b: u64) -> u64 {
    a.max(b)
}

fn main() {
    println!("{} {}", fib(10), sum(&build(0, 8)));
}
