// The arguments of the trait have another name in the implementation that prints.
trait Scaled<T>: Sync {
    fn scaled(&self, by: T) -> u64;
}

trait Unit {
    type Number;
}

struct Square(u64);

impl Unit for Square {
    type Number = u64;
}

impl Scaled<<Square as Unit>::Number> for Square {
    fn scaled(&self, by: u64) -> u64 {
        println!("{} by {by}", self.0);
        self.0 * by
    }
}

fn total(shapes: &[&dyn Scaled<u64>]) -> u64 {
    let mut sum = 0;
    for shape in shapes {
        sum += shape.scaled(3);
    }
    sum
}

fn main() {
    let a = total(&[&Square(1)]);
    let b = total(&[&Square(2)]);
    println!("{a} {b}");
}
