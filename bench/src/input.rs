//! A file for compressors, with the same bytes each time.

use std::io::{BufWriter, Write};
use std::path::Path;

const VOCABULARY: u64 = 8192;
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Marsaglia, *Xorshift RNGs* (2003): the generator of section 4 with its output multiplied.
fn next(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// Writes words of an artificial language. As in text, few words are frequent: compression leaves
/// about a third of the size.
pub(crate) fn write(path: &Path, size: u64) -> std::io::Result<()> {
    let mut state = SEED;
    let word = |state: &mut u64| -> String {
        let length = 2 + next(state) % 8;
        (0..length).map(|_| char::from(b'a' + (next(state) % 26) as u8)).collect()
    };
    let words: Vec<String> = (0..VOCABULARY).map(|_| word(&mut state)).collect();
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    let mut written = 0;
    while written < size {
        // The minimum of three draws makes the first words frequent.
        let place = (0..3).map(|_| next(&mut state) % VOCABULARY).min().unwrap_or(0);
        let end = if next(&mut state).is_multiple_of(16) { "\n" } else { " " };
        let word = &words[place as usize];
        file.write_all(word.as_bytes())?;
        file.write_all(end.as_bytes())?;
        written += word.len() as u64 + 1;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{DefaultHasher, Hasher};

    #[test]
    fn content_is_always_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        write(&path, 100_000).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!((100_000..100_011).contains(&bytes.len()));
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        write(&path, 100_000).unwrap();
        let mut again = DefaultHasher::new();
        again.write(&std::fs::read(&path).unwrap());
        assert_eq!(hasher.finish(), again.finish());
        assert!(bytes.iter().all(|b| b.is_ascii_lowercase() || b" \n".contains(b)));
    }
}
