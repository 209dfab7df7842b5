//! What a network should do, and networks to try it on: a sequential interpreter, and a generator of cases.
//!
//! # When a network has one result
//!
//! The interpreter takes one record after the other. A network that runs in parallel may let records overtake each other
//! at every combinator that is not deterministic, and at every feedback. Without synchrocells nobody can see that but in the
//! order of what comes out: each record goes its own way. A synchrocell sees who comes first. So:
//!
//! - A network without synchrocells puts out the same records under every schedule, in any order. So does one whose cells
//!   cannot be reached by more than one record for each pattern, such as a cell in a split over a number that each record
//!   has of its own ([`Class::Confluent`]).
//! - A network without `|`, `*`, `!` and feedback puts out the same records in the same order, whatever cells are in it:
//!   every stream in it has one order ([`Class::Ordered`]).
//! - Other cells pair records as they come. Where all records that fit a pattern look alike but for what is in their
//!   fields, what comes out looks the same but for that too ([`Class::Merging`]).

mod function;
mod generate;
mod grow;
pub(crate) mod interpreter;
mod source;

pub(crate) use generate::{Case, Class, cases};
