//! Words and signs.

use crate::ast::Span;
use crate::diagnostic::Diagnostic;

/// The smallest part of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'s> {
    Name(&'s str),
    Number(i32),
    /// A reserved word or a sign.
    Fixed(&'static str),
    /// Nothing of the language; said already, and to be skipped.
    Unknown,
    End,
}

/// A token, its place, and what is wrong with it.
pub(super) struct Scanned<'s> {
    pub(super) token: Token<'s>,
    pub(super) span: Span,
    pub(super) problem: Option<Diagnostic>,
}

const WORDS: [&str; 11] =
    ["abs", "box", "connect", "else", "if", "max", "min", "net", "then", "type", "typesig"];

/// A sign that another begins with stands behind that.
const SIGNS: [&str; 36] = [
    "...", "..", "->", "||", "&&", "==", "!=", "<=", ">=", "[|", "|]", "**", "!!", ";", ",", "(", ")", "{",
    "}", "[", "]", "<", ">", "#", "=", "|", "*", "!", "@", "\\", "?", ":", "+", "-", "/", "%",
];

/// Whether it is a word that cannot be a name.
pub(super) fn is_reserved(text: &str) -> bool {
    WORDS.contains(&text)
}

/// The token that begins at `from`, or behind what is blank there.
pub(super) fn scan(source: &str, from: usize) -> Scanned<'_> {
    let start = match skip_blank(source, from) {
        Ok(start) => start,
        Err(problem) => {
            let span = Span { start: source.len(), end: source.len() };
            return Scanned { token: Token::End, span, problem: Some(problem) };
        }
    };
    let rest = &source[start..];
    let found =
        |token, length: usize| Scanned { token, span: Span { start, end: start + length }, problem: None };
    let Some(first) = rest.chars().next() else { return found(Token::End, 0) };
    if is_part_of_word(first) {
        let length = rest.find(|c| !is_part_of_word(c)).unwrap_or(rest.len());
        let text = &rest[..length];
        let mut scanned = found(Token::Name(text), length);
        if first.is_ascii_digit() {
            let (value, problem) = number(text, scanned.span);
            scanned.token = Token::Number(value);
            scanned.problem = problem;
        } else if let Some(word) = WORDS.iter().find(|word| **word == text) {
            scanned.token = Token::Fixed(word);
        } else if !text.is_ascii() {
            scanned.problem = Some(
                Diagnostic::error("a name has letters that cannot stand in names", scanned.span, "this name")
                    .help("names are made of the letters a to z and A to Z, digits and `_`"),
            );
        }
        return scanned;
    }
    // The first byte by itself, which is much faster than the whole for each.
    let byte = rest.as_bytes()[0];
    if let Some(sign) = SIGNS.iter().find(|sign| sign.as_bytes()[0] == byte && rest.starts_with(**sign)) {
        return found(Token::Fixed(sign), sign.len());
    }
    // A sign that was cut short stands for the whole one, so that there is one error and not two.
    if let Some(meant) = [".", "&"].iter().position(|sign| rest.starts_with(sign)).map(|i| ["..", "&&"][i]) {
        let mut scanned = found(Token::Fixed(meant), 1);
        let message = format!("`{first}` is no sign of the language");
        scanned.problem =
            Some(Diagnostic::error(message, scanned.span, "this sign").help(format!("write `{meant}`")));
        return scanned;
    }
    let length = rest
        .find(|c: char| c.is_whitespace() || c.is_ascii() && c != first || is_part_of_word(c))
        .unwrap_or(rest.len());
    let mut scanned = found(Token::Unknown, length);
    let message = format!("`{}` is no sign of the language", shortened(&rest[..length]));
    scanned.problem = Some(Diagnostic::error(message, scanned.span, "this sign").help("remove it"));
    scanned
}

/// Behind spaces, ends of lines and comments.
///
/// # Errors
///
/// Where a comment is not closed.
pub(super) fn skip_blank(source: &str, from: usize) -> Result<usize, Diagnostic> {
    let mut at = from;
    loop {
        // What some editors put before the first line counts as blank.
        let rest = source[at..].trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
        at = source.len() - rest.len();
        if rest.starts_with("//") || rest.starts_with("/*") {
            at = skip_comment(source, at)?;
        } else {
            return Ok(at);
        }
    }
}

/// Behind the comment that begins at `at`.
pub(super) fn skip_comment(source: &str, at: usize) -> Result<usize, Diagnostic> {
    let rest = &source[at..];
    if rest.starts_with("//") {
        return Ok(at + rest.find('\n').unwrap_or(rest.len()));
    }
    match rest[2..].find("*/") {
        Some(length) => Ok(at + 2 + length + 2),
        None => {
            let span = Span { start: at, end: at + 2 };
            Err(Diagnostic::error("a comment is not closed", span, "it begins here")
                .help("close it with `*/`"))
        }
    }
}

/// A text from the source as it may stand in a message.
pub(super) fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    let mut shown: String = text.chars().take(CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown.replace(char::is_control, "\u{fffd}")
}

fn is_part_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A whole number: decimal, hexadecimal behind `0x`, octal behind `0`.
fn number(text: &str, span: Span) -> (i32, Option<Diagnostic>) {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    let shown = shortened(text);
    let error =
        |message: String, help: &str| Some(Diagnostic::error(message, span, "this number").help(help));
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        let help = match radix {
            16 => "write digits from 0 to 9 and a to f behind `0x`",
            8 => {
                "a number that begins with 0 is octal, with digits from 0 to 7; for a decimal one leave out the 0"
            }
            _ => "write digits only; a name cannot begin with a digit",
        };
        return (0, error(format!("`{shown}` is no number"), help));
    }
    match i32::from_str_radix(digits, radix) {
        Ok(value) => (value, None),
        Err(_) => (0, error(format!("the number `{shown}` is too large"), "the largest is 2147483647")),
    }
}
