//! Reference for networks: a sequential interpreter, and a generator of cases.
//!
//! # Networks with one result
//!
//! The interpreter processes the records one after the other. In a parallel network, records can
//! overtake each other at every combinator that is not deterministic, and at every feedback.
//! Without synchrocells, this affects only the order of the output, because records are
//! independent. The result of a synchrocell depends on the order of its input. Therefore:
//!
//! - A network without synchrocells outputs the same records under every schedule, in any order.
//!   The same holds if at most one record for each pattern reaches a cell, for example a cell in a
//!   split over a unique number of each record ([`Class::Confluent`]).
//! - A network without `|`, `*`, `!` and feedback outputs the same records in the same order, with
//!   any cells, because every stream has one order ([`Class::Ordered`]).
//! - Other cells pair records in the order of arrival. If all records that match a pattern are
//!   equal except for their fields, the outputs are also equal except for their fields
//!   ([`Class::Merging`]).

mod function;
mod generate;
mod grow;
pub(crate) mod interpreter;
mod source;

pub(crate) use generate::{Case, Class, cases};

/// Steps after which a run counts as endless.
pub(crate) const STEPS_MAX: usize = 2_000_000;
