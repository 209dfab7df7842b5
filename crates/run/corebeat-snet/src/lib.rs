//! The coordination language S-Net: networks of boxes, checked, and run as tasks and streams.
//!
//! Place in the loop: run; stands on corebeat-lpel.
//!
//! # Example
//!
//! ```
//! use corebeat_lpel::Runtime;
//! use corebeat_snet::body::Out;
//! use corebeat_snet::{Boxes, Kind, Label, Network, Record, Value, check, parse};
//!
//! let module = parse("net down { box step ((n) -> (n) | (done)); } connect step * {done};").unwrap();
//! let net = check(&module, None).net.expect("the program is sound");
//! let boxes = Boxes::new().with("step", "(n) -> (n) | (done)", |(n,): (i32,), out: &mut Out| {
//!     if n > 0 { out.emit(1, (n - 1,)) } else { out.emit(2, ("there",)) }
//! })?;
//! let network = Network::new(net, |plan| boxes.find(plan))?;
//! let record = Record::from_pairs([(Label::new(Kind::Field, "n")?, Value::from(1000))])?;
//! let outcome = network.run(&Runtime::new()?, [record])?;
//! assert_eq!(outcome.records[0].get(Label::new(Kind::Field, "done")?), Some(&Value::from("there")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The language is told in the book (`docs/snet.md`), with a program for each construct.
//!
//! # Model
//!
//! After Prokesch, *A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing*, 2011, sections 2.2 and 3.2.
//!
//! ```text
//!   text --parse--> ast::Module --check--> plan::Net --Network::new--> Network --run--> tasks and streams
//!                                             |                           ^
//!                                             +--> draw::svg              +-- Boxes: functions in Rust, C, C++, Python
//! ```
//!
//! - A **record** ([`Record`]) holds a [`Value`] for each [`Label`] of its [`Shape`]: fields, which only boxes look into, and tags, which
//!   are numbers. Shapes are made once for each set of labels, so what an entity does with a record is looked up by the
//!   shape's address: it costs the same for one label and for sixteen.
//! - A **plan** ([`plan::Net`]) is a checked program. Its parts are boxes, filters, synchrocells, and the combinators.
//! - A **network** ([`Network`]) is a plan with functions behind its boxes. Each run makes tasks as records need them: a box is
//!   a task with one stream before it. What does little (filters, synchrocells, choices) is done by the task whose
//!   record it is. Merge points are tasks: collectors.
//! - A star makes a stage when a record gets there, and takes it out when its synchrocells have fired. Stages whose boxes have
//!   turned out to be cheaper than a task's turn share a task. A split whose replicas keep nothing has at most 1,024 at a time.
//! - A **barrier** goes with the records where order matters: it comes out of a part when all before it has. Deterministic
//!   combinators end what one record causes with one, and a feedback loop finds out with one whether it is at rest.
//!
//! # Invariants
//!
//! 1. A net's records come out as a sequential interpreter written from the language's definition says; in order, where the
//!    combinators are deterministic (`tests/random_net.rs`, on threads and in orders drawn from seeds).
//! 2. What the checker lets pass can be routed, if the records have what the net takes; what comes out has a shape that the checker has told
//!    (`tests/reference_check.rs`, `tests/check.rs`).
//! 3. A record that cannot go on is told, and no other is lost (`tests/network.rs`).
//! 4. Stars do not grow by stages that have done their work (`tests/network.rs`).
//! 5. No text makes the parser or a reader of records panic, or take more memory than its length (`tests/syntax.rs`,
//!    `tests/format.rs`).
//! 6. Misused fields of C boxes are errors or harmless (`tests/boxes.rs`).
//!
//! # Failure
//!
//! [`diagnostic::Diagnostic`] says what is wrong with a program, and where; [`LinkError`] why there is no function for a box;
//! [`format::FormatError`] why text is no record; [`Fault`] why a record could not go on ([`OnFault`] says what happens then).
//! A box in Rust that panics is a fault. One in C that crashes ends the program.
//!
//! # Limits
//!
//! At most [`LABELS_MAX`] names and [`SHAPES_MAX`] sets of labels in one process. Boxes in C: on x86-64 and AArch64. Tags are numbers of 32 bits,
//! and wrap. A network whose synchrocells wait for partners that are far behind holds all records in between, as the language
//! wants it: nothing holds back a stream into a star.

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
mod record;
mod run;
mod shape;
pub mod syntax;
mod value;

pub use boxes::{
    Argument, Arguments, Boxes, C_ENTRIES_MAX, C_HEADERS, Ending, FIELDS_MAX, LinkError, Row, Shared, Tag,
};
pub use check::{Checked, check};
pub use error::TooMany;
pub use label::{Kind, LABELS_MAX, Label};
pub use record::Record;
pub use run::{
    CAPACITY, Fault, Input, Network, OnFault, Outcome, Output, Position, Report, Running, STACK_SIZE,
};
pub use shape::{SHAPES_MAX, Shape};
pub use syntax::parse;
pub use value::{Array, Element, Native, Scalar, Value};
