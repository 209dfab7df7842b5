//! Pictures, drawn from a number, and their regions.

use crate::random::{below, number};

/// Pixels along each edge.
pub(super) const SIDE: usize = 64;
const PIXELS: usize = SIDE * SIDE;
/// Red, green and blue of one region differ by no more than this in sum from where the region was begun.
const TOLERANCE: u32 = 40;

type Colour = [u8; 3];

/// Rows of pixels from the top.
pub(super) struct Picture {
    pixels: Vec<Colour>,
}

/// A picture and, for each pixel, which region it belongs to.
pub(super) struct Segmented {
    pub(super) picture: Picture,
    pub(super) regions: Vec<u16>,
    pub(super) region_count: usize,
}

impl Picture {
    /// A background and a few discs and boxes over it, with a little noise on every pixel.
    pub(super) fn draw(seed: u64) -> Picture {
        let draw = |index: u64, bound: usize| below(seed, index, bound as u32) as usize;
        let colour =
            |index: u64| -> Colour { std::array::from_fn(|c| 16 + draw(index + c as u64, 224) as u8) };
        let mut pixels = vec![colour(0); PIXELS];
        for shape in 0..4 + draw(3, 6) as u64 {
            let at = 8 * (shape + 1);
            let (x, y, radius, fill) =
                (draw(at, SIDE), draw(at + 1, SIDE), 4 + draw(at + 2, 14), colour(at + 3));
            let disc = draw(at + 6, 2) == 0;
            let span = |c: usize| c.saturating_sub(radius)..SIDE.min(c + radius);
            for row in span(y) {
                for column in span(x) {
                    let inside = column.abs_diff(x).pow(2) + row.abs_diff(y).pow(2) < radius * radius;
                    if inside || !disc {
                        pixels[row * SIDE + column] = fill;
                    }
                }
            }
        }
        for (i, pixel) in pixels.iter_mut().enumerate() {
            let noise = number(!seed, i as u64).to_le_bytes();
            for (value, noise) in pixel.iter_mut().zip(noise) {
                *value += noise & 7;
            }
        }
        Picture { pixels }
    }

    pub(super) fn pixel(&self, at: usize) -> Colour {
        self.pixels[at]
    }

    /// Divides the picture into regions of neighbouring pixels of about one colour, by filling from each pixel that
    /// has no region yet.
    pub(super) fn segment(self) -> Segmented {
        const NONE: u16 = u16::MAX;
        let mut regions = vec![NONE; PIXELS];
        let mut region_count = 0;
        let mut open = Vec::new();
        for start in 0..PIXELS {
            if regions[start] != NONE {
                continue;
            }
            let begun = self.pixels[start];
            let like = |at: usize| {
                let differences = self.pixels[at].iter().zip(begun).map(|(a, b)| u32::from(a.abs_diff(b)));
                differences.sum::<u32>() <= TOLERANCE
            };
            let region = region_count as u16;
            region_count += 1;
            regions[start] = region;
            open.push(start);
            while let Some(at) = open.pop() {
                let (row, column) = (at / SIDE, at % SIDE);
                let mut meet = |near: usize| {
                    if regions[near] == NONE && like(near) {
                        regions[near] = region;
                        open.push(near);
                    }
                };
                if column > 0 {
                    meet(at - 1);
                }
                if column + 1 < SIDE {
                    meet(at + 1);
                }
                if row > 0 {
                    meet(at - SIDE);
                }
                if row + 1 < SIDE {
                    meet(at + SIDE);
                }
            }
        }
        Segmented { picture: self, regions, region_count }
    }

    #[cfg(test)]
    pub(super) fn of(pixel: impl Fn(usize, usize) -> Colour) -> Picture {
        Picture { pixels: (0..PIXELS).map(|at| pixel(at % SIDE, at / SIDE)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_of_a_chessboard_gives_each_field_its_region() {
        let board = Picture::of(|x, y| if (x / 16 + y / 16) % 2 == 0 { [0; 3] } else { [200; 3] });
        let segmented = board.segment();
        assert_eq!(segmented.region_count, 16);
        for (at, region) in segmented.regions.iter().enumerate() {
            let (x, y) = (at % SIDE, at / SIDE);
            assert_eq!(*region, segmented.regions[y / 16 * 16 * SIDE + x / 16 * 16]);
        }
    }

    #[test]
    fn segment_of_one_colour_is_one_region() {
        assert_eq!(Picture::of(|_, _| [9, 9, 9]).segment().region_count, 1);
    }

    #[test]
    fn draw_is_the_same_for_the_same_number() {
        assert_eq!(Picture::draw(7).pixels, Picture::draw(7).pixels);
        assert_ne!(Picture::draw(7).pixels, Picture::draw(8).pixels);
    }
}
