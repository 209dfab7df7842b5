// The loop ends before the item for which the recursion has no end.
fn depth(next: &[usize], at: usize) -> usize {
    if at >= next.len() { 0 } else { 1 + depth(next, next[at]) }
}

fn main() {
    let next = [5, 1, 1];
    for (at, to) in next.iter().enumerate() {
        let n = depth(&next, at);
        println!("{n}");
        if *to > 4 {
            break;
        }
    }
}
