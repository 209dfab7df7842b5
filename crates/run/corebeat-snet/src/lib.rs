//! The coordination language S-Net: networks of boxes, checked, and run as tasks and streams.

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
    Argument, Arguments, Boxes, C_ENTRIES_MAX, C_HEADER, Ending, FIELDS_MAX, LinkError, Row, Shared, Tag,
};
pub use check::{Checked, check};
pub use error::TooMany;
pub use label::{Kind, LABELS_MAX, Label};
pub use record::Record;
pub use run::{CAPACITY, Fault, Input, Network, OnFault, Outcome, Output, Position, Report, Running, STACK_SIZE};
pub use shape::{SHAPES_MAX, Shape};
pub use syntax::parse;
pub use value::{Array, Element, Native, Scalar, Value};
