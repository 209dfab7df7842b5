//@ lib options=no-panic-hook,no-catch
// Programs that use the library may implement the trait, with any effects.
pub trait Source: Sync {
    fn number(&self) -> u64;
}

pub struct Fixed(pub u64);

impl Source for Fixed {
    fn number(&self) -> u64 {
        self.0
    }
}

fn numbers(sources: &[&dyn Source]) -> Vec<u64> {
    let mut list = Vec::new();
    for source in sources {
        list.push(source.number());
    }
    list
}

pub fn both(sources: &[&dyn Source], others: &[&dyn Source]) -> Vec<u64> {
    let mut a = numbers(sources);
    let b = numbers(others);
    a.extend(b);
    a
}

pub fn main() {
    println!("{:?}", both(&[&Fixed(1)], &[&Fixed(2)]));
}
