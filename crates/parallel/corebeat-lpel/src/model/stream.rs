//! Models of one stream between two threads.

use super::{assert_detected, check, spawn};
use crate::stream::{Side, leave_token};
use crate::waiter::{self, Token};
use crate::{growing_stream, stream, unbounded_stream};
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::fault::omits;
use std::ptr;
use std::sync::Arc;

/// Passes items. Writer and reader block where necessary.
fn pass(preemptions: usize, capacity: usize, items: usize) {
    check(preemptions, move || {
        let (mut writer, mut reader) = stream(capacity);
        let thread = spawn(move || (0..items).for_each(|n| writer.write(Box::new(n)).unwrap()));
        (0..items).for_each(|n| assert_eq!(reader.read().map(|n| *n), Some(n)));
        assert_eq!(reader.read(), None);
        thread.join().unwrap();
    });
}

#[test]
fn loom_stream_of_one_passes_all() {
    pass(3, 1, 2);
}

#[test]
fn loom_stream_of_two_passes_all() {
    pass(2, 2, 3);
}

/// The reader reads one item and is dropped, while the writer may wait for room. Each item is
/// dropped once.
#[test]
fn loom_dropped_reader_wakes_the_writer() {
    struct Item(Arc<AtomicUsize>);
    impl Drop for Item {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    check(3, || {
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = dropped.clone();
        let (mut writer, mut reader) = stream(1);
        // Loom does not model the reference counts of the standard library. So the thread that
        // joins the others drops the buffer, without items.
        let buffer = reader.any();
        let thread =
            spawn(move || (1..).find(|_| writer.write(Item(count.clone())).is_err()).unwrap());
        drop(reader.read().unwrap());
        drop(reader);
        let written = thread.join().unwrap();
        assert_eq!(dropped.load(Ordering::Relaxed), written);
        drop(buffer);
    });
}

/// The writer grows the stream instead of a wait.
#[test]
fn loom_unbounded_stream_passes_all() {
    check(2, || {
        let (mut writer, mut reader) = unbounded_stream(1);
        let threads = [spawn(move || {
            (0..3).for_each(|n| writer.write(Box::new(n)).unwrap());
            writer
        })];
        (0..3).for_each(|n| assert_eq!(reader.read().map(|n| *n), Some(n)));
        threads.into_iter().for_each(|thread| drop(thread.join()));
    });
}

/// A third thread lets the writer grow the stream while the writer waits for room.
#[test]
fn loom_growing_stream_passes_all() {
    check(2, || {
        let (mut writer, mut reader) = growing_stream(1);
        let stream = reader.any();
        let threads = [
            // The writer is not dropped here, so that its end does not wake the reader.
            spawn(move || {
                (0..2).for_each(|n| writer.write(Box::new(n)).unwrap());
                Some(writer)
            }),
            spawn(move || {
                let token = stream.core().writer.word.load(Ordering::Relaxed);
                if waiter::is_token(token) {
                    stream.core().let_grow(token);
                }
                None
            }),
        ];
        (0..2).for_each(|n| assert_eq!(reader.read().map(|n| *n), Some(n)));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// A task blocks at a side that another task has used on another worker. That worker still has a
/// recheck of an equal token, because the second task has reused the memory of the first one.
/// Either that worker or the writer takes the token.
#[test]
fn loom_token_of_a_moved_side_is_taken_once() {
    const HOMES: [u64; 2] = [2, 3];
    check(3, || {
        let side = Arc::new(Side::new());
        let token: Token = ptr::without_provenance_mut(64);
        if !omits("first home") {
            side.move_to(HOMES[0]);
        }
        let of_recheck = side.clone();
        let recheck = spawn(move || {
            let is_left = of_recheck.word.load(Ordering::Relaxed) == token;
            is_left && waiter::withdraw(&of_recheck.word, token)
        });
        // The second task and the writer run on this thread.
        side.move_to(HOMES[1]);
        leave_token(&side.word, token);
        let left = side.word.load(Ordering::Relaxed);
        let takes = waiter::is_token(left)
            && (side.take_alone(left, HOMES[1]) || waiter::withdraw(&side.word, left));
        assert!(takes != recheck.join().unwrap(), "the token was taken twice, or not at all");
    });
}

#[test]
fn loom_stream_faults_are_detected() {
    let passes = "stream::loom_stream_of_one_passes_all";
    let dropped = "stream::loom_dropped_reader_wakes_the_writer";
    let moved = "stream::loom_token_of_a_moved_side_is_taken_once";
    assert_detected(&[
        (passes, "acquire stream.rs"),
        (passes, "release stream.rs"),
        (passes, "light stream.rs"),
        (passes, "heavy stream.rs"),
        (passes, "fence stream.rs"),
        (passes, "acquire ring.rs"),
        (passes, "release ring.rs"),
        (dropped, "acquire waiter.rs"),
        (dropped, "acquire stream.rs"),
        (moved, "step first home"),
    ]);
}
