//! A bounded queue between the stages of a pipeline.

use corebeat_sync::{Condvar, Mutex};
use std::collections::VecDeque;

/// A first-in first-out queue of at most `bound` items. A thread that cannot make progress blocks
/// in the kernel.
///
/// The queue has a mutex and two condition variables, as in PARSEC's pipelines. The channels of
/// crossbeam spin and yield before they block (crossbeam issue 821), which a workload that
/// represents blocking programs must not do.
pub(crate) struct Queue<T> {
    bound: usize,
    state: Mutex<State<T>>,
    /// Signals an item, or the end of the queue.
    filled: Condvar,
    /// Signals free space.
    drained: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    /// Producers that have not called [`Queue::leave`].
    producers: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new(bound: usize, producers: usize) -> Self {
        Queue {
            bound,
            state: Mutex::new(State { items: VecDeque::with_capacity(bound), producers }),
            filled: Condvar::new(),
            drained: Condvar::new(),
        }
    }

    /// Pushes an item; waits while the queue is full.
    pub(crate) fn push(&self, item: T) {
        let mut state = self.state.lock().unwrap();
        while state.items.len() == self.bound {
            state = self.drained.wait(state).unwrap();
        }
        state.items.push_back(item);
        drop(state);
        self.filled.notify_one();
    }

    /// Pops an item; waits while the queue is empty. Returns `None` when the queue is empty and all
    /// producers have left.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(item) = state.items.pop_front() {
                drop(state);
                self.drained.notify_one();
                return Some(item);
            }
            if state.producers == 0 {
                return None;
            }
            state = self.filled.wait(state).unwrap();
        }
    }

    /// Ends a producer, which pushes no more items.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock().unwrap();
        state.producers -= 1;
        if state.producers == 0 {
            // Every waiting consumer must detect the end.
            self.filled.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn queue_keeps_order_and_ends_after_the_last_producer() {
        let queue = Queue::new(2, 2);
        queue.push(1);
        queue.leave();
        queue.push(2);
        assert_eq!((queue.pop(), queue.pop()), (Some(1), Some(2)));
        queue.leave();
        assert_eq!(queue.pop(), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use corebeat_sync::{Arc, thread};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// At most two preemptions in addition to blocking switches: enough to detect the planted bug
    /// within seconds.
    fn model() -> loom::model::Builder {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model
    }

    /// Whether a queue for one item with two producers ever holds more.
    fn overflows(push: fn(&Queue<usize>, usize)) -> bool {
        // An atomic of the standard library outlives the executions of the model. The planted bug
        // must not panic under the lock, because loom cannot unwind there.
        let overflow = std::sync::Arc::new(AtomicBool::new(false));
        let observed = overflow.clone();
        model().check(move || {
            let queue = Arc::new(Queue::new(1, 2));
            let producers = [vec![1, 2], vec![4]].map(|items| {
                let queue = queue.clone();
                thread::spawn(move || {
                    items.into_iter().for_each(|item| push(&queue, item));
                    queue.leave();
                })
            });
            let mut sum = 0;
            loop {
                if queue.state.lock().unwrap().items.len() > 1 {
                    observed.store(true, Ordering::Relaxed);
                }
                let Some(item) = queue.pop() else { break };
                sum += item;
            }
            assert_eq!(sum, 7);
            producers.into_iter().for_each(|p| p.join().unwrap());
        });
        overflow.load(Ordering::Relaxed)
    }

    #[test]
    fn loom_queue_never_holds_more_than_its_bound() {
        assert!(!overflows(Queue::push));
    }

    #[test]
    fn loom_queue_without_a_second_check_is_caught() {
        assert!(overflows(|queue, item| {
            let mut state = queue.state.lock().unwrap();
            if state.items.len() == queue.bound {
                state = queue.drained.wait(state).unwrap();
            }
            state.items.push_back(item);
            drop(state);
            queue.filled.notify_one();
        }));
    }

    #[test]
    fn loom_queue_hands_each_item_to_one_consumer_and_ends_both() {
        model().check(|| {
            let queue = Arc::new(Queue::new(1, 1));
            let consumers = [queue.clone(), queue.clone()].map(|queue| {
                thread::spawn(move || std::iter::from_fn(|| queue.pop()).sum::<usize>())
            });
            [1, 2].into_iter().for_each(|item| queue.push(item));
            queue.leave();
            assert_eq!(consumers.into_iter().map(|c| c.join().unwrap()).sum::<usize>(), 3);
        });
    }
}
