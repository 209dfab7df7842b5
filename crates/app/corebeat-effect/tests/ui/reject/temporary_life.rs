// Temporary values that live as long as a variable.
struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        println!("end of {}", self.0);
    }
}

fn mix(v: &[u64], by: u64) -> u64 {
    let mut x = by;
    for y in v {
        x = x.rotate_left(7) ^ y;
    }
    x
}

fn behind(v: &[u64]) {
    let a = mix(v, 1);
    let _noisy = &*Box::new(Noisy(3));
    for x in v {
        println!("{x}");
    }
    println!("{a}");
}

fn nested(v: &[u64]) {
    let a = mix(v, 1);
    let _noisy = Some((&Noisy(4), 1));
    for x in v {
        println!("{x}");
    }
    println!("{a}");
}

fn twice(v: &[u64]) {
    let a = mix(v, 1);
    let _noisy = Some(Some(&Noisy(5)));
    for x in v {
        println!("{x}");
    }
    println!("{a}");
}

fn main() {
    let v = [3u64, 1, 4];
    behind(&v);
    nested(&v);
    twice(&v);
}
