//! `rules!` for `corebeat-rewrite`, which re-exports it.
//!
//! Place in the loop: parallel; a part of `corebeat-rewrite`.

use proc_macro::TokenStream;
use quote::quote;
use syn::{Error, LitStr, parse_macro_input};

/// Returns its text with rules, which it checks when the program is compiled; see
/// `corebeat_rewrite::rules`.
#[proc_macro]
pub fn rules(input: TokenStream) -> TokenStream {
    let literal = parse_macro_input!(input as LitStr);
    match check(&literal.value()) {
        Ok(()) => quote!(#literal).into(),
        Err(why) => Error::new(literal.span(), why).to_compile_error().into(),
    }
}

/// The mistake in a text, with its line and a mark below its place: the compiler shows only where
/// the text begins.
fn check(text: &str) -> Result<(), String> {
    corebeat_cypher::check(text).map_err(|(at, why)| {
        let (line, column) = corebeat_cypher::position(text, at);
        let shown = text.lines().nth(line - 1).unwrap_or_default();
        // A tab is as wide as the tab above.
        let before = shown.chars().take(column - 1);
        let indent: String = before.map(|c| if c == '\t' { c } else { ' ' }).collect();
        format!("rules, line {line}, column {column}: {why}\n  {shown}\n  {indent}^")
    })
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn mistakes_are_marked_in_the_text() {
        assert_eq!(check("MATCH (a)-[:KNOWS]->(b) RETURN a, b"), Ok(()));
        for (text, expected) in [
            (
                "MATCH (a)\n\tWHERE b.x = 1 RETURN a",
                "rules, line 2, column 8: b is not defined; define it in MATCH or CREATE\
                 \n  \tWHERE b.x = 1 RETURN a\n  \t      ^",
            ),
            (
                "MATCH (a",
                "rules, line 1, column 9: expected ')', found the end of the text\
                 \n  MATCH (a\n          ^",
            ),
            ("MATCH (a) RETURN a;\n", ""),
        ] {
            assert_eq!(check(text).err().unwrap_or_default(), expected);
        }
    }
}
