// A result that the loop does not use has a destructor with an effect.
struct Noisy(u64);

impl Drop for Noisy {
    fn drop(&mut self) {
        println!("drop {}", self.0);
    }
}

fn cost(n: u64) -> Noisy {
    let mut sum = 0;
    for i in [n, n % 20, 3] {
        sum += i * i;
    }
    Noisy(sum)
}

fn main() {
    for n in 3..9u64 {
        let x = cost(n);
        println!("{}", x.0);
        if x.0 > 10 {
            break;
        }
    }
}
