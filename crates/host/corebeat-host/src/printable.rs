//! Text for a terminal.

/// A text in which control characters are escaped, and so are the characters that change the
/// direction of the text around them. Names of programs, threads and files may contain them.
pub fn printable(text: &str) -> String {
    let is_safe = |c: char| {
        let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}');
        !c.is_control() && !turns && !matches!(c, '\u{2066}'..='\u{2069}')
    };
    let escape = |c: char| if is_safe(c) { c.to_string() } else { c.escape_debug().to_string() };
    text.chars().map(escape).collect()
}
