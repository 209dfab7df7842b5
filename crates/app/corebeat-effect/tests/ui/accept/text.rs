// Formatting, collections, closures, generic code and clones of the standard library.
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Word {
    text: String,
    count: usize,
}

fn words(text: &str) -> Vec<Word> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for word in text.split_whitespace().filter(|word| word.len() > 1) {
        *found.entry(word.to_lowercase()).or_insert(0) += 1;
    }
    let mut list: Vec<Word> =
        found.into_iter().map(|(text, count)| Word { text, count }).collect();
    list.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.cmp(b)));
    list.iter().filter(|word| word.count > 0).cloned().collect()
}

fn ring(n: u32) -> String {
    let mut ring: VecDeque<u32> = (0..n).collect();
    let mut out = String::new();
    while let Some(x) = ring.pop_front() {
        if x % 3 == 1 {
            ring.push_back(x / 3);
        }
        out += &format!("{x:>3}|{:.2}", f64::from(x).sqrt());
    }
    out
}

fn main() {
    let a = words("a rose is a rose is a rose");
    let b = words("the quick brown fox and the lazy dog");
    let c = ring(10);
    let d = ring(12);
    println!("{a:?} {b:?} {c} {d}");
}
