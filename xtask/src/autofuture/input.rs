//! Inputs of programs, which a seed determines: no file of the project contains them.

use std::fmt::Write;

/// A kind of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Boxes and arrows of ASCII characters.
    Drawing,
    /// Terms with large integers.
    Expressions,
    /// Paragraphs, lists, tables and links.
    Markdown,
    /// An image with a gradient, discs and noise.
    Picture,
    /// Words of a small vocabulary.
    Prose,
    /// Clauses of three literals, 4.26 for each variable: neither few nor many have a solution.
    Clauses,
    /// Rules with variables, loops, functions and nested selectors.
    Stylesheet,
    /// Rows of comma-separated values.
    Table,
    /// Shapes with gradients and blurred groups.
    Vector,
}

/// Random numbers (xorshift; Marsaglia, "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        // The state must not be 0. The first numbers of small states are small.
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len() as u64) as usize]
    }
}

const WORDS: [&str; 24] = [
    "water", "north", "table", "green", "seven", "paper", "stone", "light", "under", "quick",
    "river", "glass", "round", "field", "never", "small", "wheel", "cloud", "metal", "early", "a",
    "the", "of", "and",
];

/// The bytes of an input. `size` is the number of its elements: words, rows, variables, pixels of
/// a side, as the kind has them.
pub(super) fn bytes(kind: Kind, size: u64, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    if kind == Kind::Picture {
        return picture(size, &mut random);
    }
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = match kind {
        Kind::Drawing => drawing(&mut text, size, &mut random),
        Kind::Expressions => expressions(&mut text, size, &mut random),
        Kind::Markdown => markdown(&mut text, size, &mut random),
        Kind::Prose => prose(&mut text, size, &mut random),
        Kind::Clauses => clauses(&mut text, size, &mut random),
        Kind::Stylesheet => stylesheet(&mut text, size, &mut random),
        Kind::Table => table(&mut text, size, &mut random),
        Kind::Vector => vector(&mut text, size, &mut random),
        Kind::Picture => Ok(()),
    };
    text.into_bytes()
}

fn drawing(text: &mut String, rows: u64, random: &mut Random) -> std::fmt::Result {
    const COLUMNS: usize = 6;
    for _ in 0..rows {
        let names: Vec<&str> = (0..COLUMNS).map(|_| random.of(&WORDS)).collect();
        let arrows: Vec<&str> =
            (0..COLUMNS).map(|_| random.of(&["---->", "  o--", "<----", "     "])).collect();
        let corner = random.of(&["+", "."]);
        let line: String = names
            .iter()
            .map(|name| format!(" {corner}{}{corner}     ", "-".repeat(name.len() + 2)))
            .collect();
        writeln!(text, "{line}")?;
        for (name, arrow) in names.iter().zip(&arrows) {
            write!(text, " | {name} |{arrow}")?;
        }
        writeln!(text, "\n{}", line.replace('.', "'"))?;
        writeln!(text, "{}", "    |      \\     ".repeat(COLUMNS / 2))?;
    }
    Ok(())
}

fn expressions(text: &mut String, terms: u64, random: &mut Random) -> std::fmt::Result {
    write!(text, "0")?;
    for _ in 0..terms {
        let (base, power) = (2 + random.below(30), 200 + random.below(300));
        let (product, divisor) = (random.below(1 << 40), 1 + random.below(1000));
        write!(text, " + {base}^{power} * {product} / {divisor}")?;
    }
    writeln!(text)
}

fn sentence(text: &mut String, words: u64, random: &mut Random) -> std::fmt::Result {
    for word in 0..words {
        let space = if word == 0 { "" } else { " " };
        let word = random.of(&WORDS);
        match random.below(12) {
            0 => write!(text, "{space}*{word}*")?,
            1 => write!(text, "{space}[{word}](https://example.org/{word} \"{word}\")")?,
            2 => write!(text, "{space}`{word}`")?,
            _ => write!(text, "{space}{word}")?,
        }
    }
    Ok(())
}

