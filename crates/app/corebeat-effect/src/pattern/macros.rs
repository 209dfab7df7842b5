//! Code that macros receive.
//!
//! The compiler gives the arguments of a macro the places at which a person wrote them, also where
//! the macro uses them twice, counts them, or makes text of them. So the arguments are found in the
//! text of the source.

use rustc_hir::def_id::LocalDefId;
use rustc_lexer::{FrontmatterAllowed, TokenKind};
use rustc_middle::ty::TyCtxt;
use rustc_span::{BytePos, ExpnId, ExpnKind, MacroKind, Span, Symbol};
use std::collections::HashMap;

/// The maker of an item, or of a module around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    Person,
    /// `include!`, of a file that a person or a build script has written.
    Include,
    /// Another macro, or an attribute.
    Macro,
}

/// The maker of this item.
pub(super) fn maker(tcx: TyCtxt<'_>, owner: LocalDefId) -> Maker {
    let mut maker = Maker::Person;
    let mut at = Some(owner.to_def_id());
    while let Some(def) = at {
        let made_by = tcx.expn_that_defined(def);
        if made_by != ExpnId::root() {
            let include = Symbol::intern("include");
            match made_by.expn_data().kind {
                ExpnKind::Macro(MacroKind::Bang, name) if name == include => {
                    maker = Maker::Include;
                }
                // The body of an asynchronous function.
                ExpnKind::Desugaring(_) => {}
                _ => return Maker::Macro,
            }
        }
        at = tcx.opt_parent(def);
    }
    maker
}

/// The arguments of macros in files, found on demand.
#[derive(Debug, Default)]
pub(super) struct Arguments(HashMap<BytePos, Vec<(usize, usize)>>);

impl Arguments {
    /// Whether a place is in the arguments of a macro. A file without text counts as one.
    pub(super) fn contain(&mut self, tcx: TyCtxt<'_>, span: Span) -> bool {
        if crate::fault::is_planted("macro") {
            return false;
        }
        let file = tcx.sess.source_map().lookup_source_file(span.lo());
        let Some(text) = &file.src else { return true };
        let ranges = self.0.entry(file.start_pos).or_insert_with(|| arguments(text));
        let at = (span.lo() - file.start_pos).0 as usize;
        ranges.iter().any(|(start, end)| (*start..*end).contains(&at))
    }
}

/// Words after which `!` is an operator.
const KEYWORDS: &[&str] = &["if", "while", "match", "return", "in", "break", "else", "move", "mut"];

/// The arguments of the macros in a text, as ranges of bytes.
fn arguments(text: &str) -> Vec<(usize, usize)> {
    let start = rustc_lexer::strip_shebang(text).unwrap_or(0);
    let mut at = start;
    let mut found = Vec::new();
    // The open delimiters: where, and whether a macro is called.
    let mut open: Vec<(usize, bool)> = Vec::new();
    // The last three tokens.
    let mut last: [(TokenKind, &str); 3] = [(TokenKind::Semi, ""); 3];
    for token in rustc_lexer::tokenize(&text[start..], FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        let shown = &text[at..end];
        match token.kind {
            TokenKind::Whitespace
            | TokenKind::LineComment { .. }
            | TokenKind::BlockComment { .. } => {
                at = end;
                continue;
            }
            TokenKind::OpenParen | TokenKind::OpenBrace | TokenKind::OpenBracket => {
                let is_name = |(kind, word): (TokenKind, &str)| {
                    kind == TokenKind::RawIdent
                        || kind == TokenKind::Ident && !KEYWORDS.contains(&word)
                };
                let is_call = last[2].0 == TokenKind::Bang && is_name(last[1]);
                let is_definition = last[1].0 == TokenKind::Bang && last[0].1 == "macro_rules";
                open.push((end, is_call || is_definition));
            }
            TokenKind::CloseParen | TokenKind::CloseBrace | TokenKind::CloseBracket => {
                if let Some((from, true)) = open.pop() {
                    found.push((from, at));
                }
            }
            _ => {}
        }
        last = [last[1], last[2], (token.kind, shown)];
        at = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::arguments;

    #[test]
    fn arguments_of_macros_are_found() {
        let of = |text: &str| -> Vec<String> {
            arguments(text).iter().map(|(from, to)| text[*from..*to].to_owned()).collect()
        };
        assert_eq!(of("m!(a(b)); f(x)"), ["a(b)"]);
        assert_eq!(
            of("a::m ! /* c */ { x } macro_rules! n { (y) => { z } }"),
            [" x ", " (y) => { z } "]
        );
        assert_eq!(of("if !(a) { b != (c) } let s = \"m!(x)\"; // m!(x)"), [""; 0]);
        assert_eq!(of("if !f(a) {}"), [""; 0]);
    }
}
