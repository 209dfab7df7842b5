//! The shared part of safe memory reclamation: reader presence, retired values and orphan lists.
//!
//! Place in the loop: base; uses `corebeat-sync`.
//!
//! Transactional memory (`corebeat-stm`) and clustered objects (`corebeat-clustered`) both defer
//! the destruction of values that concurrent readers may still use. Each of them has its own rule
//! for the end of a grace period. This crate contains the parts that both share.
//!
//! # Example
//!
//! ```
//! use corebeat_reclaim::{Orphans, Presence, Retired};
//!
//! unsafe fn free(value: *mut ()) {
//!     // SAFETY: `value` comes from the box below, and no reader uses it.
//!     drop(unsafe { Box::from_raw(value.cast::<String>()) });
//! }
//!
//! let (reader, orphans) = (Presence::new(0), Orphans::new());
//! let value = Box::into_raw(Box::new(String::from("unlinked"))).cast();
//! // SAFETY: no reader can find the value, and `free` matches its type.
//! let mut list = vec![unsafe { Retired::new(value, free, ()) }];
//! orphans.abandon(&mut list); // the thread that retired the value ends
//! orphans.adopt(&mut list); // another thread continues
//! corebeat_sync::asymmetric::heavy_fence();
//! if reader.load() == 0 {
//!     // SAFETY: the only reader is outside of its critical section.
//!     assert_eq!(unsafe { corebeat_reclaim::free_all(list) }, 1);
//! }
//! ```
//!
//! # Model
//!
//! A **reader** publishes in a [`Presence`] that it is inside a read-side critical section. A
//! **reclaimer** first unlinks a value, so that no new reader can find the value, then retires it
//! ([`Retired`]), and frees it after the **grace period**: the time until every critical section
//! that may have found the value is over. A thread that ends before its grace periods leaves its
//! retired values to the remaining threads ([`Orphans`]). (McKenney, Slingwine, *Read-copy update*,
//! 1998.)
//!
//! ```text
//!     reader                                  reclaimer
//!     presence := inside    (Relaxed)         unlink the value
//!     light fence                             heavy fence
//!     load the link         (Acquire)         load presence      (Acquire)
//!        ... use the value ...                   inside: wait     outside: free
//!     presence := outside   (Release)
//! ```
//!
//! Proof. One of the two fences comes first, because a light and a heavy fence are always ordered
//! ([`corebeat_sync::asymmetric`]).
//!
//! - If the light fence comes first, the reclaimer loads the presence of this section, or a later
//!   one, and does not free the value within the section.
//! - If the heavy fence comes first, the reader's load of the link follows the unlinking, and the
//!   reader does not find the value.
//!
//! When the reclaimer loads a presence that ends the section, the Acquire load synchronizes with
//! the Release store, so every use of the value happens before the value is freed.
//!
//! Each user adds its own rule: `corebeat-stm` compares epochs (each attempt of a transaction is
//! one epoch); `corebeat-clustered` dates values by eras, and bounds the reach of a long section.
//!
//! # Invariants
//!
//! 1. A value is not freed while a section that may have found it lasts
//!    (`loom_retired_value_is_freed_after_its_readers`; planted faults:
//!    `loom_planted_faults_are_detected`).
//! 2. A retired value is freed once, also if its thread ends first
//!    (`loom_orphan_is_adopted_once`).
//! 3. A destructor that panics does not prevent the destruction of other values, nor does the
//!    destructor of its panic payload (`destructor_that_panics_does_not_stop_the_others`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | presence inside, link loaded | Relaxed, `light` | unlinked, `heavy`, presence | proof above |
//! | presence outside | Release | Acquire load | the value is freed after its last use |
//! | orphans | mutex | mutex | the lists pass from thread to thread |
//!
//! # Failure
//!
//! No function returns an error or panics. A panic in a destructor is caught, after the panic hook
//! has reported it.
//!
//! # Limits
//!
//! This crate neither starts nor ends grace periods. The retired values of a live thread stay with
//! that thread. LPEL's retirement is a different protocol (its rare readers use the heavy fence,
//! and its frequent reclaimers the light one), and is not part of this crate.

#[cfg(all(test, loom))]
mod model;
mod orphan;
mod presence;
mod retired;

pub use orphan::Orphans;
pub use presence::Presence;
pub use retired::{Retired, free_all};
