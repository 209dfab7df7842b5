//! Models of tasks on cores: which deadlines hold, and on which grounds.
//!
//! Place in the loop: decide; uses base. The crate is pure: it reads text that it is given, and
//! uses no file, clock or thread.
//!
//! # Example
//!
//! ```
//! use corebeat_verify::{Verdict, analyse, read_csv, write_toml};
//!
//! let model = read_csv("name,period_ms,worst_ms,priority\nfast,7,3,3\nslow,20,5,1")?;
//! let report = analyse(&model);
//! assert_eq!(report.verdict, Verdict::Schedulable);
//! assert_eq!(report.tasks[1].response_ns, Some(11_000_000));
//! assert!(write_toml(&model).contains("period = \"20 ms\""));
//! # Ok::<(), corebeat_verify::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!  .amxmi --> amalthea --.                              .--> analysis: response, demand, latency
//!  .toml  --> form     --+--> Model --> system (mode) --+
//!  .csv   --> table    --'      |                       `--> search <--> simulation of jobs
//!                               |                                |  `--> objective: worst figure
//!                               |                                `--> witness --> export
//!                               +--> contention: waiting at memories
//!                               +--> partition: components on units --> front: the best of them
//!                               +--> form, table --> .toml, .csv
//!                               `--> notes: what the reader does not support, and its effect
//! ```
//!
//! A [`Model`] has tasks with their activations, costs, critical sections and priorities, cores,
//! memories, labels, chains and modes. A [`Cost`] consists of a time, of ticks, and of accesses to
//! labels, so that the execution time depends on the core and on the memory (Gut, Allmann,
//! Schurius, Schmidt, *Reduction of Electronic Control Units in Electric Vehicles Using Multicore
//! Technology*, 2012, section 5). A [`System`] has the tasks of one mode with their times.
//!
//! | cores with | method | result |
//! | --- | --- | --- |
//! | preemptive tasks | Joseph, Pandya 1986; Lehoczky 1990 | exact (1), else a bound |
//! | tasks that are not preempted | Davis et al. 2007 | exact (1), else a bound |
//! | cooperative tasks | blocking by the longest runnable | bound |
//! | resources of one core | priority ceiling: Sha, Rajkumar, Lehoczky 1990 | bound |
//! | resources of several cores | MSRP: Gai, Lipari, Di Natale 2001 | bound |
//! | tasks that follow others | holistic: Tindell, Clark 1994 | bound |
//! | preemptive tasks with offsets | schedule until it repeats: Leung, Merrill 1980 | exact (2) |
//! | earliest deadline first | demand: Zhang, Burns 2009 | exact (1), else sufficient |
//! | one queue, fixed priorities | Bertogna, Cirinei 2007 | sufficient |
//! | one queue, earliest deadline first | Goossens et al. 2003; Bertogna et al. 2005 | sufficient |
//! | chains | Davare et al. 2007, Hamann et al. 2017 | bound |
//!
//! (1) with arbitrary phases and distinct priorities; preemptive tasks also with equal phases.
//!
//! (2) of tasks above which all tasks have offsets, no jitter and distinct priorities, on cores
//! without blocking; up to 200,000 jobs, else a bound for the worst phases.
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
//! 4. A part that is not supported or missing, and that could make a result too low, turns the
//!    verdict into "unknown" (`missing_parts_are_never_schedulable`,
//!    `optimistic_notes_affect_the_tasks_that_they_concern`,
//!    `overload_of_any_kind_is_never_schedulable`,
//!    `contention_does_not_remove_the_note_about_connections`,
//!    `contention_lengthens_critical_sections`,
//!    `contention_with_a_core_of_unknown_latency_is_unknown`,
//!    `latencies_of_all_cores_of_a_queue_are_required`).
//! 5. Exact figures equal those of proved formulas, and are reached in simulation
//!    (`preemptive_response_times_equal_the_proved_formulas`,
//!    `non_preemptive_response_times_equal_the_proved_formulas`,
//!    `demand_test_agrees_with_the_proved_response_times`,
//!    `exact_response_times_are_reached_in_simulation`).
//!    Those of offsets, too (`exact_response_times_of_offsets_are_reached_in_simulation`). They
//!    equal those of pyCPA and SimSo, where these are installed
//!    (`pycpa_has_equal_preemptive_and_no_lower_other_response_times`,
//!    `simso_reaches_the_exact_response_times_of_one_core`).
//! 6. No simulated response time exceeds its bound (`no_simulated_response_exceeds_its_bound`,
//!    `schedulable_models_miss_no_deadline_in_simulation`,
//!    `no_simulated_response_of_cores_with_one_queue_exceeds_its_bound`,
//!    `fuzzed_models_are_never_wrongly_schedulable`,
//!    `simso_exceeds_no_bound_of_cores_with_one_queue`).
//! 7. A witness replays with the same worst case, and its jobs are permitted by the model
//!    (`worst_case_of_cores_with_a_spin_lock_replays_and_draws`,
//!    `starvation_and_load_have_witnesses_that_replay`,
//!    `witness_that_the_model_does_not_permit_is_rejected`). Waits and busy times are those of the
//!    record (`worst_waits_and_loads_equal_those_counted_in_each_nanosecond`).
//! 8. The search finds no missed deadline where the exact test finds none, and one for at least 99%
//!    of the random sets where the exact test does
//!    (`witness_exists_if_and_only_if_the_exact_test_fails`). Equal seeds give equal searches
//!    (`equal_seeds_give_equal_searches`).
//! 9. A partition is schedulable by the analysis and keeps memories and safety levels; for small
//!    models, no partition has fewer units (`branch_and_bound_finds_the_least_number_of_units`). A
//!    model after section 6 of Gut et al. needs fewer units with mode sharing
//!    (`mode_sharing_saves_units_in_the_example_of_the_paper`).
//!
//! # Failure
//!
//! [`Error`] has the place of a mistake, and the remedy. No function panics on a model that
//! [`Model::check`] accepts (`indices_outside_of_the_model_are_rejected`,
//! `numbers_above_the_limit_are_rejected`); the readers return only such models.
//!
//! # Limits
//!
//! - Times are whole nanoseconds up to [`TIME_MAX_NS`].
//! - AMALTHEA: caches and contention at connections are not modelled; the notes state the effect
//!   of each unsupported element. Contention at memories is modelled on request ([`contend`]).
//! - Offsets: where the exact method does not apply, the analysis assumes the worst phases. Under
//!   earliest deadline first it always does.
//! - Cores with one queue must be equal, and all of them may run each of their tasks, which are
//!   preemptive, have no jitter, and have deadlines up to their periods. Under earliest deadline
//!   first, neither jitter nor resources nor tasks that follow others are analysed.
//! - Delays of tasks that follow others are followed up to 100 periods.
//! - Critical sections are not nested; in simulation they follow each other from the start of a
//!   job on. The search therefore finds lower bounds of the worst case of models with resources.
//! - Between two cooperative tasks, a chunk has the highest cooperative priority of its core, as a
//!   task with an internal resource of OSEK has.
//! - Cores become idle between two modes.
//! - Partitioning supports periodic and sporadic tasks without critical sections, on equal units
//!   with fixed priorities. It does not consider the times of accesses to memories. Latencies and
//!   power are figures of [`front`], not goals of the search.
//! - The simulation is a part of this crate, not a use of corebeat-sim. Crates in decide use base
//!   only, and the threads of corebeat-sim move between CPUs, share them fairly and have
//!   floating-point times, while a search runs millions of jobs of fixed tasks in whole
//!   nanoseconds.
#![forbid(unsafe_code)]

