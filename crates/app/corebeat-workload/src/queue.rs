//! A bounded queue between the stages of a pipeline.

use corebeat_sync::{Condvar, Mutex};
use std::collections::VecDeque;

/// First in, first out, at most `bound` items; whoever cannot go on sleeps in the kernel.
///
/// A mutex and two condition variables, as PARSEC's pipelines have it. The channels of crossbeam spin and yield before
/// they sleep (crossbeam issue 821), and a workload that stands for blocking programs must not.
pub(crate) struct Queue<T> {
    bound: usize,
    state: Mutex<State<T>>,
    /// There is an item, or there will never be one again.
    filled: Condvar,
    /// There is room.
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

    /// Puts an item in, waiting for room.
    pub(crate) fn push(&self, item: T) {
        let mut state = self.state.lock().unwrap();
        while state.items.len() == self.bound {
            state = self.drained.wait(state).unwrap();
        }
        state.items.push_back(item);
        drop(state);
        self.filled.notify_one();
    }

    /// Takes an item out, waiting for one. `None` once all producers have left and nothing remains.
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

    /// Says that this producer will push no more.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock().unwrap();
        state.producers -= 1;
        if state.producers == 0 {
            // All, not one: every consumer that waits must learn of the end.
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

    /// Two preemptions, beside the switches where a thread blocks: enough for the planted bug, and a matter of seconds.
    fn model() -> loom::model::Builder {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model
    }

    /// Two producers into a queue for one item: whether it ever holds more.
    fn overflows(push: fn(&Queue<usize>, usize)) -> bool {
        // The standard library's, not the model's: it outlives the single executions. The planted bug must not panic
        // under the lock, because loom cannot unwind from there.
        let overflow = std::sync::Arc::new(AtomicBool::new(false));
        let seen = overflow.clone();
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
                    seen.store(true, Ordering::Relaxed);
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
    fn loom_queue_that_does_not_look_again_is_caught() {
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
            let consumers = [queue.clone(), queue.clone()]
                .map(|queue| thread::spawn(move || std::iter::from_fn(|| queue.pop()).sum::<usize>()));
            [1, 2].into_iter().for_each(|item| queue.push(item));
            queue.leave();
            assert_eq!(consumers.into_iter().map(|c| c.join().unwrap()).sum::<usize>(), 3);
        });
    }
}
