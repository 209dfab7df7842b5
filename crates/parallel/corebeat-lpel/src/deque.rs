//! Work-stealing deques: those of crossbeam. Loom models assume that they are correct.

#[cfg(not(loom))]
pub(crate) use crossbeam_deque::{Injector, Steal, Stealer, Worker};

#[cfg(loom)]
pub(crate) use model::{Injector, Steal, Stealer, Worker};

/// The same interface behind a lock. `len` reads without the lock, so its result may be as outdated
/// as that of crossbeam.
#[cfg(loom)]
mod model {
    use corebeat_sync::Mutex;
    use corebeat_sync::atomic::{AtomicUsize, Ordering};
    use std::collections::VecDeque;
    use std::sync::Arc;

    pub(crate) enum Steal<T> {
        Empty,
        Success(T),
        #[expect(dead_code, reason = "a lock never fails")]
        Retry,
    }

    struct List<T> {
        items: Mutex<VecDeque<T>>,
        length: AtomicUsize,
    }

    pub(crate) struct Injector<T>(Arc<List<T>>);
    pub(crate) type Worker<T> = Injector<T>;
    pub(crate) type Stealer<T> = Injector<T>;

    impl<T> Injector<T> {
        pub(crate) fn new() -> Self {
            Injector(Arc::new(List { items: Mutex::default(), length: AtomicUsize::new(0) }))
        }

        pub(crate) fn new_fifo() -> Self {
            Injector::new()
        }

        pub(crate) fn stealer(&self) -> Stealer<T> {
            Injector(self.0.clone())
        }

        pub(crate) fn push(&self, item: T) {
            let mut items = self.0.items.lock().unwrap();
            items.push_back(item);
            self.0.length.store(items.len(), Ordering::Relaxed);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            let mut items = self.0.items.lock().unwrap();
            let item = items.pop_front();
            self.0.length.store(items.len(), Ordering::Relaxed);
            item
        }

        pub(crate) fn steal(&self) -> Steal<T> {
            self.pop().map_or(Steal::Empty, Steal::Success)
        }

        pub(crate) fn steal_batch_and_pop(&self, _: &Worker<T>) -> Steal<T> {
            self.steal()
        }

        pub(crate) fn len(&self) -> usize {
            self.0.length.load(Ordering::Relaxed)
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len() == 0
        }
    }
}
