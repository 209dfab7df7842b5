//! A fluid of particles in a periodic box: Müller, Charypar and Gross, *Particle-Based Fluid
//! Simulation for Interactive Applications* (2003), section 3, with pressure and viscosity, on a
//! grid of cells. The width of a cell is the range of a particle's forces.
//!
//! Each thread owns a range of cells and evaluates every pair of particles once. Pairs cross the
//! borders between threads, so each cell has a lock. A step has five phases with a barrier after
//! each, much as PARSEC's fluidanimate:
//!
//! ```text
//!  density    near pairs add to both density sums      (locks: own and neighbouring cells)
//!  settle     sums become densities
//!  force      pairs add to both impulse sums           (locks: own and neighbouring cells)
//!  move       impulses become velocities; particles
//!             that leave a cell enter another          (locks: the cells entered)
//!  arrive     cells take in new particles; sums become zero
//! ```
//!
//! All state is in integers. Positions are 32-bit fractions of the box, so that wrapping
//! subtraction yields the nearest image of a neighbour. The contribution of a pair is rounded
//! before it is added, so that sums do not depend on the order of additions. Both particles of a
//! pair receive the same number with opposite signs, so that momentum is conserved to the last bit.

use crate::random::{below, mix, number};
use crate::{Size, Tally, WorkloadError, heartbeat, team};
use std::array::from_fn;
use std::sync::{Barrier, Mutex, RwLock};

/// Number of steps at full size.
const STEPS: usize = 2_400;
/// Initial number of particles per cell: 2 in each direction.
const CELL_PARTICLES: u32 = 8;
const SEED: u64 = 0xf1_01d;

/// Units of a contribution to a density, which is at most 1.
const DENSITY_UNITS: f32 = (1 << 20) as f32;
/// Units of a velocity of one cell width per step.
const VELOCITY_UNITS: f32 = (1 << 28) as f32;
/// Maximum change of a velocity by one neighbour in one step; far above that in a fluid at rest.
const IMPULSE_MAX: f32 = ((1 << 22) - 1) as f32;
/// Contribution of pressure to a velocity, in cells per step.
const STIFFNESS: f32 = 0.002;
const VISCOSITY: f32 = 0.05;
/// Density without pressure: that of the initial lattice.
const REST_DENSITY: f32 = 6.0;

/// Number of cells along each edge of the box: a power of two from 4 to 16, as a number of bits.
#[derive(Clone, Copy)]
struct Grid {
    bits: u32,
}

/// 512 cells: few enough for contention among a handful of threads.
const GRID: Grid = Grid { bits: 3 };

impl Grid {
    fn side(self) -> u32 {
        1 << self.bits
    }

    fn cells(self) -> usize {
        1 << (3 * self.bits)
    }

    fn cell_at(self, position: [u32; 3]) -> usize {
        let [x, y, z] = position.map(|p| (p >> (32 - self.bits)) as usize);
        (z << (2 * self.bits)) | (y << self.bits) | x
    }

    /// Returns the cell at an offset; the box is periodic.
    fn neighbour(self, cell: usize, offset: [i32; 3]) -> usize {
        let along = |axis: u32| (cell >> (axis * self.bits)) as u32 & (self.side() - 1);
        let at = from_fn(|axis| {
            let place = along(axis as u32).wrapping_add_signed(offset[axis]) & (self.side() - 1);
            place << (32 - self.bits)
        });
        self.cell_at(at)
    }

    /// Returns the 13 of the 26 offsets that follow (0, 0, 0): of each pair of neighbouring cells,
    /// one has the other at one of these offsets.
    fn half_offsets() -> impl Iterator<Item = [i32; 3]> {
        (14..27).map(|i| [i % 3 - 1, i / 3 % 3 - 1, i / 9 - 1])
    }

