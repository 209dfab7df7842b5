// A ray tracer: spheres above a plane, one light, shadows and reflections. Prints an image in the
// format PGM.

use std::io::Write;
use std::ops::{Add, Mul, Sub};

#[derive(Clone, Copy)]
struct Vector {
    x: f64,
    y: f64,
    z: f64,
}

fn vector(x: f64, y: f64, z: f64) -> Vector {
    Vector { x, y, z }
}

impl Add for Vector {
    type Output = Vector;
    fn add(self, other: Vector) -> Vector {
        vector(self.x + other.x, self.y + other.y, self.z + other.z)
    }
}

impl Sub for Vector {
    type Output = Vector;
    fn sub(self, other: Vector) -> Vector {
        vector(self.x - other.x, self.y - other.y, self.z - other.z)
    }
}

impl Mul<f64> for Vector {
    type Output = Vector;
    fn mul(self, factor: f64) -> Vector {
        vector(self.x * factor, self.y * factor, self.z * factor)
    }
}

impl Vector {
    fn dot(self, other: Vector) -> f64 {
        self.x * other.x + self.y * other.y + self.z * other.z
    }

    fn unit(self) -> Vector {
        self * (1.0 / self.dot(self).sqrt())
    }
}

struct Sphere {
    centre: Vector,
    radius: f64,
    grey: f64,
    mirror: f64,
}

struct Scene {
    spheres: Vec<Sphere>,
    light: Vector,
}

const NEAR: f64 = 1e-6;
const BOUNCES: u32 = 4;

impl Sphere {
    fn hit(&self, from: Vector, ray: Vector) -> Option<f64> {
        let to = self.centre - from;
        let along = to.dot(ray);
        let under = along * along - to.dot(to) + self.radius * self.radius;
        if under < 0.0 {
            return None;
        }
        let root = under.sqrt();
        if along - root > NEAR {
            Some(along - root)
        } else if along + root > NEAR {
            Some(along + root)
        } else {
            None
        }
    }
}

impl Scene {
    fn nearest(&self, from: Vector, ray: Vector) -> Option<(f64, &Sphere)> {
        let mut best: Option<(f64, &Sphere)> = None;
        for sphere in &self.spheres {
            if let Some(distance) = sphere.hit(from, ray) {
                if best.is_none_or(|(least, _)| distance < least) {
                    best = Some((distance, sphere));
                }
            }
        }
        best
    }

    fn shade(&self, from: Vector, ray: Vector, bounces: u32) -> f64 {
        let ground = if ray.y < -NEAR { Some(-from.y / ray.y) } else { None };
        let sphere = self.nearest(from, ray);
        let (distance, normal, grey, mirror) = match (sphere, ground) {
            (Some((distance, sphere)), ground) if ground.is_none_or(|g| distance < g) => {
                let normal = (from + ray * distance - sphere.centre).unit();
                (distance, normal, sphere.grey, sphere.mirror)
            }
            (_, Some(distance)) => {
                let at = from + ray * distance;
                let is_dark = (at.x.floor() + at.z.floor()) as i64 % 2 == 0;
                (distance, vector(0.0, 1.0, 0.0), if is_dark { 0.2 } else { 0.9 }, 0.1)
            }
            _ => return 0.5 + 0.5 * ray.y,
        };
        let at = from + ray * distance + normal * NEAR;
        let to_light = (self.light - at).unit();
        let is_lit = self.nearest(at, to_light).is_none();
        let diffuse = if is_lit { to_light.dot(normal).max(0.0) } else { 0.0 };
        let own = grey * (0.1 + 0.9 * diffuse);
        if bounces == 0 || mirror == 0.0 {
            return own;
        }
        let reflected = ray - normal * (2.0 * ray.dot(normal));
        own * (1.0 - mirror) + mirror * self.shade(at, reflected, bounces - 1)
    }

    fn row(&self, y: usize, size: usize) -> Vec<u8> {
        let mut row = Vec::with_capacity(size);
        for x in 0..size {
            let right = (x as f64 + 0.5) / size as f64 - 0.5;
            let up = 0.5 - (y as f64 + 0.5) / size as f64;
            let ray = vector(right, up - 0.1, 1.0).unit();
            let grey = self.shade(vector(0.0, 2.0, -6.0), ray, BOUNCES);
            row.push((grey.clamp(0.0, 1.0) * 255.0) as u8);
        }
        row
    }
}

fn scene() -> Scene {
    let mut spheres = Vec::new();
    for n in 0..40 {
        let turn = f64::from(n) * 0.7;
        spheres.push(Sphere {
            centre: vector(
                turn.cos() * (1.0 + f64::from(n) * 0.1),
                0.5,
                turn.sin() * 2.0 + f64::from(n) * 0.1,
            ),
            radius: 0.3 + f64::from(n % 3) * 0.1,
            grey: 0.3 + f64::from(n % 7) * 0.1,
            mirror: f64::from(n % 4) * 0.2,
        });
    }
    Scene { spheres, light: vector(5.0, 8.0, -5.0) }
}

fn main() {
    let size = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1300);
    let scene = scene();
    let rows: Vec<Vec<u8>> = (0..size).map(|y| scene.row(y, size)).collect();
    let mut image = format!("P5 {size} {size} 255\n").into_bytes();
    for row in &rows {
        image.extend_from_slice(row);
    }
    std::io::stdout().write_all(&image).expect("the image is written");
}
