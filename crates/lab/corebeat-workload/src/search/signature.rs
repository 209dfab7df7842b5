//! Signatures of pictures, and their distance: the earth mover's distance of Rubner, Tomasi and
//! Guibas, *The Earth Mover's Distance as a Metric for Image Retrieval* (2000).

use super::picture::{SIDE, Segmented};

/// Maximum number of regions of a signature; smaller regions are omitted.
const REGIONS_MAX: usize = 8;
/// Number of features: red, green, blue; column and row of the centre; width, height; share of the
/// bounding box that the region fills.
const FEATURES: usize = 8;
/// Sum of the weights of each signature. Equal sums permit a complete transport.
const MASS: u32 = 1024;
/// Number of nodes of the flow network: supply and demand.
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
    const EMPTY: Region =
        Region { pixels: 0, colour: [0; 3], place: [0; 2], low: [SIDE; 2], high: [0; 2] };

    fn add(&mut self, colour: [u8; 3], place: [usize; 2]) {
        self.pixels += 1;
        self.colour.iter_mut().zip(colour).for_each(|(sum, c)| *sum += usize::from(c));
        for axis in 0..2 {
            self.place[axis] += place[axis];
            self.low[axis] = self.low[axis].min(place[axis]);
            self.high[axis] = self.high[axis].max(place[axis]);
        }
    }

    /// Returns the features, each from 0 to 255.
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
        // A stable sort: of equally large regions, the upper one is first.
        regions.sort_by_key(|r| std::cmp::Reverse(r.pixels));
        regions.truncate(REGIONS_MAX);
        let pixels: usize = regions.iter().map(|r| r.pixels).sum();
        let points: Vec<(u32, Feature)> = regions
            .iter()
            .map(|r| ((r.pixels * MASS as usize / pixels) as u32, r.feature()))
            .collect();
        Signature::new(&points)
    }

    /// Creates a signature of 1 to [`REGIONS_MAX`] points. The first weight is raised so that the
    /// weights sum to [`MASS`].
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

    /// Returns a lower bound of the distance (section 4.4 of the paper): every transport moves the
    /// centre of mass by this distance.
    pub(super) fn bound(&self, other: &Signature) -> u32 {
        difference(&self.centre, &other.centre)
    }

    /// Returns a tighter lower bound of the distance: all mass takes the shortest path, without
    /// limits at the destinations; the larger value of both directions. The idea is from Kusner,
    /// Sun, Kolkin and Weinberger, *From Word Embeddings to Document Distances* (2015), section 4
    /// (relaxed transport).
    pub(super) fn tight_bound(&self, other: &Signature) -> u32 {
        let mut back = [u32::MAX; REGIONS_MAX];
        let mut forward = 0;
        for (weight, feature) in self.points() {
            let mut shortest = u32::MAX;
            for (back, (_, target)) in back.iter_mut().zip(other.points()) {
                let path = difference(feature, target);
                *back = path.min(*back);
                shortest = path.min(shortest);
            }
            forward += weight * shortest;
        }
        forward.max(other.points().zip(back).map(|((weight, _), path)| weight * path).sum())
    }

    fn points(&self) -> impl Iterator<Item = (u32, &Feature)> {
        self.weights.into_iter().zip(&self.features).take(self.regions)
    }

    /// Returns the least work that transports the mass of one signature to the other: the sum of
    /// mass times path length.
    ///
    /// Augments along cheapest paths until all mass is transported. Potentials keep all costs
    /// non-negative, so that Dijkstra's algorithm applies: Edmonds and Karp, *Theoretical
    /// Improvements in Algorithmic Efficiency for Network Flow Problems* (1972), section 1.3.
    pub(super) fn distance(&self, other: &Signature) -> u32 {
        let mut transport = Transport::new(self, other);
        let mut left = MASS;
        while left > 0 {
            let (end, from) = transport.cheapest_path();
            left -= transport.augment(end, &from);
        }
        transport.work()
    }
}

/// No node: the start of a path.
const NONE: usize = usize::MAX;

/// A transport of mass between two signatures. Nodes `0..m` supply, nodes `m..m + n` demand.
struct Transport {
    m: usize,
    n: usize,
    /// Costs from supply to demand; the reverse direction has the negative cost.
    cost: [[i32; REGIONS_MAX]; REGIONS_MAX],
    flow: [[u32; REGIONS_MAX]; REGIONS_MAX],
    supply: [u32; REGIONS_MAX],
    demand: [u32; REGIONS_MAX],
    potential: [i32; NODES],
}