fn markdown(text: &mut String, paragraphs: u64, random: &mut Random) -> std::fmt::Result {
    for number in 0..paragraphs {
        match random.below(6) {
            0 => writeln!(text, "## {} {number}\n", random.of(&WORDS))?,
            1 => {
                for item in 1..=3 {
                    write!(text, "{item}. ")?;
                    sentence(text, 6, random)?;
                    writeln!(text)?;
                }
                writeln!(text)?;
            }
            2 => {
                writeln!(text, "| a | b |\n| --- | --- |")?;
                let (a, b) = (random.of(&WORDS), random.of(&WORDS));
                writeln!(text, "| {a} | {b} |\n")?;
            }
            _ => {
                sentence(text, 40, random)?;
                writeln!(text, "\n")?;
            }
        }
    }
    Ok(())
}

fn prose(text: &mut String, words: u64, random: &mut Random) -> std::fmt::Result {
    for word in 1..=words {
        let end = if word % 12 == 0 { ".\n" } else { " " };
        write!(text, "{}{end}", random.of(&WORDS))?;
    }
    Ok(())
}

fn clauses(text: &mut String, variables: u64, random: &mut Random) -> std::fmt::Result {
    let count = variables * 426 / 100;
    writeln!(text, "p cnf {variables} {count}")?;
    for _ in 0..count {
        let mut chosen = [0u64; 3];
        for at in 0..chosen.len() {
            // A bound is not needed: the variables are more than three.
            while chosen[at] == 0 || chosen[..at].contains(&chosen[at]) {
                chosen[at] = 1 + random.below(variables);
            }
        }
        for variable in chosen {
            write!(text, "{}{variable} ", random.of(&["", "-"]))?;
        }
        writeln!(text, "0")?;
    }
    Ok(())
}

fn stylesheet(text: &mut String, rules: u64, random: &mut Random) -> std::fmt::Result {
    writeln!(
        text,
        "$base: 16px;\n@function scaled($n) {{ @return $base * $n / 3 + 1px; }}\n\
         @mixin box($w, $c) {{ width: $w; &:hover {{ color: lighten($c, 10%); }} }}"
    )?;
    for number in 0..rules {
        let (red, width) = (random.below(256), 1 + random.below(90));
        let (steps, name) = (2 + random.below(6), random.of(&WORDS));
        writeln!(
            text,
            ".{name}-{number} {{\n  @include box({width}px, rgb({red}, {width}, 40));\n  \
             @for $i from 1 through {steps} {{ .n-#{{$i}} {{ margin: scaled($i); }} }}\n  \
             > a, li + li {{ padding: scaled({width}) mix(red, blue, {width}%); }}\n}}"
        )?;
    }
    Ok(())
}

fn table(text: &mut String, rows: u64, random: &mut Random) -> std::fmt::Result {
    writeln!(text, "number,word,value,place,text")?;
    for row in 0..rows {
        let (word, place) = (random.of(&WORDS), random.below(5000));
        let value = random.below(1 << 20) as f64 / 64.0;
        let quoted = random.of(&WORDS);
        writeln!(text, "{row},{word},{value},{place},\"{quoted}, {word}\"")?;
    }
    Ok(())
}

fn vector(text: &mut String, shapes: u64, random: &mut Random) -> std::fmt::Result {
    writeln!(
        text,
        "<svg xmlns='http://www.w3.org/2000/svg' width='800' height='800'>\n\
         <defs><linearGradient id='g'><stop offset='0' stop-color='red'/>\
         <stop offset='1' stop-color='blue'/></linearGradient>\n\
         <filter id='f'><feGaussianBlur stdDeviation='4'/></filter></defs>"
    )?;
    for number in 0..shapes {
        let [x, y, size, grey] = [800, 800, 200, 255].map(|end| random.below(end));
        let blurred = if number % 16 == 0 { " filter='url(#f)'" } else { "" };
        match random.below(3) {
            0 => writeln!(
                text,
                "<circle cx='{x}' cy='{y}' r='{size}' fill='rgb({grey},80,90)' opacity='0.5'\
                 {blurred}/>"
            )?,
            1 => writeln!(
                text,
                "<rect x='{x}' y='{y}' width='{size}' height='40' fill='url(#g)'{blurred}/>"
            )?,
            _ => writeln!(
                text,
                "<path d='M{x} {y} q {size} 30 60 {size} t 50 50 z' stroke='black' \
                 fill='none' stroke-width='3' stroke-dasharray='5 3'{blurred}/>"
            )?,
        }
    }
    writeln!(text, "</svg>")
}

