//! Models of the locks: small cases, over every interleaving and every outcome that the memory
//! orderings allow. The planted faults show that the models detect mistakes.

use crate::array::Array;
use crate::lock::{LockSet, Locks};
use corebeat_sync::Arc;
use corebeat_sync::atomic::AtomicU64;
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::fault;
use corebeat_sync::thread;

/// Two nodes with contents that only the holders of their locks may use.
struct Nodes {
    words: Array<AtomicU64>,
    contents: [UnsafeCell<u32>; 2],
}

// SAFETY: loom checks the accesses to the contents.
unsafe impl Sync for Nodes {}
// SAFETY: as above.
unsafe impl Send for Nodes {}

fn nodes() -> Arc<Nodes> {
    let words = Array::default();
    words.make(0);
    Arc::new(Nodes { words, contents: [UnsafeCell::new(0), UnsafeCell::new(0)] })
}

/// Locks both nodes and adds 1 to each that is written. Returns whether the locks were free.
fn rewrite(nodes: &Nodes, write: [bool; 2]) -> bool {
    let locks = Locks { words: &nodes.words, sequence: 1 };
    let mut set = LockSet::default();
    (0..2).for_each(|node| set.add(node, write[node as usize]));
    if !set.try_lock(&locks) {
        return false;
    }
    for (content, write) in nodes.contents.iter().zip(write) {
        // SAFETY: loom checks that no thread writes meanwhile.
        content.with(|content| unsafe { *content });
        if write {
            // SAFETY: loom checks that no thread reads or writes meanwhile.
            content.with_mut(|content| unsafe { *content += 1 });
        }
    }
    set.unlock(&locks);
    true
}

#[test]
fn loom_locks_exclude_writers() {
    fault::run(|| {
        fault::model(3).check(|| {
            let nodes = nodes();
            let own = nodes.clone();
            let other = thread::spawn(move || rewrite(&own, [true, false]));
            let mine = rewrite(&nodes, [false, true]);
            let done = [other.join().unwrap(), mine];
            let locks = Locks { words: &nodes.words, sequence: 1 };
            // The order of the locks guarantees that one of two threads succeeds.
            assert!(done.contains(&true));
            assert!(locks.is_free(0, true) && locks.is_free(1, true));
        });
    });
}

#[test]
fn loom_readers_end_before_a_writer_begins() {
    fault::run(|| {
        fault::model(3).check(|| {
            let nodes = nodes();
            let own = nodes.clone();
            let reader = thread::spawn(move || rewrite(&own, [false, false]));
            rewrite(&nodes, [false, false]);
            rewrite(&nodes, [true, true]);
            reader.join().unwrap();
        });
    });
}

#[test]
fn loom_lock_faults_are_detected() {
    fault::assert_noticed(&[
        ("loom_locks_exclude_writers", "acquire lock.rs"),
        ("loom_locks_exclude_writers", "release lock.rs"),
        ("loom_readers_end_before_a_writer_begins", "release lock.rs"),
    ]);
}
