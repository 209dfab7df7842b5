//! HTML text. Names of programs and threads are input of other users: only the source of this crate
//! supplies markup, and everything else is escaped.

use corebeat_host::printable;
use std::fmt::Display;

/// A growing HTML document.
#[derive(Debug, Default)]
pub(crate) struct Html(String);

impl Html {
    /// Adds markup from the source of this crate.
    pub(crate) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0 += markup;
        self
    }

    /// Adds a text, between tags or in a quoted attribute.
    pub(crate) fn text(&mut self, text: impl Display) -> &mut Self {
        self.escaped(&text.to_string())
    }

    fn escaped(&mut self, text: &str) -> &mut Self {
        for c in printable(text).chars() {
            match c {
                '&' => self.0 += "&amp;",
                '<' => self.0 += "&lt;",
                '>' => self.0 += "&gt;",
                '"' => self.0 += "&quot;",
                '\'' => self.0 += "&#39;",
                c => self.0.push(c),
            }
        }
        self
    }

    /// Adds JSON for scripts, in a `script` element.
    pub(crate) fn json(&mut self, id: &'static str, json: &str) -> &mut Self {
        self.raw("<script type=\"application/json\" id=\"").raw(id).raw("\">");
        // A '<' occurs only within texts. Escaped there, it ends no element and begins no comment.
        self.0 += &json.replace('<', "\\u003c");
        self.raw("</script>\n")
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_add_no_markup() {
        let mut html = Html::default();
        html.raw("<td title=\"").text("\"'&<script>\u{202e}\u{1b}").raw("\">");
        let expected = "<td title=\"&quot;&#39;&amp;&lt;script&gt;\\u{202e}\\u{1b}\">";
        assert_eq!(html.finish(), expected);
    }

    #[test]
    fn json_ends_no_element_and_reads_back() {
        let mut html = Html::default();
        let name = "</script><!--<script>\u{2028}";
        html.json("state", &serde_json::to_string(&[name]).unwrap());
        let text = html.finish();
        let json = text.strip_prefix("<script type=\"application/json\" id=\"state\">").unwrap();
        let json = json.strip_suffix("</script>\n").unwrap();
        assert!(!json.contains('<'), "{json}");
        assert_eq!(serde_json::from_str::<[String; 1]>(json).unwrap(), [name]);
    }
}
