//! Pictures, which are drawn from a seed, and their regions.

use crate::random::{below, number};

/// Number of pixels along each edge.
pub(super) const SIDE: usize = 64;
const PIXELS: usize = SIDE * SIDE;
/// Maximum difference between a pixel of a region and the region's first pixel: the sum over red,
/// green and blue.
const TOLERANCE: u32 = 40;

type Colour = [u8; 3];

/// A picture, as rows of pixels from the top.
pub(super) struct Picture {
    pixels: Vec<Colour>,
}

/// A picture, and the region of each pixel.
pub(super) struct Segmented {
    pub(super) picture: Picture,
    pub(super) regions: Vec<u16>,
    pub(super) region_count: usize,
}

impl Picture {
    /// Draws a background, a few discs and boxes, and noise on every pixel.
    pub(super) fn draw(seed: u64) -> Picture {
        let draw = |index: u64, bound: usize| below(seed, index, bound as u32) as usize;
        let colour = |index: u64| -> Colour {
            std::array::from_fn(|c| 16 + draw(index + c as u64, 224) as u8)
        };
        let mut pixels = vec![colour(0); PIXELS];
        for shape in 0..4 + draw(3, 6) as u64 {
            let at = 8 * (shape + 1);
            let (x, y, radius, fill) =
                (draw(at, SIDE), draw(at + 1, SIDE), 4 + draw(at + 2, 14), colour(at + 3));
            let disc = draw(at + 6, 2) == 0;
            let span = |c: usize| c.saturating_sub(radius)..SIDE.min(c + radius);
            for row in span(y) {
                for column in span(x) {
                    let inside =
                        column.abs_diff(x).pow(2) + row.abs_diff(y).pow(2) < radius * radius;
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

    /// Divides the picture into regions of neighbouring pixels of similar colour, by a flood fill
    /// from each pixel without a region.
    pub(super) fn segment(self) -> Segmented {
        const NONE: u16 = u16::MAX;
        let mut regions = vec![NONE; PIXELS];
        let mut region_count = 0;
        let mut open = Vec::new();
        for start in 0..PIXELS {
            if regions[start] != NONE {
                continue;
            }
            let first = self.pixels[start];
            let is_similar = |at: usize| {
                let differences =
                    self.pixels[at].iter().zip(first).map(|(a, b)| u32::from(a.abs_diff(b)));
                differences.sum::<u32>() <= TOLERANCE
            };
            let region = region_count as u16;
            region_count += 1;
            regions[start] = region;
            open.push(start);
            while let Some(at) = open.pop() {
                let (row, column) = (at / SIDE, at % SIDE);
                let mut fill = |near: usize| {
                    if regions[near] == NONE && is_similar(near) {
                        regions[near] = region;
                        open.push(near);
                    }
                };
                if column > 0 {
                    fill(at - 1);
                }
                if column + 1 < SIDE {
                    fill(at + 1);
                }
                if row > 0 {
                    fill(at - SIDE);
                }
                if row + 1 < SIDE {
                    fill(at + SIDE);
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
    fn each_field_of_a_chessboard_is_a_region() {
        let board = Picture::of(|x, y| if (x / 16 + y / 16) % 2 == 0 { [0; 3] } else { [200; 3] });
        let segmented = board.segment();
        assert_eq!(segmented.region_count, 16);
        for (at, region) in segmented.regions.iter().enumerate() {
            let (x, y) = (at % SIDE, at / SIDE);
            assert_eq!(*region, segmented.regions[y / 16 * 16 * SIDE + x / 16 * 16]);
        }
    }

    #[test]
    fn one_colour_is_one_region() {
        assert_eq!(Picture::of(|_, _| [9, 9, 9]).segment().region_count, 1);
    }

    #[test]
    fn pictures_of_one_seed_are_equal() {
        assert_eq!(Picture::draw(7).pixels, Picture::draw(7).pixels);
        assert_ne!(Picture::draw(7).pixels, Picture::draw(8).pixels);
    }
}
