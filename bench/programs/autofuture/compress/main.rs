// Compresses a text in blocks: references to earlier bytes of the block (Lempel and Ziv, 1977), and
// then an adaptive binary arithmetic coder.

const BLOCK: usize = 1 << 16;
const LONGEST: usize = 255;
const SHORTEST: usize = 4;
const TRIES: usize = 64;

fn hash(bytes: &[u8]) -> usize {
    let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    (word.wrapping_mul(2_654_435_761) >> 18) as usize
}

/// Tokens: 0 and a byte, or 1, the length and two bytes of distance.
fn tokens(block: &[u8]) -> Vec<u8> {
    let mut heads = vec![usize::MAX; 1 << 14];
    let mut previous = vec![usize::MAX; block.len()];
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < block.len() {
        let (mut best, mut from) = (0, 0);
        if at + SHORTEST <= block.len() {
            let mut candidate = heads[hash(&block[at..])];
            let mut tries = TRIES;
            while candidate != usize::MAX && tries > 0 {
                let most = LONGEST.min(block.len() - at);
                let mut length = 0;
                while length < most && block[candidate + length] == block[at + length] {
                    length += 1;
                }
                if length > best {
                    (best, from) = (length, candidate);
                }
                candidate = previous[candidate];
                tries -= 1;
            }
        }
        let length = if best >= SHORTEST { best } else { 1 };
        if best >= SHORTEST {
            let distance = at - from;
            tokens.extend([1, best as u8, (distance & 255) as u8, (distance >> 8) as u8]);
        } else {
            tokens.extend([0, block[at]]);
        }
        for place in at..at + length {
            if place + SHORTEST <= block.len() {
                let hash = hash(&block[place..]);
                previous[place] = heads[hash];
                heads[hash] = place;
            }
        }
        at += length;
    }
    tokens
}

/// Codes each byte of the tokens with bits whose probabilities adapt.
fn coded(tokens: &[u8]) -> Vec<u8> {
    let mut odds = vec![2048u32; 256 * 256];
    let (mut low, mut high) = (0u32, u32::MAX);
    let mut bytes = Vec::new();
    let mut last = 0usize;
    for token in tokens {
        let mut node = 1usize;
        for bit in (0..8).rev() {
            let is_one = token >> bit & 1 == 1;
            let odd = &mut odds[last * 256 + node];
            let middle = low + ((u64::from(high - low) * u64::from(*odd)) >> 12) as u32;
            if is_one {
                high = middle;
                *odd += (4096 - *odd) >> 5;
            } else {
                low = middle + 1;
                *odd -= *odd >> 5;
            }
            *odd = (*odd).clamp(32, 4064);
            while (low ^ high) >> 24 == 0 {
                bytes.push((high >> 24) as u8);
                low <<= 8;
                high = high << 8 | 255;
            }
            node = node * 2 + usize::from(is_one);
        }
        last = usize::from(*token);
    }
    bytes.extend(high.to_be_bytes());
    bytes
}

fn compressed(block: &[u8]) -> Vec<u8> {
    coded(&tokens(block))
}

fn text(length: usize) -> Vec<u8> {
    let words = ["the", "heart", "beats", "of", "parallel", "program", "and", "then", "future"];
    let mut seed = 7u64;
    let mut text = Vec::new();
    while text.len() < length {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = words[(seed >> 33) as usize % words.len()];
        text.extend_from_slice(word.as_bytes());
        text.push(if seed >> 60 == 0 { b'\n' } else { b' ' });
        text.extend_from_slice(((seed >> 40) % 97).to_string().as_bytes());
    }
    text
}

fn main() {
    let length = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(6_000_000);
    let text = text(length);
    let blocks: Vec<&[u8]> = text.chunks(BLOCK).collect();
    let results: Vec<Vec<u8>> = blocks.iter().map(|block| compressed(block)).collect();
    let (mut size, mut check) = (0, 0u64);
    for byte in results.iter().flatten() {
        size += 1;
        check = check.wrapping_mul(31).wrapping_add(u64::from(*byte));
    }
    println!("{} bytes compressed to {size}, {check:016x}", text.len());
}