impl Transport {
    #[inline(always)]
    fn new(from: &Signature, to: &Signature) -> Transport {
        let mut cost = [[0i32; REGIONS_MAX]; REGIONS_MAX];
        for i in 0..from.regions {
            for j in 0..to.regions {
                cost[i][j] = difference(&from.features[i], &to.features[j]) as i32;
            }
        }
        Transport {
            m: from.regions,
            n: to.regions,
            cost,
            flow: [[0; REGIONS_MAX]; REGIONS_MAX],
            supply: from.weights,
            demand: to.weights,
            potential: [0; NODES],
        }
    }

    /// Returns the end of a cheapest path from supply to unmet demand, and the predecessor of each
    /// node on it. Updates the potentials.
    #[inline(always)]
    fn cheapest_path(&mut self) -> (usize, [usize; NODES]) {
        const FAR: i32 = i32::MAX;
        let (m, n) = (self.m, self.n);
        let mut path = [FAR; NODES];
        let mut from = [NONE; NODES];
        let mut done = [false; NODES];
        for i in 0..m {
            if self.supply[i] > 0 {
                path[i] = 0;
            }
        }
        let end = loop {
            let mut nearest = None;
            for node in 0..m + n {
                if !done[node]
                    && path[node] != FAR
                    && nearest.is_none_or(|best: usize| path[node] < path[best])
                {
                    nearest = Some(node);
                }
            }
            let node = nearest.expect("demand equals supply");
            if node >= m && self.demand[node - m] > 0 {
                break node;
            }
            done[node] = true;
            let here = path[node] + self.potential[node];
            if node < m {
                for j in 0..n {
                    let next = here + self.cost[node][j] - self.potential[m + j];
                    if next < path[m + j] {
                        (path[m + j], from[m + j]) = (next, node);
                    }
                }
            } else {
                for i in 0..m {
                    let next = here - self.cost[i][node - m] - self.potential[i];
                    if self.flow[i][node - m] > 0 && next < path[i] {
                        (path[i], from[i]) = (next, node);
                    }
                }
            }
        };
        for node in 0..m + n {
            self.potential[node] += path[node].min(path[end]);
        }
        (end, from)
    }

    /// Transports as much as the path permits. Returns the amount.
    #[inline(always)]
    fn augment(&mut self, end: usize, from: &[usize; NODES]) -> u32 {
        let m = self.m;
        let mut amount = self.demand[end - m];
        let mut node = end;
        while from[node] != NONE {
            if node < m {
                amount = amount.min(self.flow[node][from[node] - m]);
            }
            node = from[node];
        }
        amount = amount.min(self.supply[node]);
        self.supply[node] -= amount;
        self.demand[end - m] -= amount;
        let mut node = end;
        while from[node] != NONE {
            match node < m {
                true => self.flow[node][from[node] - m] -= amount,
                false => self.flow[from[node]][node - m] += amount,
            }
            node = from[node];
        }
        amount
    }

    /// Returns the sum of amounts times costs.
    #[inline(always)]
    fn work(&self) -> u32 {
        let pairs = (0..self.m).flat_map(|i| (0..self.n).map(move |j| (i, j)));
        pairs.map(|(i, j)| self.flow[i][j] * self.cost[i][j] as u32).sum()
    }
}

/// Returns the sum of absolute differences.
#[inline(always)]
fn difference(a: &Feature, b: &Feature) -> u32 {
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
    fn signature_weights_sum_to_the_mass() {
        for seed in 0..50 {
            let signature = drawn(seed);
            assert_eq!(signature.weights.iter().sum::<u32>(), MASS);
            assert!(signature.regions > 1);
            assert!(signature.features.iter().flatten().all(|f| (0..256).contains(f)));
        }
    }

    #[test]
    fn distance_of_single_points_is_mass_times_path() {
        let [a, b] = [3, 10].map(|f| Signature::new(&[(0, [f; FEATURES])]));
        assert_eq!(a.distance(&b), MASS * 7 * FEATURES as u32);
        assert_eq!(a.bound(&b), a.distance(&b));
    }

    #[test]
    fn distance_is_a_metric_above_its_bounds() {
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

    /// Returns the least cost of all pairings of the points.
    fn best_pairing(a: &[Feature], b: &[Feature], used: u32) -> u32 {
        let Some((first, rest)) = a.split_first() else { return 0 };
        (0..b.len())
            .filter(|j| used & (1 << j) == 0)
            .map(|j| difference(first, &b[j]) + best_pairing(rest, b, used | 1 << j))
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
