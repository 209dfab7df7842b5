//! Parser of the part of openCypher that describes patterns and changes of graphs.
//!
//! Place in the loop: base; corebeat-rewrite parses rules when a program runs, and
//! corebeat-rewrite-macro when the program is compiled. Both use this crate.
//!
//! # Example
//!
//! ```
//! let rules = "MATCH (a)-[:KNOWS]->(b) RETURN b; MATCH (a) DELETE a";
//! assert_eq!(corebeat_cypher::statements(rules).unwrap().len(), 2);
//! let mistake = "MATCH (a)-[:KNOWS]->(b)\nRETURN c";
//! let (at, why) = corebeat_cypher::check(mistake).unwrap_err();
//! assert_eq!(corebeat_cypher::position(mistake, at), (2, 8));
//! assert_eq!(why, "c is not defined; define it in MATCH or CREATE");
//! ```
//!
//! # Model
//!
//! ```text
//!   text --> lexer --> parser --> syntax --> scope: names
//! ```
//!
//! The [parts of a statement](syntax) have names, which this crate does not resolve: types and
//! attributes belong to a graph. A [`Schema`] is a declaration of them, which rules are checked
//! against.
//!
//! # Invariants
//!
//! 1. A mistake has a position in the text, and states the remedy (`mistakes_name_their_place`, a
//!    test of corebeat-rewrite).
//! 2. Rules that a [`Schema`] accepts have types and attributes of the schema only
//!    (`rules_use_types_and_attributes_of_the_schema_only`).
//! 3. No text makes the parser panic or recurse without bound (`damaged_rules_do_not_panic`, a test
//!    of corebeat-rewrite).
//!
//! # Failure
//!
//! Each function returns the first mistake, with the remedy.

mod lexer;
mod parser;
mod schema;
mod scope;
pub mod syntax;

pub use parser::{Mistake, PATH_MAX, expression, patterns, results, statements};
pub use schema::Schema;

use syntax::At;

/// Requires that a text has valid statements, which define the names of the elements that they use.
///
/// # Errors
/// The first mistake.
pub fn check(text: &str) -> Result<(), Mistake> {
    statements(text)?.iter().try_for_each(scope::Scope::check)
}

/// Line and column from 1 of a position; the column counts characters.
pub fn position(text: &str, at: At) -> (usize, usize) {
    let before = &text[..at.min(text.len())];
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (1 + before.matches('\n').count(), 1 + before[line_start..].chars().count())
}
