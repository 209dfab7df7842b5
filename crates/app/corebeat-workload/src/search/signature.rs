//! What is kept of a picture, and how far two pictures are apart: the earth mover's distance of Rubner, Tomasi and
//! Guibas, *The Earth Mover's Distance as a Metric for Image Retrieval* (2000).

use super::picture::{SIDE, Segmented};

/// Regions of a picture that count; the smaller ones are left out.
const REGIONS_MAX: usize = 8;
/// Red, green, blue; column and row of the middle; width, height; how much of its box it fills.
const FEATURES: usize = 8;
/// The weights of a signature add up to this, so that all of one can be carried to another.
const MASS: u32 = 1024;
/// Supply and demand: what the distance is computed on.
const NODES: usize = 2 * REGIONS_MAX;

type Feature = [i32; FEATURES];

/// A picture as weighted points in a space of features.
#[derive(Debug, Clone)]
pub(super) struct Signature {
    regions: usize,
    weights: [u32; REGIONS_MAX],
    features: [Feature; REGIONS_MAX],
    /// The sum of weight times feature.
    centre: Feature,
}

/// Sums over the pixels of a region.
#[derive(Clone, Copy)]
struct Region {
    pixels: usize,
    colour: [usize; 3],
    place: [usize; 2],
    low: [usize; 2],
    high: [usize; 2],
}

impl Region {
    const EMPTY: Region = Region { pixels: 0, colour: [0; 3], place: [0; 2], low: [SIDE; 2], high: [0; 2] };

    fn add(&mut self, colour: [u8; 3], place: [usize; 2]) {
        self.pixels += 1;
        self.colour.iter_mut().zip(colour).for_each(|(sum, c)| *sum += usize::from(c));
        for axis in 0..2 {
            self.place[axis] += place[axis];
            self.low[axis] = self.low[axis].min(place[axis]);
            self.high[axis] = self.high[axis].max(place[axis]);
        }
    }

    /// Each from 0 to 255.
    fn feature(&self) -> Feature {
        let [red, green, blue] = self.colour.map(|sum| sum / self.pixels);
        let [column, row] = self.place.map(|sum| sum * 4 / self.pixels);
        let extent = |axis: usize| self.high[axis] + 1 - self.low[axis];
        let fill = self.pixels * 255 / (extent(0) * extent(1));
        [red, green, blue, column, row, extent(0) * 2, extent(1) * 2, fill].map(|f| f as i32)
    }
}

impl Signature {
    pub(super) fn of(segmented: &Segmented) -> Signature {
        let mut regions = vec![Region::EMPTY; segmented.region_count];
        for (at, &region) in segmented.regions.iter().enumerate() {
            regions[usize::from(region)].add(segmented.picture.pixel(at), [at % SIDE, at / SIDE]);
        }
        // A stable sort: of equally large regions the one that begins further up counts first.
        regions.sort_by_key(|r| std::cmp::Reverse(r.pixels));
        regions.truncate(REGIONS_MAX);
        let pixels: usize = regions.iter().map(|r| r.pixels).sum();
        let points: Vec<(u32, Feature)> =
            regions.iter().map(|r| ((r.pixels * MASS as usize / pixels) as u32, r.feature())).collect();
        Signature::new(&points)
    }

    /// At most [`REGIONS_MAX`] points, at least one; what their weights lack to [`MASS`] goes to the first.
    fn new(points: &[(u32, Feature)]) -> Signature {
        let mut signature = Signature {
            regions: points.len(),
            weights: [0; REGIONS_MAX],
            features: [[0; FEATURES]; REGIONS_MAX],
            centre: [0; FEATURES],
        };
        for (i, &(weight, feature)) in points.iter().enumerate() {
            signature.weights[i] = weight;
            signature.features[i] = feature;
        }
        signature.weights[0] += MASS - signature.weights.iter().sum::<u32>();
        for (weight, feature) in signature.weights.iter().zip(&signature.features) {
            for (sum, f) in signature.centre.iter_mut().zip(feature) {
                *sum += *weight as i32 * f;
            }
        }
        signature
    }

    /// Never more than the distance (section 4.4 of the paper): however the mass is carried, its centre moves this far.
    pub(super) fn bound(&self, other: &Signature) -> u32 {
        apart(&self.centre, &other.centre)
    }

    /// Never more than the distance either, and mostly nearer to it: every bit of mass goes the shortest way, however
    /// much arrives there. The larger of the two directions; the idea of Kusner, Sun, Kolkin and Weinberger, *From
    /// Word Embeddings to Document Distances* (2015), section 4 (relaxed transport).
    pub(super) fn tight_bound(&self, other: &Signature) -> u32 {
        let mut back = [u32::MAX; REGIONS_MAX];
        let mut there = 0;
        for (weight, feature) in self.points() {
            let mut shortest = u32::MAX;
            for (back, (_, target)) in back.iter_mut().zip(other.points()) {
                let way = apart(feature, target);
                *back = way.min(*back);
                shortest = way.min(shortest);
            }
            there += weight * shortest;
        }
        there.max(other.points().zip(back).map(|((weight, _), way)| weight * way).sum())
    }

    fn points(&self) -> impl Iterator<Item = (u32, &Feature)> {
        self.weights.into_iter().zip(&self.features).take(self.regions)
    }

