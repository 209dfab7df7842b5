//! A box in Rust for `corebeat net run -b`.

use corebeat_snet::body::Out;
use corebeat_snet::{Boxes, Error, Tag, export_boxes};

export_boxes!(boxes());

fn boxes() -> Result<Boxes, Error> {
    Boxes::new().with("words", "(text) -> (word, <length>)", words)
}

/// Outputs the words of a text with their lengths in bytes.
fn words((text,): (String,), out: &mut Out<'_>) -> Result<(), String> {
    for word in text.split_whitespace() {
        out.emit(1, (word, Tag(word.len() as i32)))?;
    }
    Ok(())
}