    /// Cell widths per unit of position: the kernels measure lengths in cell widths.
    fn width_per_unit(self) -> f32 {
        self.side() as f32 / 4_294_967_296.0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Particle {
    /// In units of 2^-32 of the box.
    position: [u32; 3],
    /// In units of 2^-28 of a cell per step.
    velocity: [i32; 3],
}

impl Particle {
    fn digest(&self) -> u64 {
        let words = self.position.into_iter().chain(self.velocity.map(|v| v as u32));
        words.fold(0, |sum, word| mix(sum ^ u64::from(word)))
    }

    /// Returns the shortest offset from `other` to this particle.
    #[inline(always)]
    fn offset_from(&self, other: &Particle, grid: Grid) -> [f32; 3] {
        from_fn(|i| {
            self.position[i].wrapping_sub(other.position[i]) as i32 as f32 * grid.width_per_unit()
        })
    }

    fn advance(&mut self, impulse: [i32; 3], grid: Grid) {
        for axis in 0..3 {
            self.velocity[axis] = self.velocity[axis].wrapping_add(impulse[axis]);
            // A cell is 2^(32 - bits) units of position and 2^28 of velocity.
            let step = self.velocity[axis] << (4 - grid.bits);
            self.position[axis] = self.position[axis].wrapping_add_signed(step);
        }
    }
}

/// Returns the initial particles of a cell: a disturbed lattice. The upper and the lower half of
/// the box stream in opposite directions.
fn first_particles(grid: Grid, cell: usize) -> Vec<Particle> {
    let width = 1u32 << (32 - grid.bits);
    let corner: [u32; 3] =
        from_fn(|axis| (cell >> (axis as u32 * grid.bits)) as u32 % grid.side() * width);
    let particle = |i: u32| {
        let index = cell as u64 * 8 + u64::from(i);
        let position = from_fn(|axis| {
            let lattice = (i >> axis & 1) * (width / 2) + width / 8;
            corner[axis] + lattice + below(SEED, index * 3 + axis as u64, width / 4)
        });
        let stream = if position[2] < 1 << 31 { 1 << 22 } else { -(1 << 22) };
        let noise = number(SEED + 1, index).to_le_bytes();
        let velocity =
            from_fn(|axis| if axis == 0 { stream } else { (i32::from(noise[axis]) - 128) << 12 });
        Particle { position, velocity }
    };
    (0..CELL_PARTICLES).map(particle).collect()
}

/// Rounds a number of magnitude below 2^22 to the nearest integer, symmetrically for -x and x.
///
/// The addition of 1.5 * 2^23 moves the integer into the low bits. A conversion would have to check
/// for numbers out of range.
#[inline(always)]
fn round(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

/// Returns the contribution of two particles to each other's density: the poly6 kernel, 1 at
/// distance 0.
#[inline(always)]
fn pair_density(a: &Particle, b: &Particle, grid: Grid) -> i32 {
    let [x, y, z] = a.offset_from(b, grid);
    let inside = (1.0 - (x * x + y * y + z * z)).max(0.0);
    round(inside * inside * inside * DENSITY_UNITS)
}

/// Returns what `b` adds to the velocity of `a`, and `a` with opposite sign to that of `b`: the
/// pressure of the spiky kernel, and viscosity. `None` out of range.
#[inline(always)]
fn pair_impulse(a: (&Particle, f32), b: (&Particle, f32), grid: Grid) -> Option<[i32; 3]> {
    let offset = a.0.offset_from(b.0, grid);
    let [x, y, z] = offset;
    let square = x * x + y * y + z * z;
    if square >= 1.0 {
        return None;
    }
    // Two particles at the same position have no direction.
    let distance = square.sqrt().max(1e-3);
    let inside = 1.0 - distance;
    let scale = 1.0 / (a.1 * b.1);
    let pressure = (a.1 + b.1 - 2.0 * REST_DENSITY) * inside * inside / distance;
    let push = STIFFNESS * VELOCITY_UNITS * pressure * scale;
    let drag = VISCOSITY * inside * scale;
    Some(from_fn(|i| {
        let velocity = (b.0.velocity[i] - a.0.velocity[i]) as f32;
        round((offset[i] * push + velocity * drag).clamp(-IMPULSE_MAX, IMPULSE_MAX))
    }))
}

/// Returns a density, which includes the particle's own contribution of 1.
#[inline(always)]
fn density(sum: i32) -> f32 {
    1.0 + sum as f32 / DENSITY_UNITS
}

/// Sum of a particle in a phase: a density in the first element, or an impulse.
type Sum = [i32; 3];

#[inline(always)]
fn add(to: &mut Sum, part: Sum) {
    for axis in 0..3 {
        to[axis] = to[axis].wrapping_add(part[axis]);
    }
}

#[derive(Default)]
struct Residents {
    particles: Vec<Particle>,
    densities: Vec<f32>,
}

struct Cell {
    /// Written by the owner in phases without other readers.
    residents: RwLock<Residents>,
    /// The lock of the papers: the thread that evaluates a pair adds here.
    sums: Mutex<Vec<Sum>>,
    arrivals: Mutex<Vec<Particle>>,
}

struct Fluid {
    grid: Grid,
    cells: Vec<Cell>,
}

/// Buffers of a thread, reused for all cells.
#[derive(Default)]
struct Scratch {
    own: Vec<Sum>,
    other: Vec<Sum>,
}

impl Fluid {
    fn new(grid: Grid) -> Fluid {
        let cell = |index| {
            let particles = first_particles(grid, index);
            Cell {
                sums: Mutex::new(vec![[0; 3]; particles.len()]),
                residents: RwLock::new(Residents {
                    densities: vec![0.0; particles.len()],
                    particles,
                }),
                arrivals: Mutex::new(Vec::new()),
            }
        };
        Fluid { grid, cells: (0..grid.cells()).map(cell).collect() }
    }

    /// Adds the result of `pair` for every pair with a particle in this cell to both particles'
    /// sums. Over all cells, each pair is evaluated once. A thread holds one lock at a time, and
    /// computes nothing while it does.
    #[inline(always)]
    fn scatter(
        &self,
        index: usize,
        scratch: &mut Scratch,
        pair: impl Fn((&Particle, f32), (&Particle, f32)) -> Option<(Sum, Sum)>,
    ) {
        let cell = &self.cells[index];
        let residents = cell.residents.read().unwrap();
        let Residents { particles, densities } = &*residents;
        let Scratch { own, other } = scratch;
        own.clear();
        own.resize(particles.len(), [0; 3]);
        for i in 0..particles.len() {
            for j in 0..i {
                if let Some((a, b)) =
                    pair((&particles[i], densities[i]), (&particles[j], densities[j]))
                {
                    add(&mut own[i], a);
                    add(&mut own[j], b);
                }
            }
        }
        for offset in Grid::half_offsets() {
            let neighbour = &self.cells[self.grid.neighbour(index, offset)];
            let near = neighbour.residents.read().unwrap();
            other.clear();
            other.resize(near.particles.len(), [0; 3]);
            for ((a, a_density), a_sum) in particles.iter().zip(densities).zip(&mut *own) {
                for ((b, b_density), b_sum) in
                    near.particles.iter().zip(&near.densities).zip(&mut *other)
                {
                    if let Some((to_a, to_b)) = pair((a, *a_density), (b, *b_density)) {
                        add(a_sum, to_a);
                        add(b_sum, to_b);
                    }
                }
            }
            let mut sums = neighbour.sums.lock().unwrap();
            sums.iter_mut().zip(&*other).for_each(|(sum, part)| add(sum, *part));
        }
        let mut sums = cell.sums.lock().unwrap();
        sums.iter_mut().zip(&*own).for_each(|(sum, part)| add(sum, *part));
    }

    fn add_densities(&self, index: usize, scratch: &mut Scratch) {
        self.scatter(index, scratch, |(a, _), (b, _)| {
            let d = pair_density(a, b, self.grid);
            Some(([d, 0, 0], [d, 0, 0]))
        });
    }

    fn settle(&self, index: usize) {
        let mut residents = self.cells[index].residents.write().unwrap();
        let mut sums = self.cells[index].sums.lock().unwrap();
        for (d, sum) in residents.densities.iter_mut().zip(&mut *sums) {
            *d = density(sum[0]);
            *sum = [0; 3];
        }
    }

    fn add_impulses(&self, index: usize, scratch: &mut Scratch) {
        self.scatter(index, scratch, |a, b| {
            pair_impulse(a, b, self.grid).map(|impulse| (impulse, impulse.map(|i| -i)))
        });
    }

    fn advance(&self, index: usize) {
        let mut residents = self.cells[index].residents.write().unwrap();
        let sums = self.cells[index].sums.lock().unwrap();
        let mut sums = sums.iter();
        residents.particles.retain_mut(|particle| {
            let impulse = sums.next().expect("a sum for each particle");
            particle.advance(*impulse, self.grid);
            let cell = self.grid.cell_at(particle.position);
            if cell != index {
                self.cells[cell].arrivals.lock().unwrap().push(*particle);
            }
            cell == index
        });
    }

    fn arrive(&self, index: usize) {
        let cell = &self.cells[index];
        let mut residents = cell.residents.write().unwrap();
        residents.particles.append(&mut cell.arrivals.lock().unwrap());
        let count = residents.particles.len();
        residents.densities.resize(count, 0.0);
        let mut sums = cell.sums.lock().unwrap();
        sums.clear();
        sums.resize(count, [0; 3]);
    }

    fn run(&self, threads: usize, steps: usize) -> Result<(), WorkloadError> {
        let barrier = Barrier::new(threads);
        team::run_ranks("fluid", threads, |rank| {
            let mine = team::share(rank, threads, self.cells.len());
            let mut scratch = Scratch::default();
            for _ in 0..steps {
                mine.clone().for_each(|cell| self.add_densities(cell, &mut scratch));
                barrier.wait();
                mine.clone().for_each(|cell| self.settle(cell));
                barrier.wait();
                mine.clone().for_each(|cell| self.add_impulses(cell, &mut scratch));
                barrier.wait();
                mine.clone().for_each(|cell| self.advance(cell));
                barrier.wait();
                mine.clone().for_each(|cell| self.arrive(cell));
                barrier.wait();
                heartbeat::beat(1);
            }
        })
    }

    fn into_particles(self) -> impl Iterator<Item = Particle> {
        self.cells.into_iter().flat_map(|cell| cell.residents.into_inner().unwrap().particles)
    }
}

/// Tallies the particles, in any order.
fn tally(size: Size, particles: impl Iterator<Item = Particle>) -> Tally {
    let (mut checksum, mut count) = (0u64, 0);
    for particle in particles {
        checksum = checksum.wrapping_add(particle.digest());
        count += 1;
    }
    Tally { checksum, work: count * size.count(STEPS) as u64 }
}

pub(crate) fn run(threads: usize, size: Size) -> Result<Tally, WorkloadError> {
    let fluid = Fluid::new(GRID);
    fluid.run(threads, size.count(STEPS))?;
    Ok(tally(size, fluid.into_particles()))
}

/// The naive version: for each particle, all particles of the 27 surrounding cells.
pub(crate) fn naive(size: Size) -> Tally {
    let mut particles: Vec<Particle> =
        (0..GRID.cells()).flat_map(|cell| first_particles(GRID, cell)).collect();
    for _ in 0..size.count(STEPS) {
        naive_step(&mut particles, GRID);
    }
    tally(size, particles.into_iter())
}

fn naive_step(particles: &mut [Particle], grid: Grid) {
    let mut cells = vec![Vec::new(); grid.cells()];
    for (i, particle) in particles.iter().enumerate() {
        cells[grid.cell_at(particle.position)].push(i);
    }
    let near = |i: usize| {
        let mut near: Vec<usize> = Vec::new();
        for offset in 0..27i32 {
            let offset = [offset % 3 - 1, offset / 3 % 3 - 1, offset / 9 - 1];
            near.extend(&cells[grid.neighbour(grid.cell_at(particles[i].position), offset)]);
        }
        near.retain(|&j| j != i);
        near
    };
    let densities: Vec<f32> = (0..particles.len())
        .map(|i| {
            density(near(i).iter().map(|&j| pair_density(&particles[i], &particles[j], grid)).sum())
        })
        .collect();
    let impulses: Vec<Sum> = (0..particles.len())
        .map(|i| {
            let mut sum = [0; 3];
            for j in near(i) {
                let pair = pair_impulse(
                    (&particles[i], densities[i]),
                    (&particles[j], densities[j]),
                    grid,
                );
                add(&mut sum, pair.unwrap_or_default());
            }
            sum
        })
        .collect();
    for (particle, impulse) in particles.iter_mut().zip(impulses) {
        particle.advance(impulse, grid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Grid = Grid { bits: 2 };

    fn momentum(particles: impl Iterator<Item = Particle>) -> [i64; 3] {
        particles.fold([0; 3], |sum, p| from_fn(|axis| sum[axis] + i64::from(p.velocity[axis])))
    }

    #[test]
    fn run_conserves_momentum_to_the_last_bit() {
        let before = momentum(Fluid::new(SMALL).into_particles());
        let fluid = Fluid::new(SMALL);
        fluid.run(3, 30).unwrap();
        let particles: Vec<Particle> = fluid.into_particles().collect();
        assert_eq!(momentum(particles.iter().copied()), before);
        assert_eq!(particles.len(), SMALL.cells() * CELL_PARTICLES as usize);
    }

    #[test]
    fn run_keeps_the_energy_bounded() {
        let energy = |fluid: Fluid| -> f64 {
            fluid.into_particles().flat_map(|p| p.velocity).map(|v| f64::from(v).powi(2)).sum()
        };
        let before = energy(Fluid::new(SMALL));
        let fluid = Fluid::new(SMALL);
        fluid.run(1, 100).unwrap();
        let after = energy(fluid);
        assert!(after > 0.01 * before && after < 4.0 * before, "{before} {after}");
    }

    #[test]
    fn run_equals_the_naive_simulation() {
        let mut naive: Vec<Particle> =
            (0..SMALL.cells()).flat_map(|cell| first_particles(SMALL, cell)).collect();
        (0..10).for_each(|_| naive_step(&mut naive, SMALL));
        let fluid = Fluid::new(SMALL);
        fluid.run(2, 10).unwrap();
        let mut run: Vec<u64> = fluid.into_particles().map(|p| p.digest()).collect();
        let mut naive: Vec<u64> = naive.iter().map(Particle::digest).collect();
        run.sort();
        naive.sort();
        assert_eq!(run, naive);
    }

    #[test]
    fn pair_across_the_edge_is_near_and_symmetric() {
        let at = |x: u32, v| Particle { position: [x, 5, 5], velocity: [v, 0, 0] };
        let (a, b) = (at(u32::MAX - 1000, 7 << 12), at(3000, 0));
        assert!(pair_density(&a, &b, SMALL) > round(0.99 * DENSITY_UNITS) / 2);
        assert_eq!(pair_density(&a, &b, SMALL), pair_density(&b, &a, SMALL));
        let forward = pair_impulse((&a, 9.0), (&b, 11.0), SMALL).unwrap();
        let back = pair_impulse((&b, 11.0), (&a, 9.0), SMALL).unwrap();
        assert_eq!(forward, back.map(|i| -i));
        assert!(forward[0] < 0, "particles repel above the rest density");
        assert_eq!(pair_impulse((&a, 9.0), (&at(1 << 31, 0), 9.0), SMALL), None);
    }

    #[test]
    fn half_offsets_cover_each_neighbour_once() {
        let cell = 21;
        let mut all: Vec<usize> = Grid::half_offsets()
            .flat_map(|o| [SMALL.neighbour(cell, o), SMALL.neighbour(cell, o.map(|x| -x))])
            .collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 26);
        assert!(!all.contains(&cell));
    }
}
