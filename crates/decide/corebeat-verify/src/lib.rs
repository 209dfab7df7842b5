//! Models of tasks on cores: which deadlines hold, and on which grounds.
//!
//! Place in the loop: decide; uses base. The crate is pure: it reads text that it is given, and
//! uses no file, clock or thread.
//!
//! # Example
//!
//! ```
//! use corebeat_verify::{read_csv, write_toml};
//!
//! let model = read_csv("name,period_ms,worst_us,priority\nfast,5,800,2\nslow,20,6000,1")?;
//! assert_eq!(model.period_ns(1), Some(20_000_000));
//! assert!(write_toml(&model).contains("period = \"20 ms\""));
//! # Ok::<(), corebeat_verify::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!  .amxmi --> amalthea --.
//!  .toml  --> form     --+--> Model --> form, table --> .toml, .csv
//!  .csv   --> table    --'     |
//!                              `--> notes: what the reader does not support, and its effect
//! ```
//!
//! A [`Model`] has tasks with their activations, costs, critical sections and priorities, cores,
//! memories, labels, chains and modes. A [`Cost`] consists of a time, of ticks, and of accesses to
//! labels, so that the execution time depends on the core and on the memory (Gut, Allmann,
//! Schurius, Schmidt, *Reduction of Electronic Control Units in Electric Vehicles Using Multicore
//! Technology*, 2012, section 5).
//!
//! # Invariants
//!
//! 1. Every part of a model survives the TOML form (`toml_keeps_every_part_of_a_model`,
//!    `public_models_load_and_survive_conversion`).
//! 2. A reader accepts or rejects any text, and reports one line with a place
//!    (`damaged_files_are_read_or_rejected_in_one_line`,
//!    `arbitrary_text_is_read_or_rejected_in_one_line`,
//!    `mistakes_are_reported_in_one_line_with_their_place`,
//!    `mistakes_in_tables_and_toml_have_a_place`).
//! 3. A part of an AMALTHEA model that is not supported has a note with its place and its effect
//!    (`unsupported_features_are_noted_with_their_place`).
//!
//! # Failure
//!
//! [`Error`] has the place of a mistake, and the remedy. No function panics on a model that
//! [`Model::check`] accepts; the readers return only such models.
//!
//! # Limits
//!
//! - Times are whole nanoseconds up to [`TIME_MAX_NS`].
//! - AMALTHEA: caches and contention at connections are not modelled; the notes state the effect
//!   of each unsupported element.
#![forbid(unsafe_code)]

mod amalthea;
mod error;
mod form;
mod model;
mod table;
mod time;

pub use amalthea::read_amalthea;
pub use error::Error;
pub use form::{read_toml, write_toml};
pub use model::{
    Access, Activation, Chain, Communication, Core, CoreId, Cost, ELEMENTS_MAX, Effect, Label,
    Latency, MODES_MAX, Memory, Model, Note, Policy, Preemption, Range, Runnable, Safety, Section,
    TASKS_MAX, Task, TaskId, UnitKind,
};
pub use table::{read_csv, write_csv};
pub use time::{TIME_MAX_NS, Time};
