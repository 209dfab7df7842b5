//! Tokens of openCypher.

use crate::syntax::At;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    /// A name or a keyword. `true` marks a name in backquotes, which is no keyword.
    Word(String, bool),
    Int(i64),
    Float(f64),
    Text(String),
    Symbol(&'static str),
    End,
}

/// Symbols, the longer of two that begin equally first.
const SYMBOLS: [&str; 26] = [
    "..", "<>", "<=", ">=", "(", ")", "[", "]", "{", "}", ",", ";", ":", ".", "-", "<", ">", "=",
    "+", "*", "/", "%", "|", "$", "^", "!",
];

/// Divides a text into tokens with their positions. The last token is [`Token::End`].
pub(crate) fn tokens(text: &str) -> Result<Vec<(At, Token)>, (At, String)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        at = skip_blank(text, at)?;
        let Some(first) = text[at..].chars().next() else {
            tokens.push((text.len(), Token::End));
            return Ok(tokens);
        };
        let (token, end) = match first {
            '\'' | '"' => quoted(text, at, first)?,
            '`' => {
                let end = text[at + 1..].find('`').map(|end| at + 1 + end);
                let end = end.ok_or((at, "this name has no closing backquote".to_owned()))?;
                (Token::Word(text[at + 1..end].to_owned(), true), end + 1)
            }
            '0'..='9' => number(text, at)?,
            _ if first.is_alphabetic() || first == '_' => {
                let rest = &text[at..];
                let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let end = at + len.unwrap_or(rest.len());
                (Token::Word(text[at..end].to_owned(), false), end)
            }
            _ => {
                let symbol = SYMBOLS.iter().find(|symbol| text[at..].starts_with(**symbol));
                let symbol =
                    symbol.ok_or_else(|| (at, format!("'{first}' has no meaning here")))?;
                (Token::Symbol(symbol), at + symbol.len())
            }
        };
        tokens.push((at, token));
        at = end;
    }
}

/// Skips white space and comments.
fn skip_blank(text: &str, mut at: At) -> Result<At, (At, String)> {
    loop {
        let rest = text[at..].trim_start();
        at = text.len() - rest.len();
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").ok_or((at, "this comment has no closing '*/'".to_owned()))?;
            at += end + 2;
        } else {
            return Ok(at);
        }
    }
}

fn quoted(text: &str, at: At, quote: char) -> Result<(Token, At), (At, String)> {
    let mut content = String::new();
    let mut chars = text[at + 1..].char_indices();
    while let Some((offset, c)) = chars.next() {
        match c {
            _ if c == quote => return Ok((Token::Text(content), at + 1 + offset + 1)),
            '\\' => content.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, 't')) => '\t',
                Some((_, 'r')) => '\r',
                Some((_, c @ ('\\' | '\'' | '"'))) => c,
                _ => {
                    let why = "use \\n, \\t, \\r, \\\\, \\' or \\\" as an escape".to_owned();
                    return Err((at + 1 + offset, why));
                }
            }),
            _ => content.push(c),
        }
    }
    Err((at, format!("this text has no closing {quote}")))
}

fn number(text: &str, at: At) -> Result<(Token, At), (At, String)> {
    let bytes = text.as_bytes();
    let digits = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    let mut end = digits(at);
    // `1..3` is a range and not a number.
    let mut is_float = false;
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        (end, is_float) = (digits(end + 1), true);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            (end, is_float) = (digits(end + 1 + sign), true);
        }
    }
    let token = match is_float {
        true => text[at..end].parse().map(Token::Float).ok(),
        false => text[at..end].parse().map(Token::Int).ok(),
    };
    let token = token.ok_or((at, "this number is too large; write a smaller one".to_owned()))?;
    Ok((token, end))
}
