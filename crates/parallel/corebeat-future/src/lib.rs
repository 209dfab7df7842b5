//! x
mod context;
mod control;
mod job;
mod join;
mod map;
#[cfg(all(test, loom))]
mod model;
mod order;
mod pool;
mod retry;
mod schedule;
mod scope;
mod site;
mod split;
mod stack;
mod strand;
mod sum;

pub use join::join;
pub use map::{for_each, map, try_map};
pub use schedule::schedule;
pub use scope::{Future, Scope, future, scope};
pub use site::{SiteReport, sites};
pub use split::{Chunks, ChunksMut, Split, chunks, chunks_mut};
pub use sum::{Integer, reduce, sum};

/// Whether a model omits the step with this name, to show that it detects the fault.
#[cfg(loom)]
fn fault_omits(step: &str) -> bool {
    corebeat_sync::fault::omits(step)
}

#[cfg(not(loom))]
const fn fault_omits(_step: &str) -> bool {
    false
}
