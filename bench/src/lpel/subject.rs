//! The subjects of the lpel benches.

use super::corebeat::Form;
use super::lap::Outcome;
use super::load::{Load, Work};
use super::may::Bound;
use super::{corebeat, limit, may, ring, thread, tokio};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Each subject runs in a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Subject {
    Corebeat,
    #[value(name = "corebeat, in blocks")]
    CorebeatBlocks,
    #[value(name = "corebeat, async")]
    CorebeatAsync,
    Tokio,
    May,
    #[value(name = "may, unbounded")]
    MayUnbounded,
    #[value(name = "threads + crossbeam")]
    Thread,
    Rtrb,
    Go,
    Limit,
}

impl Subject {
    /// The largest number of tasks. A machine with default limits supports no more: a stack needs
    /// two mappings, and the number of threads is limited.
    pub(crate) fn tasks_max(self) -> u64 {
        match self {
            Subject::May | Subject::MayUnbounded => 30_000,
            Subject::Thread => 10_000,
            _ => u64::MAX,
        }
    }

    /// The subjects of a work.
    pub(crate) fn of(load: &Load) -> Vec<Subject> {
        use Subject::*;
        let mut all = match load.work {
            Work::Plain | Work::Leave => {
                vec![Corebeat, CorebeatBlocks, CorebeatAsync, Tokio, May, MayUnbounded, Thread, Go]
            }
            Work::Stream => vec![Corebeat, CorebeatAsync, Tokio, May, MayUnbounded, Thread, Go],
            Work::Pingpong | Work::Spawn | Work::Memory => {
                vec![Corebeat, CorebeatAsync, Tokio, May, Thread, Go]
            }
            Work::Batch => vec![Corebeat, Tokio],
            Work::Ring => vec![Corebeat, Rtrb],
            Work::RingBatch => vec![Rtrb],
            Work::Idle => vec![Corebeat, CorebeatAsync, Tokio, May, Go],
        };
        let is_on_one = load.workers == 1;
        match load.work {
            Work::Plain | Work::Leave | Work::Spawn if is_on_one => all.push(Limit),
            Work::Pingpong if load.workers <= 2 => all.push(Limit),
            _ => {}
        }
        if load.depth > Self::THREADED_DEPTH_MAX {
            all.retain(|&s| s != Thread);
        }
        if is_on_one {
            all.retain(|&s| s != CorebeatBlocks);
        }
        if load.work == Work::Memory {
            all.retain(|s| s.tasks_max() >= load.count / 10);
        }
        all
    }

    /// Largest depth of a pipeline of threads.
    pub(crate) const THREADED_DEPTH_MAX: u64 = 1000;

    /// Does the work in this process.
    pub(crate) fn run(self, load: &Load) -> Result<Outcome, String> {
        match self {
            Subject::Corebeat => corebeat::run(load, Form::Stackful),
            Subject::CorebeatBlocks => corebeat::run(load, Form::Blocks),
            Subject::CorebeatAsync => corebeat::run(load, Form::Async),
            Subject::Tokio => tokio::run(load),
            Subject::May => may::run(load, Bound::ByHand),
            Subject::MayUnbounded => may::run(load, Bound::None),
            Subject::Thread => thread::run(load),
            Subject::Rtrb => ring::run(load),
            Subject::Limit => limit::run(load),
            Subject::Go => Err("Go is a separate program".into()),
        }
    }
}
