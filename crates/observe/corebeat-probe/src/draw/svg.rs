//! SVG pictures.

use std::fmt::Write;

/// Approximate width of a character, and height of a line of text.
const CHARACTER: f64 = 7.3;
pub(super) const LINE: f64 = 20.0;

/// A picture under construction. Its size is the extent of its contents.
pub(super) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// Approximate width of a text.
pub(super) fn width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

impl Svg {
    pub(super) fn new() -> Svg {
        Svg { body: String::new(), width: 0.0, height: 0.0 }
    }

    fn reach(&mut self, x: f64, y: f64) {
        (self.width, self.height) = (self.width.max(x), self.height.max(y));
    }

    /// Adds a text. The position is its left end, at half its height.
    pub(super) fn text(&mut self, x: f64, y: f64, text: &str) {
        let y = y + 4.0;
        self.reach(x + width(text), y + 8.0);
        let _ = writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
    }

    /// Adds a text in a box. `share`, from 0 to 1, is the darkness of the box.
    pub(super) fn boxed(&mut self, x: f64, y: f64, wide: f64, text: &str, share: f64) {
        let (top, high) = (y - LINE / 2.0 + 1.0, LINE - 2.0);
        let light = 95.0 - 30.0 * share.clamp(0.0, 1.0);
        self.reach(x + wide, top + high);
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{high}\" rx=\"3\" \
             fill=\"hsl(28,80%,{light:.0}%)\" stroke=\"#777\"/>"
        );
        self.text(x + 6.0, y, text);
    }

    /// Adds a line, with an arrow at its end if requested.
    pub(super) fn path(&mut self, path: &str, dashed: bool, arrow: bool) {
        let dashes = if dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        let arrow = if arrow { " marker-end=\"url(#arrow)\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<path d=\"{path}\" fill=\"none\" stroke=\"#555\"{dashes}{arrow}/>"
        );
    }

    /// The contents of the file.
    pub(super) fn end(self) -> String {
        let (width, height) = (self.width.ceil() + 20.0, self.height.ceil() + 10.0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"12\">\n\
             <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" \
             markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">\
             <path d=\"M0 0L8 4L0 8z\" fill=\"#555\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.body
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