mod amalthea;
mod analysis;
mod contention;
mod demand;
mod error;
mod export;
mod form;
mod front;
pub mod generate;
mod global;
mod latency;
mod model;
mod objective;
mod offset;
mod partition;
mod response;
mod search;
mod simulation;
mod system;
mod table;
mod time;
mod witness;

pub use amalthea::read_amalthea;
pub use analysis::{
    Bound, CoreUse, MemoryUse, Method, Report, TaskResult, Verdict, analyse, responses,
};
pub use contention::contend;
pub use demand::{Demand, processor_demand};
pub use error::Error;
pub use export::{btf, front_svg, gantt_svg, perfetto, response_svg};
pub use form::{read_toml, write_toml};
pub use front::{FrontPoint, front};
pub use latency::ChainResult;
pub use model::{
    Access, Activation, Chain, Communication, Core, CoreId, Cost, ELEMENTS_MAX, Effect, Label,
    Latency, MODES_MAX, Memory, Model, Note, Policy, Preemption, Range, Runnable, SPANS_MAX,
    Safety, Section, TASKS_MAX, Task, TaskId, UnitKind,
};
pub use objective::{Objective, Subject, Worst};
pub use partition::{
    Answer, Component, Constraint, Partition, PartitionOptions, Place, explain, partition,
};
pub use response::{CoreSet, Load};
pub use search::{Found, Search, SearchOptions, horizon_ns};
pub use simulation::{Activity, Completion, Job, Jobs, Record, Simulation, Span};
pub use system::{Entry, System};
pub use table::{read_csv, write_csv};
pub use time::{TIME_MAX_NS, Time};
pub use witness::{Kind, Replay, Witness, WitnessJob};
