//! `rules!` for `corebeat-rewrite`, which re-exports it.
//!
//! Place in the loop: parallel; a part of `corebeat-rewrite`.

use corebeat_cypher::{Mistake, Schema};
use proc_macro::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Ident, LitStr, Token, parse_macro_input};

/// Returns its text with rules, which it checks when the program is compiled; see
/// `corebeat_rewrite::rules`.
#[proc_macro]
pub fn rules(input: TokenStream) -> TokenStream {
    let Input { rules, schema } = parse_macro_input!(input as Input);
    match check_all(&rules, schema.as_ref()) {
        Ok(()) => quote!(#rules).into(),
        Err(error) => error.to_compile_error().into(),
    }
}

/// The rules, and the schema if there is one.
struct Input {
    rules: LitStr,
    schema: Option<LitStr>,
}

impl Parse for Input {
    fn parse(input: ParseStream) -> syn::Result<Input> {
        let rules = input.parse()?;
        let mut schema = None;
        if input.parse::<Option<Token![,]>>()?.is_some() && !input.is_empty() {
            let name: Ident = input.parse()?;
            if name != "schema" {
                return Err(Error::new(name.span(), "expected schema = \"CREATE ...\""));
            }
            input.parse::<Token![=]>()?;
            schema = Some(input.parse()?);
            input.parse::<Option<Token![,]>>()?;
        }
        Ok(Input { rules, schema })
    }
}

fn check_all(rules: &LitStr, schema: Option<&LitStr>) -> Result<(), Error> {
    let at = |literal: &LitStr| {
        let span = literal.span();
        move |why| Error::new(span, why)
    };
    let schema = match schema {
        Some(text) => Some(declared(&text.value()).map_err(at(text))?),
        None => None,
    };
    check(&rules.value(), schema.as_ref()).map_err(at(rules))
}

fn declared(text: &str) -> Result<Schema, String> {
    Schema::of(text).map_err(|mistake| marked("schema", text, mistake))
}

fn check(text: &str, schema: Option<&Schema>) -> Result<(), String> {
    let checked = schema.map_or_else(|| corebeat_cypher::check(text), |schema| schema.check(text));
    checked.map_err(|mistake| marked("rules", text, mistake))
}

/// The mistake in a text, with its line and a mark below its place: the compiler shows only where
/// the text begins.
fn marked(name: &str, text: &str, (at, why): Mistake) -> String {
    let (line, column) = corebeat_cypher::position(text, at);
    let shown = text.lines().nth(line - 1).unwrap_or_default();
    // A tab is as wide as the tab above.
    let before = shown.chars().take(column - 1);
    let indent: String = before.map(|c| if c == '\t' { c } else { ' ' }).collect();
    format!("{name}, line {line}, column {column}: {why}\n  {shown}\n  {indent}^")
}

#[cfg(test)]
mod tests {
    use super::{Input, check, declared};

    #[test]
    fn mistakes_are_marked_in_the_text() {
        assert_eq!(check("MATCH (a)-[:KNOWS]->(b) RETURN a, b", None), Ok(()));
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
            assert_eq!(check(text, None).err().unwrap_or_default(), expected);
        }
    }

    #[test]
    fn types_that_the_schema_lacks_are_marked() {
        let schema = declared("CREATE (:Person {name: ''})-[:KNOWS]->(:Person)").unwrap();
        assert_eq!(check("MATCH (a:Person)-[:KNOWS]->() RETURN a.name", Some(&schema)), Ok(()));
        assert_eq!(
            check("MATCH (a:Persn)\nRETURN a", Some(&schema)).unwrap_err(),
            "rules, line 1, column 10: the schema has no node type Persn; it has Person\
             \n  MATCH (a:Persn)\n           ^"
        );
        assert!(declared("CREATE (a").unwrap_err().starts_with("schema, line 1, column 10: "));
    }

    #[test]
    fn the_input_is_a_text_and_possibly_a_schema() {
        for (input, has_schema) in [
            (r#""MATCH (a) RETURN a""#, Some(false)),
            (r#""MATCH (a) RETURN a","#, Some(false)),
            (r#""MATCH (a) RETURN a", schema = "CREATE (:A)","#, Some(true)),
            (r#""MATCH (a) RETURN a", types = "CREATE (:A)""#, None),
            (r#""MATCH (a) RETURN a", schema "CREATE (:A)""#, None),
            (r#""MATCH (a) RETURN a" "CREATE (:A)""#, None),
        ] {
            let parsed = syn::parse_str::<Input>(input).ok();
            assert_eq!(parsed.map(|parsed| parsed.schema.is_some()), has_schema, "{input}");
        }
    }
}
