// One pair of calls for each reason.
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

fn dynamic(f: &(dyn Fn(u32) -> u32 + Sync)) -> u32 {
    (0..3).fold(0, |a, b| a + f(b))
}

fn pointer(f: fn(u32) -> u32) -> u32 {
    let mut sum = 0;
    for i in 0..3 {
        sum += f(i);
    }
    sum
}

fn through_std(f: &(dyn Fn(&u32) -> u32 + Sync), v: &[u32]) -> Vec<u32> {
    v.iter().map(f).collect()
}

fn generic<T: Ord>(v: &[T]) -> usize {
    let mut best = 0;
    for i in 0..v.len() {
        if v[i].cmp(&v[best]).is_gt() {
            best = i;
        }
    }
    best
}

fn generic_pair<T: Ord + Sync>(v: &[T], w: &[T]) -> usize {
    let a = generic(v);
    let b = generic(w);
    a + b
}

fn raw(v: &[u32]) -> u32 {
    let mut sum = 0;
    for i in 0..v.len() {
        // SAFETY: `i` is within the slice.
        sum += unsafe { *v.as_ptr().add(i) };
    }
    sum
}

unsafe extern "C" {
    fn abs(x: i32) -> i32;
}

fn foreign(v: &[i32]) -> i32 {
    // SAFETY: `abs` only computes.
    v.iter().map(|x| unsafe { abs(*x) }).max().unwrap_or(0)
}

fn cell(c: &RefCell<u32>) -> u32 {
    for i in 0..3 {
        *c.borrow_mut() += i;
    }
    *c.borrow()
}

fn random(n: u32) -> usize {
    let mut map = HashMap::new();
    for i in 0..n {
        map.insert(i, i);
    }
    map.len()
}

fn time(n: u32) -> bool {
    let mut later = true;
    for _ in 0..n {
        later &= std::time::Instant::now().elapsed().as_nanos() > 0;
    }
    later
}

fn environment(n: u32) -> usize {
    (0..n).filter(|_| std::env::var_os("HOME").is_some()).count()
}

fn exit(n: u32) -> u32 {
    let mut i = 0;
    while i < n {
        i += 1;
        if i == 100 {
            std::process::exit(3);
        }
    }
    i
}

fn arc(a: &Arc<u32>) -> usize {
    let mut most = 0;
    for _ in 0..3 {
        most = most.max(Arc::strong_count(&a.clone()));
    }
    most
}

struct Loud(u32);

impl Drop for Loud {
    fn drop(&mut self) {
        println!("dropped {}", self.0);
    }
}

fn destructor(n: u32) -> u32 {
    let mut sum = 0;
    for i in 0..n {
        sum += Loud(i).0;
    }
    sum
}

static mut SHARED: u32 = 0;

fn mutable(n: u32) -> u32 {
    for _ in 0..n {
        // SAFETY: one thread runs this program.
        unsafe { SHARED += 1 };
    }
    n
}

fn thread(n: u32) -> u32 {
    let mut sum = 0;
    for i in 0..n {
        sum += std::thread::spawn(move || i).join().unwrap_or(0);
    }
    sum
}

fn leave(v: &[u32]) -> Option<u32> {
    let a = generic(v);
    let b = generic(match v.first() {
        Some(_) => v,
        None => return None,
    });
    Some((a + b) as u32)
}

fn stop(v: &mut [u32]) {
    for x in v.iter_mut() {
        if *x == 3 {
            break;
        }
        *x = generic(&[*x]) as u32;
    }
}

fn shared(v: &mut Vec<u32>) -> usize {
    generic(v)
}

fn main() {
    let (a, b) = (dynamic(&|x| x), dynamic(&|x| x + 1));
    let (c, d) = (pointer(|x| x), pointer(|x| x + 1));
    let (e, f) = (through_std(&|x| *x, &[1]), through_std(&|x| *x, &[2]));
    let (g, h) = (raw(&[1]), raw(&[2]));
    let (i, j) = (foreign(&[1]), foreign(&[2]));
    let (cell_a, cell_b) = (RefCell::new(1), RefCell::new(2));
    let (k, l) = (cell(&cell_a), cell(&cell_b));
    let (m, n) = (random(3), random(4));
    let (o, p) = (time(3), time(4));
    let (q, r) = (environment(3), environment(4));
    let (s, t) = (exit(3), exit(4));
    let counted = Arc::new(1);
    let (u, v) = (arc(&counted), arc(&counted));
    let (w, x) = (destructor(3), destructor(4));
    let (y, z) = (mutable(3), mutable(4));
    let (aa, ab) = (thread(1), thread(2));
    let mut list = vec![1, 2, 3];
    let ac = generic_pair(&[1], &[2]);
    println!("{:?}", leave(&[1]));
    stop(&mut list);
    let ad = shared(&mut list);
    let ae = shared(&mut list);
    println!("{a}{b}{c}{d}{e:?}{f:?}{g}{h}{i}{j}{k}{l}{m}{n}{o}{p}{q}{r}{s}{t}{u}{v}{w}{x}{y}{z}");
    println!("{aa}{ab}{ac}{ad}{ae}");
}