/// An image in the format PNG, of three bytes for a pixel, not compressed.
fn picture(side: u64, random: &mut Random) -> Vec<u8> {
    let discs: Vec<[u64; 4]> =
        (0..12).map(|_| [side, side, side / 6 + 2, 200].map(|end| random.below(end))).collect();
    let mut rows = Vec::new();
    for y in 0..side {
        // No filter.
        rows.push(0);
        for x in 0..side {
            let mut pixel = [x * 255 / side, y * 255 / side, 128 + random.below(16)];
            for [cx, cy, radius, shade] in &discs {
                let (dx, dy) = (x.abs_diff(*cx), y.abs_diff(*cy));
                if dx * dx + dy * dy < radius * radius {
                    pixel = [*shade, 200 - shade, (x + y) % 256];
                }
            }
            rows.extend(pixel.map(|value| value as u8));
        }
    }
    let side = (side as u32).to_be_bytes();
    // 8 bits of red, green and blue; no compression, filter and interlace of their own.
    let header = [&side[..], &side, &[8, 2, 0, 0, 0]].concat();
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut png, b"IHDR", &header);
    chunk(&mut png, b"IDAT", &stored(&rows));
    chunk(&mut png, b"IEND", &[]);
    png
}

fn chunk(png: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    png.extend((data.len() as u32).to_be_bytes());
    let content = [&name[..], data].concat();
    png.extend(&content);
    png.extend(crc(&content).to_be_bytes());
}

/// A stream in the format zlib whose blocks are stored (RFC 1950, 1951).
fn stored(data: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 65_535;
    let mut stream = vec![0x78, 0x01];
    let count = data.chunks(BLOCK).count();
    for (number, block) in data.chunks(BLOCK).enumerate() {
        let length = block.len() as u16;
        stream.push(u8::from(number + 1 == count));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(block);
    }
    let (mut a, mut b) = (1u32, 0u32);
    for byte in data {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    stream.extend((b << 16 | a).to_be_bytes());
    stream
}

/// The check value of a chunk (RFC 2083, appendix 15).
fn crc(data: &[u8]) -> u32 {
    let shift = |value: u32| if value & 1 == 1 { value >> 1 ^ 0xEDB8_8320 } else { value >> 1 };
    let add = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |value, _| shift(value));
    !data.iter().fold(!0, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 9] = [
        Kind::Drawing,
        Kind::Expressions,
        Kind::Markdown,
        Kind::Picture,
        Kind::Prose,
        Kind::Clauses,
        Kind::Stylesheet,
        Kind::Table,
        Kind::Vector,
    ];

    #[test]
    fn a_seed_determines_an_input() {
        for kind in KINDS {
            assert_eq!(bytes(kind, 20, 7), bytes(kind, 20, 7), "{kind:?}");
            assert_ne!(bytes(kind, 20, 7), bytes(kind, 20, 8), "{kind:?}");
            assert!(bytes(kind, 20, 7).len() < bytes(kind, 40, 7).len(), "{kind:?}");
        }
    }

    #[test]
    fn check_values_are_those_of_the_formats() {
        assert_eq!(crc(b"123456789"), 0xCBF4_3926);
        assert_eq!(stored(b"Wikipedia")[16..], 0x11E6_0398u32.to_be_bytes());
    }
}
