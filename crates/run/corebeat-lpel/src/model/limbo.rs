//! Memory that somebody looks at while it is freed.

use super::{all_noticed, check, spawn};
use crate::limbo::{Look, retire};
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use corebeat_sync::cell::UnsafeCell;
use std::ptr;
use std::sync::Arc;

/// What is looked at. It stays where it is, so that a look that comes too late is seen, not felt.
struct Thing {
    is_freed: UnsafeCell<bool>,
}

/// Frees a thing when it is dropped.
struct Owned(Arc<Thing>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: nobody else should be there, which the model checks.
        self.0.is_freed.with_mut(|f| unsafe { *f = true });
    }
}

/// Two look at two things, while their owner takes them out of sight and frees them.
#[test]
fn loom_limbo_keeps_what_is_looked_at() {
    check(2, || {
        let things = [(), ()].map(|()| Arc::new(Thing { is_freed: UnsafeCell::new(false) }));
        let seen = Arc::new(things.each_ref().map(|t| AtomicPtr::new(Arc::as_ptr(t).cast_mut())));
        let lookers = [(), ()].map(|()| {
            let seen = seen.clone();
            spawn(move || {
                let _look = Look::new();
                for pointer in seen.iter() {
                    // SAFETY: things stay where they are.
                    if let Some(thing) = unsafe { pointer.load(Ordering::Acquire).as_ref() } {
                        // SAFETY: nobody should write while we look, which the model checks.
                        assert!(!thing.is_freed.with(|f| unsafe { *f }));
                    }
                }
            })
        });
        for (thing, pointer) in things.iter().zip(seen.iter()) {
            pointer.store(ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: it is out of sight.
            unsafe { retire(Owned(thing.clone())) };
        }
        for looker in lookers {
            looker.join().unwrap();
        }
        // SAFETY: all others are done.
        let freed = things.map(|t| t.is_freed.with(|f| unsafe { *f }));
        assert_eq!(freed, [true, true]);
    });
}

#[test]
fn loom_limbo_faults_are_noticed() {
    let model = "limbo::loom_limbo_keeps_what_is_looked_at";
    all_noticed(&[
        (model, "light limbo.rs"),
        (model, "heavy limbo.rs"),
        (model, "acquire limbo.rs"),
        (model, "release limbo.rs"),
    ]);
}
