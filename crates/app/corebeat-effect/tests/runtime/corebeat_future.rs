//! A runtime for tests that reorders as much as a real one may: the second closure of a join runs
//! on another thread and ends before the first one begins, futures run where they are joined, loops
//! run from their end, and pipelines compute some results before the first one is used.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

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

pub struct Scope<'scope, 'env: 'scope>(
    PhantomData<&'scope mut &'scope ()>,
    PhantomData<&'env mut &'env ()>,
    RefCell<Vec<Rc<dyn Run>>>,
);

trait Run {
    fn run(&self);
    fn payload(&self) -> Option<Payload>;
}

type Payload = Box<dyn std::any::Any + Send>;

struct Job<'scope, T>(
    RefCell<Option<Box<dyn FnOnce() -> T + Send + 'scope>>>,
    RefCell<Option<std::thread::Result<T>>>,
);

impl<T: Send> Run for Job<'_, T> {
    /// Runs the closure on another thread, once.
    fn run(&self) {
        if let Some(f) = self.0.take() {
            let result = std::thread::scope(|scope| scope.spawn(f).join());
            self.1.replace(Some(result));
        }
    }

    fn payload(&self) -> Option<Payload> {
        self.1.take().and_then(Result::err)
    }
}

pub struct Future<'scope, T>(Rc<Job<'scope, T>>);

/// Runs the futures when they are joined, after the code behind them. Their panics come first.
pub fn scope<'env, R>(body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
    let scope = Scope(PhantomData, PhantomData, RefCell::default());
    let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    let jobs = scope.2.take();
    jobs.iter().for_each(|job| job.run());
    if let Some(payload) = jobs.iter().find_map(|job| job.payload()) {
        resume_unwind(payload);
    }
    result.unwrap_or_else(|payload| resume_unwind(payload))
}

impl<'scope> Scope<'scope, '_> {
    pub fn future<F, T>(&'scope self, f: F) -> Future<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let job = Rc::new(Job(RefCell::new(Some(Box::new(f))), RefCell::new(None)));
        let shared: Rc<dyn Run + 'scope> = job.clone();
        // SAFETY: the scope runs and drops the job before `'scope` ends.
        let shared = unsafe { std::mem::transmute::<Rc<dyn Run + 'scope>, Rc<dyn Run>>(shared) };
        self.2.borrow_mut().push(shared);
        Future(job)
    }
}

impl<T: Send> Future<'_, T> {
    pub fn join(self) -> T {
        self.0.run();
        let result = self.0.1.take().unwrap();
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }
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

impl<'a, T: Sync, const N: usize> Split for &'a [T; N] {
    type Item = &'a T;
    fn list(self) -> Vec<&'a T> {
        self.iter().collect()
    }
}

impl<T> Split for std::ops::Range<T>
where
    std::ops::Range<T>: Iterator<Item = T>,
{
    type Item = T;
    fn list(self) -> Vec<T> {
        self.collect()
    }
}

pub struct Parts<I>(I);

impl<I: Iterator> Split for Parts<I> {
    type Item = I::Item;
    fn list(self) -> Vec<I::Item> {
        self.0.collect()
    }
}

pub fn chunks<T>(items: &[T], size: usize) -> Parts<std::slice::Chunks<'_, T>> {
    Parts(items.chunks(size))
}

pub fn chunks_mut<T>(items: &mut [T], size: usize) -> Parts<std::slice::ChunksMut<'_, T>> {
    Parts(items.chunks_mut(size))
}

/// Runs the iterations from their end. The panic that surfaces is the first one in order.
pub fn map<I: Split, R: Send>(items: I, f: impl Fn(I::Item) -> R + Sync) -> Vec<R> {
    let run = |item| catch_unwind(AssertUnwindSafe(|| f(item)));
    let mut results: Vec<_> = items.list().into_iter().rev().map(run).collect();
    results.reverse();
    let results = results.into_iter();
    results.map(|result| result.unwrap_or_else(|payload| resume_unwind(payload))).collect()
}

pub fn for_each<I: Split>(items: I, f: impl Fn(I::Item) + Sync) {
    map(items, f);
}

pub fn sum<I: Split, T>(
    first: T,
    items: I,
    f: impl Fn(I::Item) -> T + Sync,
    add: impl Fn(T, T) -> T + Sync,
) -> T {
    items.list().into_iter().map(f).fold(first, add)
}

/// Computes the values from their end, and combines neighbours.
pub fn reduce<I: Split, T: Send>(
    first: T,
    items: I,
    f: impl Fn(I::Item) -> T + Sync,
    op: impl Fn(T, T) -> T + Sync,
) -> T {
    let mut values = map(items, f);
    while values.len() > 1 {
        let mut rest = values.into_iter();
        let mut next = Vec::new();
        while let Some(a) = rest.next() {
            next.push(match rest.next() {
                Some(b) => op(a, b),
                None => a,
            });
        }
        values = next;
    }
    values.into_iter().fold(first, op)
}

/// Most results before their turn.
const AHEAD: usize = 4;

pub struct Results<'a, I: Iterator, F, T> {
    items: I,
    compute: &'a F,
    ready: VecDeque<std::thread::Result<T>>,
    has_ended: bool,
}

/// Takes several items at once, and computes their results from the last one, on another thread.
pub fn pipeline<L: IntoIterator, T, R, F, B>(items: L, compute: F, body: B) -> R
where
    L::Item: Send,
    T: Send,
    F: Fn(L::Item) -> T + Sync,
    B: FnOnce(Results<'_, L::IntoIter, F, T>) -> R,
{
    let items = items.into_iter();
    let compute = &compute;
    body(Results { items, compute, ready: VecDeque::new(), has_ended: false })
}

impl<I: Iterator<Item: Send>, F: Fn(I::Item) -> T + Sync, T: Send> Iterator
    for Results<'_, I, F, T>
{
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.ready.is_empty() {
            let mut items = Vec::new();
            let mut failure = None;
            while items.len() < AHEAD && !self.has_ended {
                match catch_unwind(AssertUnwindSafe(|| self.items.next())) {
                    Ok(item) => {
                        self.has_ended = item.is_none();
                        items.extend(item);
                    }
                    Err(payload) => {
                        self.has_ended = true;
                        failure = Some(payload);
                    }
                }
            }
            let compute = self.compute;
            for item in items.into_iter().rev() {
                let result = std::thread::scope(|scope| scope.spawn(|| compute(item)).join());
                self.ready.push_front(result);
            }
            self.ready.extend(failure.map(Err));
        }
        let result = self.ready.pop_front()?;
        Some(result.unwrap_or_else(|payload| resume_unwind(payload)))
    }
}
