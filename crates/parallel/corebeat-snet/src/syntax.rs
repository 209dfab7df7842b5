//! Parser of S-Net.
//!
//! The parser reads the text in one pass without recursion: open nets, brackets and operators are
//! on explicit stacks. No text can therefore overflow the stack of the thread, and time and memory
//! are linear in the length of the text. The result is nested at most [`NESTING_MAX`] levels deep
//! in each kind of construct, so that its users may recurse.
//!
//! After an error, the parser continues after the next `;` or at the next definition. It reports at
//! most [`DIAGNOSTICS_MAX`] errors in one run.

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

/// Bound of the nesting of nets, of topologies, of expressions and of elements of metadata, each
/// counted separately. An operator or a bracket is one level above its operands; a list of any
/// length (`a .. b .. c`) is one level.
pub const NESTING_MAX: usize = 100;

/// Bound of the errors that the parser reports.
pub const DIAGNOSTICS_MAX: usize = 50;

/// Parses a program.
///
/// ```
/// let program = "
///     box parse ((line) -> (number) | (<bad>));
///     net count connect parse .. ([{<bad>} -> {}] | [{number} -> {<ok = 1>}]);
/// ";
/// assert_eq!(corebeat_snet::parse(program).unwrap().definitions.len(), 2);
///
/// let errors = corebeat_snet::parse("net count connect parse").unwrap_err();
/// assert_eq!(errors[0].message, "missing `;`");
/// ```
///
/// # Errors
///
/// Returns the diagnostics in the order of the text.
pub fn parse(source: &str) -> Result<Module, Vec<Diagnostic>> {
    parser::Parser::new(source).run()
}
