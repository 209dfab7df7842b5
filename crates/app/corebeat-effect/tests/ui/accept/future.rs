// Calls whose results are needed later, and the statements between.
struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        println!("end of {}", self.0);
    }
}

// Cannot panic, and ends.
fn mix(v: &[u64], by: u64) -> u64 {
    let mut x = by;
    for y in v {
        x = x.rotate_left(7) ^ y;
    }
    x
}

fn index(v: &[usize]) -> usize {
    let mut at = 0;
    for _ in 0..5 {
        at = v[at];
    }
    at
}

fn scale(v: &mut [f64], by: f64) {
    for x in v {
        *x *= by;
    }
}

// The statements behind the call have effects.
fn shown(v: &[u64]) -> u64 {
    let a = mix(v, 1);
    // The count of the lines.
    let mut lines = 0;
    for x in v {
        println!("{x}");
        lines += 1;
    }
    let mut twice = lines * 2;
    twice += 1;
    println!("{lines}");
    a ^ twice
}

// The call may panic. The statements behind it have no effects.
fn silent(v: &[u64], w: &[usize]) -> u64 {
    let a = index(w);
    let mut sum = 0;
    for x in v {
        sum ^= x.rotate_left(3);
    }
    sum ^ a as u64
}

// The variable ends after the print.
fn ends(v: &[u64]) -> u64 {
    let a = mix(v, 5);
    let noisy = Noisy(mix(&v[1..], 3) % 10);
    let b = mix(v, 6);
    println!("{}", v.len());
    a ^ b
}

// Neither of the two has a result.
fn both(v: &mut Vec<f64>, w: &[u64]) {
    scale(v, 2.0);
    for x in w.iter() {
        println!("{x}");
    }
    v.push(1.0);
}

fn typed(v: &[u64], words: Vec<String>) -> usize {
    let (mut x, y): (usize, String) = longest(words);
    let z: u64 = {
        let mut z = 1;
        for x in v {
            z ^= x;
        }
        z
    };
    x += 1;
    x + y.len() + z as usize
}

fn longest(words: Vec<String>) -> (usize, String) {
    let mut most = String::new();
    for word in words {
        if word.len() > most.len() {
            most = word;
        }
    }
    (most.len(), most)
}

fn main() {
    let v = [3, 1, 4, 1, 5];
    println!("{} {}", shown(&v), silent(&v, &[2, 0, 1]));
    println!("{}", ends(&v));
    let mut floats = vec![1.5];
    both(&mut floats, &v);
    println!("{floats:?} {}", typed(&v, vec!["a".into(), "bcd".into()]));
}
