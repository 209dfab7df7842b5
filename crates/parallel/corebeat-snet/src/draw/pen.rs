//! Writer of SVG: shapes and texts, and the widths of texts.

use std::fmt::{Display, Write};

use quick_xml::escape::partial_escape;

/// Classes of texts, with the sizes in `style.css`.
#[derive(Clone, Copy)]
pub(super) enum Font {
    Title,
    Name,
    Head,
    Plain,
    Label,
}

impl Font {
    fn class(self) -> &'static str {
        match self {
            Font::Title => "title",
            Font::Name => "name",
            Font::Head => "head",
            Font::Plain => "plain",
            Font::Label => "label",
        }
    }

    /// Width of a column in tenths of pixels: 0.62 of the height, slightly more than in common
    /// monospace fonts.
    fn column(self) -> i32 {
        match self {
            Font::Title => 99,
            Font::Name => 81,
            Font::Head | Font::Plain => 68,
            Font::Label => 62,
        }
    }

    /// Width of a text in pixels.
    pub(super) fn width(self, text: &str) -> i32 {
        (columns(text) * self.column() + 9) / 10
    }
}

/// Columns of a text: one for an ASCII character, two for any other character.
fn columns(text: &str) -> i32 {
    text.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum()
}

/// Replaces each run of white space by one space.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Cuts a text to one line of at most this many columns.
pub(super) fn cut(text: &str, columns_max: i32) -> String {
    let text = one_line(text);
    if columns(&text) <= columns_max {
        return text;
    }
    let mut left = columns_max - 2; // two columns for the ellipsis
    let kept: String = text
        .chars()
        .take_while(|c| {
            left -= if c.is_ascii() { 1 } else { 2 };
            left >= 0
        })
        .collect();
    kept.trim_end().to_owned() + "…"
}

/// Breaks a text into lines of at most this many columns, at spaces if possible. Text beyond the
/// last line is cut.
pub(super) fn wrap(text: &str, columns_max: i32, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut rest = one_line(text);
    while columns(&rest) > columns_max && lines.len() + 1 < lines_max {
        let mut used = 0;
        let end = rest
            .char_indices()
            .find(|(_, c)| {
                used += if c.is_ascii() { 1 } else { 2 };
                used > columns_max
            })
            .map_or(rest.len(), |(i, _)| i);
        let fits = end + usize::from(rest[end..].starts_with(' '));
        let at = rest[..fits].rfind(' ').filter(|at| *at > 0).unwrap_or(end);
        lines.push(rest[..at].to_owned());
        rest = rest[at..].trim_start().to_owned();
    }
    lines.push(cut(&rest, columns_max));
    lines
}

/// SVG under construction.
#[derive(Default)]
pub(super) struct Ink(pub(super) String);

impl Ink {
    /// Writes SVG.
    pub(super) fn raw(&mut self, svg: impl Display) {
        let _ = write!(self.0, "{svg}"); // a write into a string does not fail
    }

    /// Begins a group with a tooltip.
    pub(super) fn open(&mut self, class: &str, hint: &str) {
        self.raw(format_args!("<g class=\"{class}\">"));
        self.hint(hint);
    }

    /// Ends a group.
    pub(super) fn close(&mut self) {
        self.raw("</g>\n");
    }

    /// Writes the tooltip of the enclosing group.
    pub(super) fn hint(&mut self, text: &str) {
        self.raw("<title>");
        self.escaped(text);
        self.raw("</title>\n");
    }

    /// Places a drawing with its upper left corner at these coordinates.
    pub(super) fn place(&mut self, x: i32, y: i32, svg: &str) {
        self.raw(format_args!("<g transform=\"translate({x} {y})\">\n{svg}</g>\n"));
    }

    pub(super) fn rect(&mut self, x: i32, y: i32, width: i32, height: i32, round: i32) {
        self.raw(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"{round}\"/>\n"
        ));
    }

    pub(super) fn path(&mut self, class: &str, d: impl Display) {
        self.raw(format_args!("<path class=\"{class}\" d=\"{d}\"/>\n"));
    }

    /// Writes a text that begins at these coordinates.
    pub(super) fn text(&mut self, font: Font, x: i32, y: i32, text: &str) {
        self.write(font.class(), x, y, text);
    }

    /// Writes a text that is centred at these coordinates.
    pub(super) fn centred(&mut self, font: Font, x: i32, y: i32, text: &str) {
        self.write(&format!("{} middle", font.class()), x, y, text);
    }

    fn write(&mut self, class: &str, x: i32, y: i32, text: &str) {
        self.raw(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">"));
        self.escaped(text);
        self.raw("</text>\n");
    }

    /// Draws a point where streams part or meet, with a dot inside if the point preserves order.
    pub(super) fn point(&mut self, x: i32, y: i32, deterministic: bool) {
        self.raw(format_args!("<circle class=\"point\" cx=\"{x}\" cy=\"{y}\" r=\"{POINT}\"/>\n"));
        if deterministic {
            self.raw(format_args!(
                "<circle class=\"dot\" cx=\"{x}\" cy=\"{y}\" r=\"{}\"/>\n",
                POINT / 2
            ));
        }
    }

    /// Writes a text. Characters that XML does not allow become U+FFFD.
    pub(super) fn escaped(&mut self, text: &str) {
        let forbidden = |c| matches!(c, '\0'..='\x08' | '\x0b'..='\x1f' | '\u{fffe}' | '\u{ffff}');
        self.0.push_str(&partial_escape(text.replace(forbidden, "\u{fffd}")));
    }
}

/// Radius of a point.
pub(super) const POINT: i32 = 6;

/// Path from one point to another point to its right: horizontal, vertical at `turn`, horizontal.
pub(super) fn elbow((x0, y0): (i32, i32), turn: i32, (x1, y1): (i32, i32)) -> String {
    if y0 == y1 {
        return format!("M{x0} {y0}H{x1}");
    }
    let round = ((y1 - y0).abs() / 2).min(8).min(turn - x0).min(x1 - turn);
    let down = round * (y1 - y0).signum();
    format!(
        "M{x0} {y0}H{}Q{turn} {y0} {turn} {}V{}Q{turn} {y1} {} {y1}H{x1}",
        turn - round,
        y0 + down,
        y1 - down,
        turn + round
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_to_its_columns() {
        assert_eq!(cut("a  b\n c", 5), "a b c");
        assert_eq!(cut("abcdefgh", 6), "abcd…");
        assert_eq!(cut("日本語日本語", 8), "日本語…");
    }

    #[test]
    fn wrapped_text_breaks_at_spaces_if_possible() {
        assert_eq!(wrap("aaa bbb ccc", 7, 3), ["aaa bbb", "ccc"]);
        assert_eq!(wrap("aaaaaaaaaa", 4, 9), ["aaaa", "aaaa", "aa"]);
        assert_eq!(wrap("aaa bbb ccc ddd", 5, 2), ["aaa", "bbb…"]);
        assert_eq!(wrap("", 5, 2), [""]);
    }
}
