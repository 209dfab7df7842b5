//! Models of the protocol: small cases, over every interleaving and every outcome that the memory
//! orderings allow. Planted faults show that the models detect mistakes.

use crate::{Orphans, Presence, Retired, free_all};
use corebeat_sync::asymmetric::heavy_fence;
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use corebeat_sync::fault::{self, Watched};
use corebeat_sync::thread;
use std::ptr;
use std::sync::Arc;

const OUTSIDE: u64 = 0;
const INSIDE: u64 = 1;

fn boxed() -> *mut Watched {
    Box::into_raw(Box::new(Watched::new()))
}

fn retired(value: *mut Watched) -> Retired {
    unsafe fn free(value: *mut ()) {
        // SAFETY: the models box a `Watched`.
        drop(unsafe { Box::from_raw(value.cast::<Watched>()) });
    }
    // SAFETY: the models unlink the value first, and free it once.
    unsafe { Retired::new(value.cast(), free, ()) }
}

/// A shared link, the presence of its reader, and the orphans of threads.
struct Shared {
    link: AtomicPtr<Watched>,
    reader: Presence,
    orphans: Orphans,
}

fn check(preemptions: usize, model: impl Fn(Arc<Shared>) + Send + Sync + 'static) {
    let check = || {
        fault::model(preemptions).check(move || {
            model(Arc::new(Shared {
                link: AtomicPtr::new(boxed()),
                reader: Presence::new(OUTSIDE),
                orphans: Orphans::new(),
            }));
        });
    };
    fault::run(check);
}

fn read_once(shared: &Shared, enter: fn(&Presence, u64)) {
    enter(&shared.reader, INSIDE);
    // Acquire: pairs with nothing here; the value exists before the threads start.
    let found = shared.link.load(Ordering::Acquire);
    if !found.is_null() {
        // SAFETY: this is what the model checks.
        unsafe { &*found }.check();
    }
    shared.reader.leave(OUTSIDE);
}

/// Unlinks the value and frees it if the reader is outside, or returns it.
fn unlink_and_free(shared: &Shared) -> Vec<Retired> {
    let value = shared.link.load(Ordering::Relaxed);
    shared.link.store(ptr::null_mut(), Ordering::Release);
    let unlinked = vec![retired(value)];
    heavy_fence();
    if shared.reader.load() == INSIDE {
        return unlinked;
    }
    // SAFETY: this is what the model checks.
    unsafe { free_all(unlinked) };
    Vec::new()
}

#[test]
fn loom_retired_value_is_freed_after_its_readers() {
    for enter in [Presence::enter, Presence::enter_free] {
        check(3, move |shared| {
            let readers = shared.clone();
            let reader = thread::spawn(move || {
                // A second section tests that a reclaimer does not confuse it with the first.
                read_once(&readers, enter);
                read_once(&readers, enter);
            });
            let rest = unlink_and_free(&shared);
            reader.join().unwrap();
            // SAFETY: the only reader has ended.
            unsafe { free_all(rest) };
        });
    }
}

/// Two threads adopt what a third one leaves behind.
#[test]
fn loom_orphan_is_adopted_once() {
    check(3, |shared| {
        let value = shared.link.load(Ordering::Relaxed);
        shared.orphans.abandon(&mut vec![retired(value)]);
        let adopt = |shared: Arc<Shared>| {
            let mut adopted = Vec::new();
            shared.orphans.adopt(&mut adopted);
            // SAFETY: no thread reads the value.
            unsafe { free_all(adopted) }
        };
        let others = shared.clone();
        let other = thread::spawn(move || adopt(others));
        let adopted = adopt(shared);
        assert_eq!(adopted + other.join().unwrap(), 1);
    });
}

#[test]
fn loom_planted_faults_are_detected() {
    let model = "loom_retired_value_is_freed_after_its_readers";
    let faults =
        ["light presence.rs", "heavy model.rs", "acquire presence.rs", "release presence.rs"];
    fault::assert_noticed(&faults.map(|fault| (model, fault)));
}
