//! Many tasks on few workers, talking over bounded streams.
//!
//! Place in the loop: run; stands on base.

mod block;
mod context;
mod counter;
mod current;
mod deadlock;
mod doubt;
mod dump;
mod error;
mod inbox;
mod limbo;
mod local;
pub mod monitor;
mod overflow;
mod placement;
mod random;
mod ring;
mod runtime;
mod scheduler;
mod set;
mod stack;
mod stream;
mod table;
mod task;
mod waiter;
mod worker;

pub use counter::Counters;
pub use deadlock::Deadlock;
pub use dump::{Dump, StreamDump, TaskDump, WaitsFor};
pub use error::{Closed, Error, Failure, STACK_MAX, STACK_MIN, TryReadError, TryWriteError, WORKERS_MAX};
pub use local::Local;
pub use monitor::{Direction, Level, Monitor};
pub use placement::{Balanced, Measured, Nearby, Place, Placement, RoundRobin, TaskInfo};
pub use runtime::{Builder, Runtime, STACK_SIZE, Task, dump, exit, sleep, spawn, spawn_async, yield_now};
pub use scheduler::{Fifo, Lifo, Prioritised, Ready, Scheduler};
pub use set::{Event, Key, NextOf, StreamSet};
pub use stream::{Next, Reader, Writer, growing_stream, stream};
pub use task::{JoinHandle, Priority, Status};
