// Trait objects and type parameters: all implementations of the trait only compute.
trait Shape: Sync {
    fn area(&self) -> u64;

    fn doubled(&self) -> u64 {
        2 * self.area()
    }
}

struct Square(u64);

struct Steps(Vec<u64>);

impl Shape for Square {
    fn area(&self) -> u64 {
        self.0 * self.0
    }
}

impl Shape for Steps {
    fn area(&self) -> u64 {
        let mut sum = 0;
        for height in &self.0 {
            sum += height;
        }
        sum
    }

    fn doubled(&self) -> u64 {
        self.area() + self.area()
    }
}

// A trait with other arguments is another trait.
trait Scaled<T>: Sync {
    fn scaled(&self, by: T) -> u64;
}

trait Unit {
    type Number;
}

impl Unit for Square {
    type Number = u64;
}

impl Scaled<<Square as Unit>::Number> for Square {
    fn scaled(&self, by: u64) -> u64 {
        self.area() * by
    }
}

impl Scaled<&str> for Square {
    fn scaled(&self, by: &str) -> u64 {
        println!("{by}");
        self.area()
    }
}

// The bounds of the method exclude `Square`.
trait Named {
    fn length(&self) -> u64;
}

impl Named for Steps {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }
}

trait Listed: Sync {
    fn listed(&self) -> u64
    where
        Self: Named + Sized,
    {
        let named: &dyn Named = self;
        let mut sum = 0;
        for _ in 0..3 {
            sum += named.length();
        }
        sum
    }
}

impl Listed for Square {}

impl Listed for Steps {}

fn lists<T: Listed + Named>(first: &T, second: &T) -> u64 {
    let a = first.listed();
    let b = second.listed();
    a + b
}

fn total(shapes: &[Box<dyn Shape>]) -> u64 {
    let mut sum = 0;
    for shape in shapes {
        sum += shape.area() + shape.doubled();
    }
    sum
}

fn scaled(shapes: &[&dyn Scaled<u64>]) -> u64 {
    let mut sum = 0;
    for shape in shapes {
        sum += shape.scaled(3);
    }
    sum
}

fn largest<T: Shape>(shapes: &[T]) -> u64 {
    let mut largest = 0;
    for shape in shapes {
        largest = largest.max(shape.area());
    }
    largest
}

fn both<T: Shape>(first: &[T], second: &[T]) -> u64 {
    let a = largest(first);
    let b = largest(second);
    a - b
}

fn main() {
    let first: Vec<Box<dyn Shape>> = vec![Box::new(Square(3)), Box::new(Steps(vec![1, 2]))];
    let second: Vec<Box<dyn Shape>> = vec![Box::new(Steps(vec![7]))];
    let a = total(&first);
    let b = total(&second);
    println!("{a} {b}");
    let (four, five) = (Square(4), Square(5));
    let c = scaled(&[&four]);
    let d = scaled(&[&five, &four]);
    println!("{c} {d} {}", both(&[five], &[four]));
    println!("{}", lists(&Steps(vec![1]), &Steps(vec![2, 3])));
    <Square as Scaled<&str>>::scaled(&Square(1), "end");
}
