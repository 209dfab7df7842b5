//! The coordination language S-Net: checks networks of boxes, and runs them as tasks and streams.
//!
//! Place in the loop: parallel; uses `corebeat-lpel`.
//!
//! # Example
//!
//! ```
//! use corebeat_lpel::Runtime;
//! use corebeat_snet::body::Out;
//! use corebeat_snet::{Boxes, Kind, Label, Network, Record, Value, check, parse};
//!
//! let program = "net down { box step ((n) -> (n) | (done)); } connect step * {done};";
//! let module = parse(program).unwrap();
//! let net = check(&module, None).net.expect("the program has no error");
//! let boxes = Boxes::new().with("step", "(n) -> (n) | (done)", |(n,): (i32,), out: &mut Out| {
//!     if n > 0 { out.emit(1, (n - 1,)) } else { out.emit(2, ("zero",)) }
//! })?;
//! let network = Network::new(net, |plan| boxes.find(plan))?;
//! let record = Record::from_pairs([(Label::new(Kind::Field, "n")?, Value::from(1000))])?;
//! let outcome = network.run(&Runtime::new()?, [record])?;
//! let done = outcome.records[0].get(Label::new(Kind::Field, "done")?);
//! assert_eq!(done, Some(&Value::from("zero")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The book describes the language (`docs/snet.md`), with a program for each construct.
//!
//! # Model
//!
//! The model follows Prokesch, *A Light-Weight Parallel Execution Layer for Shared-Memory Stream
//! Processing*, 2011, sections 2.2 and 3.2.
//!
//! ```text
//!   text --parse--> Module --check--> Net --Network::new--> Network --run--> tasks, streams
//!                                      |                      ^
//!                                      +--> draw::svg         +-- Boxes: functions in
//!                                                                 Rust, C, C++, Python
//! ```
//!
//! - A **record** ([`Record`]) has a [`Value`] for each [`Label`] of its [`Shape`]: fields, which
//!   only boxes read, and tags, which are numbers. Each set of labels is one shape in memory, so an
//!   entity finds its decision for a record by the address of the shape. The cost does not depend
//!   on the number of labels.
//! - A **plan** ([`plan::Net`]) is a checked program. Its parts are boxes, filters, synchrocells
//!   and the combinators.
//! - A **network** ([`Network`]) is a plan with functions for its boxes. A run creates tasks when
//!   records need them. A box is a task with one input stream. Cheap entities (filters,
//!   synchrocells, choices) run in the task that holds the record. Merge points are tasks, called
//!   collectors.
//! - A star creates a stage when a record reaches it, and removes the stage after its synchrocells
//!   have merged, unless records still take its boxes: records that the stage passes on unchanged
//!   skip it. The book states which stages remain. Stages whose boxes are measured to be cheaper
//!   than a task's dispatch share a task. A split with stateless replicas has at most 1,024
//!   replicas at a time.
//! - A run on several **ranks** ([`rank`]) has the same network in several processes: a part with a
//!   place runs on the rank of this number, and records move between ranks as messages. The caller
//!   has the transport.
//! - A **barrier** travels with the records where order matters: it leaves a part after the results
//!   of all records before it. Deterministic combinators mark the end of the results of one record
//!   with a barrier, and a feedback loop uses a barrier to detect that it is empty.
//!
//! # Invariants
//!
//! 1. The output records of a net equal those of a sequential interpreter that is written from the
//!    definition of the language; for deterministic combinators, also in their order
//!    (`random_confluent_network_equals_the_interpreter`,
//!    `random_ordered_network_outputs_the_same_sequence`,
//!    `random_merging_network_neither_loses_nor_duplicates`, on threads and in random orders). This
//!    holds where stages of a star are skipped
//!    (`random_records_through_spent_stages_equal_the_interpreter`).
//! 2. A net that passes the checker can route every record of its input type, and every output has
//!    a shape that the checker has inferred (`random_nets_route_every_record`).
//! 3. Each record that cannot continue is reported, and no other record is lost
//!    (`failing_box_loses_only_its_record`, `fault_is_the_error_of_a_run_unless_it_continues`,
//!    `panic_of_the_function_that_receives_faults_loses_no_record`). A task that ends early is
//!    reported and stops the network (`panic_of_a_task_is_reported_and_stops_the_network`,
//!    `panic_of_the_input_is_the_error_of_the_run`, `box_that_ends_its_task_is_reported`).
//! 4. Stages of a star that have finished their work do not accumulate
//!    (`star_of_synchrocells_does_not_grow_by_a_million_pairs`,
//!    `star_with_a_state_does_not_grow_by_ten_million_records`,
//!    `star_with_a_state_and_a_box_does_not_grow`, `finished_stages_are_removed`).
//! 5. No text makes the parser or a reader of records panic, or allocate more than a multiple of
//!    its length (`random_bytes_never_panic`, `nesting_without_end_is_an_error_without_overflow`).
//! 6. Misuse of fields by C boxes is an error or harmless (`freed_field_is_detected`).
//! 7. A library in Rust behaves like a box in the program, or reports why it cannot
//!    (`rust_library_takes_and_outputs_values`, `rust_library_reports_failures`).
//! 8. A process of a box in Python ends with the process that started it, however that ends
//!    (`python_box_ends_with_a_process_that_is_killed`).
//! 9. A network on several ranks outputs what the interpreter outputs, in any order of the messages
//!    between different pairs of ranks; a rank never has more messages of a channel than credits,
//!    which a delivery checks; and after the run, no rank keeps a field for another
//!    (`random_confluent_network_on_ranks_equals_the_interpreter`,
//!    `random_ordered_network_on_ranks_outputs_the_same_sequence`,
//!    `random_merging_network_on_ranks_neither_loses_nor_duplicates`), also if the run is stopped
//!    (`random_network_that_ends_early_ends_on_all_ranks_and_frees_all_fields`) or a record cannot
//!    move (`record_that_cannot_move_keeps_no_field_and_its_weights`). Lost and doubled messages
//!    are detected (`lost_and_doubled_messages_are_detected`).
//!
//! # Failure
//!
//! [`diagnostic::Diagnostic`] reports an error in a program and its place. [`Error`] is the error
//! type of all other operations. [`Fault`] reports a record that cannot continue inside a network,
//! and [`OnFault`] selects the reaction: by default the network stops, and the fault is the error
//! of [`Network::run`] ([`RunError::Stopped`], with the records that were output). A panic of a box
//! in Rust, of an observer, or of the function that receives faults is a fault. Any other panic in
//! a task of the network, such as that of a value's destructor, stops the network with either
//! reaction, and is the error of [`Network::run`]. A crash of a box in C ends the process.
//!
//! # Limits
//!
//! A process has at most [`LABELS_MAX`] names and [`SHAPES_MAX`] sets of labels. Boxes in C need
//! x86-64 or AArch64. On several ranks, a field that moves has less than 1 GiB, and values of Rust
//! types and pointers do not move. Tags have 32 bits and wrap around. Streams into a star are not
//! bounded: a network whose synchrocells wait for partners that arrive much later holds all records
//! in between, as the language requires.

pub mod ast;
pub mod body;
mod boxes;
mod check;
pub mod diagnostic;
pub mod draw;
mod error;
pub mod expression;
pub mod format;
mod label;
pub mod plan;
pub mod rank;
mod record;
mod run;
mod shape;
pub mod syntax;
mod value;

#[doc(hidden)]
pub use boxes::Export;
pub use boxes::{
    Argument, Arguments, Boxes, C_ENTRIES_MAX, C_HEADERS, Ending, FIELDS_MAX, Row, Shared, Tag,
};
pub use check::{Checked, check};
pub use error::{Error, RunError};
pub use label::{Kind, LABELS_MAX, Label};
pub use record::Record;
pub use run::{
    CAPACITY, Fault, Input, Network, NetworkOptions, OnFault, Outcome, Output, Position, Report,
    ReportFault, Running, STACK_SIZE, Serving,
};
pub use shape::{SHAPES_MAX, Shape};
pub use syntax::parse;
pub use value::{Array, Element, Native, Scalar, Value};
