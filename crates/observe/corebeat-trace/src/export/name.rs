//! Names of values: events that declare what a number stands for.

use crate::event::Type;
use crate::reader::{ReadField, ReadKind, Record, Value};
use std::collections::HashMap;

/// The names that the events read so far have given to values.
///
/// An event of a kept kind names a value if its first field is an integer and its second field is a
/// text called `name`. The name applies to all fields that are called as the first one. Probes and
/// tasks are declared in this way.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<String, HashMap<u64, String>>);

/// The field whose values are named by events of this kind, if any.
pub(super) fn named_field(kind: &ReadKind) -> Option<&ReadField> {
    let [value, name, ..] = kind.fields() else { return None };
    let is_integer = matches!(value.of, Type::U8 | Type::U16 | Type::U32 | Type::U64);
    let is_name = name.name == "name" && name.of == Type::Text;
    (kind.is_kept() && is_integer && is_name).then_some(value)
}

impl Names {
    /// Records the name that the event declares, if any.
    pub(super) fn learn(&mut self, event: &Record<'_>) {
        let Some(field) = named_field(event.kind()) else { return };
        let mut values = event.values();
        if let (Some(Value::U64(value)), Some(Value::Text(name))) = (values.next(), values.next()) {
            self.0.entry(field.name.clone()).or_default().insert(value, name.to_owned());
        }
    }

    /// The name of a field's value. An event that declares a name shows it itself.
    pub(super) fn get(&self, kind: &ReadKind, field: &ReadField, value: Value<'_>) -> Option<&str> {
        let Value::U64(value) = value else { return None };
        if named_field(kind).is_some() {
            return None;
        }
        self.0.get(&field.name)?.get(&value).map(String::as_str)
    }
}
