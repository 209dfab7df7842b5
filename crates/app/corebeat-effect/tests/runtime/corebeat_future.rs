//! A runtime for tests that reorders as much as a real one may: the second closure of a join runs
//! on another thread and ends before the first one begins, and loops run from their end.

pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    let b = std::thread::scope(|scope| scope.spawn(b).join());
    let a = a();
    (a, b.unwrap_or_else(|payload| std::panic::resume_unwind(payload)))
}

pub trait Split {
    type Item;
    fn list(self) -> Vec<Self::Item>;
}

impl<'a, T: Sync> Split for &'a [T] {
    type Item = &'a T;
    fn list(self) -> Vec<&'a T> {
        self.iter().collect()
    }
}

impl<'a, T: Sync> Split for &'a Vec<T> {
    type Item = &'a T;
    fn list(self) -> Vec<&'a T> {
        self.iter().collect()
    }
}

impl<'a, T: Send> Split for &'a mut [T] {
    type Item = &'a mut T;
    fn list(self) -> Vec<&'a mut T> {
        self.iter_mut().collect()
    }
}

impl<'a, T: Send> Split for &'a mut Vec<T> {
    type Item = &'a mut T;
    fn list(self) -> Vec<&'a mut T> {
        self.iter_mut().collect()
    }
}

impl Split for std::ops::Range<u64> {
    type Item = u64;
    fn list(self) -> Vec<u64> {
        self.collect()
    }
}

pub fn map<I: Split, R: Send>(items: I, f: impl Fn(I::Item) -> R + Sync) -> Vec<R> {
    let mut results: Vec<R> = items.list().into_iter().rev().map(f).collect();
    results.reverse();
    results
}

pub fn for_each<I: Split>(items: I, f: impl Fn(I::Item) + Sync) {
    items.list().into_iter().rev().for_each(f);
}

pub fn sum<I: Split, T>(
    first: T,
    items: I,
    f: impl Fn(I::Item) -> T + Sync,
    add: impl Fn(T, T) -> T + Sync,
) -> T {
    items.list().into_iter().map(f).fold(first, add)
}
