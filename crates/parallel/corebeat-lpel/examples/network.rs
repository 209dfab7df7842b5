//! Network of three tasks and two streams: passes words, computes their lengths, and counts them.
//!
//! `cargo run -p corebeat-lpel --example network -- some words`

use corebeat_lpel::{Runtime, spawn, stream};
use std::collections::BTreeMap;

/// Returns the number of words of each length.
fn lengths(words: Vec<String>) -> Result<BTreeMap<usize, usize>, Box<dyn std::error::Error>> {
    let runtime = Runtime::new()?;
    let counts = runtime.run(move || {
        let (mut words_out, words_in) = stream::<String>(8);
        let (mut lengths_out, lengths_in) = stream::<usize>(8);
        spawn(move || words.into_iter().try_for_each(|word| words_out.write(word)));
        spawn(move || {
            words_in.map(|word| word.chars().count()).try_for_each(|n| lengths_out.write(n))
        });
        lengths_in.fold(BTreeMap::new(), |mut counts, length| {
            *counts.entry(length).or_default() += 1;
            counts
        })
    })?;
    Ok(counts)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    if words.is_empty() {
        println!("usage: network WORD... (for example: network to be or not to be)");
    }
    for (length, count) in lengths(words)? {
        println!("{count} words of {length} letters");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_by_length() {
        let words = ["to", "be", "or", "not"].map(String::from).to_vec();
        assert_eq!(lengths(words).unwrap(), BTreeMap::from([(2, 3), (3, 1)]));
        assert!(lengths(Vec::new()).unwrap().is_empty());
    }
}