    /// The least work that carries one's mass to the other: mass times way, added up.
    ///
    /// Carries along a cheapest way (Dijkstra's algorithm, made possible by potentials that keep all costs from being
    /// negative) until all is carried: Edmonds and Karp, *Theoretical Improvements in Algorithmic Efficiency for
    /// Network Flow Problems* (1972), section 1.3.
    pub(super) fn distance(&self, other: &Signature) -> u32 {
        let (m, n) = (self.regions, other.regions);
        // Nodes 0..m supply, m..m + n demand. Costs are those of supply to demand; the way back costs as much less.
        let mut cost = [[0i32; REGIONS_MAX]; REGIONS_MAX];
        for i in 0..m {
            for j in 0..n {
                cost[i][j] = apart(&self.features[i], &other.features[j]) as i32;
            }
        }
        let mut flow = [[0u32; REGIONS_MAX]; REGIONS_MAX];
        let (mut supply, mut demand) = (self.weights, other.weights);
        let mut potential = [0i32; NODES];
        let mut left = MASS;
        while left > 0 {
            const FAR: i32 = i32::MAX;
            let mut way = [FAR; NODES];
            let mut from = [usize::MAX; NODES];
            let mut done = [false; NODES];
            for i in 0..m {
                if supply[i] > 0 {
                    way[i] = 0;
                }
            }
            // The nearest node that still wants something.
            let end = loop {
                let mut nearest = None;
                for node in 0..m + n {
                    if !done[node]
                        && way[node] != FAR
                        && nearest.is_none_or(|best: usize| way[node] < way[best])
                    {
                        nearest = Some(node);
                    }
                }
                let node = nearest.expect("as much is wanted as there is");
                if node >= m && demand[node - m] > 0 {
                    break node;
                }
                done[node] = true;
                if node < m {
                    for j in 0..n {
                        let next = way[node] + cost[node][j] + potential[node] - potential[m + j];
                        if next < way[m + j] {
                            (way[m + j], from[m + j]) = (next, node);
                        }
                    }
                } else {
                    for i in 0..m {
                        let next = way[node] - cost[i][node - m] + potential[node] - potential[i];
                        if flow[i][node - m] > 0 && next < way[i] {
                            (way[i], from[i]) = (next, node);
                        }
                    }
                }
            };
            for node in 0..m + n {
                potential[node] += way[node].min(way[end]);
            }
            // As much as the way carries.
            let mut amount = demand[end - m];
            let mut node = end;
            while from[node] != usize::MAX {
                if node < m {
                    amount = amount.min(flow[node][from[node] - m]);
                }
                node = from[node];
            }
            amount = amount.min(supply[node]);
            supply[node] -= amount;
            demand[end - m] -= amount;
            left -= amount;
            let mut node = end;
            while from[node] != usize::MAX {
                match node < m {
                    true => flow[node][from[node] - m] -= amount,
                    false => flow[from[node]][node - m] += amount,
                }
                node = from[node];
            }
        }
        (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| flow[i][j] * cost[i][j] as u32).sum()
    }
}

/// The sum of absolute differences.
#[inline(always)]
fn apart(a: &Feature, b: &Feature) -> u32 {
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).sum()
}

#[cfg(test)]
mod tests {
    use super::super::picture::Picture;
    use super::*;
    use proptest::prelude::*;

    fn drawn(seed: u64) -> Signature {
        Signature::of(&Picture::draw(seed).segment())
    }

    #[test]
    fn signature_weights_add_up_to_the_mass() {
        for seed in 0..50 {
            let signature = drawn(seed);
            assert_eq!(signature.weights.iter().sum::<u32>(), MASS);
            assert!(signature.regions > 1);
            assert!(signature.features.iter().flatten().all(|f| (0..256).contains(f)));
        }
    }

    #[test]
    fn distance_of_single_points_is_mass_times_way() {
        let [a, b] = [3, 10].map(|f| Signature::new(&[(0, [f; FEATURES])]));
        assert_eq!(a.distance(&b), MASS * 7 * FEATURES as u32);
        assert_eq!(a.bound(&b), a.distance(&b));
    }

    #[test]
    fn distance_is_a_metric_above_its_bound() {
        let s: Vec<Signature> = (0..12).map(drawn).collect();
        for a in &s {
            assert_eq!(a.distance(a), 0);
            for b in &s {
                assert_eq!(a.distance(b), b.distance(a));
                assert!(a.bound(b).max(a.tight_bound(b)) <= a.distance(b));
                assert_eq!(a.tight_bound(b), b.tight_bound(a));
                for c in &s {
                    assert!(a.distance(c) <= a.distance(b) + b.distance(c));
                }
            }
        }
    }

    /// The least cost over all ways to pair the points.
    fn best_pairing(a: &[Feature], b: &[Feature], used: u32) -> u32 {
        let Some((first, rest)) = a.split_first() else { return 0 };
        (0..b.len())
            .filter(|j| used & (1 << j) == 0)
            .map(|j| apart(first, &b[j]) + best_pairing(rest, b, used | 1 << j))
            .min()
            .unwrap_or(u32::MAX)
    }

    fn points(count: usize) -> impl Strategy<Value = Vec<Feature>> {
        proptest::collection::vec(proptest::array::uniform8(0..256i32), count)
    }

    proptest! {
        #[test]
        fn distance_of_equal_weights_is_the_best_pairing(a in points(4), b in points(4)) {
            let signature = |p: &[Feature]| {
                Signature::new(&p.iter().map(|&f| (MASS / 4, f)).collect::<Vec<_>>())
            };
            let distance = signature(&a).distance(&signature(&b));
            prop_assert_eq!(distance, best_pairing(&a, &b, 0) * (MASS / 4));
        }
    }
}
