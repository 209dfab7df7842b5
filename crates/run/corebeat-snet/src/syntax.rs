//! From text to a program: the parser of S-Net.
//!
//! One pass over the text, without recursion: what is open (nets, brackets, operators that wait for an operand) lies
//! on stacks of their own, so no text can overflow the stack of the thread, and time grows with the text as memory
//! does. What comes out is nested at most [`NESTING_MAX`] deep in each of its kinds, so that who reads it may recurse.
//!
//! After an error the parser goes on behind the next `;` or at the next definition, and so tells several errors in one
//! go, [`DIAGNOSTICS_MAX`] at most.

mod definition;
mod expression;
mod filter;
mod lexer;
mod metadata;
mod parser;
mod topology;
mod types;

use crate::ast::Module;
use crate::diagnostic::Diagnostic;

/// How deep nets may stand in nets, topologies in topologies, expressions in expressions and elements of metadata in
/// elements: each for itself. An operator counts as one level above its operands, and so does a bracket; a list of
/// any length (`a .. b .. c`) is one level.
pub const NESTING_MAX: usize = 100;

/// How many errors are told at most.
pub const DIAGNOSTICS_MAX: usize = 50;

/// Reads a program.
///
/// ```
/// let program = "
///     box parse ((line) -> (number) | (<bad>));
///     net count connect parse .. ([{<bad>} -> {}] | [{number} -> {<ok = 1>}]);
/// ";
/// assert_eq!(corebeat_snet::parse(program).unwrap().definitions.len(), 2);
///
/// let errors = corebeat_snet::parse("net count connect parse").unwrap_err();
/// assert_eq!(errors[0].message, "a `;` is missing");
/// ```
///
/// # Errors
///
/// All that is wrong with it, in the order of the text.
pub fn parse(source: &str) -> Result<Module, Vec<Diagnostic>> {
    parser::Parser::new(source).run()
}
