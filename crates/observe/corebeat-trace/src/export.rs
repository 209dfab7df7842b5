//! Exporters to other formats.

mod ctf;
#[cfg(feature = "json")]
mod json;
mod name;
mod table;
mod text;

pub use ctf::write_ctf;
#[cfg(feature = "json")]
pub use json::{write_chrome, write_chrome_events, write_json_lines};
pub use table::write_csv;
pub use text::write_text;

use crate::reader::{ReadField, Value};
use std::fmt;

/// A value as text: hexadecimal if its field requests that.
struct Shown<'a>(&'a ReadField, Value<'a>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.1, self.0.hex) {
            (Value::U64(value), true) => write!(f, "{value:#x}"),
            (Value::I64(value), true) => write!(f, "{value:#x}"),
            (Value::U64(value), false) => write!(f, "{value}"),
            (Value::I64(value), false) => write!(f, "{value}"),
            (Value::F32(value), _) => write!(f, "{value}"),
            (Value::F64(value), _) => write!(f, "{value}"),
            (Value::Bool(value), _) => write!(f, "{value}"),
            (Value::Text(value), _) => f.write_str(value),
        }
    }
}
