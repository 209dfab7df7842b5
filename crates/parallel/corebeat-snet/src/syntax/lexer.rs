//! Lexer.

use crate::ast::Span;
use crate::diagnostic::Diagnostic;

/// Token of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'s> {
    Name(&'s str),
    Number(i32),
    /// Reserved word or sign.
    Fixed(&'static str),
    /// Text that is not in the language. The lexer reports it, and the parser skips it.
    Unknown,
    End,
}

/// Token, its place, and a diagnostic if it is invalid.
pub(super) struct Scanned<'s> {
    pub(super) token: Token<'s>,
    pub(super) span: Span,
    pub(super) problem: Option<Diagnostic>,
}

const WORDS: [&str; 11] =
    ["abs", "box", "connect", "else", "if", "max", "min", "net", "then", "type", "typesig"];

/// Signs. A sign that is a prefix of another sign comes after it.
const SIGNS: [&str; 36] = [
    "...", "..", "->", "||", "&&", "==", "!=", "<=", ">=", "[|", "|]", "**", "!!", ";", ",", "(",
    ")", "{", "}", "[", "]", "<", ">", "#", "=", "|", "*", "!", "@", "\\", "?", ":", "+", "-", "/",
    "%",
];

/// Whether the text is a reserved word, which cannot be a name.
pub(super) fn is_reserved(text: &str) -> bool {
    WORDS.contains(&text)
}

/// Scans the first token at or after `from`.
pub(super) fn scan(source: &str, from: usize) -> Scanned<'_> {
    let start = match skip_blank(source, from) {
        Ok(start) => start,
        Err(problem) => {
            let span = Span { start: source.len(), end: source.len() };
            return Scanned { token: Token::End, span, problem: Some(problem) };
        }
    };
    let rest = &source[start..];
    let found = |token, length: usize| Scanned {
        token,
        span: Span { start, end: start + length },
        problem: None,
    };
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
                Diagnostic::error(
                    "the name contains characters that are not allowed in names",
                    scanned.span,
                    "this name",
                )
                .help("use only the letters a to z and A to Z, digits and `_`"),
            );
        }
        return scanned;
    }
    // Compare the first byte alone, which is much faster than the comparison of every sign.
    let byte = rest.as_bytes()[0];
    if let Some(sign) =
        SIGNS.iter().find(|sign| sign.as_bytes()[0] == byte && rest.starts_with(**sign))
    {
        return found(Token::Fixed(sign), sign.len());
    }
    // An incomplete sign is accepted as the complete one, so that there is one error and not two.
    if let Some(meant) =
        [".", "&"].iter().position(|sign| rest.starts_with(sign)).map(|i| ["..", "&&"][i])
    {
        let mut scanned = found(Token::Fixed(meant), 1);
        let message = format!("unknown sign `{first}`");
        scanned.problem = Some(
            Diagnostic::error(message, scanned.span, "this sign").help(format!("write `{meant}`")),
        );
        return scanned;
    }
    let length = rest
        .find(|c: char| c.is_whitespace() || c.is_ascii() && c != first || is_part_of_word(c))
        .unwrap_or(rest.len());
    let mut scanned = found(Token::Unknown, length);
    let message = format!("unknown sign `{}`", shortened(&rest[..length]));
    scanned.problem = Some(Diagnostic::error(message, scanned.span, "this sign").help("remove it"));
    scanned
}

/// Returns the position after white space and comments.
///
/// # Errors
///
/// Returns a diagnostic if a comment is not closed.
pub(super) fn skip_blank(source: &str, from: usize) -> Result<usize, Diagnostic> {
    let mut at = from;
    loop {
        // A byte order mark counts as white space.
        let rest = source[at..].trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
        at = source.len() - rest.len();
        if rest.starts_with("//") || rest.starts_with("/*") {
            at = skip_comment(source, at)?;
        } else {
            return Ok(at);
        }
    }
}

/// Returns the position after the comment that begins at `at`.
pub(super) fn skip_comment(source: &str, at: usize) -> Result<usize, Diagnostic> {
    let rest = &source[at..];
    if rest.starts_with("//") {
        return Ok(at + rest.find('\n').unwrap_or(rest.len()));
    }
    match rest[2..].find("*/") {
        Some(length) => Ok(at + 2 + length + 2),
        None => {
            let span = Span { start: at, end: at + 2 };
            Err(Diagnostic::error("unclosed comment", span, "begins here")
                .help("close it with `*/`"))
        }
    }
}

/// Shortens a text of the source for a message.
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

/// Parses a whole number: decimal, hexadecimal after `0x`, or octal after `0`.
fn number(text: &str, span: Span) -> (i32, Option<Diagnostic>) {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    let shown = shortened(text);
    let error = |message: String, help: &str| {
        Some(Diagnostic::error(message, span, "this number").help(help))
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        let help = match radix {
            16 => "write digits from 0 to 9 and a to f after `0x`",
            8 => {
                "a number that begins with 0 is octal and has digits from 0 to 7; \
                 for a decimal number, remove the 0"
            }
            _ => "write only digits; a name cannot begin with a digit",
        };
        return (0, error(format!("invalid number `{shown}`"), help));
    }
    match i32::from_str_radix(digits, radix) {
        Ok(value) => (value, None),
        Err(_) => {
            (0, error(format!("the number `{shown}` is too large"), "use at most 2147483647"))
        }
    }
}
