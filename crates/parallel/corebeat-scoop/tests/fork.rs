//! Children of fork: a system works only in the process that created it.

#![cfg(not(miri))]

use corebeat_lpel::Runtime;
use corebeat_scoop::{Error, System};
use corebeat_test_group::in_child;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns whether `f` panics with a message that names the fork and the remedy.
fn names_the_fork<T>(f: impl FnOnce() -> T) -> bool {
    let Err(why) = catch_unwind(AssertUnwindSafe(f)) else { return false };
    let text = why.downcast_ref::<String>().cloned().unwrap_or_default();
    text.contains("created before a fork") && text.contains("in the child")
}

// The only test of its process: a child inherits the locks that other threads hold.
#[test]
fn inherited_system_fails_in_the_child_and_works_in_the_parent() {
    let system = System::new(Runtime::builder().workers(2).build().unwrap());
    let client = system.client();
    let count = client.create(|_| 0u32);
    let held = client.reserve(&count);
    held.command(|here, it| here[it] += 1);
    let mut own = Some((system, client, count, held));
    assert!(in_child(|| {
        let (system, client, count, held) = own.take().unwrap();
        let is_right = held.query(|here, it| here[it]) == Err(Error::Forked)
            && count.query(&client, |here, it| here[it]) == Err(Error::Forked)
            && matches!(client.reserve_when(&count, |_| Ok(true)), Err(Error::Forked))
            && names_the_fork(|| held.command(|_, _| ()))
            && names_the_fork(|| count.command(&client, |_, _| ()))
            && names_the_fork(|| client.create(|_| 1u32))
            && names_the_fork(|| client.reserve(&count))
            && names_the_fork(|| system.client())
            && names_the_fork(|| system.wait())
            && names_the_fork(|| system.collect())
            && names_the_fork(|| system.processors())
            && names_the_fork(|| system.collected());
        drop((held, count, client, system));
        let fresh = System::new(Runtime::builder().workers(1).build().unwrap());
        let client = fresh.client();
        let answer = client.create(|_| 7u32).query(&client, |here, it| here[it]);
        drop((client, fresh));
        is_right && answer == Ok(7)
    }));
    let (_system, client, count, held) = own.take().unwrap();
    held.command(|here, it| here[it] += 1);
    drop(held);
    assert_eq!(count.query(&client, |here, it| here[it]), Ok(2));
}
