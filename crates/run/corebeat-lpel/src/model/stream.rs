//! One stream between two threads.

use super::{all_noticed, check, spawn};
use crate::{Closed, TryReadError, stream};

/// Writer and reader both wait whenever they must.
fn pass(capacity: usize, items: usize) {
    check(3, move || {
        let (mut writer, mut reader) = stream(capacity);
        let thread = spawn(move || (0..items).for_each(|n| writer.write(Box::new(n)).unwrap()));
        (0..items).for_each(|n| assert_eq!(reader.read().map(|n| *n), Some(n)));
        assert_eq!(reader.read(), None);
        thread.join().unwrap();
    });
}

#[test]
fn loom_stream_of_one_passes_all() {
    pass(1, 2);
}

#[test]
fn loom_stream_of_two_passes_all() {
    pass(2, 3);
}
