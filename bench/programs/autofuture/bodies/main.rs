// Gravity of many bodies by the method of Barnes and Hut, "A hierarchical O(N log N)
// force-calculation algorithm", 1986, in two dimensions.

const NEAR: f64 = 1e-4;
const OPENING: f64 = 0.3;
const STEP: f64 = 1e-3;

#[derive(Clone, Copy)]
struct Body {
    x: f64,
    y: f64,
    vx: f64,
    vy: f64,
    mass: f64,
}

/// A square, with the mass of its bodies and their centre.
struct Cell {
    size: f64,
    x: f64,
    y: f64,
    mass: f64,
    inner: Vec<Cell>,
}

fn cell(bodies: &[Body], left: f64, low: f64, size: f64, depth: u32) -> Cell {
    let mass: f64 = bodies.iter().map(|b| b.mass).sum();
    let x = bodies.iter().map(|b| b.x * b.mass).sum::<f64>() / mass;
    let y = bodies.iter().map(|b| b.y * b.mass).sum::<f64>() / mass;
    let mut inner = Vec::new();
    if bodies.len() > 1 && depth > 0 {
        let half = size / 2.0;
        for (right, high) in [(0.0, 0.0), (half, 0.0), (0.0, half), (half, half)] {
            let (from_x, from_y) = (left + right, low + high);
            let is_inside = |b: &&Body| {
                b.x >= from_x && b.x < from_x + half && b.y >= from_y && b.y < from_y + half
            };
            let part: Vec<Body> = bodies.iter().filter(is_inside).copied().collect();
            if !part.is_empty() {
                inner.push(cell(&part, from_x, from_y, half, depth - 1));
            }
        }
    }
    Cell { size, x, y, mass, inner }
}

fn add_pull(body: &Body, cell: &Cell, pull: &mut (f64, f64)) {
    let (dx, dy) = (cell.x - body.x, cell.y - body.y);
    let square = dx * dx + dy * dy + NEAR;
    if cell.inner.is_empty() || cell.size * cell.size < OPENING * OPENING * square {
        let force = cell.mass / (square * square.sqrt());
        pull.0 += dx * force;
        pull.1 += dy * force;
    } else {
        for part in &cell.inner {
            add_pull(body, part, pull);
        }
    }
}

fn moved(body: &Body, root: &Cell) -> Body {
    let mut pull = (0.0, 0.0);
    add_pull(body, root, &mut pull);
    let (vx, vy) = (body.vx + pull.0 * STEP, body.vy + pull.1 * STEP);
    Body { x: body.x + vx * STEP, y: body.y + vy * STEP, vx, vy, mass: body.mass }
}

fn step(bodies: &[Body]) -> Vec<Body> {
    let root = cell(bodies, -8.0, -8.0, 16.0, 24);
    bodies.iter().map(|body| moved(body, &root)).collect()
}

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10_000u32);
    let place = |n: u32, by: f64| (f64::from(n) * by).fract() * 2.0 - 1.0;
    let mut bodies = Vec::new();
    for n in 0..count {
        let (x, y) = (place(n, 0.618_033_988_749), place(n, 0.754_877_666_246));
        bodies.push(Body { x, y, vx: -y, vy: x, mass: 1.0 / f64::from(count) });
    }
    for _ in 0..10 {
        bodies = step(&bodies);
    }
    let energy: f64 = bodies.iter().map(|b| b.mass * (b.vx * b.vx + b.vy * b.vy)).sum();
    println!("{count} bodies, energy {energy}, first at {} {}", bodies[0].x, bodies[0].y);
}
