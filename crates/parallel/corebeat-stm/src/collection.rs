//! Collections in cells: their operations are parts of transactions.
//!
//! | collection | transactions that conflict |
//! | --- | --- |
//! | [`TMap`], [`TSet`] | those that use the same key; sometimes those that add two new keys |
//! | [`TQueue`] | those that push; those that pop; a push and a pop of the only item |
//! | [`TCounter`] | those that read the value, with those that add |

mod counter;
mod map;
mod queue;
mod set;

pub use counter::TCounter;
pub use map::TMap;
pub use queue::TQueue;
pub use set::TSet;
